package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/ingest/contract"
)

// HeaderRevived marks a record of the dead-letter topic that holds no event: its
// value lists which offsets of this partition were published to the main topic,
// in the same transaction. A reader of dead letters skips it.
const HeaderRevived = "weir-revived"

const (
	// reviveBatch is how many letters one transaction publishes.
	reviveBatch = 1000
	// reviveTimeout bounds one transaction, and how long others' open ones are
	// waited for.
	reviveTimeout = time.Minute
)

// Revived says what a replay of a dead-letter topic has found and done.
type Revived struct {
	Ingest string `json:"ingest"`
	Topic  string `json:"topic"`
	// Letters are those in the topic, Before the ones that earlier replays have
	// published, Replayed those of this one; Truncated cannot be published.
	Letters   int64            `json:"letters"`
	Before    int64            `json:"replayed_before"`
	Found     int64            `json:"found"`
	Replayed  int64            `json:"replayed"`
	Truncated int64            `json:"truncated"`
	Failed    map[string]int64 `json:"failed,omitempty"`
}

// Revive puts the letters of a dead-letter topic to the contract as it is now and
// publishes those that meet it, each once.
//
// What was published is written into the dead-letter topic itself, in the
// transaction that publishes: retention takes a letter before it takes the record
// that speaks of it. The fixed transactional id is claimed before the topic is
// read, so that a replay that was overtaken can add nothing to what is read. The
// read goes up to the high watermark, not to the last stable offset: behind
// somebody's open transaction there may stand a record of ours.
func Revive(ctx context.Context, cfg Config, opts []kgo.Opt, dryRun bool) (*Revived, error) {
	con, err := contract.Compile(contract.Options{Schema: cfg.Schema, KeyPath: cfg.KeyPath, Canary: cfg.Canary})
	if err != nil {
		return nil, err
	}
	v := &reviver{cfg: cfg, opts: opts, check: con.NewChecker(), out: Revived{Ingest: cfg.Name, Topic: cfg.DeadLetterTopic, Failed: map[string]int64{}}}
	if !dryRun {
		v.producer, err = kgo.NewClient(append(slices.Clone(opts), kgo.TransactionalID("weir-dlq-"+cfg.Name+"-"+cfg.DeadLetterTopic),
			kgo.TransactionTimeout(reviveTimeout), kgo.RecordPartitioner(revivePartitioner(cfg.DeadLetterTopic)))...)
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "make a Kafka client")
		}
		defer v.producer.Close()
		if _, _, err := v.producer.ProducerID(ctx); err != nil {
			return nil, failure.Wrap(failure.Unreachable, err, "claim the replay of topic %s", cfg.DeadLetterTopic)
		}
	}
	letters, err := v.read(ctx)
	if err != nil {
		return nil, err
	}
	return &v.out, v.publish(ctx, v.judge(letters))
}

// revivePartitioner leaves records for the dead-letter topic where they say, and
// others to their key.
func revivePartitioner(dead string) kgo.Partitioner {
	manual, keyed := kgo.ManualPartitioner(), kgo.StickyKeyPartitioner(nil)
	return kgo.BasicConsistentPartitioner(func(topic string) func(*kgo.Record, int) int {
		if topic == dead {
			return manual.ForTopic(topic).Partition
		}
		return keyed.ForTopic(topic).Partition
	})
}

type reviver struct {
	cfg      Config
	opts     []kgo.Opt
	producer *kgo.Client
	check    *contract.Checker
	out      Revived
}

// read gives the letters that no earlier replay has published.
func (v *reviver) read(ctx context.Context) ([]*kgo.Record, error) {
	client, err := kgo.NewClient(v.opts...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "make a Kafka client")
	}
	defer client.Close()
	adm := kadm.NewClient(client)
	ends, err := adm.ListEndOffsets(ctx, v.cfg.DeadLetterTopic)
	if err == nil {
		err = ends.Error()
	}
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, nil
	}
	starts, serr := adm.ListStartOffsets(ctx, v.cfg.DeadLetterTopic)
	if err = errors.Join(err, serr, starts.Error()); err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "look at topic %s", v.cfg.DeadLetterTopic)
	}
	from, left := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		s, ok := starts.Lookup(o.Topic, o.Partition)
		if ok && s.Offset < o.Offset {
			from[o.Partition], left[o.Partition] = kgo.NewOffset().At(s.Offset), o.Offset
		}
	})
	if len(left) == 0 {
		return nil, nil
	}
	consumer, err := kgo.NewClient(append(slices.Clone(v.opts), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{v.cfg.DeadLetterTopic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "make a Kafka client")
	}
	defer consumer.Close()
	return v.collect(ctx, consumer, left)
}

