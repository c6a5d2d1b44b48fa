package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/weirlake/weir/internal/failure"
)

// tableOffsets is what a table holds of one topic.
type tableOffsets struct {
	partitions map[int32]*OffsetSet
	rows       int64
	nulls      int64
	others     int64
}

func newTableOffsets() *tableOffsets { return &tableOffsets{partitions: map[int32]*OffsetSet{}} }

func (o *tableOffsets) add(partition int32, offset int64) {
	s := o.partitions[partition]
	if s == nil {
		s = NewOffsetSet()
		o.partitions[partition] = s
	}
	s.Add(offset)
}

func (o *tableOffsets) distinct() (n int64) {
	for _, s := range o.partitions {
		n += s.Len()
	}
	return n
}

func (o *tableOffsets) doubled() (n int64) {
	for _, s := range o.partitions {
		n += s.Doubled()
	}
	return n
}

func (o *tableOffsets) doubledRanges() []Range {
	var out []Range
	for _, p := range sortedKeys(o.partitions) {
		out = append(out, named(p, o.partitions[p].DoubledRanges(), ReasonDoubled)...)
	}
	return out
}

func named(partition int32, ranges [][2]int64, reason string) []Range {
	out := make([]Range, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, Range{Partition: partition, From: r[0], To: r[1], Reason: reason})
	}
	return out
}

// auditKafkaTable compares one table with its topic.
func (r *run) auditKafkaTable(ctx context.Context, t TableConfig, rep *TableReport) error {
	m := r.pinned[t.Name]
	if m == nil {
		rep.mismatch("the table does not exist")
		m = &metadata{}
	}
	rep.describe(m)
	e, err := m.end(t.Topic)
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	// Kafka is asked after the table was pinned: whatever the table holds was
	// stable in Kafka before.
	bounds, err := r.kafka.Bounds(ctx, t.Topic)
	if t.several && failure.Is(err, failure.Config) {
		rep.inconclusive("Kafka has no topic %s any more: nothing is left to compare with", t.Topic)
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case t.several && e.source == "" && m.knowsTopics():
		e.source = endSnapshot // no batch has read this topic yet
	case t.End != nil:
		e.offsets, e.source = t.End, endExplicit
	case e.source == "":
		e.source = endLog
		for p, b := range bounds.Partitions {
			e.offsets[p] = b.Stable
		}
	case e.clusterID != "" && bounds.ClusterID != "" && e.clusterID != bounds.ClusterID:
		rep.inconclusive("the table was filled from cluster %s, this is cluster %s", e.clusterID, bounds.ClusterID)
	case e.topicID != "" && bounds.HasTopicID && !sameTopicID(e.topicID, bounds.TopicID):
		rep.inconclusive("the table was filled from another topic of this name, id %s; this one is %s", e.topicID, uuidText(bounds.TopicID))
	}
	rep.End, rep.EndSource = e.offsets, e.source
	rep.noteWriters(m)
	held, err := r.readOffsets(ctx, m, t.columns(), t.Topic, rep, nil)
	r.offsets[t.key()] = held
	r.ends[t.key()] = e.offsets
	if err != nil {
		return err
	}
	rep.Rows, rep.DistinctOffsets, rep.DoubledRows = held.rows, held.distinct(), held.doubled()
	if !t.several { // the others have reports of their own
		rep.RowsOfOtherTopics = held.others
	}
	if held.nulls > 0 {
		rep.mismatch("%d rows without partition or offset", held.nulls)
	}
	rep.Extra = append(rep.Extra, held.doubledRanges()...)
	if rep.Outcome == Inconclusive {
		return nil // another topic is no truth for this table
	}
	erased, err := m.declaredDeletes(t.Topic)
	if err != nil {
		return err
	}
	if err := r.compare(ctx, t.Topic, bounds, e, held, erased, rep); err != nil {
		return err
	}
	if n := span(rep.Missing); n > 0 {
		rep.mismatch("%d of Kafka's records are missing", n)
	}
	extra := rep.extraRows()
	rep.noteErased(erased, held)
	if n := extra; n > 0 {
		rep.mismatch("%d rows more than Kafka has records", n)
	}
	return nil
}

