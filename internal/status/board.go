package status

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Bounds of what the board remembers.
const (
	batchesKept     = 500 // a query
	alertsKept      = 100
	deadLettersKept = 20
	setAsideKept    = 10 // a query and kind
)

// Phases of a batch in DurationMs.
const (
	phaseTotal  = "triggerExecution"
	phaseCommit = "commit"
)

// QueryInfo is what is fixed about a query.
type QueryInfo struct {
	Name            string
	Level           int
	Source          string
	SourceKind      string // kafka or table
	Table           string
	DeadLetterTable string
	Trigger         time.Duration
	Watermarked     bool
}

// IngestInfo is what is fixed about an ingestion, and its counters.
type IngestInfo struct {
	Name            string
	Source          string // the stream's URL; user and password are cut off
	Topic           string
	DeadLetterTopic string
	Delivery        string
	Stats           func() IngestStats // cheap: asked every few seconds
}

// Restored is what a query's table remembers of it from before this run.
type Restored struct {
	QueryID     string
	Epoch       int64
	BatchID     int64
	CommittedAt time.Time
	Watermark   *time.Time
	Position    json.RawMessage
}

// Broker is what is known of topics and of how far the queries are behind them.
type Broker struct {
	Topics []Topic
	// Lag is by query; a query that is missing has an unknown lag.
	Lag map[string]int64
}

// Facts are asked on demand, never more often than the lookup's limit, one
// question of a kind at a time. Nil functions are left out.
type Facts struct {
	// Broker gets the position of each query as its last batch (or Restored)
	// left it; a query without either is missing.
	Broker      func(ctx context.Context, positions map[string]json.RawMessage) (Broker, error)
	Tables      func(ctx context.Context) ([]Table, error)
	DeadLetters func(ctx context.Context, most int) ([]DeadLetter, error)
	// Proof is the last report of weir prove, nil where there is none.
	Proof func(ctx context.Context) (*Proof, error)
}

// Options are what a board is made from.
type Options struct {
	Pipeline string
	Version  string
	Clock    clock.Clock
	// Queries are upstream first.
	Queries []QueryInfo
	Facts   Facts
	// Jobs is what the jobs came to; nil where the pipeline has none.
	Jobs func() *Jobs
	// Lineage is what became of lineage events; nil where there are none.
	Lineage func() *Lineage
}

// Board collects what happens in a pipeline. Its methods may be called from
// any goroutine, and never block on anything but its own lock.
type Board struct {
	o       Options
	began   time.Time
	metrics *metrics

	stop    context.CancelFunc
	asking  sync.WaitGroup
	broker  lookup[Broker]
	tables  lookup[[]Table]
	samples lookup[[]DeadLetter]
	proof   lookup[*Proof]

	mu          sync.Mutex
	queries     []*query
	ingests     []*ingest
	alerts      []Alert // oldest first
	alertsTotal int64
	// sampled is the number of dead letters when the samples were taken.
	sampled int64
}

// query is what the board knows of one query; guarded by Board.mu.
type query struct {
	info     QueryInfo
	state    string
	err      error
	restored *Restored
	batches  []Batch // oldest first
	history  history
	totals   Totals
	fresh    Freshness // of the last batch that had rows with event times
	alerts   int64
	// setAside are the last late and duplicate rows, oldest first.
	setAside map[string][]SetAside
	// moved is when the query last showed that it is well: it committed, or
	// it looked and found nothing new.
	moved time.Time
}

// ingest is what the board knows of one ingestion; guarded by Board.mu.
type ingest struct {
	info    IngestInfo
	state   string
	err     error
	samples []ingestSample
}

// ingestSample is the counters at a time, for rates.
type ingestSample struct {
	at                  time.Time
	received, published int64
}

