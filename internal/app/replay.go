package app

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// A replay brings rows into a query's table that its stream has left out: late
// ones from the table that feeds it, and dead letters that parse by now. What is
// brought is decided by an anti-join on the rows' identity, never by a memory of
// what was replayed: a replay that is repeated, killed, or raced by the live query
// finds the rows there. The anti-join is made on the snapshot whose head the commit
// asserts, again on every try. The marker (its own, weir.query.<query>.late) keeps
// batch ids, counts and epochs, and fences a second replay.

const (
	// replayRowsMax is how many rows one commit of a replay brings.
	replayRowsMax = 250_000
	// replayWindow is how many offsets of a partition are read at a time.
	replayWindow = 200_000
	// replayTries bounds how often rows are staged again because others brought
	// some of them meanwhile, or the head moved under the claim.
	replayTries = 20
)

// identity is the hash of what names a row.
type identity [16]byte

// replaying is one replay under way.
type replaying struct {
	a     *App
	q     pipeline.Query
	name  string // of its marker
	kind  string
	ident table.Identifier
	keys  []string // columns that name a row
	shape *arrow.Schema

	table *table.Table   // as last loaded, and the marker of the query in it
	live  *marker.Marker // of the query's stream
	// erasures names those that the table had seen before any row was read.
	erasures *string
	held     map[identity]struct{}
	taken    map[identity]struct{} // in this run
	// staged are the rows that the commit under way brings.
	staged map[identity]struct{}

	report ReplayReport
}

// ReplayReport says what a replay has found and done.
type ReplayReport struct {
	Query string `json:"query"`
	Table string `json:"table"`
	// Read rows were looked at, Found of them belong into the table and were not
	// there, Replayed were brought by this command.
	Read     int64 `json:"read"`
	Found    int64 `json:"found"`
	Replayed int64 `json:"replayed"`
	// Failed are dead letters that still do not parse, by reason.
	Failed map[string]int64 `json:"failed,omitempty"`
	// Rows are the first of those found.
	Rows []ReplayRow `json:"rows,omitempty"`
}

// ReplayRow is a row that was found, as JSON.
type ReplayRow struct {
	Value string `json:"value"`
}

// openReplay opens the catalog and the query's table, and refuses what cannot be
// replayed, each with the reason.
func openReplay(ctx context.Context, p *pipeline.Pipeline, q pipeline.Query, kind, suffix string, o Options) (*replaying, error) {
	refuse := func(why string, args ...any) error {
		return failure.New(failure.Config, "query %s: %s", q.Name, fmt.Sprintf(why, args...))
	}
	switch {
	case q.Parse == nil:
		return nil, refuse("it has no parse: nothing is late or dead-lettered in it")
	case len(q.Aggregate) > 0:
		return nil, refuse("it aggregates; a late row would have to change a result that is committed")
	case q.To.Iceberg != nil && q.To.Iceberg.Mode == pipeline.ModeUpsert:
		return nil, refuse("it merges by key: an old row would have to lose against a newer one; a change stream has no late rows")
	case q.To.Iceberg == nil:
		return nil, refuse("replay is for Iceberg tables")
	}
	r := &replaying{a: &App{P: p, opts: o, notify: map[string]*notifier{}}, q: q, name: q.Name + "." + suffix, kind: kind, taken: map[identity]struct{}{}}
	r.report = ReplayReport{Query: q.Name, Table: q.To.Iceberg.Table}
	if r.keys = q.DropDuplicatesWithinWatermark; len(r.keys) == 0 {
		topic, partition, offset, ok := q.RecordKey()
		if !ok {
			return nil, refuse("its rows have no identity: neither dropDuplicatesWithinWatermark nor columns with source: partition and source: offset")
		}
		r.keys = []string{partition, offset}
		if topic != "" {
			r.keys = append(r.keys, topic)
		} else if q.From.Kafka != nil && (len(q.From.Kafka.Topics) > 1 || q.From.Kafka.TopicPattern != "") {
			return nil, refuse("its rows of several topics do not say their topic")
		}
	}
	var err error
	if r.ident, err = lake.ParseName(q.To.Iceberg.Table); err != nil {
		return nil, err
	}
	r.a.fillOptions()
	if err = r.a.openCatalog(ctx); err == nil {
		err = r.a.openProgress(ctx)
	}
	if err == nil {
		err = r.load(ctx)
	}
	if err != nil {
		_ = r.a.Close()
		return nil, err
	}
	return r, nil
}

