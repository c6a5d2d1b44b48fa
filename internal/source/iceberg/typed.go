package iceberg

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/source"
)

// Rows describes a table of typed columns (silver), whose rows say in two of
// them where in Kafka they came from. Everything else is as with a table of
// Kafka rows: the position is the offset vector that the upstream query had
// reached, a batch is the rows with start ≤ offset < end, and no snapshot or
// file has to be there still. What differs:
//
//   - the upstream filters, so offsets are not rows: what a batch must hold is
//     what the upstream's commits say that they put out;
//   - the table has a watermark, weir.next-watermark of its commits: no row
//     after the end of a batch is earlier. The plan takes it down with the end.
type Rows struct {
	Schema *arrow.Schema
	// Partition and Offset name the columns; Topic may be empty where all rows
	// are of one topic.
	Topic, Partition, Offset string
	// Renamed gives, by a column's name in Schema, the one that it has in the
	// table until the query that writes it has renamed it there.
	Renamed map[string]string
}

// check names what is wrong with the description.
func (r *Rows) check(table string) error {
	for name, want := range map[string][]arrow.Type{
		r.Topic: {arrow.STRING}, r.Partition: {arrow.INT32, arrow.INT64}, r.Offset: {arrow.INT64},
	} {
		f, ok := r.Schema.FieldsByName(name)
		if name == "" && want[0] == arrow.STRING {
			continue
		}
		if !ok || !slices.Contains(want, f[0].Type.ID()) {
			return failure.New(failure.Config, "table %s: its rows do not say where they came from: no usable column %q", table, name).
				WithHint("declare columns with source: partition and source: offset in the query that writes it")
		}
	}
	return nil
}

// place is where the rows' place stands. The vector names the topic where no
// column does.
func (s *Source) place(v *batch.KafkaPosition) (scan.Place, error) {
	r := s.cfg.Rows
	if r == nil {
		return scan.Place{Topic: "topic", Partition: "partition", Offset: "offset"}, nil
	}
	p := scan.Place{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
	if r.Topic != "" {
		return p, nil
	}
	topics := slices.Sorted(maps.Keys(v.Topics))
	if len(topics) > 1 {
		return p, failure.New(failure.SchemaConflict, "table %s holds rows of the topics %v and has no column that tells them apart", s.cfg.Name, topics).
			WithHint("declare a column with source: topic in the query that writes it")
	}
	if len(topics) == 1 {
		p.Fixed = topics[0]
	}
	return p, nil
}

// timed reports whether the rows have Kafka's timestamp.
func (s *Source) timed() bool {
	f, ok := s.schema.FieldsByName("timestamp")
	return s.cfg.Rows == nil || ok && !f[0].Nullable && arrow.TypeEqual(f[0].Type, batch.Timestamp)
}

// feeder is a query that feeds the table, as its newest marker says.
type feeder struct {
	name   string
	marker *marker.Marker
}

// feeders are the queries that write the table.
func (s *Source) feeders(t *table.Table) ([]feeder, error) {
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "read the markers of table %s", s.cfg.Name)
	}
	var out []feeder
	for _, name := range slices.Sorted(maps.Keys(markers)) {
		if m := markers[name]; m.Kind == marker.KindStream {
			out = append(out, feeder{name, m})
		}
	}
	return out, nil
}

// watermark is the table's at a place in it: the least that the queries which
// feed it had when they were not further than that. Nil where one of them has
// left no word of that time.
func (s *Source) watermark(t *table.Table, at *batch.KafkaPosition) (*int64, error) {
	feeders, err := s.feeders(t)
	if err != nil || len(feeders) == 0 {
		return nil, err
	}
	found := map[string]int64{}
	for _, f := range feeders {
		if covers(at, f.marker.Position.Vector()) {
			found[f.name] = f.marker.Watermark.Micros
		}
	}
	if len(found) < len(feeders) {
		lake.Walk(t, func(snap *table.Snapshot) bool {
			name := lake.SummaryValue(snap, marker.KeyQueryName)
			if _, have := found[name]; name == "" || have {
				return !exchanged(snap)
			}
			var v *batch.KafkaPosition
			if v, err = s.seen.of(snap); err != nil {
				return false
			}
			if v == nil || !covers(at, v) {
				return !exchanged(snap)
			}
			var m *marker.Marker
			if m, err = markerOf(snap); m != nil {
				found[name] = m.Watermark.Micros
			}
			return err == nil && len(found) < len(feeders) && !exchanged(snap)
		})
	}
	if err != nil {
		return nil, err
	}
	least := int64(0)
	for i, f := range feeders {
		w, ok := found[f.name]
		if !ok || w == marker.MinTime {
			return nil, nil //nolint:nilnil // not known is no failure
		}
		if i == 0 || w < least {
			least = w
		}
	}
	return &least, nil
}

