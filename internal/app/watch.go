package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/ingest"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/status"
)

// StatusOptions say whether and where the status page is served.
type StatusOptions struct {
	// Listen is host:port, or none.
	Listen string
	// FreePort takes another port where that one is in use.
	FreePort bool
	Token    string
	PProf    bool
	Version  string
	// Proof is a report of weir prove to show; empty is ProofFile's.
	Proof string
}

// watch feeds the status board of an App. It is nil where there is no page: its
// methods then do nothing.
type watch struct {
	a     *App
	board *status.Board

	mu    sync.Mutex
	admin *kadm.Client // made by the first question about topics

	// deltas are the Delta tables by location, so that a look reads on in their
	// logs from the last one; only tableFacts uses them.
	deltas map[string]*delta.Table
}

// ServeStatus opens the status page and begins to feed it. It is called after
// Open and before Run; Close ends the page. The answer is empty for "none".
func (a *App) ServeStatus(o StatusOptions) (url string, err error) {
	if o.Listen == pipeline.ListenNone || o.Listen == "" {
		return "", nil
	}
	w := &watch{a: a, deltas: map[string]*delta.Table{}}
	w.board = status.NewBoard(status.Options{
		Pipeline: a.P.Name, Version: o.Version, Clock: a.opts.Clock, Queries: w.queryInfos(), Jobs: a.jobsForPage(), Lineage: a.lineageForPage(),
		Facts: status.Facts{Broker: w.brokerFacts, Tables: w.tableFacts, DeadLetters: w.deadLetters, Proof: proofFacts(o.Proof, a.P)},
	})
	server, err := status.Serve(w.board, status.ServeOptions{
		Listen: o.Listen, FreePort: o.FreePort, Token: o.Token, PProf: o.PProf, Logger: a.opts.Logger,
	})
	if err != nil {
		w.board.Close()
		return "", err
	}
	a.watch = w
	for _, in := range a.ingesters {
		w.addIngest(in)
	}
	for _, n := range a.nodes {
		w.hook(n.query)
	}
	a.closers = append(a.closers, func() error {
		err := server.Close()
		w.board.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.admin != nil {
			w.admin.Close()
		}
		return err
	})
	return server.URL(), nil
}

// queryInfos describes the queries that were built, upstream first.
func (w *watch) queryInfos() []status.QueryInfo {
	var out []status.QueryInfo
	for _, level := range levels(w.a.nodes) {
		for _, n := range level {
			q, err := QueryByName(w.a.P, n.query.Name)
			if err != nil {
				continue // every built query is one of the pipeline's
			}
			info := status.QueryInfo{
				Name: q.Name, Level: n.level, Trigger: q.Trigger.ProcessingTime, Watermarked: q.Watermark != nil, Table: q.To.Table(),
			}
			switch {
			case q.From.Table != nil:
				info.SourceKind, info.Source = "table", q.From.Table.Name
			case q.From.Kafka != nil && q.From.Kafka.TopicPattern != "":
				info.SourceKind, info.Source = "kafka", q.From.Kafka.TopicPattern
			case q.From.Kafka != nil:
				info.SourceKind, info.Source = "kafka", strings.Join(q.From.Kafka.Topics, ", ")
			}
			if q.DeadLetter != nil {
				info.DeadLetterTable = q.DeadLetter.Table
			}
			out = append(out, info)
		}
	}
	return out
}

// hook adds the board to whom a query tells of its batches.
func (w *watch) hook(q *engine.Query) {
	name, progress, alert := q.Name, q.OnProgress, q.OnAlert
	q.OnProgress = func(p engine.Progress) {
		if progress != nil {
			progress(p)
		}
		w.board.Batch(batchOf(&p))
	}
	q.OnAlert = func(text string) {
		if alert != nil {
			alert(text)
		}
		w.board.Alert(name, text)
	}
	q.OnSetAside = func(rows []operator.SetAside, watermark int64) {
		w.board.SetAside(name, setAsideOf(name, rows, watermark, w.a.opts.Clock.Now()))
	}
	q.OnIdle = func() { w.board.Idle(name) }
}