// load reads the table's head and which rows it holds.
func (r *replaying) load(ctx context.Context) error {
	t, err := r.a.Catalog.LoadTablePatiently(ctx, r.ident, r.a.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) {
		return failure.New(failure.Config, "query %s has not made its table %s yet", r.q.Name, lake.Name(r.ident))
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "read table %s", lake.Name(r.ident))
	}
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return failure.Wrap(failure.Checkpoint, err, "table %s", lake.Name(r.ident))
	}
	live := markers[r.q.Name]
	if live == nil || live.Kind != marker.KindStream || live.Position.Vector() == nil {
		return failure.New(failure.Checkpoint, "table %s holds no marker of query %s: how far it has come is not known", lake.Name(r.ident), r.q.Name)
	}
	if err := r.checkErased(t); err != nil {
		return err
	}
	r.table, r.live, r.held = t, live, map[identity]struct{}{}
	return r.eachIdentity(ctx, t, func(id identity) { r.held[id] = struct{}{} })
}

// checkErased refuses to go on with rows that were read before an erasure.
func (r *replaying) checkErased(t *table.Table) error {
	now := marker.ErasuresOf(t.Properties())
	if r.erasures == nil {
		r.erasures = &now
	}
	if now != *r.erasures {
		return failure.New(failure.Runtime, "query %s: rows were erased while they were replayed; %d were brought before that", r.q.Name, r.report.Replayed).
			WithHint("run the same command again: it reads what is left")
	}
	return nil
}

