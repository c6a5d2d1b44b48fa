package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// GroupsConfig says what the rows of a table of sessions or windows are: rows of
// the upstream with equal keys, each at most the gap behind the one before, or
// all in one window of time.
type GroupsConfig struct {
	Keys       []string
	TimeColumn string
	// GapMicros is that of sessions; DurationMicros and SlideMicros are those of
	// windows, which begin at the multiples of the slide.
	GapMicros, DurationMicros, SlideMicros int64
	// CountColumn holds the number of rows of a group; empty where none does.
	CountColumn string
	// Start and End are the columns with the bounds: of a session the first event
	// time, and the last one plus the gap.
	Start, End string
}

// GroupsReport compares a table of sessions or windows with those that the
// upstream's rows make, computed again from those rows.
type GroupsReport struct {
	Upstream string `json:"upstream"`
	// UpstreamRows are those below the table's position.
	UpstreamRows int64 `json:"upstream_rows"`
	// Expected are the groups that the watermark has passed, Open the others: they
	// are in nobody's table yet.
	Expected int64 `json:"expected"`
	Open     int64 `json:"open"`
	OpenRows int64 `json:"rows_in_open"`
	// Missing are expected and not in the table, Extra are in it and not
	// expected; a group with other bounds or another count is both.
	Missing int64 `json:"missing"`
	Extra   int64 `json:"extra"`
	// Examples name some of them.
	Examples  []string `json:"examples,omitempty"`
	Watermark *int64   `json:"watermark_micros,omitempty"`
}

// groupKey is 128 bits of the SHA-256 of a key.
type groupKey = digest

// keyedTime is a row of the upstream.
type keyedTime struct {
	key groupKey
	at  int64
}

// rowGroup is a row of the audited table, or one that was computed.
type rowGroup struct {
	key        groupKey
	start, end int64
	rows       int64
}

func compareGroups(a, b rowGroup) int {
	return cmp.Or(slices.Compare(a.key[:], b.key[:]), cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end), cmp.Compare(a.rows, b.rows))
}

// auditGroups computes the groups of the upstream's rows and compares them
// with the table.
func (r *run) auditGroups(ctx context.Context, t TableConfig, rep *TableReport) error {
	s := &GroupsReport{Upstream: t.Upstream}
	rep.Groups = s
	m, up := r.pinned[t.Name], r.pinned[t.Upstream]
	if m == nil {
		rep.mismatch("the table does not exist")
		return nil
	}
	rep.describe(m)
	topic := r.topicOf(t)
	rep.Topic = topic
	e, err := m.end(topic)
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	rep.End, rep.EndSource = e.offsets, e.source
	watermark, late, err := r.groupsMarker(ctx, m, rep)
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", t.Name)
	}
	switch {
	case up == nil:
		rep.mismatch("the table %s, which it was made of, does not exist", t.Upstream)
		return nil
	case watermark == nil:
		rep.inconclusive("no marker says up to which watermark the groups are complete")
		return nil
	case late > 0:
		rep.inconclusive("%d rows came too late for their group; which ones is not recorded", late)
	}
	s.Watermark = watermark
	files, err := liveFiles(ctx, r.cfg.Store, up.current())
	if err != nil {
		return wrapTable(err, t.Upstream)
	}
	var rows int64
	for _, f := range files {
		rows += max(f.Rows, 0) * int64(f.Listed)
	}
	passes := max(1, passesFor(rows))
	for pass := range passes {
		share := func(k groupKey) bool { return passes == 1 || int(k[15])%passes == pass }
		times, err := r.readTimes(ctx, t, up, e.offsets, share)
		if err != nil {
			return err
		}
		held, err := r.readGroups(ctx, t, m, share, rep, pass == 0)
		if err != nil {
			return err
		}
		s.compare(times, held, t.Groups, *watermark)
	}
	erased, err := up.declaredDeletes(topic)
	if err != nil {
		return err
	}
	if n := erased.rows * t.Groups.windows(); s.Missing+s.Extra > 0 && s.Missing <= 2*n && s.Extra <= n {
		rep.note("%d rows of %s were erased: %d sessions or windows that it holds were made with them, %d are another one without; weir rebuild makes them anew", erased.rows, t.Upstream, s.Extra, s.Missing)
		return nil
	}
	if s.Missing > 0 || s.Extra > 0 {
		rep.mismatch("the rows of %s make %d complete sessions or windows: %d of them are missing, %d rows are none of them", t.Upstream, s.Expected, s.Missing, s.Extra)
	}
	return nil
}

