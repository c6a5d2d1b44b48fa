package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"

	"github.com/weirlake/weir/internal/failure"
)

// auditSilver checks a table that another table feeds: every row stands in the
// upstream, no event id and no offset twice, and the counts of its batches add
// up to the rows that are there.
func (r *run) auditSilver(ctx context.Context, t TableConfig, rep *TableReport) error {
	s := &SilverReport{Upstream: t.Upstream}
	rep.Silver = s
	m := r.pinned[t.Name]
	if m == nil {
		rep.mismatch("the table does not exist")
		return nil
	}
	rep.describe(m)
	topic := t.Topic
	ups := r.upstreams(t.Upstream)
	if len(ups) > 1 {
		return r.auditSilverOfTopics(ctx, t, m, ups, rep)
	}
	var up *tableOffsets
	upEnds := map[int32]int64{}
	for _, u := range ups {
		up, upEnds, topic = r.offsets[u.key()], r.ends[u.key()], cmp.Or(topic, u.Topic)
	}
	rep.Topic = topic
	e, err := m.end(topic)
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	if t.End != nil {
		e.offsets, e.source = t.End, endExplicit
	}
	if e.source == "" {
		e.offsets, e.source = upEnds, endLog
	}
	rep.End, rep.EndSource = e.offsets, e.source
	held, err := r.countSilver(ctx, m, t.columns(), rep)
	if err != nil {
		return err
	}
	rep.Rows, rep.DistinctOffsets, rep.DoubledRows = held.rows, held.distinct(), held.doubled()
	rep.Extra = append(rep.Extra, held.doubledRanges()...)
	for _, p := range sortedKeys(held.partitions) {
		if up != nil {
			rep.Extra = append(rep.Extra, named(p, held.partitions[p].Minus(minOffset, maxOffset, up.partitions[p]), ReasonNotAbove)...)
		}
		rep.Extra = append(rep.Extra, named(p, held.partitions[p].Ranges(e.offsets[p], maxOffset), ReasonBeyondEnd)...)
	}
	rep.KafkaRecords = upstreamBelow(up, e.offsets)
	switch {
	case held.nulls > 0:
		rep.mismatch("%d rows without partition or offset", held.nulls)
	case s.NullEventIDs > 0:
		rep.mismatch("%d rows without an event id", s.NullEventIDs)
	}
	if s.DoubledEventIDs > 0 {
		rep.mismatch("%d rows repeat an event id", s.DoubledEventIDs)
	}
	if n := rep.extraRows(); n > 0 {
		rep.mismatch("%d rows that the upstream does not account for", n)
	}
	erased, err := m.declaredDeletes("")
	if err != nil {
		return err
	}
	rep.noteErased(erased, held)
	if err := r.noteUnfinished(t, topic, held, rep); err != nil {
		return err
	}
	return r.balance(ctx, t, m, rep)
}

// noteUnfinished says of rows that were erased above and are still here what has
// happened: an erasure takes the tables one after the other.
func (r *run) noteUnfinished(t TableConfig, topic string, held *tableOffsets, rep *TableReport) error {
	above, err := r.pinned[t.Upstream].declaredDeletes(topic)
	if err != nil {
		return err
	}
	if n := span(above.back(held)); n > 0 {
		rep.mismatch("%d rows were erased from %s and are still here: an erasure was not finished; weir erase goes on with it", n, t.Upstream)
	}
	return nil
}

func upstreamBelow(up *tableOffsets, ends map[int32]int64) (n int64) {
	if up == nil {
		return 0
	}
	for p, s := range up.partitions {
		n += s.CountIn(minOffset, ends[p])
	}
	return n
}

// countSilver reads offsets and event ids, in as many passes as bound the
// memory, and once more where doubled ids are to be named.
func (r *run) countSilver(ctx context.Context, m *metadata, c Columns, rep *TableReport) (*tableOffsets, error) {
	if c.EventID == "" {
		rep.note("no single column identifies a row: ids are not judged, places and the batches' counts are")
		return r.readOffsets(ctx, m, c, "", rep, nil)
	}
	var rows int64
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		return nil, wrapTable(err, rep.Table)
	}
	for _, f := range files {
		rows += max(f.Rows, 0) * int64(f.Listed)
	}
	s := rep.Silver
	var held *tableOffsets
	wantedIDs := map[digest]bool{}
	passes := max(1, passesFor(rows))
	for pass := range passes {
		p := &idPass{pass: pass, passes: passes}
		into := rep
		if pass > 0 {
			into = &TableReport{Table: rep.Table} // the faults of a file are told once
		}
		if held, err = r.readOffsets(ctx, m, c, "", into, p.add); err != nil {
			return nil, err
		}
		distinct, doubled := p.finish()
		s.DistinctEventIDs += distinct
		s.DoubledEventIDs += int64(len(p.digests)) - distinct
		s.NullEventIDs += p.nulls
		maps.Copy(wantedIDs, doubled)
	}
	if len(wantedIDs) == 0 {
		return held, nil
	}
	names := map[string]bool{}
	_, err = r.readOffsets(ctx, m, c, "", &TableReport{Table: rep.Table}, func(id *column, row int) {
		if len(names) < examplesMax && !id.Null[row] && len(id.Bytes) > 0 {
			if sum := sha256.Sum256(id.Bytes[row]); wantedIDs[digest(sum[:16])] {
				names[string(id.Bytes[row])] = true
			}
		}
	})
	s.Examples = slices.Sorted(maps.Keys(names))
	return held, err
}