// setAsideOf are samples of late and duplicate rows as the board wants them.
func setAsideOf(query string, rows []operator.SetAside, watermark int64, now time.Time) []status.SetAside {
	var mark *time.Time
	if watermark != marker.MinTime {
		t := time.UnixMicro(watermark).UTC()
		mark = &t
	}
	out := make([]status.SetAside, 0, len(rows))
	for _, r := range rows {
		s := status.SetAside{
			Query: query, Kind: status.LateRow, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset,
			EventTime: time.UnixMicro(r.EventMicros).UTC(), Watermark: mark, Snippet: string(r.Value), At: now,
		}
		if r.Duplicate {
			s.Kind = status.DuplicateRow
		}
		out = append(out, s)
	}
	return out
}

// batchOf is a batch as the board wants it.
func batchOf(p *engine.Progress) status.Batch {
	return status.Batch{
		Query: p.QueryName, QueryID: p.QueryID, BatchID: p.BatchID, Epoch: p.Epoch, StartedAt: p.StartedAt, CommittedAt: p.CommittedAt,
		InputRows: p.InputRows, OutputRows: p.OutputRows, Filtered: p.RowsFiltered, Late: p.RowsDroppedByWatermark,
		Duplicate: p.RowsDuplicate, DeadLettered: p.RowsDeadLettered, Watermark: p.Watermark, DurationMs: maps.Clone(p.DurationMs),
		Freshness: status.Freshness{
			P50Seconds: float64(p.FreshnessP50Ms) / 1000, P95Seconds: float64(p.FreshnessP95Ms) / 1000, MaxSeconds: float64(p.FreshnessMaxMs) / 1000,
		},
		LagOffsets: p.LagOffsets, StateKeys: p.StateRows, StateBytes: p.StateBytes, Position: p.Position,
	}
}

// ended tells the board how a query ended, and passes the error on.
func (w *watch) ended(query string, err error) error {
	if w != nil {
		w.board.Ended(query, err)
	}
	return err
}

// retrying tells the board that a query starts again by itself.
func (w *watch) retrying(query string, err error) {
	if w != nil {
		w.board.Retrying(query, err)
	}
}

// alert tells the board what a person must see.
func (w *watch) alert(query, text string) {
	if w != nil {
		w.board.Alert(query, text)
	}
}

// ingester is an ingestion with what the pipeline says of it.
type ingester struct {
	def pipeline.Ingest
	in  *ingest.Ingester
}

// RunIngester runs an ingestion that Ingester made, under the eyes of the
// status page.
func (a *App) RunIngester(ctx context.Context, in *ingest.Ingester) error {
	name := ""
	for _, i := range a.ingesters {
		if i.in == in {
			name = i.def.Name
		}
	}
	if a.watch == nil {
		return in.Run(ctx)
	}
	a.watch.board.IngestStarted(name)
	err := in.Run(ctx)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		a.watch.board.IngestEnded(name, nil)
		return err
	}
	a.watch.board.IngestEnded(name, err)
	return err
}

func (w *watch) addIngest(i ingester) {
	w.board.AddIngest(status.IngestInfo{
		Name: i.def.Name, Source: i.def.SSE.URL, Topic: i.def.Topic, DeadLetterTopic: i.def.DeadLetterTopic, Delivery: i.def.Delivery,
		Stats: func() status.IngestStats {
			s := i.in.Stats()
			return status.IngestStats{
				Received: s.Received, Published: s.Published, Canaries: s.Canaries, DeadLetters: s.DeadLetters, Dropped: s.Dropped,
				InFlight: s.InFlight, Transactions: s.Transactions, Saves: s.Saves, Reconnects: s.Reconnects(),
				Failures: s.Stream.Failures, Bytes: s.Stream.Bytes, LagMillis: s.LagMillis, Violations: s.Violations,
			}
		},
	})
}

// kafka is the page's own client, made when it is first needed.
func (w *watch) kafka() (*kadm.Client, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.admin == nil {
		opts, err := w.a.KafkaOptions()
		if err != nil {
			return nil, err
		}
		cl, err := kgo.NewClient(opts...)
		if err != nil {
			return nil, fmt.Errorf("kafka client: %w", err)
		}
		w.admin = kadm.NewClient(cl)
	}
	return w.admin, nil
}

