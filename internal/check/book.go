package check

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/opstable"
)

type batchPosition = batch.PartitionPosition

// Properties of the table of results.
const (
	propertyRun = "weir.checks"
	// PropertyPrefix + check is what the next run compares with.
	PropertyPrefix = "weir.check."
)

// Remembered is the last result of a check.
type Remembered struct {
	Status string    `json:"status"`
	Rows   int64     `json:"rows"`
	At     time.Time `json:"at"`
	// Erasures are those that the table of a row count had seen; nil where that was
	// not written down yet.
	Erasures []string `json:"erasures"`
}

// Book is the table of results.
type Book struct{ table opstable.Table[Result] }

// NewBook makes a book; the table is made with the first results.
func NewBook(c *lake.Catalog, ident table.Identifier, clk clock.Clock) *Book {
	text := func(name string, get func(Result) string) opstable.Column[Result] {
		return opstable.Column[Result]{Name: name, Kind: opstable.Text, Value: func(r Result) any { return get(r) }}
	}
	long := func(name string, get func(Result) int64) opstable.Column[Result] {
		return opstable.Column[Result]{Name: name, Kind: opstable.Long, Value: func(r Result) any { return get(r) }}
	}
	return &Book{opstable.Table[Result]{Catalog: c, Ident: ident, Clock: clk, Columns: []opstable.Column[Result]{
		text("run_id", func(r Result) string { return r.RunID }),
		text("check_name", func(r Result) string { return r.Check }),
		text("kind", func(r Result) string { return r.Kind }),
		text("table_name", func(r Result) string { return r.Table }),
		text("severity", func(r Result) string { return r.Severity }),
		text("status", func(r Result) string { return r.Status }),
		text("observed", func(r Result) string { return r.Observed }),
		text("expected", func(r Result) string { return r.Expected }),
		long("failing_rows", func(r Result) int64 { return r.FailingRows }),
		long("rows", func(r Result) int64 { return r.Rows }),
		text("samples", func(r Result) string {
			if len(r.Samples) == 0 {
				return ""
			}
			return "[" + strings.Join(r.Samples, ",") + "]"
		}),
		text("error", func(r Result) string { return r.Error }),
		long("snapshot_id", func(r Result) int64 { return r.SnapshotID }),
		{Name: "evaluated_at", Kind: opstable.Instant, Value: func(r Result) any { return r.EvaluatedAt }},
		long("duration_ms", func(r Result) int64 { return int64(r.ElapsedSeconds * 1000) }),
	}}}
}

func (b *Book) remembered(ctx context.Context) (map[string]Remembered, error) {
	props, err := b.table.Properties(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]Remembered{}
	for k, v := range props {
		name, ok := strings.CutPrefix(k, PropertyPrefix)
		if !ok {
			continue
		}
		var r Remembered
		if err := json.Unmarshal([]byte(v), &r); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "property %s of table %s", k, lake.Name(b.table.Ident))
		}
		out[name] = r
	}
	return out, nil
}

// Append adds the results of a run, once.
func (b *Book) Append(ctx context.Context, runID string, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	return b.table.Append(ctx, func(props map[string]string) (*opstable.Change[Result], error) {
		if props[propertyRun] == runID {
			return nil, nil // by a try whose answer was lost
		}
		ch := &opstable.Change[Result]{Rows: results, Properties: map[string]string{propertyRun: runID}}
		for _, r := range results {
			if r.Status != Broken {
				ch.Properties[PropertyPrefix+r.Check] = encoded(Remembered{Status: r.Status, Rows: r.Rows, At: r.EvaluatedAt, Erasures: r.erasures})
			}
		}
		return ch, nil
	})
}
