package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
)

// States of a result.
const (
	Passed = "passed"
	Failed = "failed"
	Warned = "warned" // failed, with severity warn
	Broken = "error"  // the check itself could not be run
)

const (
	// samplesMax bounds the failing rows that a result keeps, sampleBytesMax each.
	samplesMax     = 5
	sampleBytesMax = 1_000
)

// Result is what one check found.
type Result struct {
	RunID    string `json:"run_id"`
	Check    string `json:"check"`
	Kind     string `json:"kind"`
	Table    string `json:"table,omitempty"`
	Severity string `json:"severity"`
	Status   string `json:"status"`
	// Observed and Expected say it in words.
	Observed string `json:"observed"`
	Expected string `json:"expected"`
	// FailingRows counts rows that break the rule, Rows those that were looked at,
	// where the check counts any.
	FailingRows int64    `json:"failing_rows"`
	Rows        int64    `json:"rows"`
	Samples     []string `json:"samples,omitempty"`
	Error       string   `json:"error,omitempty"`
	// SnapshotID is the table's, as it was read.
	SnapshotID     int64     `json:"snapshot_id,omitempty"`
	EvaluatedAt    time.Time `json:"evaluated_at"`
	ElapsedSeconds float64   `json:"elapsed_seconds"`

	erasures []string // those that the table of a row count has seen
}

// OK reports whether the result is no reason to stop.
func (r Result) OK() bool { return r.Status == Passed || r.Status == Warned }

// Ends gives the end of every partition of a topic.
type Ends func(ctx context.Context, topic string) (map[int32]int64, error)

// Options say what a run looks at.
type Options struct {
	Catalog *lake.Catalog
	Clock   clock.Clock
	Checks  []pipeline.Check
	// Ends asks the broker; nil where there is none.
	Ends Ends
	// Gapless says of a topic that every offset of it is a record: nobody writes
	// transactions to it.
	Gapless func(topic string) bool
	// GoldSchema is the namespace of gold, empty where there is none.
	GoldSchema string
	// MemoryLimit bounds DuckDB; empty leaves it its own choice.
	MemoryLimit string
	// Book keeps the results; nil keeps none.
	Book *Book
	// RunID names the run; empty makes a new one.
	RunID string
}

// runner is one run.
type runner struct {
	Options
	session *duck.Session
	shelf   *duck.Shelf
	last    map[string]Remembered
}

// Run evaluates the checks. The error is of class Mismatch where one of severity
// error failed; the results are complete then too.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if err := duck.Linked(); err != nil {
		return nil, err
	}
	if o.RunID == "" {
		o.RunID = clock.Nonce()
	}
	r := &runner{Options: o, last: map[string]Remembered{}}
	var err error
	if o.Book != nil {
		if r.last, err = o.Book.remembered(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = r.session.Close() }()
	var out []Result
	var failed []string
	for _, c := range o.Checks {
		began := o.Clock.Now()
		res := r.one(ctx, c)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		res.EvaluatedAt, res.ElapsedSeconds = began, o.Clock.Now().Sub(began).Seconds()
		if !res.OK() {
			failed = append(failed, c.Name)
		}
		out = append(out, res)
	}
	if o.Book != nil {
		if err := o.Book.Append(ctx, o.RunID, out); err != nil {
			return out, err
		}
	}
	if len(failed) > 0 {
		return out, failure.New(failure.Mismatch, "%d of %d checks failed: %s", len(failed), len(out), strings.Join(failed, ", "))
	}
	return out, nil
}

func (r *runner) open(ctx context.Context) (err error) {
	if r.session, err = duck.Open(ctx, duck.Options{MemoryLimit: r.MemoryLimit}); err != nil {
		return err
	}
	if r.shelf, err = duck.NewShelf(ctx, r.session, r.Catalog, duck.AsOf{}); err != nil {
		return errors.Join(err, r.session.Close())
	}
	return nil
}

