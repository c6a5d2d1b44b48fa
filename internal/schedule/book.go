package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/opstable"
)

// PropertyPrefix + job is the property of the runs table with a job's Record.
const PropertyPrefix = "weir.job."

// TableBook keeps the history in a table of the catalog: a row per run that has
// ended, the records as properties.
type TableBook struct {
	table opstable.Table[Run]
	mu    sync.Mutex // one commit of ours at a time
}

var _ Book = (*TableBook)(nil)

// NewTableBook makes a book; the table is made with the first run.
func NewTableBook(c *lake.Catalog, ident table.Identifier, clk clock.Clock) *TableBook {
	text := func(name string, get func(Run) string) opstable.Column[Run] {
		return opstable.Column[Run]{Name: name, Kind: opstable.Text, Value: func(r Run) any { return get(r) }}
	}
	instant := func(name string, get func(Run) time.Time) opstable.Column[Run] {
		return opstable.Column[Run]{Name: name, Kind: opstable.Instant, Value: func(r Run) any { return get(r) }}
	}
	return &TableBook{table: opstable.Table[Run]{Catalog: c, Ident: ident, Clock: clk, Columns: []opstable.Column[Run]{
		text("run_id", func(r Run) string { return r.ID }),
		text("job", func(r Run) string { return r.Job }),
		text("trigger", func(r Run) string { return r.Trigger }),
		instant("scheduled_for", func(r Run) time.Time { return r.ScheduledFor }),
		instant("started_at", func(r Run) time.Time { return r.StartedAt }),
		instant("ended_at", func(r Run) time.Time {
			if r.EndedAt == nil {
				return time.Time{}
			}
			return *r.EndedAt
		}),
		text("status", func(r Run) string { return r.Status }),
		{Name: "tries", Kind: opstable.Long, Value: func(r Run) any { return int64(r.Tries) }},
		text("error", func(r Run) string { return r.Error }),
		text("detail", func(r Run) string { return r.Detail }),
	}}}
}

func recordIn(props map[string]string, job string) (Record, bool, error) {
	var r Record
	raw, ok := props[PropertyPrefix+job]
	if !ok {
		return r, false, nil
	}
	if err := json.Unmarshal([]byte(raw), &r); err != nil {
		return r, false, failure.Wrap(failure.Checkpoint, err, "property %s%s of the runs table", PropertyPrefix, job).
			WithHint("remove the property with any Iceberg engine: the job begins without a history")
	}
	return r, true, nil
}

func (b *TableBook) set(r Record) (map[string]string, error) {
	raw, err := json.Marshal(r)
	return map[string]string{PropertyPrefix + r.Last.Job: string(raw)}, err
}

// Records reads what is remembered of the jobs, and changes nothing.
func (b *TableBook) Records(ctx context.Context, jobs []string) (map[string]Record, error) {
	props, err := b.table.Properties(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]Record{}
	for _, j := range jobs {
		r, ok, err := recordIn(props, j)
		if err != nil {
			return nil, err
		}
		if ok {
			out[j] = r
		}
	}
	return out, nil
}

// Open implements Book.
func (b *TableBook) Open(ctx context.Context, jobs []string, now time.Time) (map[string]Record, []Run, error) {
	records, err := b.Records(ctx, jobs)
	if err != nil {
		return nil, nil, err
	}
	var closed []Run
	for _, j := range jobs {
		r, ok := records[j]
		if !ok || r.Last.Status != Running {
			continue
		}
		run := r.Last
		run.EndedAt, run.Status, run.Error = &now, Interrupted, "the process ended without closing it"
		if err := b.End(ctx, run); err != nil {
			return nil, nil, err
		}
		closed = append(closed, run)
	}
	if len(closed) > 0 {
		records, err = b.Records(ctx, jobs)
	}
	return records, closed, err
}

// Begin implements Book.
func (b *TableBook) Begin(ctx context.Context, run Run) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.table.Append(ctx, func(props map[string]string) (*opstable.Change[Run], error) {
		r, _, err := recordIn(props, run.Job)
		if err != nil || r.Last.ID == run.ID {
			return nil, err
		}
		if r.Last.Status == Running {
			return nil, failure.New(failure.Fenced, "run %s of job %s is open since %s", r.Last.ID, run.Job, r.Last.StartedAt.Format(time.RFC3339)).
				WithHint("another process runs the jobs of this pipeline, or one was killed: weir run closes what a killed one left open")
		}
		r.Last = run
		if run.ScheduledFor.After(r.Slot) {
			r.Slot = run.ScheduledFor
		}
		set, err := b.set(r)
		return &opstable.Change[Run]{Properties: set}, err
	})
}

// End implements Book.
func (b *TableBook) End(ctx context.Context, run Run) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.table.Append(ctx, func(props map[string]string) (*opstable.Change[Run], error) {
		r, _, err := recordIn(props, run.Job)
		if err != nil {
			return nil, err
		}
		if r.Last.ID != run.ID {
			return nil, failure.New(failure.Fenced, "run %s of job %s is not the open one any more (%s): another process closed it", run.ID, run.Job, r.Last.ID)
		}
		if r.Last.Status != Running {
			return nil, nil // by an earlier try whose answer was lost, or by another process
		}
		r.Last = run
		r.Last.Detail = "" // stands in the row
		if run.Status == Succeeded {
			r.SucceededAt, r.Failures = *run.EndedAt, 0
		} else {
			r.Failures++
		}
		set, err := b.set(r)
		return &opstable.Change[Run]{Rows: []Run{run}, Properties: set}, err
	})
}

// String names the table.
func (b *TableBook) String() string { return fmt.Sprintf("table %s", lake.Name(b.table.Ident)) }
