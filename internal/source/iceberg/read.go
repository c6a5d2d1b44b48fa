package iceberg

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/source"
)

// tally is what was read of one partition.
type tally struct {
	rows, last int64
}

// counter counts the rows on their way to emit.
type counter struct {
	by        map[batch.TopicPartition]*tally
	rows, max int64
	place     scan.Place
	timed     bool  // whether the rows have Kafka's timestamp
	picks     []int // the emitted columns among those that are read
	schema    *arrow.Schema
	emit      func(arrow.RecordBatch) error
}

// take counts a record and passes its emitted columns on.
func (c *counter) take(rec arrow.RecordBatch) error {
	sc := rec.Schema()
	topicOf := func(int) string { return c.place.Fixed }
	if c.place.Topic != "" {
		topicOf = rec.Column(sc.FieldIndices(c.place.Topic)[0]).(*array.String).Value
	}
	partitionOf := partitions(rec.Column(sc.FieldIndices(c.place.Partition)[0]))
	offsets := rec.Column(sc.FieldIndices(c.place.Offset)[0]).(*array.Int64).Int64Values()
	var cur *tally
	var tp batch.TopicPartition
	for i, off := range offsets {
		if cur == nil || partitionOf(i) != tp.Partition || topicOf(i) != tp.Topic {
			tp = batch.TopicPartition{Topic: topicOf(i), Partition: partitionOf(i)}
			if cur = c.by[tp]; cur == nil {
				tp.Topic = string(append([]byte(nil), tp.Topic...)) // the record's memory goes away
				cur = &tally{last: -1}
				c.by[tp] = cur
			}
		}
		cur.rows++
		cur.last = off
	}
	c.rows += rec.NumRows()
	if c.timed {
		for _, ts := range rec.Column(sc.FieldIndices("timestamp")[0]).(*array.Timestamp).TimestampValues() {
			c.max = max(c.max, int64(ts))
		}
	}
	if len(c.picks) == int(rec.NumCols()) {
		return c.emit(rec)
	}
	defer rec.Release()
	cols := make([]arrow.Array, len(c.picks))
	for i, p := range c.picks {
		cols[i] = rec.Column(p)
	}
	return c.emit(array.NewRecordBatch(c.schema, cols, rec.NumRows()))
}

// Read implements source.Source.
func (s *Source) Read(ctx context.Context, start, end batch.Position, _ source.ReadEnv, emit func(arrow.RecordBatch) error) (source.ReadResult, error) {
	ranges := start.Ranges(end)
	if len(ranges) == 0 {
		return source.ReadResult{End: end}, nil
	}
	t, _, err := s.check(ctx, end)
	if err != nil {
		return source.ReadResult{}, err
	}
	if v := s.identity(t, start); v != nil {
		return source.ReadResult{}, violated(*v)
	}
	place, err := s.place(end.Table.Upstream)
	if err != nil {
		return source.ReadResult{}, err
	}
	c := &counter{by: map[batch.TopicPartition]*tally{}, schema: s.schema, emit: emit, place: place, timed: s.timed()}
	columns := s.readColumns(c)
	if err := s.rows(ctx, t, start, end, ranges, columns, c); err != nil {
		return source.ReadResult{}, err
	}
	out := end.Clone()
	erased, err := s.settle(t, start, out, c)
	if err != nil {
		return source.ReadResult{}, err
	}
	return source.ReadResult{End: out, Rows: c.rows, MaxTimestampMicros: c.max, Erased: erased}, nil
}

// readColumns are the emitted columns, then those that counting needs.
func (s *Source) readColumns(c *counter) []string {
	var names []string
	at := map[string]bool{}
	for i, f := range s.schema.Fields() {
		names = append(names, f.Name)
		at[f.Name] = true
		c.picks = append(c.picks, i)
	}
	if s.cfg.Rows != nil {
		return names // the place is among them
	}
	for _, need := range []string{"topic", "partition", "offset", "timestamp"} {
		if !at[need] {
			names = append(names, need)
		}
	}
	return names
}

// rows reads from memory where the upstream still has the batch there, else
// from the table.
func (s *Source) rows(ctx context.Context, t *table.Table, start, end batch.Position, ranges []batch.Range, columns []string, c *counter) error {
	if s.cfg.Hot != nil && len(columns) == len(c.picks) {
		served, err := s.cfg.Hot.Rows(ctx, start, end, c.take)
		if err != nil || served {
			return err
		}
	}
	pin, err := s.pin(t, end.Table.Upstream)
	if err != nil {
		return err
	}
	req := scan.Request{Table: t, SnapshotID: pin, Since: start.Table.SnapshotID, Want: ranges, Columns: columns, Parallel: s.cfg.Parallel}
	if s.cfg.Rows != nil {
		req.Schema, req.Place, req.Renamed = s.schema, c.place, s.cfg.Rows.Renamed
	}
	_, err = scan.Range(ctx, req, c.take)
	if err != nil && failure.ClassOf(err) == failure.Runtime {
		return fmt.Errorf("read table %s: %w", s.cfg.Name, err)
	}
	return err
}