// one evaluates one check. What goes wrong is the check's result.
func (r *runner) one(ctx context.Context, c pipeline.Check) Result {
	res := Result{RunID: r.RunID, Check: c.Name, Kind: c.Kind(), Table: c.Table, Severity: c.Severity, Status: Passed}
	var err error
	switch {
	case c.Table != "" && r.shelf.Find(c.Table) == nil:
		err = failure.New(failure.Config, "table %s does not exist (yet)", c.Table)
	case c.Duplicates != nil:
		err = r.duplicates(ctx, c, &res)
	case c.NotNull != nil:
		err = r.notNull(ctx, c, &res)
	case c.AcceptedValues != nil:
		err = r.acceptedValues(ctx, c, &res)
	case c.Freshness != nil:
		err = r.freshness(ctx, c, &res)
	case c.Completeness != nil:
		err = r.completeness(ctx, c, &res)
	case c.Reconciliation != nil:
		err = r.reconciliation(ctx, c, &res)
	case c.RowCount != nil:
		err = r.rowCount(ctx, c, &res)
	default:
		err = r.rows(ctx, c, &res, c.SQL, "no row")
	}
	if t := r.shelf.Find(c.Table); c.Table != "" && t != nil && res.SnapshotID == 0 {
		res.SnapshotID = lake.HeadOf(t).ID
	}
	if err != nil {
		res.Status, res.Error = Broken, err.Error()
	}
	if res.Status == Failed && c.Severity == pipeline.SeverityWarn {
		res.Status = Warned
	}
	return res
}

// from is the rows that a check looks at.
func from(c pipeline.Check) (string, error) {
	ident, err := lake.ParseName(c.Table)
	if err != nil {
		return "", err
	}
	rel := duck.Relation(lake.Name(ident[:len(ident)-1]), ident[len(ident)-1])
	if c.Where == "" {
		return rel, nil
	}
	return "(FROM " + rel + " WHERE " + c.Where + "\n)", nil
}

// rows is the form of most checks: a query whose rows are failures.
func (r *runner) rows(ctx context.Context, c pipeline.Check, res *Result, query, expected string) error {
	res.Expected = expected
	if err := duck.CheckReads(query); err != nil {
		return err
	}
	query, err := r.shelf.Prepare(ctx, strings.TrimSuffix(strings.TrimSpace(query), ";"))
	if err != nil {
		return err
	}
	if res.FailingRows, err = r.session.Count(ctx, "SELECT count(*) FROM ("+query+"\n)"); err != nil {
		return err
	}
	res.Observed = fmt.Sprintf("%d rows", res.FailingRows)
	if res.FailingRows == 0 {
		res.Observed = "none"
		return nil
	}
	res.Status = Failed
	rows, err := r.session.Query(ctx, fmt.Sprintf("FROM (%s\n) LIMIT %d", query, samplesMax), duck.JSON)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for {
		row, err := rows.Next()
		if err != nil || row == nil {
			return err
		}
		s := row[0].String
		if len(s) > sampleBytesMax {
			s = s[:sampleBytesMax] + "…"
		}
		res.Samples = append(res.Samples, s)
	}
}

func columns(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = duck.Ident(n)
	}
	return strings.Join(out, ", ")
}

func (r *runner) duplicates(ctx context.Context, c pipeline.Check, res *Result) error {
	rel, err := from(c)
	if err != nil {
		return err
	}
	cols := columns(c.Duplicates)
	query := "SELECT " + cols + ", count(*) AS rows FROM " + rel + " GROUP BY " + cols + " HAVING count(*) > 1"
	if err := r.rows(ctx, c, res, query, "one row for each "+strings.Join(c.Duplicates, ", ")); err != nil {
		return err
	}
	if res.FailingRows > 0 {
		res.Observed = fmt.Sprintf("%d values more than once", res.FailingRows)
	}
	return nil
}

func (r *runner) notNull(ctx context.Context, c pipeline.Check, res *Result) error {
	rel, err := from(c)
	if err != nil {
		return err
	}
	conds := make([]string, len(c.NotNull))
	for i, n := range c.NotNull {
		conds[i] = duck.Ident(n) + " IS NULL"
	}
	return r.rows(ctx, c, res, "FROM "+rel+" WHERE "+strings.Join(conds, " OR "), "no null in "+strings.Join(c.NotNull, ", "))
}