// NewBoard makes a board. Close ends its questions.
func NewBoard(o Options) *Board {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	ctx, stop := context.WithCancel(context.Background())
	b := &Board{o: o, began: o.Clock.Now(), stop: stop, sampled: -1}
	for _, q := range o.Queries {
		b.queries = append(b.queries, &query{info: q, state: Starting})
	}
	b.metrics = newMetrics(b)
	b.broker = lookup[Broker]{every: lagEvery, clk: o.Clock, base: ctx, group: &b.asking}
	b.tables = lookup[[]Table]{every: tablesEvery, clk: o.Clock, base: ctx, group: &b.asking, ask: o.Facts.Tables}
	b.samples = lookup[[]DeadLetter]{every: samplesEvery, clk: o.Clock, base: ctx, group: &b.asking}
	b.proof = lookup[*Proof]{every: proofEvery, clk: o.Clock, base: ctx, group: &b.asking, ask: o.Facts.Proof}
	if o.Facts.Broker != nil {
		b.broker.ask = func(ctx context.Context) (Broker, error) { return o.Facts.Broker(ctx, b.positions()) }
	}
	if o.Facts.DeadLetters != nil {
		b.samples.ask = b.askSamples
	}
	return b
}

// Close ends questions that are still being asked. The board can be read on.
func (b *Board) Close() {
	b.stop()
	b.asking.Wait()
}

// AddIngest makes an ingestion known, before it runs.
func (b *Board) AddIngest(in IngestInfo) {
	in.Source = withoutCredentials(in.Source)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ingests = append(b.ingests, &ingest{info: in, state: Starting})
}

// withoutCredentials drops user, password and query from a URL: any of them may
// hold a secret.
func withoutCredentials(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

// IngestStarted says that an ingestion runs.
func (b *Board) IngestStarted(name string) { b.ingestState(name, Running, nil) }

// IngestEnded says how an ingestion ended; nil is a clean end.
func (b *Board) IngestEnded(name string, err error) { b.ingestState(name, endState(err), err) }

func (b *Board) ingestState(name, state string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, in := range b.ingests {
		if in.info.Name == name {
			in.state, in.err = state, err
		}
	}
}

func endState(err error) string {
	if err != nil {
		return Failed
	}
	return Done
}

// find is the query of that name; b.mu is held.
func (b *Board) find(name string) *query {
	for _, q := range b.queries {
		if q.info.Name == name {
			return q
		}
	}
	return nil
}

// Ended says how a query ended; nil is a clean end.
func (b *Board) Ended(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.find(name); q != nil {
		q.state, q.err = endState(err), err
	}
}

// Retrying says that a query ended because the store that it writes to does not
// answer, and starts again by itself.
func (b *Board) Retrying(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.find(name); q != nil {
		q.state, q.err = Retrying, err
	}
}

// SetAside takes samples of rows that a batch counted and did not write.
func (b *Board) SetAside(name string, rows []SetAside) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.find(name)
	if q == nil {
		return
	}
	if q.setAside == nil {
		q.setAside = map[string][]SetAside{}
	}
	for _, r := range rows {
		r.Snippet = Snippet([]byte(r.Snippet))
		kept := append(q.setAside[r.Kind], r)
		q.setAside[r.Kind] = kept[max(0, len(kept)-setAsideKept):]
	}
}

// Idle says that a query looked for something new and found nothing.
func (b *Board) Idle(name string) {
	now := b.o.Clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.find(name); q != nil {
		q.state, q.err, q.moved = Running, nil, now
	}
}

// Restore fills in what a query's table remembers, until its first batch.
func (b *Board) Restore(name string, r Restored) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.find(name); q != nil {
		q.restored = &r
	}
}