// collect reads up to the given offsets.
func (v *reviver) collect(ctx context.Context, consumer *kgo.Client, left map[int32]int64) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, reviveTimeout)
	defer cancel()
	var letters []*kgo.Record
	done := map[int32]map[int64]bool{}
	for len(left) > 0 {
		fetches := consumer.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, failure.Wrap(failure.Unreachable, ctx.Err(), "read topic %s to its end", v.cfg.DeadLetterTopic).
				WithHint("is a transaction open in it? Then try again when it has ended")
		}
		if err := fetches.Err(); err != nil {
			return nil, failure.Wrap(failure.Unreachable, err, "read topic %s", v.cfg.DeadLetterTopic)
		}
		var bad error
		fetches.EachRecord(func(r *kgo.Record) {
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
			switch {
			case r.Attrs.IsControl():
			case headerOf(r, HeaderRevived) != nil:
				var offsets []int64
				bad = errors.Join(bad, json.Unmarshal(r.Value, &offsets))
				if done[r.Partition] == nil {
					done[r.Partition] = map[int64]bool{}
				}
				for _, o := range offsets {
					done[r.Partition][o] = true
				}
			default:
				letters = append(letters, r)
			}
		})
		if bad != nil {
			return nil, failure.Wrap(failure.Checkpoint, bad, "topic %s: a record with the header %s", v.cfg.DeadLetterTopic, HeaderRevived)
		}
	}
	v.out.Letters = int64(len(letters))
	letters = slices.DeleteFunc(letters, func(r *kgo.Record) bool { return done[r.Partition][r.Offset] })
	v.out.Before = v.out.Letters - int64(len(letters))
	return letters, nil
}

func headerOf(r *kgo.Record, key string) *kgo.RecordHeader {
	for i := range r.Headers {
		if r.Headers[i].Key == key {
			return &r.Headers[i]
		}
	}
	return nil
}

// revival is a letter with the record that it becomes.
type revival struct{ letter, record *kgo.Record }

// judge puts letters to the contract.
func (v *reviver) judge(letters []*kgo.Record) (out []revival) {
	for _, r := range letters {
		if headerOf(r, HeaderTruncated) != nil {
			v.out.Truncated++
			continue
		}
		verdict := v.check.Check(r.Value)
		switch {
		case verdict.Canary:
			v.out.Failed["canary"]++
		case verdict.Reason != "":
			v.out.Failed[string(verdict.Reason)]++
		default:
			out = append(out, revival{r, &kgo.Record{Topic: v.cfg.Topic, Key: slices.Clone(verdict.Key), Value: r.Value, Timestamp: r.Timestamp}})
		}
	}
	v.out.Found = int64(len(out))
	return out
}

// publish writes letters to the main topic, and beside them what was written.
func (v *reviver) publish(ctx context.Context, all []revival) error {
	if v.producer == nil {
		return nil
	}
	for part := range slices.Chunk(all, reviveBatch) {
		if err := v.transaction(ctx, part); err != nil {
			return failure.Wrap(failure.Unreachable, err, "publish dead letters of topic %s", v.cfg.DeadLetterTopic).
				WithHint("run it again: what was published is known, what was not comes again")
		}
		v.out.Replayed += int64(len(part))
	}
	return nil
}

func (v *reviver) transaction(ctx context.Context, part []revival) error {
	ctx, cancel := context.WithTimeout(ctx, reviveTimeout)
	defer cancel()
	if err := v.producer.BeginTransaction(); err != nil {
		return err
	}
	offsets := map[int32][]int64{}
	records := make([]*kgo.Record, 0, len(part))
	for _, p := range part {
		records = append(records, p.record)
		offsets[p.letter.Partition] = append(offsets[p.letter.Partition], p.letter.Offset)
	}
	for partition, list := range offsets {
		value, err := json.Marshal(list)
		if err != nil {
			return fmt.Errorf("encode offsets: %w", err)
		}
		records = append(records, &kgo.Record{Topic: v.cfg.DeadLetterTopic, Partition: partition, Value: value,
			Headers: []kgo.RecordHeader{{Key: HeaderRevived, Value: []byte(v.cfg.Topic)}}})
	}
	if err := v.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return errors.Join(err, v.producer.EndTransaction(context.WithoutCancel(ctx), kgo.TryAbort))
	}
	fault.Reach(reviveScope, fault.IngestTxnBegin)
	if err := v.producer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	fault.Reach(reviveScope, fault.IngestTxnCommit)
	return nil
}

// reviveScope is the scope of a replay's crash points.
const reviveScope = "dlq"