// balance judges the batches' own counts against what the tables hold.
func (r *run) balance(ctx context.Context, t TableConfig, m *metadata, rep *TableReport) error {
	s := rep.Silver
	if t.DeadLetterTable != "" {
		if err := r.countDeadLetters(ctx, t.DeadLetterTable, s); err != nil {
			return err
		}
	}
	byName, err := m.markers()
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	if len(byName) == 0 {
		rep.note("no markers: the batches' counts are not judged")
		return nil
	}
	sums, err := r.batchCounts(ctx, m, byName, rep)
	if err != nil {
		return err
	}
	b := &Balance{Queries: slices.Sorted(maps.Keys(byName)), Complete: true, ExpectedInput: rep.KafkaRecords}
	s.Balance = b
	var streamInput int64
	for name, q := range sums {
		b.add(q)
		if k := byName[name].Kind; k == "" || k == kindStream {
			streamInput += q.sum.Read
		}
	}
	c := counters{Read: b.Input, Emitted: b.Output, Filtered: b.Filtered, Duplicate: b.Duplicate, Late: b.Late, DeadLettered: b.DeadLettered}
	b.Balanced = c.Read == c.Emitted+c.Filtered+c.Duplicate+c.Late+c.DeadLettered
	if !b.Balanced {
		rep.mismatch("the batches read %d rows and account for %d", c.Read, c.Emitted+c.Filtered+c.Duplicate+c.Late+c.DeadLettered)
	}
	if !b.Complete {
		rep.note("the counts of some batches are not to be found: sums are not compared with the tables")
		return nil
	}
	if b.Output != rep.Rows+rep.ErasedRows {
		b.Balanced = false
		rep.mismatch("the batches put out %d rows, the table holds %d, %d were erased", b.Output, rep.Rows, rep.ErasedRows)
	}
	above, err := r.pinned[t.Upstream].declaredDeletes("")
	if err != nil {
		return err
	}
	switch {
	case streamInput < b.ExpectedInput && !t.StartsLater:
		b.Balanced = false
		rep.mismatch("the batches read %d rows of %s, which holds %d below the same position", streamInput, t.above(), b.ExpectedInput)
	case streamInput > b.ExpectedInput+above.rows:
		rep.note("the batches read %d rows of %s, which now holds %d below that position: deleted since, or read twice",
			streamInput, t.above(), b.ExpectedInput)
	}
	if s.DeadLetterRows == nil {
		return nil
	}
	gone, err := r.pinned[t.DeadLetterTable].declaredDeletes("")
	if err != nil {
		return err
	}
	// A batch whose dead letters were committed before an erasure, and whose rows
	// after it, has not counted those that were erased between the two.
	if n := *s.DeadLetterRows; b.DeadLettered < n || b.DeadLettered > n+gone.rows {
		b.Balanced = false
		rep.mismatch("the batches dead-lettered %d rows, %s holds %d, %d were erased", b.DeadLettered, t.DeadLetterTable, n, gone.rows)
	}
	return nil
}

func (b *Balance) add(q queryCounts) {
	b.Batches += int64(q.batches)
	b.Input += q.sum.Read
	b.Output += q.sum.Emitted
	b.Filtered += q.sum.Filtered
	b.Duplicate += q.sum.Duplicate
	b.Late += q.sum.Late
	b.DeadLettered += q.sum.DeadLettered
	b.Complete = b.Complete && q.complete
}

// countDeadLetters counts the rows of a dead-letter table from its files.
func (r *run) countDeadLetters(ctx context.Context, table string, s *SilverReport) error {
	if err := r.pin(ctx, table); err != nil {
		return err
	}
	m := r.pinned[table]
	if m == nil {
		return nil
	}
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		var del *deleteFileError
		if errors.As(err, &del) {
			return nil
		}
		return wrapTable(err, table)
	}
	var n int64
	for _, f := range files {
		n += max(f.Rows, 0) * int64(f.Listed)
	}
	s.DeadLetterRows = &n
	return nil
}
