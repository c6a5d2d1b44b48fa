package progress

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
)

func open(t *testing.T, dir string, hooks lake.CommitHooks) *Appender {
	t.Helper()
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	a, err := New(Options{Catalog: c.WithHooks(hooks), Clock: clock.System{}, Mirror: filepath.Join(dir, "progress.jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func row(query string, batchID int64) Row {
	at := time.Date(2026, 5, 1, 10, 0, int(batchID), 0, time.UTC)
	r := Row{QueryName: query, QueryID: "id-" + query, BatchID: batchID, Epoch: 2, StartedAt: at, CommittedAt: at.Add(time.Second),
		InputRows: 10, OutputRows: 7, RowsFiltered: 1, RowsDuplicate: 1, RowsDroppedByWatermark: 1, FreshnessP50Ms: 40,
		DurationMs: map[string]int64{"read": 3, "commit": 9}, Position: json.RawMessage(`{"kafka":{}}`)}
	if batchID%2 == 1 {
		r.Watermark = &at
	}
	return r
}

// batches reads the batch ids of a query from the table.
func batches(t *testing.T, a *Appender, query string) []int64 {
	t.Helper()
	tbl, err := a.opts.Catalog.LoadTable(context.Background(), a.opts.Table)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := tbl.Scan(table.WithSelectedFields("query_name", "batch_id")).ToArrowTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Release()
	var out []int64
	names := rows.Column(0).Data().Chunks()
	for i, c := range rows.Column(1).Data().Chunks() {
		for j := range c.Len() {
			if names[i].(*array.String).Value(j) == query {
				out = append(out, c.(*array.Int64).Value(j))
			}
		}
	}
	slices.Sort(out)
	return out
}

func wantBatches(t *testing.T, a *Appender, query string, want ...int64) {
	t.Helper()
	if got := batches(t, a, query); !slices.Equal(got, want) {
		t.Fatalf("query %s: batches %v, want %v", query, got, want)
	}
}

func TestRowsAppendedAgainAfterACrashAreThereOnce(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir, lake.CommitHooks{})
	if n, err := a.Recorded(context.Background(), "q"); n != -1 || err != nil {
		t.Fatalf("recorded before the first row: %d %v", n, err)
	}
	for b := range int64(5) {
		a.Add(row("q", b))
		a.Add(row("other", b))
	}
	if err := a.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	// A new process appends what its commit log holds, some of it twice.
	again := open(t, dir, lake.CommitHooks{})
	for _, b := range []int64{3, 4, 5, 5, 4, 6} {
		again.Add(row("q", b))
	}
	if err := again.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantBatches(t, a, "q", 0, 1, 2, 3, 4, 5, 6)
	wantBatches(t, a, "other", 0, 1, 2, 3, 4)
	if n, err := again.Recorded(context.Background(), "q"); n != 6 || err != nil {
		t.Fatalf("recorded %d %v", n, err)
	}
	lines, err := os.ReadFile(filepath.Join(dir, "progress.jsonl"))
	if err != nil || strings.Count(string(lines), "\n") != 12 {
		t.Fatalf("mirror: %v\n%s", err, lines)
	}
}

func TestAppendWhoseAnswerWasLostIsThereOnce(t *testing.T) {
	lost := 0
	a := open(t, t.TempDir(), lake.CommitHooks{After: func(context.Context, table.Identifier) error {
		if lost++; lost == 1 {
			return errors.New("connection lost")
		}
		return nil
	}})
	a.Add(row("q", 0))
	if err := a.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.Add(row("q", 1))
	if err := a.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantBatches(t, a, "q", 0, 1)
}

func TestAppendersThatRaceDropWhatTheOtherRecorded(t *testing.T) {
	dir := t.TempDir()
	other := open(t, dir, lake.CommitHooks{})
	raced := false
	a := open(t, dir, lake.CommitHooks{Before: func(ctx context.Context, _ table.Identifier) error {
		if raced {
			return nil
		}
		raced = true
		other.Add(row("q", 0))
		other.Add(row("q", 1))
		return other.Flush(ctx)
	}})
	for b := range int64(4) {
		a.Add(row("q", b))
	}
	if err := a.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantBatches(t, a, "q", 0, 1, 2, 3)
}

func TestRowsStayQueuedWhileTheTableCannotBeWritten(t *testing.T) {
	away := true
	a := open(t, t.TempDir(), lake.CommitHooks{Before: func(context.Context, table.Identifier) error {
		if away {
			return errors.New("the catalog is away")
		}
		return nil
	}})
	a.opts.Clock = quick{}
	a.Add(row("q", 0))
	if err := a.Flush(context.Background()); err == nil {
		t.Fatal("an append to nowhere succeeded")
	}
	away = false
	a.Add(row("q", 1))
	if err := a.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantBatches(t, a, "q", 0, 1)
}

// quick is a clock that does not wait.
type quick struct{ clock.System }

func (quick) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func TestAFullQueueDropsTheRestOfTheQuerySoThatNothingSeemsRecorded(t *testing.T) {
	a := open(t, t.TempDir(), lake.CommitHooks{})
	for b := range int64(maxQueued + 1) {
		a.Add(row("q", b))
	}
	a.queue = a.queue[:3] // as if the rest had been appended meanwhile
	a.Add(row("q", maxQueued+1))
	a.Add(row("other", 0))
	if len(a.queue) != 4 || a.queue[3].QueryName != "other" {
		t.Fatalf("a row after a dropped one was queued: %d", len(a.queue))
	}
}

func TestColumnsAreThoseOfTheJSONRow(t *testing.T) {
	b, err := json.Marshal(row("q", 1))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, f := range Schema().Fields() {
		if _, ok := m[f.Name]; !ok {
			t.Errorf("column %s is not in the JSON row", f.Name)
		}
		delete(m, f.Name)
	}
	if len(m) != 0 {
		t.Errorf("not columns: %v", m)
	}
}