// describe notes what was pinned.
func (t *TableReport) describe(m *metadata) {
	t.MetadataLocation = m.path
	for _, why := range m.faults {
		t.mismatch("%s", why)
	}
	if s := m.current(); s != nil {
		t.SnapshotID, t.Sequence = s.ID, s.Sequence
	}
}

// compare judges every partition that Kafka, the end or the table knows.
func (r *run) compare(ctx context.Context, topic string, bounds *TopicBounds, e end, held *tableOffsets, erased declared, rep *TableReport) error {
	all := map[int32]bool{}
	for p := range bounds.Partitions {
		all[p] = true
	}
	for p := range e.offsets {
		all[p] = true
	}
	for p := range held.partitions {
		all[p] = true
	}
	for _, p := range sortedKeys(all) {
		set := held.partitions[p]
		if set == nil {
			set = NewOffsetSet()
		}
		if err := r.comparePartition(ctx, topic, p, bounds, e, set, erased.offsets[p], rep); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) comparePartition(ctx context.Context, topic string, p int32, bounds *TopicBounds, e end, set, erased *OffsetSet, rep *TableReport) error {
	b, ok := bounds.Partitions[p]
	if !ok {
		rep.Extra = append(rep.Extra, named(p, set.Ranges(minOffset, maxOffset), ReasonNotInKafka)...)
		return nil
	}
	to, claimed := e.offsets[p]
	if !claimed {
		to = b.LogStart
		if b.Stable > b.LogStart && e.source != endExplicit {
			rep.note("partition %d is not part of the table yet", p)
		}
	}
	if to > b.Stable {
		rep.mismatch("partition %d: the table claims offsets up to %d, Kafka's stable log ends at %d", p, to, b.Stable)
	}
	truth, start, err := r.truth(ctx, topic, p, b.LogStart, min(to, b.Stable))
	if err != nil {
		return err
	}
	rep.KafkaRecords += truth.Len()
	rep.Missing = append(rep.Missing, named(p, truth.Minus(start, to, set, erased), "")...)
	rep.Extra = append(rep.Extra, named(p, set.Minus(start, to, truth), ReasonNotInKafka)...)
	rep.Extra = append(rep.Extra, named(p, set.Ranges(max(to, start), maxOffset), ReasonBeyondEnd)...)
	below := set.Ranges(minOffset, start)
	for i, run := range below {
		rep.RowsBelowLogStart += run[1] - run[0]
		until := start
		if i+1 < len(below) {
			until = below[i+1][0]
		}
		rep.Unverifiable = append(rep.Unverifiable, named(p, appendRange(nil, run[1], until), "")...)
	}
	return nil
}

// truth reads the offsets of [from, to) that a read_committed reader gets. The
// log's start may move while it reads: what is returned is judged from start.
func (r *run) truth(ctx context.Context, topic string, p int32, from, to int64) (*OffsetSet, int64, error) {
	set := NewOffsetSet()
	for try := 1; ; try++ {
		err := r.kafka.Scan(ctx, topic, p, from, to, func(rec *Record) error {
			set.Add(rec.Offset)
			return nil
		})
		if err == nil {
			break
		}
		if !failure.Is(err, failure.SourceChanged) || try == attemptsMax {
			return nil, 0, err
		}
		b, berr := r.kafka.Bounds(ctx, topic)
		if berr != nil {
			return nil, 0, errors.Join(err, berr)
		}
		if b.Partitions[p].LogStart <= from {
			return nil, 0, err
		}
		set, from = NewOffsetSet(), b.Partitions[p].LogStart
	}
	b, err := r.kafka.Bounds(ctx, topic)
	if err != nil {
		return nil, 0, err
	}
	start := max(from, b.Partitions[p].LogStart)
	if start > from { // retention moved on behind the scan
		kept := NewOffsetSet()
		for _, run := range set.Ranges(start, maxOffset) {
			for o := run[0]; o < run[1]; o++ {
				kept.Add(o)
			}
		}
		set = kept
	}
	return set, start, nil
}

// readOffsets reads the place of every row of a table. extra, where it is
// given, receives the event id of each row that has a place.
func (r *run) readOffsets(ctx context.Context, m *metadata, c Columns, topic string, rep *TableReport, extra func(id *column, row int)) (*tableOffsets, error) {
	held := newTableOffsets()
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		return held, wrapTable(err, rep.Table)
	}
	names := []string{c.Partition, c.Offset, c.Topic}
	if extra != nil {
		names = append(names, c.EventID)
	}
	if len(files) == 0 {
		return held, nil
	}
	want, err := wantedColumns(m, names, map[string]bool{c.Topic: true})
	if err != nil {
		return held, failure.Wrap(failure.Config, err, "table %s", rep.Table).WithHint("name the columns that hold topic, partition and offset; in a pipeline file they are columns with source: partition and source: offset")
	}
	if _, ok := m.field(c.Topic); !ok {
		want[2] = wanted{} // one topic only: nothing to tell apart
	}
	return held, r.eachFile(ctx, files, want, rep, func(b *rowBatch) error {
		for row := range b.Rows {
			if t := &b.Columns[2]; topic != "" && t.Present && !t.Null[row] && string(t.Bytes[row]) != topic {
				held.others++
				continue
			}
			held.rows++
			p, o := &b.Columns[0], &b.Columns[1]
			if p.Null[row] || o.Null[row] {
				held.nulls++
				continue
			}
			if len(p.Int) == 0 || len(o.Int) == 0 {
				return fmt.Errorf("columns %s and %s are not integers", c.Partition, c.Offset)
			}
			held.add(int32(p.Int[row]), o.Int[row])
			if extra != nil {
				extra(&b.Columns[3], row)
			}
		}
		return nil
	})
}