// Batch records a committed batch.
func (b *Board) Batch(x Batch) {
	b.mu.Lock()
	q := b.find(x.Query)
	if q == nil {
		b.mu.Unlock()
		return
	}
	q.state, q.err, q.moved = Running, nil, x.CommittedAt
	if n := len(q.batches); n > 0 {
		q.batches[n-1].Position = nil // only the last one's is asked for
	}
	if len(q.batches) == batchesKept {
		q.batches = slices.Delete(q.batches, 0, batchesKept/10)
	}
	q.batches = append(q.batches, x)
	q.history.add(&x)
	if x.Freshness != (Freshness{}) {
		q.fresh = x.Freshness
	}
	t := &q.totals
	t.Batches++
	t.InputRows += x.InputRows
	t.OutputRows += x.OutputRows
	t.Filtered += x.Filtered
	t.Late += x.Late
	t.Duplicate += x.Duplicate
	t.DeadLettered += x.DeadLettered
	b.sampleIngests(x.CommittedAt)
	b.mu.Unlock()
	b.metrics.observe(&x)
}

// Alert records what a person must see.
func (b *Board) Alert(name, text string) {
	now := b.o.Clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.find(name); q != nil {
		q.alerts++
	}
	b.alertsTotal++
	if len(b.alerts) == alertsKept {
		b.alerts = slices.Delete(b.alerts, 0, 1)
	}
	b.alerts = append(b.alerts, Alert{At: now, Query: name, Text: text})
}

// Batches are the kept batches of a query, newest first; all queries' where
// name is empty. Unknown is set for a name that no query has.
func (b *Board) Batches(name string, most int) (out []Batch, unknown bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if name != "" && b.find(name) == nil {
		return nil, true
	}
	for _, q := range b.queries {
		if name == "" || q.info.Name == name {
			out = append(out, q.batches...)
		}
	}
	slices.SortStableFunc(out, func(x, y Batch) int { return y.CommittedAt.Compare(x.CommittedAt) })
	if len(out) > most {
		out = out[:most]
	}
	return out, false
}

// LastBatch is the id of a query's last batch, as far as it is known.
func (b *Board) LastBatch(name string) (id int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch q := b.find(name); {
	case q == nil:
		return 0, false
	case len(q.batches) > 0:
		return q.batches[len(q.batches)-1].BatchID, true
	case q.restored != nil:
		return q.restored.BatchID, true
	}
	return 0, false
}

// positions are where the queries stand.
func (b *Board) positions() map[string]json.RawMessage {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]json.RawMessage{}
	for _, q := range b.queries {
		switch {
		case len(q.batches) > 0:
			out[q.info.Name] = q.batches[len(q.batches)-1].Position
		case q.restored != nil:
			out[q.info.Name] = q.restored.Position
		}
	}
	return out
}

// deadLetters counts them all; b.mu is held.
func (b *Board) deadLetters() int64 {
	var n int64
	for _, q := range b.queries {
		n += q.totals.DeadLettered
	}
	for _, in := range b.ingests {
		n += in.info.Stats().DeadLetters
	}
	return n
}

// askSamples looks for dead letters where there are others than last time.
func (b *Board) askSamples(ctx context.Context) ([]DeadLetter, error) {
	b.mu.Lock()
	n := b.deadLetters()
	same := n == b.sampled
	b.mu.Unlock()
	if same {
		return b.samples.peek().value, nil
	}
	out, err := b.o.Facts.DeadLetters(ctx, deadLettersKept)
	if err != nil {
		return nil, err
	}
	for i := range out {
		d := &out[i]
		d.Snippet, d.Key, d.Detail = Snippet([]byte(d.Snippet)), Snippet([]byte(d.Key)), Snippet([]byte(d.Detail))
	}
	slices.SortStableFunc(out, func(x, y DeadLetter) int { return y.At.Compare(x.At) })
	out = out[:min(len(out), deadLettersKept)]
	b.mu.Lock()
	b.sampled = n
	b.mu.Unlock()
	return out, nil
}

// errorText is an error without its hint's layout.
func errorText(err error) (text, class string) {
	if err == nil {
		return "", ""
	}
	return err.Error(), failure.ClassOf(err).String()
}
