package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/source"
)

const (
	// pollMax bounds one wait for records; then the read looks after itself.
	pollMax = 100 * time.Millisecond
	// probeAfter is how long nothing may come before the broker is asked
	// whether anything is left in the range.
	probeAfter = 250 * time.Millisecond
	// rebuildAfter is how long nothing may come, although the broker has
	// records in the range, before the consumer is made anew.
	rebuildAfter = 15 * time.Second
)

// Read implements source.Source. See the package's documentation for the order
// of rows and for why the range is complete.
func (s *Source) Read(ctx context.Context, start, end batch.Position, env source.ReadEnv, emit func(arrow.RecordBatch) error) (source.ReadResult, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	want, expect, err := s.wanted(ctx, start, end)
	if err != nil {
		return source.ReadResult{}, err
	}
	if expect == 0 {
		// Nothing to fetch; a consumer that stands here stays.
		return source.ReadResult{End: filled(start, end, nil)}, nil
	}
	r, err := s.align(ctx, want)
	if err != nil {
		return source.ReadResult{}, err
	}
	for tp, w := range want {
		r.parts[tp].begin(w.end)
	}
	w := newRowWriter(env.BatchTimeMicros, expect, s.avgRowBytes(), emit)
	defer w.release()
	rd := &reading{s: s, r: r, w: w, start: start, quiet: s.watch(), probed: s.watch()}
	if err := rd.run(ctx); err != nil {
		// Whatever was consumed is not where any later read starts.
		s.dropReader()
		return source.ReadResult{}, err
	}
	s.noteRowBytes(w)
	s.mu.Lock()
	for _, p := range r.parts {
		p.next = p.end
	}
	s.mu.Unlock()
	res := source.ReadResult{End: filled(start, end, r.parts), Rows: w.total}
	if w.total > 0 {
		res.MaxTimestampMicros = w.maxMicros
	}
	return res, nil
}

// wanted lists the partitions to consume: those of the range, and those that
// have nothing in it, so that the consumer is where the next batch begins.
func (s *Source) wanted(ctx context.Context, start, end batch.Position) (map[batch.TopicPartition]*partition, int64, error) {
	if start.Kafka == nil || end.Kafka == nil {
		return nil, 0, failure.New(failure.Config, "a Kafka source reads between Kafka positions only")
	}
	want := map[batch.TopicPartition]*partition{}
	var expect int64
	var bad error
	end.Kafka.Each(func(topic, id string, part int32, to batch.PartitionPosition) {
		tp := batch.TopicPartition{Topic: topic, Partition: part}
		from, ok := start.Kafka.Get(topic, part)
		switch {
		case to.HandedTo != "" || from.HandedTo != "":
			return
		case !ok:
			bad = failure.New(failure.Checkpoint, "the plan ends in partition %s at %d but does not start there", tp, to.NextOffset)
			return
		case to.NextOffset < from.NextOffset:
			bad = failure.New(failure.Checkpoint, "the plan of partition %s ends at %d before it starts at %d", tp, to.NextOffset, from.NextOffset)
			return
		}
		want[tp] = &partition{tp: tp, topicID: id, next: from.NextOffset, fetched: from.NextOffset, end: to.NextOffset}
		expect += to.NextOffset - from.NextOffset
	})
	if bad == nil && expect > 0 && s.cfg.TolerateDataLoss {
		bad = s.skipLost(ctx, want)
	}
	return want, expect, bad
}

// skipLost moves the fetch positions past what retention removed.
func (s *Source) skipLost(ctx context.Context, want map[batch.TopicPartition]*partition) error {
	tps := make([]batch.TopicPartition, 0, len(want))
	for tp := range want {
		tps = append(tps, tp)
	}
	starts, err := s.listStart(ctx, tps)
	if err != nil {
		return err
	}
	for tp, p := range want {
		if starts[tp] > p.fetched {
			s.log.Warn("records were lost by retention and are skipped (failOnDataLoss: false)",
				"topic", tp.Topic, "partition", tp.Partition, "from", p.fetched, "to", starts[tp])
			p.fetched = starts[tp]
		}
	}
	return nil
}

// align gives a reader that stands at the start of want.
func (s *Source) align(ctx context.Context, want map[batch.TopicPartition]*partition) (*reader, error) {
	s.mu.Lock()
	r := s.reader
	ok := r != nil && r.continues(want)
	s.mu.Unlock()
	if ok {
		r.resume()
		return r, nil
	}
	s.dropReader()
	v, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	if r, err = newReader(s.opts, v.brokers, want); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.reader = r
	s.mu.Unlock()
	return r, nil
}