func (r *runner) acceptedValues(ctx context.Context, c pipeline.Check, res *Result) error {
	rel, err := from(c)
	if err != nil {
		return err
	}
	vals := make([]string, len(c.AcceptedValues.Values))
	for i, v := range c.AcceptedValues.Values {
		vals[i] = duck.Quote(v)
	}
	col := duck.Ident(c.AcceptedValues.Column)
	query := "SELECT " + col + ", count(*) AS rows FROM " + rel + " WHERE CAST(" + col + " AS VARCHAR) NOT IN (" + strings.Join(vals, ", ") + ") GROUP BY 1"
	return r.rows(ctx, c, res, query, c.AcceptedValues.Column+" in "+strings.Join(c.AcceptedValues.Values, ", "))
}

func (r *runner) freshness(ctx context.Context, c pipeline.Check, res *Result) error {
	rel, err := from(c)
	if err != nil {
		return err
	}
	query, err := r.shelf.Prepare(ctx, "SELECT coalesce(epoch_us(max("+duck.Ident(c.Freshness.Column)+")), -1) FROM "+rel)
	if err != nil {
		return err
	}
	micros, err := r.session.Count(ctx, query)
	if err != nil {
		return err
	}
	res.Expected = "newest " + c.Freshness.Column + " at most " + c.Freshness.MaxAge.String() + " old"
	if micros < 0 {
		res.Status, res.Observed = Failed, "no value at all"
		return nil
	}
	age := r.Clock.Now().Sub(time.UnixMicro(micros)).Round(time.Millisecond)
	res.Observed = age.String() + " old"
	if age > c.Freshness.MaxAge {
		res.Status = Failed
	}
	return nil
}

func (r *runner) rowCount(ctx context.Context, c pipeline.Check, res *Result) error {
	rel, err := from(c)
	if err != nil {
		return err
	}
	query, err := r.shelf.Prepare(ctx, "SELECT count(*) FROM "+rel)
	if err != nil {
		return err
	}
	n, err := r.session.Count(ctx, query)
	if err != nil {
		return err
	}
	res.Rows, res.Observed = n, fmt.Sprintf("%d rows", n)
	erased, seen, err := r.erasedSince(c)
	if err != nil {
		return err
	}
	if res.erasures = seen; erased > 0 {
		res.Observed += fmt.Sprintf(", %d were erased on purpose since the last run", erased)
	}
	var rules []string
	rule := func(ok bool, format string, args ...any) {
		rules = append(rules, fmt.Sprintf(format, args...))
		if !ok {
			res.Status = Failed
		}
	}
	rc := c.RowCount
	if rc.Min > 0 {
		rule(n >= rc.Min, "at least %d rows", rc.Min)
	}
	if rc.Max > 0 {
		rule(n <= rc.Max, "at most %d rows", rc.Max)
	}
	if last, ok := r.last[c.Name]; ok {
		if rc.MaxDropPercent > 0 {
			rule((n+erased)*100 >= last.Rows*(100-rc.MaxDropPercent), "at most %d%% fewer than %d", rc.MaxDropPercent, last.Rows)
		}
		if rc.MaxGrowthPercent > 0 {
			rule(n*100 <= last.Rows*(100+rc.MaxGrowthPercent), "at most %d%% more than %d", rc.MaxGrowthPercent, last.Rows)
		}
	}
	if len(rules) == 0 {
		rules = []string{"nothing to compare with yet"}
	}
	res.Expected = strings.Join(rules, ", ")
	return nil
}

// erasedSince is how many rows were erased on purpose (weir erase) since the run
// that a check compares with, and which erasures its table has seen by now. The rows
// need not all be of the check's condition. A deletion that was declared by hand has
// no name by which it would be known again: it is no excuse.
func (r *runner) erasedSince(c pipeline.Check) (rows int64, seen []string, err error) {
	declared, err := marker.DeclaredDeletes(r.shelf.Find(c.Table).Properties())
	if err != nil {
		return 0, nil, failure.Wrap(failure.Config, err, "table %s", c.Table)
	}
	seen = []string{}
	known := r.last[c.Name].Erasures
	for _, d := range declared {
		if d.Erasure == "" {
			continue
		}
		if known != nil && !slices.Contains(known, d.Erasure) {
			rows += d.Rows
		}
		if !slices.Contains(seen, d.Erasure) {
			seen = append(seen, d.Erasure)
		}
	}
	return rows, seen, nil
}

// encoded is v as JSON; the values are the package's own.
func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
