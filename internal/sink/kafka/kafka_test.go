package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

const messageBytes = 20_000

var idSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func records(ids, bad []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idSchema)
	defer b.Release()
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		note := "fine"
		for _, x := range bad {
			if x == id {
				note = strings.Repeat("x", messageBytes)
			}
		}
		b.Field(1).(*array.StringBuilder).Append(note)
	}
	return b.NewRecordBatch()
}

// cluster is a broker under test.
type cluster struct {
	bootstrap string
	topic     string
}

func (c cluster) client(t *testing.T, more ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.bootstrap), kgo.MetadataMinAge(metadataAge)}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func (c cluster) create(t *testing.T) {
	t.Helper()
	limit := fmt.Sprint(messageBytes)
	r, err := kadm.NewClient(c.client(t)).CreateTopic(context.Background(), 3, 1, map[string]*string{"max.message.bytes": &limit}, c.topic)
	if err == nil {
		err = r.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Fatal(err)
	}
}

// committed are all records of the topic that a read_committed reader gets.
func (c cluster) committed(t *testing.T) (out []*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	adm := kadm.NewClient(c.client(t))
	topics, err := adm.ListTopics(ctx, c.topic)
	if err != nil {
		t.Fatal(err)
	}
	if topics[c.topic].Err != nil {
		return nil
	}
	ends, err := adm.ListCommittedOffsets(ctx, c.topic)
	if err != nil {
		t.Fatal(err)
	}
	starts, left := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, o := range ends[c.topic] {
		if o.Offset > 0 {
			starts[p], left[p] = kgo.NewOffset().AtStart(), o.Offset
		}
	}
	if len(left) == 0 {
		return nil
	}
	cl := c.client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{c.topic: starts}), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	for len(left) > 0 {
		fs := cl.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return out
}

func (c cluster) ids(t *testing.T) (out []int64) {
	t.Helper()
	for _, r := range c.committed(t) {
		var id int64
		if _, err := fmt.Sscanf(string(r.Value), `{"id":%d,`, &id); err != nil {
			t.Fatalf("%s: %v", r.Value, err)
		}
		out = append(out, id)
	}
	return out
}

func (c cluster) open(t *testing.T, query string, change func(*Options)) *Sink {
	t.Helper()
	o := Options{Client: []kgo.Opt{kgo.SeedBrokers(c.bootstrap)}, Topic: c.topic, Query: query, Arrow: idSchema, Clock: clock.System{},
		Key: "id", Limits: Limits{BackoffMin: time.Millisecond, CommitDeadline: time.Minute}}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func harness(bootstrap string) func(t *testing.T) sinktest.External {
	n := 0
	return func(t *testing.T) sinktest.External {
		n++
		c := cluster{bootstrap, fmt.Sprintf("rows-%d", n)}
		var sinks []*Sink
		open := func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
			s := c.open(t, query, func(o *Options) { o.OnRejected = policy })
			sinks = append(sinks, s)
			return sinktest.Opened{Sink: s,
				BeforeNext: func(f func() error) { s.hooks.before = f },
				AfterNext:  func(f func() error) { s.hooks.after = f }}
		}
		calls := func(*testing.T) (n int) {
			for _, s := range sinks {
				n += s.calls
			}
			return n
		}
		return sinktest.External{
			Harness: sinktest.Harness{
				InMemory: true,
				Open:     func(t *testing.T, query string) sinktest.Opened { return open(t, query, sink.RejectFail) },
				Record:   func(ids []int64) arrow.RecordBatch { return records(ids, nil) },
				IDs:      c.ids,
				Files:    calls,
				Drop: func(t *testing.T) {
					if _, err := kadm.NewClient(c.client(t)).DeleteTopics(context.Background(), c.topic); err != nil {
						t.Fatal(err)
					}
				},
			},
			OpenWith: func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
				c.create(t)
				return open(t, query, policy)
			},
			Refused: records,
			Calls:   calls,
		}
	}
}

func TestConformanceOnTheEmbeddedBroker(t *testing.T) {
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	sinktest.RunExternal(t, harness(k.ListenAddrs()[0]))
}

func TestConformanceOnApacheKafka(t *testing.T) {
	b := kafkatest.Start(t)
	sinktest.RunExternal(t, harness(b.Bootstrap()))
}