func wrapTable(err error, table string) error {
	var del *deleteFileError
	if errors.As(err, &del) {
		return err
	}
	return failure.Wrap(failure.Runtime, err, "table %s", table)
}

// eachFile reads every live file as often as it is listed, as any other reader
// of the table does.
func (r *run) eachFile(ctx context.Context, files []*dataFile, want []wanted, rep *TableReport, f func(*rowBatch) error) error {
	rep.Files, rep.FilesLiveTwice, rep.FilesMissing = len(files), []string{}, []string{}
	for _, df := range files {
		if df.Listed > 1 {
			rep.FilesLiveTwice = append(rep.FilesLiveTwice, df.Path)
		}
		if df.Format != "PARQUET" {
			rep.inconclusive("file %s is %s; only Parquet is read", df.Path, df.Format)
			continue
		}
		for range df.Listed {
			rows, err := readParquet(ctx, r.cfg.Store, df.Path, want, df.filled(want, f))
			if errors.Is(err, os.ErrNotExist) {
				rep.FilesMissing = append(rep.FilesMissing, df.Path)
				break
			}
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				rep.mismatch("file %s cannot be read: %v", df.Path, err)
				break
			}
			if df.Rows >= 0 && rows != df.Rows {
				rep.mismatch("file %s has %d rows, its manifest says %d", df.Path, rows, df.Rows)
			}
		}
	}
	if n := len(rep.FilesLiveTwice); n > 0 {
		rep.mismatch("%d data files are live twice", n)
	}
	if n := len(rep.FilesMissing); n > 0 {
		rep.mismatch("%d live data files are gone", n)
	}
	return nil
}

// filled adds the columns that stand beside the file to each run of its rows.
func (df *dataFile) filled(want []wanted, f func(*rowBatch) error) func(*rowBatch) error {
	if len(df.Partition) == 0 {
		return f
	}
	return func(b *rowBatch) error {
		for i, w := range want {
			if text, ok := df.Partition[w.Name]; ok && !b.Columns[i].Present {
				b.Columns[i].constant(b.Rows, text)
			}
		}
		return f(b)
	}
}

// constant makes every row of a column the same text, or the same number where
// it is one.
func (c *column) constant(rows int, text *string) {
	c.Present, c.Null, c.Int, c.Bytes = true, c.Null[:0], c.Int[:0], c.Bytes[:0]
	if text == nil {
		text = new(string)
	}
	n, err := strconv.ParseInt(*text, 10, 64)
	for range rows {
		c.Null = append(c.Null, *text == "")
		c.Bytes = append(c.Bytes, []byte(*text))
		if err == nil || *text == "" {
			c.Int = append(c.Int, n)
		}
	}
}