// filled is end with what the read found out.
func filled(start, end batch.Position, parts map[batch.TopicPartition]*partition) batch.Position {
	out := end.Clone()
	end.Kafka.Each(func(topic, _ string, part int32, to batch.PartitionPosition) {
		if to.HandedTo != "" {
			return
		}
		from, _ := start.Kafka.Get(topic, part)
		from.NextOffset = to.NextOffset
		if p := parts[batch.TopicPartition{Topic: topic, Partition: part}]; p != nil && p.rows > 0 {
			from.LastOffset, from.LeaderEpoch = p.last, p.lastEpoch
			if from.Rows >= 0 {
				from.Rows += p.rows
			}
		}
		out.Kafka.Set(topic, "", part, from)
	})
	return out
}

func (s *Source) avgRowBytes() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rowBytesAvg
}

func (s *Source) noteRowBytes(w *rowWriter) {
	if w.total == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rowBytesAvg = float64(w.totalBytes) / float64(w.total)
}

// reading is one Read under way.
type reading struct {
	s     *Source
	r     *reader
	w     *rowWriter
	start batch.Position

	quiet  *clock.Stopwatch // since something came
	probed *clock.Stopwatch // since the last probes
	// What the last probes said, for the error when nothing ever comes.
	probeErr error
	present  *clock.Stopwatch // since the broker has had records that do not come; nil: it has none
	short    bool             // the log ends before the plan does
	// clientErr is what the client reported last and goes on from by itself.
	clientErr error
	// streaming is set once the batch is too large to be kept and sorted.
	streaming bool
}

func (rd *reading) run(ctx context.Context) error {
	if err := rd.emit(false); err != nil {
		return err
	}
	for !rd.complete() {
		poll, cancel := context.WithTimeout(ctx, pollMax)
		fetches := rd.r.cl.PollFetches(poll)
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		came, err := rd.handle(ctx, fetches)
		if err != nil {
			return err
		}
		if err := rd.emit(false); err != nil {
			return err
		}
		if came {
			rd.quiet.Reset()
			rd.present, rd.probeErr, rd.short = nil, nil, false
			rd.r.bound()
			rd.r.adapt()
			continue
		}
		if err := rd.idle(ctx); err != nil {
			return err
		}
	}
	if err := rd.emit(true); err != nil {
		return err
	}
	if err := rd.w.flush(); err != nil {
		return err
	}
	return rd.checkTopics(ctx)
}

// emit writes what was fetched of the batch. A small batch is kept until it is
// whole and written in order of topic and partition.
func (rd *reading) emit(whole bool) error {
	if !whole && !rd.streaming {
		var kept int64
		for _, p := range rd.r.parts {
			kept += p.pendingBytes
		}
		if kept <= sortBytesMax {
			return nil
		}
		rd.streaming = true
	}
	for _, p := range rd.r.sorted() {
		if len(p.pending) == 0 || p.pending[0].Offset >= p.end {
			continue // all of it is for the next batch
		}
		if err := p.take(rd.w); err != nil {
			return err
		}
	}
	return nil
}

func (rd *reading) complete() bool {
	for _, p := range rd.r.parts {
		if !p.done() {
			return false
		}
	}
	return true
}

// handle takes one poll. Errors of the client are judged here.
func (rd *reading) handle(ctx context.Context, fetches kgo.Fetches) (came bool, err error) {
	for _, f := range fetches {
		for _, t := range f.Topics {
			for i := range t.Partitions {
				fp := &t.Partitions[i]
				p := rd.r.parts[batch.TopicPartition{Topic: t.Topic, Partition: fp.Partition}]
				if fp.Err != nil {
					if err := rd.judge(ctx, t.Topic, p, fp.Err); err != nil {
						return came, err
					}
					continue
				}
				if p == nil || len(fp.Records) == 0 {
					continue
				}
				if err := rd.check(p, topicID(t.TopicID), fp); err != nil {
					return came, err
				}
				came = true
				if err := p.accept(fp.Records); err != nil {
					return came, err
				}
			}
		}
	}
	return came, nil
}