// eachIdentity reads the identity of every row of a snapshot.
func (r *replaying) eachIdentity(ctx context.Context, t *table.Table, f func(identity)) error {
	if t.CurrentSnapshot() == nil {
		return nil
	}
	_, records, err := t.Scan(table.WithSelectedFields(r.keys...), table.WithSnapshotID(t.CurrentSnapshot().SnapshotID)).ToArrowRecords(ctx)
	if err != nil {
		return fmt.Errorf("scan table %s: %w", lake.Name(r.ident), err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("scan table %s: %w", lake.Name(r.ident), err)
		}
		of, err := r.identities(rec)
		for i := 0; err == nil && i < int(rec.NumRows()); i++ {
			f(of(i))
		}
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// identities gives the identity of a record's rows. Values are compared as they
// stand in JSON, so that the two sides' Arrow types do not matter.
func (r *replaying) identities(rec arrow.RecordBatch) (func(row int) identity, error) {
	enc, err := rowjson.New(rec.Schema(), nil, nil)
	if err != nil {
		return nil, err
	}
	at := make([]int, len(r.keys))
	for i, k := range r.keys {
		found := rec.Schema().FieldIndices(k)
		if len(found) != 1 {
			return nil, failure.New(failure.SchemaConflict, "table %s has no column %q", lake.Name(r.ident), k)
		}
		at[i] = found[0]
	}
	var buf []byte
	return func(row int) identity {
		buf = buf[:0]
		for _, c := range at {
			buf = append(enc.AppendValue(buf, rec, c, row), 0)
		}
		sum := sha256.Sum256(buf)
		return identity(sum[:16])
	}, nil
}

// pending are rows that belong into the table, in their order.
type pending struct {
	records []arrow.RecordBatch // of one row each
	ids     []identity
}

func (p *pending) release() {
	for _, rec := range p.records {
		rec.Release()
	}
	*p = pending{}
}

// rules is the query's transform without its memory: parse, filter, and what may
// not be too far in the future.
func (r *replaying) rules() (operator.Transform, error) {
	q := r.q
	q.DropDuplicatesWithinWatermark = nil
	return Transform(q)
}

// pass puts Kafka records through the rules: feed is called with a function that
// takes them. take is called with what comes out, dead letters included.
func (r *replaying) pass(feed func(process func(arrow.RecordBatch) error) error, take func(output string, rec arrow.RecordBatch) error) error {
	t, err := r.rules()
	if err != nil {
		return err
	}
	env := operator.Env{BatchTimeMicros: r.a.opts.Clock.Now().UnixMicro(), Watermark: marker.Watermark{Micros: marker.MinTime}}
	if err := t.Begin(env); err != nil {
		return err
	}
	err = feed(func(rec arrow.RecordBatch) error {
		r.report.Read += rec.NumRows()
		return t.Process(rec, take)
	})
	if err != nil {
		return err
	}
	_, err = t.Finish(take)
	return err
}

// choose keeps the rows of rec that the table lacks, and counts them.
func (r *replaying) choose(rec arrow.RecordBatch, p *pending, show int) error {
	of, err := r.identities(rec)
	if err != nil {
		return err
	}
	for i := range int(rec.NumRows()) {
		id := of(i)
		if _, ok := r.held[id]; ok {
			continue
		}
		if _, ok := r.taken[id]; ok {
			continue
		}
		r.taken[id] = struct{}{}
		r.report.Found++
		if len(r.report.Rows) < show {
			enc, err := rowjson.New(rec.Schema(), nil, nil)
			if err != nil {
				return err
			}
			r.report.Rows = append(r.report.Rows, ReplayRow{Value: string(enc.AppendRow(nil, rec, i))})
		}
		if p != nil {
			p.records = append(p.records, rec.NewSlice(int64(i), int64(i)+1))
			p.ids = append(p.ids, id)
		}
	}
	return nil
}

// sink makes the sink under the replay's own marker.
func (r *replaying) sink() (sink.Sink, error) {
	t, err := r.rules()
	if err != nil {
		return nil, err
	}
	r.shape = t.Outputs()[operator.Main]
	return IcebergSink(r.a.Catalog, SinkSpec{Query: r.name, Table: r.q.To.Iceberg.Table, Shape: r.shape, PartitionBy: r.q.To.Iceberg.PartitionBy,
		Clock: r.a.opts.Clock, Verify: r.verify})
}

// verify refuses a head that holds one of the rows that are about to be brought,
// or that has seen an erasure since they were read.
func (r *replaying) verify(ctx context.Context, head *table.Table) error {
	if err := r.checkErased(head); err != nil {
		return err
	}
	if snapshotID(head) == snapshotID(r.table) || r.staged == nil {
		return nil
	}
	twice := false
	if err := r.eachIdentity(ctx, head, func(id identity) { _, in := r.staged[id]; twice = twice || in }); err != nil {
		return err
	}
	if twice {
		return fmt.Errorf("%w: others have brought some of the rows", sink.ErrStale)
	}
	return nil
}

func snapshotID(t *table.Table) int64 {
	if s := t.CurrentSnapshot(); s != nil {
		return s.SnapshotID
	}
	return 0
}

// bring commits rows under the replay's marker.
func (r *replaying) bring(ctx context.Context, p *pending) error {
	defer p.release()
	for range replayTries {
		if len(p.ids) == 0 {
			return nil
		}
		done, err := r.tryBring(ctx, p)
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, sink.ErrStale):
			return err
		}
		// The head has moved: look again at what it lacks.
		if err := r.load(ctx); err != nil {
			return err
		}
		left := pending{}
		for i, id := range p.ids {
			if _, in := r.held[id]; in {
				p.records[i].Release()
				r.report.Found--
				continue
			}
			left.records, left.ids = append(left.records, p.records[i]), append(left.ids, id)
		}
		*p = left
	}
	return failure.New(failure.Runtime, "query %s: others wrote the same rows, or claimed the replay, %d times", r.q.Name, replayTries).
		WithHint("is another replay of the query running?")
}