// brokerFacts says how much the topics hold and how far the queries are behind
// their sources.
func (w *watch) brokerFacts(ctx context.Context, positions map[string]json.RawMessage) (status.Broker, error) {
	w.restore(ctx, positions)
	at := map[string]batch.Position{}
	topics := map[string]bool{}
	for name, raw := range positions {
		var p batch.Position
		if err := json.Unmarshal(raw, &p); err != nil {
			return status.Broker{}, fmt.Errorf("position of query %s: %w", name, err)
		}
		at[name] = p
		p.Kafka.Each(func(topic, _ string, _ int32, _ batch.PartitionPosition) { topics[topic] = true })
	}
	for _, in := range w.a.P.Ingest {
		topics[in.Topic] = true
		topics[in.DeadLetterTopic] = true
	}
	delete(topics, "")
	out := status.Broker{Lag: map[string]int64{}}
	ends, err := w.topicEnds(ctx, slices.Sorted(maps.Keys(topics)), &out)
	if err != nil {
		return out, err
	}
	for name, p := range at {
		lag, known, err := w.lag(ctx, p, ends)
		if err != nil {
			return out, fmt.Errorf("lag of query %s: %w", name, err)
		}
		if known {
			out.Lag[name] = lag
		}
	}
	return out, nil
}

// topicEnds asks the broker for where the topics begin and end.
func (w *watch) topicEnds(ctx context.Context, topics []string, out *status.Broker) (kadm.ListedOffsets, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	admin, err := w.kafka()
	if err != nil {
		return nil, err
	}
	starts, err := admin.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, w.noAnswer(err, "where the topics begin")
	}
	ends, err := admin.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, w.noAnswer(err, "where the topics end")
	}
	for _, name := range topics {
		t := status.Topic{Name: name}
		for p, end := range ends[name] {
			start, ok := starts.Lookup(name, p)
			if end.Err != nil || !ok || start.Err != nil {
				continue
			}
			t.Partitions++
			t.Records += end.Offset - start.Offset
		}
		out.Topics = append(out.Topics, t)
	}
	return ends, nil
}

// noAnswer says who was asked for what.
func (w *watch) noAnswer(err error, what string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("Kafka at %v does not say %s", w.a.Kafka.BootstrapServers, what)
	}
	return fmt.Errorf("ask Kafka at %v %s: %w", w.a.Kafka.BootstrapServers, what, err)
}

// lag is how many offsets lie between a position and the end of its source.
func (w *watch) lag(ctx context.Context, p batch.Position, ends kadm.ListedOffsets) (int64, bool, error) {
	if p.Table != nil {
		t, err := w.load(ctx, p.Table.Name)
		if err != nil || t == nil {
			return 0, false, err
		}
		head, err := scan.Offsets(t.CurrentSnapshot())
		if err != nil || head == nil {
			return 0, false, err
		}
		return p.Offsets(batch.Position{Table: &batch.TablePosition{Upstream: head}}), true, nil
	}
	var lag int64
	known := true
	p.Kafka.Each(func(topic, _ string, partition int32, at batch.PartitionPosition) {
		if at.HandedTo != "" {
			return
		}
		end, ok := ends.Lookup(topic, partition)
		if !ok || end.Err != nil {
			known = false
			return
		}
		lag += max(end.Offset-at.NextOffset, 0)
	})
	return lag, known && p.Kafka != nil, nil
}

// restore adds the positions of queries that have committed nothing in this
// run, from the markers in their tables.
func (w *watch) restore(ctx context.Context, positions map[string]json.RawMessage) {
	for _, n := range w.a.nodes {
		name := n.query.Name
		if _, ok := positions[name]; ok {
			continue
		}
		q, err := QueryByName(w.a.P, name)
		if err != nil {
			continue
		}
		m, err := w.a.markerOf(ctx, q, &QueryStatus{})
		if err != nil || m == nil {
			continue // the lag is unknown, and shown so
		}
		raw, err := json.Marshal(m.Position)
		if err != nil {
			continue
		}
		positions[name] = raw
		r := status.Restored{QueryID: m.QueryID, Epoch: m.Epoch.Number, BatchID: m.BatchID, Position: raw}
		if m.BatchID >= 0 {
			r.CommittedAt = m.BatchTime
		}
		if m.Watermark.Micros != marker.MinTime {
			mark := time.UnixMicro(m.Watermark.Micros).UTC()
			r.Watermark = &mark
		}
		w.board.Restore(name, r)
	}
}

// load loads a table, nil where it does not exist (yet).
func (w *watch) load(ctx context.Context, name string) (*table.Table, error) {
	if name == "" {
		return nil, nil
	}
	ident, err := lake.ParseName(name)
	if err != nil {
		return nil, err
	}
	t, err := w.a.Catalog.LoadTable(ctx, ident)
	if errors.Is(err, lake.ErrNoTable) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", name, err)
	}
	return t, nil
}