// exchanged reports whether a snapshot has put the rows of a rebuild in the place
// of those before: what older ones say is of other rows.
func exchanged(snap *table.Snapshot) bool { return lake.SummaryValue(snap, marker.RebuiltKey) != "" }

// markerOf is the stream marker that a snapshot carries, nil where it has none.
func markerOf(snap *table.Snapshot) (*marker.Marker, error) {
	raw := lake.SummaryValue(snap, marker.KeyMarker)
	if raw == "" {
		return nil, nil //nolint:nilnil // a commit of somebody else
	}
	m, err := marker.Decode(raw)
	if err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "snapshot %d", snap.SnapshotID)
	}
	return m, nil
}

// mark notes the table's watermark at the end of a planned batch. It does not
// go back: a word that expiry has taken is not needed twice.
func (s *Source) mark(t *table.Table, start batch.Position, end *batch.Position) error {
	if s.cfg.Rows == nil {
		return nil
	}
	w, err := s.watermark(t, end.Table.Upstream)
	if err != nil {
		return err
	}
	if before := start.Table.WatermarkMicros; w == nil || before != nil && *before > *w {
		w = before
	}
	end.Table.WatermarkMicros = w
	return nil
}

// newer reports whether the table's watermark is past the one that was planned
// last: a commit without rows may have moved it.
func (s *Source) newer(t *table.Table, head *batch.KafkaPosition) bool {
	if s.cfg.Rows == nil || s.planned == nil {
		return false
	}
	w, err := s.watermark(t, head)
	return err == nil && w != nil && *w > *s.planned
}

// putOut is how many rows the upstream's commits in (start, end] say that they
// put out. False where that is not to be known: some of those commits are
// expired, or an end is no commit's.
func (s *Source) putOut(t *table.Table, start, end *batch.KafkaPosition) (int64, bool, error) {
	var sum int64
	whole, known, atEnd := false, true, false
	var err error
	lake.Walk(t, func(snap *table.Snapshot) bool {
		var v *batch.KafkaPosition
		var m *marker.Marker
		if v, err = s.seen.of(snap); err != nil || v == nil {
			// Somebody else's commit puts nothing out for the upstream: rows that
			// it added are too many, rows that it deleted are missing, and those
			// that it rewrote are there.
			return err == nil
		}
		if covers(start, v) {
			whole = true
			return false
		}
		if m, err = markerOf(snap); err != nil {
			return false
		}
		if m == nil || m.Kind != marker.KindStream || exchanged(snap) {
			known = false
			return false
		}
		if covers(end, v) {
			atEnd = atEnd || covers(v, end)
			if !m.Claim {
				sum += m.Counters.Emitted
			}
		}
		return true
	})
	return sum, whole && known && atEnd, err
}

// judge compares the rows that were read with what the upstream put out. Where
// rows were deleted on purpose, fewer are right.
func (s *Source) judge(t *table.Table, start, end batch.Position, got int64, declared []marker.DeclaredDelete) error {
	want, known, err := s.putOut(t, start.Table.Upstream, end.Table.Upstream)
	if err != nil || !known || got == want {
		return err
	}
	if got > want {
		return failure.New(failure.SourceChanged, "%d rows too many: table %s holds %d between two places, its query put out %d", got-want, s.cfg.Name, got, want).
			WithHint("rows were added twice or by somebody else; weir audit names them")
	}
	var deleted int64
	for _, r := range start.Ranges(end) {
		_, most, err := marker.DeclaredWithin(declared, r)
		if err != nil {
			return failure.Wrap(failure.Config, err, "table %s", s.cfg.Name)
		}
		deleted += most
	}
	if got >= want-deleted {
		return nil
	}
	return failure.New(failure.SourceChanged, "rows missing upstream: table %s holds %d rows between two places, its query put out %d", s.cfg.Name, got, want).
		WithHint("restore the rows; what is to be deleted on purpose is deleted with weir erase, or declared in the table property %s", marker.DeclaredDeletesKey)
}

var _ source.Rescanner = (*Source)(nil)