// tryBring claims, stages and commits; done is false where the head had moved.
func (r *replaying) tryBring(ctx context.Context, p *pending) (done bool, err error) {
	s, err := r.sink()
	if err != nil {
		return false, err
	}
	r.staged = nil // the claim brings no rows
	claim, permit, moved, err := r.claim(ctx, s)
	if err != nil || moved {
		return false, err
	}
	r.staged = make(map[identity]struct{}, len(p.ids))
	for _, id := range p.ids {
		r.staged[id] = struct{}{}
	}
	m := *claim
	n := int64(len(p.ids))
	m.Claim, m.BatchID, m.Attempt, m.BatchTime = false, claim.BatchID+1, clock.Nonce(), r.a.opts.Clock.Now()
	m.Counters, m.RenewedAt = marker.Counters{Read: n, Emitted: n}, m.BatchTime
	m.PlanHash = marker.Hash(fmt.Appendf(nil, "%s %d %s", m.QueryID, m.BatchID, m.Attempt))
	st, err := s.Stage(ctx, m.BatchID, m.Attempt)
	if err != nil {
		return false, err
	}
	for _, rec := range p.records {
		rec.Retain() // it may be staged again
		if err := st.Write(rec); err != nil {
			st.Abort()
			return false, err
		}
	}
	staged, err := st.Close(ctx)
	if err != nil {
		return false, err
	}
	if _, err := s.Commit(ctx, permit, claim, staged, &m); err != nil {
		return false, err
	}
	r.report.Replayed += n
	r.record(&m)
	return true, r.a.flush(ctx)
}

// claim takes the replay's marker, at the query's present position.
func (r *replaying) claim(ctx context.Context, s sink.Sink) (*marker.Marker, sink.Permit, bool, error) {
	f, err := s.Facts(ctx, r.name)
	if err != nil {
		return nil, sink.Permit{}, false, err
	}
	m := marker.Marker{Format: marker.Format, Kind: r.kind, QueryName: r.name, QueryID: uuid.NewString(), BatchID: -1, Watermark: marker.Watermark{Micros: marker.MinTime}}
	if f.Marker != nil {
		if f.Rewound != "" {
			return nil, sink.Permit{}, false, failure.New(failure.Checkpoint, "table %s was rewound: %s", s.Name(), f.Rewound).
				WithHint("settle the query first: weir checkpoint adopt --from-snapshot")
		}
		m = *f.Marker
		r.reappend(ctx, f.Marker)
	}
	now := r.a.opts.Clock.Now()
	m.Claim, m.Attempt, m.Epoch = true, clock.Nonce(), marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	m.Position, m.Instance, m.RenewedAt = r.live.Position.Clone(), "replay", now
	p, moved, err := s.Claim(ctx, f, &m)
	return &m, p, moved, err
}

// record queues the progress row of a batch, from which the audit knows its
// counts when its snapshot has expired.
func (r *replaying) record(m *marker.Marker) {
	if r.a.progress == nil {
		return
	}
	position, err := json.Marshal(m.Position)
	if err != nil {
		return // numbers and strings
	}
	r.a.progress.Add(engine.Progress{
		QueryName: r.name, QueryID: m.QueryID, BatchID: m.BatchID, Epoch: m.Epoch.Number, StartedAt: m.BatchTime, CommittedAt: r.a.opts.Clock.Now(),
		InputRows: m.Counters.Read, OutputRows: m.Counters.Emitted, DurationMs: map[string]int64{}, Position: position,
	})
}