// topicOf follows the tables up to the one that Kafka feeds.
func (r *run) topicOf(t TableConfig) string {
	for range r.cfg.Tables {
		if t.Topic != "" {
			return t.Topic
		}
		for _, u := range r.cfg.Tables {
			if u.Name == t.Upstream {
				t = u
				break
			}
		}
	}
	return t.Topic
}

// groupsMarker is what the marker of the one query that writes the table says of
// its watermark, and how many rows its batches say that they dropped as late.
func (r *run) groupsMarker(ctx context.Context, m *metadata, rep *TableReport) (watermark *int64, late int64, err error) {
	byName, err := m.markers()
	if err != nil || len(byName) != 1 {
		return nil, 0, err
	}
	for _, mk := range byName {
		if mk.Watermark.Micros > noTime {
			watermark = &mk.Watermark.Micros
		}
	}
	sums, err := r.batchCounts(ctx, m, byName, rep)
	for _, q := range sums {
		late += q.sum.Late
	}
	return watermark, late, err
}

// noTime is the watermark before the first event.
const noTime = int64(-1 << 62)

// readTimes reads the upstream's rows below the offsets.
func (r *run) readTimes(ctx context.Context, t TableConfig, up *metadata, below map[int32]int64, share func(groupKey) bool) ([]keyedTime, error) {
	c := t.columns()
	names := append([]string{c.Partition, c.Offset, t.Groups.TimeColumn}, t.Groups.Keys...)
	want, err := wantedColumns(up, names, nil)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", t.Upstream)
	}
	files, err := liveFiles(ctx, r.cfg.Store, up.current())
	if err != nil {
		return nil, wrapTable(err, t.Upstream)
	}
	var out []keyedTime
	scratch := &TableReport{Table: t.Upstream}
	err = r.eachFile(ctx, files, want, scratch, func(b *rowBatch) error {
		for row := range b.Rows {
			if end, ok := below[int32(b.number(0, row))]; !ok || b.number(1, row) >= end {
				continue
			}
			if k := keyOf(b, row, 3); share(k) {
				out = append(out, keyedTime{k, b.number(2, row)})
			}
		}
		return nil
	})
	if err == nil && len(scratch.Reasons) > 0 {
		err = failure.New(failure.Runtime, "table %s: %s", t.Upstream, scratch.Reasons[0])
	}
	return out, err
}

// readGroups reads the audited table.
func (r *run) readGroups(ctx context.Context, t TableConfig, m *metadata, share func(groupKey) bool, rep *TableReport, first bool) ([]rowGroup, error) {
	names := []string{t.Groups.Start, t.Groups.End, cmp.Or(t.Groups.CountColumn, t.Groups.Start)}
	want, err := wantedColumns(m, append(names, t.Groups.Keys...), nil)
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "table %s", t.Name)
	}
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		return nil, wrapTable(err, t.Name)
	}
	into := rep
	if !first {
		into = &TableReport{Table: t.Name} // the faults of a file are told once
	}
	var out []rowGroup
	rows := int64(0)
	err = r.eachFile(ctx, files, want, into, func(b *rowBatch) error {
		for row := range b.Rows {
			rows++
			k := keyOf(b, row, 3)
			if !share(k) {
				continue
			}
			s := rowGroup{key: k, start: b.number(0, row), end: b.number(1, row)}
			if t.Groups.CountColumn != "" {
				s.rows = b.number(2, row)
			}
			out = append(out, s)
		}
		return nil
	})
	rep.Rows = rows
	return out, err
}

// keyOf hashes the columns from the given one on. Null is another value than
// any other.
func keyOf(b *rowBatch, row, from int) groupKey {
	var buf []byte
	for i := from; i < len(b.Columns); i++ {
		c := &b.Columns[i]
		switch {
		case c.Null[row]:
			buf = append(buf, 0)
		case len(c.Bytes) > 0:
			buf = binary.BigEndian.AppendUint32(append(buf, 1), uint32(len(c.Bytes[row])))
			buf = append(buf, c.Bytes[row]...)
		default:
			buf = binary.BigEndian.AppendUint64(append(buf, 2), uint64(c.Int[row]))
		}
	}
	sum := sha256.Sum256(buf)
	return groupKey(sum[:16])
}