// check compares a fetch with the topic and the place that it should be of.
func (rd *reading) check(p *partition, id string, fp *kgo.FetchPartition) error {
	if id != "" && p.topicID != "" {
		if id != p.topicID {
			return changed([]source.Violation{{Topic: p.tp.Topic, Partition: -1, Hint: hintRecreated,
				Text: "topic " + p.tp.Topic + " was deleted and created again while it was read: its id is " + id + ", the plan's is " + p.topicID}})
		}
		p.sameTopic = true
	}
	if fp.LogStartOffset > p.fetched && !rd.s.cfg.TolerateDataLoss {
		return changed([]source.Violation{retentionViolation(p.tp, p.fetched, fp.LogStartOffset)})
	}
	return nil
}

// judge says what an error of the client means for the read: nil goes on.
func (rd *reading) judge(ctx context.Context, topic string, p *partition, err error) error {
	var loss *kgo.ErrDataLoss
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return nil // our own poll
	case errors.Is(err, kgo.ErrClientClosed):
		return failure.Wrap(failure.Runtime, err, "the Kafka source was closed while it was read")
	case broker.Misconfigured(err):
		return failure.Wrap(failure.Config, err, "read topic %s: the broker refuses it as the connection is configured", topic)
	case errors.As(err, &loss):
		return changed([]source.Violation{{Topic: loss.Topic, Partition: loss.Partition, Hint: hintTruncated,
			Text: loss.Error()}})
	case errors.Is(err, kerr.OffsetOutOfRange), errors.Is(err, kerr.UnknownTopicID),
		errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InconsistentTopicID):
		return rd.contradicted(ctx, p, err)
	case kerr.IsRetriable(err), p == nil:
		rd.clientErr = err
		rd.s.log.Debug("kafka fetch failed, the client tries again", "topic", topic, "error", err)
		return nil
	}
	return failure.Wrap(failure.Runtime, err, "fetch partition %s at offset %d", p.tp, p.fetched)
}

// contradicted asks Verify what is wrong at the place that was to be fetched.
// Where nothing is, the cluster was recovering, and a new consumer goes on: the
// client gives a partition up after such an error.
func (rd *reading) contradicted(ctx context.Context, p *partition, cause error) error {
	violations, err := rd.s.Verify(ctx, rd.place())
	if err != nil {
		return err
	}
	if len(violations) > 0 {
		return changed(violations)
	}
	rd.s.log.Info("kafka fetch was refused, but the position is there; consuming anew", "error", cause)
	return rd.rebuild(ctx)
}

// place is the position up to which everything was fetched.
func (rd *reading) place() batch.Position {
	pos := rd.start.Clone()
	for tp, p := range rd.r.parts {
		at, _ := pos.Kafka.Get(tp.Topic, tp.Partition)
		at.NextOffset = p.fetched
		if p.rows > 0 {
			at.LastOffset, at.LeaderEpoch = p.last, p.lastEpoch
		}
		pos.Kafka.Set(tp.Topic, "", tp.Partition, at)
	}
	return pos
}

// rebuild replaces the consumer by one that stands where the old one stood.
// Its pause between tries is the poll's and the probe's.
func (rd *reading) rebuild(ctx context.Context) error {
	if rd.s.cfg.TolerateDataLoss {
		if err := rd.s.skipLost(ctx, rd.r.parts); err != nil {
			return err
		}
	}
	v, err := rd.s.view(ctx)
	if err != nil {
		return err
	}
	rd.r.cl.Close()
	fresh, err := newReader(rd.s.opts, v.brokers, rd.r.parts)
	if err != nil {
		return err
	}
	for _, p := range fresh.parts {
		p.paused = false
	}
	rd.s.mu.Lock()
	rd.s.reader = fresh
	rd.s.mu.Unlock()
	rd.r = fresh
	return rd.s.clk.Sleep(ctx, recheckWait)
}

// checkTopics confirms the identity where no fetch did (a broker without topic
// ids in fetches, or a range without records).
func (rd *reading) checkTopics(ctx context.Context) error {
	unsure := false
	for _, p := range rd.r.parts {
		unsure = unsure || (p.next < p.end && !p.sameTopic)
	}
	if !unsure {
		return nil
	}
	v, err := rd.s.view(ctx, topicsOf(rd.start.Kafka)...)
	if err != nil {
		return err
	}
	if v.clusterID == rd.start.Kafka.ClusterID {
		if violations, _ := identities(v, rd.start.Kafka); len(violations) == 0 {
			return nil
		}
	}
	return rd.contradicted(ctx, nil, errors.New("metadata contradicts the plan"))
}