// Rescan implements source.Rescanner.
func (s *Source) Rescan(ctx context.Context, start *batch.KafkaPosition, end batch.Position, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error {
	if s.cfg.Rows == nil {
		return failure.New(failure.Checkpoint, "the rows of table %s are not parsed: state cannot be read from them", s.cfg.Name)
	}
	t, _, err := s.check(ctx, end)
	if err != nil {
		return err
	}
	pin, err := s.pin(t, end.Table.Upstream)
	if err != nil {
		return err
	}
	place, err := s.place(end.Table.Upstream)
	if err != nil {
		return err
	}
	p := &picker{place: place, start: start, end: end.Table.Upstream, columns: columns, schema: s.schema,
		nameIn: func(n string) string { return scan.NameIn(t, n, s.cfg.Rows.Renamed) }}
	var selected []string
	for _, n := range p.read() {
		selected = append(selected, p.nameIn(n))
	}
	opts := []table.ScanOption{table.WithSnapshotID(pin), table.WithSelectedFields(selected...)}
	if minMicros > marker.MinTime {
		opts = append(opts, table.WithRowFilter(iceberg.GreaterThanEqual(iceberg.Reference(timeColumn), iceberg.Timestamp(minMicros))))
	}
	_, records, err := t.Scan(opts...).ToArrowRecords(ctx)
	if err != nil {
		return fmt.Errorf("scan table %s: %w", s.cfg.Name, err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("scan table %s: %w", s.cfg.Name, err)
		}
		if err := p.pick(ctx, rec, emit); err != nil {
			return failure.Wrap(failure.SchemaConflict, err, "read table %s", s.cfg.Name)
		}
	}
	return nil
}

// picker passes on the rows between two places.
type picker struct {
	place   scan.Place
	start   *batch.KafkaPosition
	end     *batch.KafkaPosition
	columns []string
	schema  *arrow.Schema
	nameIn  func(name string) string // in the table
}

// read are the columns to read: the wanted ones and the place.
func (p *picker) read() []string {
	out := slices.Clone(p.columns)
	for _, n := range []string{p.place.Topic, p.place.Partition, p.place.Offset} {
		if n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func (p *picker) pick(ctx context.Context, rec arrow.RecordBatch, emit func(arrow.RecordBatch) error) error {
	defer rec.Release()
	byName := map[string]arrow.Array{}
	defer func() {
		for _, a := range byName {
			a.Release()
		}
	}()
	for _, n := range p.read() {
		at, f := rec.Schema().FieldIndices(p.nameIn(n)), p.schema.FieldIndices(n)
		if len(at) != 1 || len(f) != 1 {
			return fmt.Errorf("column %q is missing", n)
		}
		a, err := scan.Cast(ctx, rec.Column(at[0]), p.schema.Field(f[0]).Type)
		if err != nil {
			return fmt.Errorf("column %q: %w", n, err)
		}
		byName[n] = a
	}
	cols, fields := make([]arrow.Array, len(p.columns)), make([]arrow.Field, len(p.columns))
	for i, n := range p.columns {
		cols[i], fields[i] = byName[n], p.schema.Field(p.schema.FieldIndices(n)[0])
	}
	whole := array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, rec.NumRows())
	defer whole.Release()
	wanted := p.between(byName)
	for from := 0; from < int(rec.NumRows()); {
		to := from
		for to < int(rec.NumRows()) && wanted(to) {
			to++
		}
		if to > from {
			if err := emit(whole.NewSlice(int64(from), int64(to))); err != nil {
				return err
			}
		}
		from = to + 1
	}
	return nil
}

// between tells the rows from the start to before the end.
func (p *picker) between(cols map[string]arrow.Array) func(row int) bool {
	offsets := cols[p.place.Offset].(*array.Int64)
	topicOf := func(int) string { return p.place.Fixed }
	if p.place.Topic != "" {
		topicOf = cols[p.place.Topic].(*array.String).Value
	}
	partitionOf := partitions(cols[p.place.Partition])
	return func(row int) bool {
		topic, partition, offset := topicOf(row), partitionOf(row), offsets.Value(row)
		from, _ := p.start.Get(topic, partition)
		to, ok := p.end.Get(topic, partition)
		return ok && offset >= from.NextOffset && offset < to.NextOffset
	}
}

// partitions reads a column of partitions, which may be declared as int or long.
func partitions(a arrow.Array) func(row int) int32 {
	if wide, ok := a.(*array.Int64); ok {
		return func(row int) int32 { return int32(wide.Value(row)) }
	}
	return a.(*array.Int32).Value
}