// reappend records the last batch where an earlier replay died before it could.
func (r *replaying) reappend(ctx context.Context, m *marker.Marker) {
	if r.a.progress == nil || m.BatchID < 0 {
		return
	}
	if done, err := r.a.progress.Recorded(ctx, r.name, m.QueryID); err == nil && done < m.BatchID {
		r.record(m)
	}
}

// windows cuts what lies before a position into pieces of replayWindow offsets.
func windows(end *batch.KafkaPosition, from map[batch.TopicPartition]int64) (out []batch.Range) {
	end.Each(func(topic, _ string, part int32, p batch.PartitionPosition) {
		for at := from[batch.TopicPartition{Topic: topic, Partition: part}]; at < p.NextOffset; at += replayWindow {
			out = append(out, batch.Range{Topic: topic, Partition: part, From: at, To: min(at+replayWindow, p.NextOffset)})
		}
	})
	return out
}

// deadColumns are the columns of a dead-letter table by name.
type deadColumns struct {
	topic     *array.String
	partition *array.Int32
	offset    *array.Int64
	at        *array.Timestamp
	reason    *array.String
	detail    *array.String
	key       *array.Binary
	value     *array.Binary
	processed *array.Timestamp
}

func deadColumnsOf(rec arrow.RecordBatch) (c deadColumns, err error) {
	for name, dst := range map[string]any{
		"kafka_topic": &c.topic, "kafka_partition": &c.partition, "kafka_offset": &c.offset, "kafka_timestamp": &c.at, "reason": &c.reason,
		"detail": &c.detail, "key": &c.key, "value": &c.value, "processed_at": &c.processed,
	} {
		i := rec.Schema().FieldIndices(name)
		if len(i) != 1 {
			continue // not selected
		}
		ok := false
		switch d := dst.(type) {
		case **array.String:
			*d, ok = rec.Column(i[0]).(*array.String)
		case **array.Int32:
			*d, ok = rec.Column(i[0]).(*array.Int32)
		case **array.Int64:
			*d, ok = rec.Column(i[0]).(*array.Int64)
		case **array.Timestamp:
			*d, ok = rec.Column(i[0]).(*array.Timestamp)
		case **array.Binary:
			*d, ok = rec.Column(i[0]).(*array.Binary)
		}
		if !ok {
			return c, failure.New(failure.SchemaConflict, "a dead-letter table's column %s is of type %s", name, rec.Schema().Field(i[0]).Type)
		}
	}
	return c, nil
}

// eachDead reads a query's dead-letter table; nothing where there is none yet.
func (a *App) eachDead(ctx context.Context, q pipeline.Query, columns []string, f func(rec arrow.RecordBatch, c deadColumns) error) error {
	if q.DeadLetter == nil || q.DeadLetter.Format == pipeline.FormatDelta {
		return failure.New(failure.Config, "query %s has no dead-letter table in the catalog", q.Name)
	}
	ident, err := lake.ParseName(q.DeadLetter.Table)
	if err != nil {
		return err
	}
	t, err := a.Catalog.LoadTablePatiently(ctx, ident, a.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) || (err == nil && t.CurrentSnapshot() == nil) {
		return nil
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "read table %s", q.DeadLetter.Table)
	}
	_, records, err := t.Scan(table.WithSelectedFields(columns...)).ToArrowRecords(ctx)
	if err != nil {
		return fmt.Errorf("scan table %s: %w", q.DeadLetter.Table, err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("scan table %s: %w", q.DeadLetter.Table, err)
		}
		c, err := deadColumnsOf(rec)
		if err == nil {
			err = f(rec, c)
		}
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// micros is a timestamp column's value in microseconds.
func micros(a *array.Timestamp, i int) int64 {
	return a.Value(i).ToTime(a.DataType().(*arrow.TimestampType).Unit).UnixMicro()
}

func utc(micro int64) time.Time { return time.UnixMicro(micro).UTC() }