// tableFacts looks at the head of every table of the pipeline.
func (w *watch) tableFacts(ctx context.Context) ([]status.Table, error) {
	var out []status.Table
	seen := map[string]bool{}
	add := func(name, role, delta string) error {
		if name == "" || seen[name] {
			return nil
		}
		seen[name] = true
		if delta != "" {
			t, err := w.deltaTable(ctx, name, role, delta)
			out = append(out, t)
			return err
		}
		t, err := w.load(ctx, name)
		if err != nil {
			return err
		}
		one := tableOf(t, name, role)
		if !one.Missing {
			one.Care = w.careOf(name)
		}
		out = append(out, one)
		return nil
	}
	var errs []error
	for _, q := range w.a.P.Queries {
		if q.From.Table != nil && !w.a.writes(q.From.Table.Name) {
			errs = append(errs, add(q.From.Table.Name, "source", ""))
		}
		if _, e := q.To.External(); e == nil {
			errs = append(errs, add(q.To.Table(), "main", MainLocation(w.a.P, q)))
		}
	}
	for _, q := range w.a.P.Queries {
		if q.DeadLetter != nil {
			errs = append(errs, add(q.DeadLetter.Table, "dead letters", DeadLetterLocation(w.a.P, q)))
		}
		errs = append(errs, add(q.RejectedTable(), "rejected rows", ""))
	}
	errs = append(errs, add(w.a.P.Ops.ProgressTable, "progress", ""))
	if w.a.jobs != nil {
		errs = append(errs, add(w.a.P.Ops.RunsTable, "runs", ""), add(w.a.P.Ops.ChecksTable, "checks", ""))
	}
	return out, errors.Join(errs...)
}

// deltaTable is a Delta table's health from its log.
func (w *watch) deltaTable(ctx context.Context, name, role, location string) (status.Table, error) {
	out := status.Table{Name: name, Role: role}
	t := w.deltas[location]
	if t == nil {
		store, err := w.a.deltaStorage(ctx, location)
		if err != nil {
			return out, err
		}
		t = delta.Open(store, delta.Options{Clock: w.a.opts.Clock})
		w.deltas[location] = t
	}
	s, err := t.Snapshot(ctx)
	if errors.Is(err, delta.ErrNoTable) {
		out.Missing = true
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("table %s: %w", name, err)
	}
	out.Snapshots = int(s.Version) + 1
	for _, f := range s.Files() {
		out.Rows += f.Rows()
		out.DataBytes += f.Size
		out.DataFiles++
	}
	actions, err := t.CommitAt(ctx, s.Version)
	for _, a := range actions {
		if a.CommitInfo != nil {
			at := time.UnixMilli(a.CommitInfo.Timestamp).UTC()
			out.CommittedAt = &at
		}
	}
	if err != nil && !errors.Is(err, delta.ErrNoVersion) {
		return out, fmt.Errorf("table %s: %w", name, err)
	}
	return out, nil
}

// metadataBytes is the size of the table's metadata file. Of one in an object
// store it is what its contents take without compression.
func metadataBytes(t *table.Table) int64 {
	if path, err := lake.LocalPath(t.MetadataLocation()); err == nil {
		if fi, err := os.Stat(path); err == nil {
			return fi.Size()
		}
	}
	b, err := json.Marshal(t.Metadata())
	if err != nil {
		return 0
	}
	return int64(len(b))
}

// tableOf is a table's health from its metadata; no data file is opened.
func tableOf(t *table.Table, name, role string) status.Table {
	out := status.Table{Name: name, Role: role, Missing: t == nil}
	if t == nil {
		return out
	}
	out.Snapshots = len(t.Metadata().Snapshots())
	if head := t.CurrentSnapshot(); head != nil {
		for key, into := range map[string]*int64{
			"total-records": &out.Rows, "total-data-files": &out.DataFiles, "total-delete-files": &out.DeleteFiles, "total-files-size": &out.DataBytes,
		} {
			_, _ = fmt.Sscan(lake.SummaryValue(head, key), into)
		}
		at := time.UnixMilli(head.TimestampMs).UTC()
		out.CommittedAt = &at
	}
	out.MetadataBytes = metadataBytes(t)
	return out
}