// windows is how many groups a row is in: without it each is gone or another one,
// or two others.
func (c *GroupsConfig) windows() int64 {
	if c.DurationMicros <= 0 || c.SlideMicros <= 0 {
		return 1
	}
	return (c.DurationMicros + c.SlideMicros - 1) / c.SlideMicros
}

// groupsOf cuts the rows of each key where two are further apart than the gap,
// or puts them into their windows.
func (c *GroupsConfig) groupsOf(times []keyedTime) []rowGroup {
	if c.DurationMicros > 0 {
		return c.windowsOf(times)
	}
	slices.SortFunc(times, func(a, b keyedTime) int {
		return cmp.Or(slices.Compare(a.key[:], b.key[:]), cmp.Compare(a.at, b.at))
	})
	var out []rowGroup
	for i, t := range times {
		if i == 0 || times[i-1].key != t.key || t.at-times[i-1].at > c.GapMicros {
			out = append(out, rowGroup{key: t.key, start: t.at})
		}
		g := &out[len(out)-1]
		g.end = t.at + c.GapMicros
		g.rows++
	}
	return out
}

func (c *GroupsConfig) windowsOf(times []keyedTime) []rowGroup {
	type id struct {
		key   groupKey
		start int64
	}
	rows := map[id]int64{}
	for _, t := range times {
		first := t.at - t.at%c.SlideMicros
		if t.at%c.SlideMicros < 0 {
			first -= c.SlideMicros
		}
		for start := first; start+c.DurationMicros > t.at; start -= c.SlideMicros {
			rows[id{t.key, start}]++
		}
	}
	out := make([]rowGroup, 0, len(rows))
	for k, n := range rows {
		out = append(out, rowGroup{k.key, k.start, k.start + c.DurationMicros, n})
	}
	return out
}

// compare adds one share of the keys to the report.
func (s *GroupsReport) compare(times []keyedTime, held []rowGroup, c *GroupsConfig, watermark int64) {
	s.UpstreamRows += int64(len(times))
	var expected []rowGroup
	for _, x := range c.groupsOf(times) {
		// An event at the end of a session would still belong to it, and one at
		// the watermark may still come.
		if x.end < watermark || x.end == watermark && c.DurationMicros > 0 {
			if c.CountColumn == "" {
				x.rows = 0
			}
			expected = append(expected, x)
			continue
		}
		s.Open++
		s.OpenRows += x.rows
	}
	s.Expected += int64(len(expected))
	slices.SortFunc(expected, compareGroups)
	slices.SortFunc(held, compareGroups)
	example := func(what string, x rowGroup) {
		if len(s.Examples) < examplesMax {
			s.Examples = append(s.Examples, fmt.Sprintf("%s: group of key %x, %s to %s, %d rows", what, x.key[:4], microsText(x.start), microsText(x.end), x.rows))
		}
	}
	for i, j := 0, 0; i < len(expected) || j < len(held); {
		order := 1
		switch {
		case i == len(expected):
		case j == len(held):
			order = -1
		default:
			order = compareGroups(expected[i], held[j])
		}
		switch {
		case order < 0:
			s.Missing++
			example("missing", expected[i])
			i++
		case order > 0:
			s.Extra++
			example("extra", held[j])
			j++
		default:
			i, j = i+1, j+1
		}
	}
}

func microsText(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano) }

// Groups computes the groups of a table again and compares, as an audit does,
// without asking Kafka about the tables before it.
func Groups(ctx context.Context, catalog Locator, store Store, t TableConfig, topic string) (*TableReport, error) {
	t.Topic = topic
	r := &run{cfg: Config{Catalog: catalog, Store: orLocal(store), Tables: []TableConfig{t}}, pinned: map[string]*metadata{}}
	for _, name := range []string{t.Name, t.Upstream} { // the upstream last: it holds what the table was made of
		if err := r.pin(ctx, name); err != nil {
			return nil, err
		}
	}
	rep := &TableReport{Table: t.Name, Missing: []Range{}, Extra: []Range{}}
	if err := r.auditGroups(ctx, t, rep); err != nil {
		return nil, err
	}
	rep.finish()
	return rep, nil
}
