package progress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
)

const (
	// PropertyPrefix + query name is the table property with what is recorded
	// of the query.
	PropertyPrefix = "weir.progress."
	// DefaultInterval is the time between two appends.
	DefaultInterval = 5 * time.Second
	// maxQueued bounds the rows that wait while the table cannot be written.
	maxQueued = 10_000
	// maxAttempts bounds the tries of one append.
	maxAttempts = 20
	// keepSnapshots is the table's history: it is read by time, not by snapshot.
	keepSnapshots = 50

	pauseMin = 5 * time.Millisecond
	pauseMax = 500 * time.Millisecond
)

// DefaultTable is the table's name.
var DefaultTable = table.Identifier{"ops", "stream_progress"}

// Options make an Appender.
type Options struct {
	Catalog *lake.Catalog
	// Table is the table; nil means DefaultTable.
	Table table.Identifier
	Clock clock.Clock
	// Interval is the time between two appends of Run; 0 means DefaultInterval.
	Interval time.Duration
	// Mirror, if set, is a file to which appended rows are also written as JSON
	// lines, after they are in the table and without a promise.
	Mirror string
	// OnError hears of appends that failed; their rows stay queued. May be nil.
	OnError func(error)
}

// Appender queues rows of any number of queries and appends them in groups. It
// is safe for use by several goroutines.
type Appender struct {
	opts Options

	mu     sync.Mutex
	queue  []Row
	missed map[string]bool // queries that lost a row to a full queue

	flush sync.Mutex // one append at a time
}

// recorded is the value of a property.
type recorded struct {
	QueryID string `json:"query_id"`
	BatchID int64  `json:"batch_id"`
}

// New makes an appender; the table is made with the first append.
func New(o Options) (*Appender, error) {
	if o.Catalog == nil || o.Clock == nil {
		return nil, errors.New("progress needs a catalog and a clock")
	}
	if o.Table == nil {
		o.Table = DefaultTable
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	return &Appender{opts: o, missed: map[string]bool{}}, nil
}

// Add queues a row; it never blocks. When the queue is full the row is dropped
// and so are all later ones of its query: a later row in the table would say
// that this one is recorded. They come back from the commit log with the next
// start.
func (a *Appender) Add(r Row) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.missed[r.QueryName] {
		return
	}
	if len(a.queue) >= maxQueued {
		a.missed[r.QueryName] = true
		return
	}
	a.queue = append(a.queue, r)
}

// Run appends what is queued every interval until ctx ends; the last rows are
// appended by Flush.
func (a *Appender) Run(ctx context.Context) {
	for a.opts.Clock.Sleep(ctx, a.opts.Interval) == nil {
		if err := a.Flush(ctx); err != nil && ctx.Err() == nil && a.opts.OnError != nil {
			a.opts.OnError(err)
		}
	}
}

// Recorded is the last batch id of the query that is in the table, -1 where
// there is none.
func (a *Appender) Recorded(ctx context.Context, queryName string) (int64, error) {
	t, err := a.opts.Catalog.LoadTablePatiently(ctx, a.opts.Table, a.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) {
		return -1, nil
	}
	if err != nil {
		return -1, failure.Wrap(failure.Unreachable, err, "read table %s", lake.Name(a.opts.Table))
	}
	return recordedIn(t, queryName)
}

func recordedIn(t *table.Table, queryName string) (int64, error) {
	v, ok := t.Properties()[PropertyPrefix+queryName]
	if !ok {
		return -1, nil
	}
	var r recorded
	if err := json.Unmarshal([]byte(v), &r); err != nil {
		return -1, fmt.Errorf("table %s, property %s%s: %w", lake.Name(t.Identifier()), PropertyPrefix, queryName, err)
	}
	return r.BatchID, nil
}

// Flush appends everything that is queued. After an error the rows stay queued.
func (a *Appender) Flush(ctx context.Context) error {
	a.flush.Lock()
	defer a.flush.Unlock()
	a.mu.Lock()
	rows := slices.Clone(a.queue)
	a.mu.Unlock()
	if len(rows) == 0 {
		return nil
	}
	written, err := a.append(ctx, rows)
	if err != nil {
		return failure.Wrap(failure.ClassOf(err), err, "append %d rows to %s", len(rows), lake.Name(a.opts.Table))
	}
	a.mu.Lock()
	a.queue = slices.Clone(a.queue[len(rows):])
	a.mu.Unlock()
	return a.mirror(written)
}