// pin is the oldest snapshot that has everything before end, so that a backlog
// is not read through the history of the whole table; never one from before an
// overwrite, because rows that were deleted since must stay deleted, nor one from
// before a change of the columns, because it is read under the names of its time.
func (s *Source) pin(t *table.Table, end *batch.KafkaPosition) (int64, error) {
	snap := t.CurrentSnapshot()
	if snap == nil {
		return 0, failure.New(failure.SourceChanged, "table %s has no snapshot any more", s.cfg.Name)
	}
	pin := snap.SnapshotID
	for {
		if snap.Summary == nil || snap.Summary.Operation != table.OpAppend && snap.Summary.Operation != table.OpReplace || snap.ParentSnapshotID == nil {
			return pin, nil
		}
		parent := t.SnapshotByID(*snap.ParentSnapshotID)
		if parent == nil || parent.SequenceNumber >= snap.SequenceNumber || !sameColumns(snap, parent) {
			return pin, nil
		}
		v, err := s.seen.of(parent)
		if err != nil {
			return 0, err
		}
		if v != nil {
			if !covers(v, end) {
				return pin, nil
			}
			pin = parent.SnapshotID
		}
		snap = parent
	}
}

func sameColumns(a, b *table.Snapshot) bool {
	return a.SchemaID == nil || b.SchemaID == nil || *a.SchemaID == *b.SchemaID
}

// settle checks the rows against the upstream's counts and fills in end. It
// returns how many rows of the range are gone because they were erased.
func (s *Source) settle(t *table.Table, start, end batch.Position, c *counter) (erased int64, err error) {
	declared, err := s.declared(t)
	if err != nil {
		return 0, err
	}
	up := end.Table.Upstream
	up.Each(func(topic, id string, part int32, e batch.PartitionPosition) {
		st, ok := start.Vector().Get(topic, part)
		if !ok {
			st = unread
		}
		if err != nil || e.HandedTo != "" || e.NextOffset <= st.NextOffset {
			return
		}
		got := tally{last: -1}
		if p := c.by[batch.TopicPartition{Topic: topic, Partition: part}]; p != nil {
			got = *p
		}
		r := batch.Range{Topic: topic, Partition: part, From: st.NextOffset, To: e.NextOffset}
		least, most, derr := marker.DeclaredWithin(declared, r)
		switch {
		case derr != nil:
			err = failure.Wrap(failure.Config, derr, "table %s", s.cfg.Name)
		case s.cfg.Rows != nil: // what the upstream read is not what it put out
			erased += most
		case st.Rows >= 0 && e.Rows >= 0:
			erased += max(0, e.Rows-st.Rows-got.rows)
			err = s.compare(r, e.Rows-st.Rows, got.rows, least, most)
		case st.Rows >= 0 && least == most:
			// Of deletions without their offsets the upstream's count is not
			// known before its next commit's.
			e.Rows = st.Rows + got.rows + least
			erased += least
		}
		if e.LastOffset = got.last; got.rows == 0 {
			e.LastOffset = st.LastOffset
		}
		up.Set(topic, id, part, e)
	})
	if s.cfg.Rows != nil && err == nil {
		err = s.judge(t, start, end, c.rows, declared)
	}
	return erased, err
}

// compare refuses a range whose rows are not those that the upstream counted,
// less those that were deleted on purpose.
func (s *Source) compare(r batch.Range, want, got, least, most int64) error {
	where := fmt.Sprintf("%s-%d [%d, %d) in table %s", r.Topic, r.Partition, r.From, r.To, s.cfg.Name)
	switch {
	case want < 0:
		return failure.New(failure.SourceChanged, "the upstream's row count went back by %d over %s", -want, where).
			WithHint("the query that feeds the table was started over; reset this query's checkpoint")
	case got > want:
		return failure.New(failure.SourceChanged, "%d rows too many: %s holds %d, its query delivered %d", got-want, where, got, want).
			WithHint("rows were added twice or by somebody else; weir audit names them")
	case got > want-least:
		return failure.New(failure.SourceChanged, "%d rows that were erased are there again: %s holds %d, its query delivered %d and %d were erased", got-want+least, where, got, want, least).
			WithHint("the table was set back to a snapshot from before the erasure; roll it forward")
	case got < want-most:
		return failure.New(failure.SourceChanged, "rows missing upstream: %s holds %d rows, its query delivered %d", where, got, want).
			WithHint("restore the rows; what is to be deleted on purpose is deleted with weir erase, or declared in the table property %s", marker.DeclaredDeletesKey)
	}
	return nil
}

// declared are the deletions on purpose of a loaded table.
func (s *Source) declared(t *table.Table) ([]marker.DeclaredDelete, error) {
	out, err := marker.DeclaredDeletes(t.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", s.cfg.Name)
	}
	return out, nil
}

// Erasures implements source.Erasable.
func (s *Source) Erasures(ctx context.Context) (string, error) {
	t, err := s.loadExisting(ctx)
	if err != nil {
		return "", err
	}
	return marker.ErasuresOf(t.Properties()), nil
}