// append commits rows, trying again from a fresh table after any error: the
// properties tell what an attempt that seemed to fail has written.
func (a *Appender) append(ctx context.Context, rows []Row) (written []Row, err error) {
	var last error
	for n := range maxAttempts {
		if n > 1 {
			if err := a.opts.Clock.Sleep(ctx, min(pauseMin<<min(n, 10), pauseMax)); err != nil {
				return nil, errors.Join(err, last)
			}
		}
		t, err := a.opts.Catalog.EnsureTable(ctx, a.opts.Table, Schema(), *iceberg.UnpartitionedSpec, nil)
		if failure.Is(err, failure.SchemaConflict) {
			return nil, err
		}
		if err != nil {
			last = err
			continue
		}
		fresh, err := missing(t, rows)
		if err != nil {
			return nil, err
		}
		if len(fresh) == 0 {
			if written != nil { // by an attempt whose answer was lost
				return written, nil
			}
			return nil, nil
		}
		written = fresh
		ch, err := a.change(ctx, t, fresh)
		if err != nil {
			return nil, err
		}
		after, err := a.opts.Catalog.Commit(ctx, t, ch)
		if err == nil {
			a.expire(ctx, after)
			return fresh, nil
		}
		last = err
	}
	return nil, last
}

// missing are the rows that the table does not have yet, one per batch, in
// order of query and batch.
func missing(t *table.Table, rows []Row) ([]Row, error) {
	var out []Row
	done := map[string]int64{}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(x, y Row) int {
		if x.QueryName != y.QueryName {
			if x.QueryName < y.QueryName {
				return -1
			}
			return 1
		}
		return int(min(1, max(-1, x.BatchID-y.BatchID)))
	})
	for _, r := range rows {
		at, ok := done[r.QueryName]
		if !ok {
			var err error
			if at, err = recordedIn(t, r.QueryName); err != nil {
				return nil, err
			}
		}
		if r.BatchID > at {
			out = append(out, r)
			at = r.BatchID
		}
		done[r.QueryName] = at
	}
	return out, nil
}

// change stages the rows and sets what will be recorded.
func (a *Appender) change(ctx context.Context, t *table.Table, rows []Row) (lake.Change, error) {
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return lake.Change{}, err
	}
	w, err := datafile.NewWriter(datafile.Spec{
		Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: t.Metadata().Version(),
		Properties: t.Properties(), Location: lake.DataLocation(t), FS: storage, Parallel: 1,
	}, "progress-"+clock.Nonce()+"-", nil)
	if err != nil {
		return lake.Change{}, err
	}
	defer w.Abort()
	if err := w.Write(record(rows)); err != nil {
		return lake.Change{}, err
	}
	files, err := w.Close(ctx)
	if err != nil {
		return lake.Change{}, err
	}
	ch := lake.Change{
		Properties: map[string]string{},
		Summary:    map[string]string{"weir.progress-rows": fmt.Sprint(len(rows))},
	}
	for _, f := range files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	last := map[string]recorded{}
	for _, r := range rows {
		last[r.QueryName] = recorded{QueryID: r.QueryID, BatchID: r.BatchID}
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		b, err := json.Marshal(last[name])
		if err != nil {
			return lake.Change{}, err
		}
		ch.Properties[PropertyPrefix+name] = string(b)
	}
	return ch, nil
}

// expire keeps the table's history short. It may fail: the next append tries
// again.
func (a *Appender) expire(ctx context.Context, t *table.Table) {
	r := lake.Retention{Keep: keepSnapshots}
	if r.Due(t) {
		_, _ = a.opts.Catalog.Expire(ctx, t, r)
	}
}

func (a *Appender) mirror(rows []Row) error {
	if a.opts.Mirror == "" || len(rows) == 0 {
		return nil
	}
	f, err := os.OpenFile(a.opts.Mirror, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return failure.Wrap(failure.Runtime, err, "write the progress mirror")
	}
	defer f.Close()
	enc := json.NewEncoder(f)
	for i := range rows {
		if err := enc.Encode(&rows[i]); err != nil {
			return failure.Wrap(failure.Runtime, err, "write the progress mirror %s", a.opts.Mirror)
		}
	}
	return nil
}

func appendDurations(b array.Builder, r *Row) {
	m := b.(*array.MapBuilder)
	if r.DurationMs == nil {
		m.AppendNull()
		return
	}
	m.Append(true)
	for _, phase := range slices.Sorted(maps.Keys(r.DurationMs)) {
		m.KeyBuilder().(*array.StringBuilder).Append(phase)
		m.ItemBuilder().(*array.Int64Builder).Append(r.DurationMs[phase])
	}
}
