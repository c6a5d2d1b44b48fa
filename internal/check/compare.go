package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/gold"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/scan"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
)

// reconciliation compares two numbers, in a session of its own: the tables may
// be pinned elsewhere than those of the other checks.
func (r *runner) reconciliation(ctx context.Context, c pipeline.Check, res *Result) (err error) {
	own := &runner{Options: r.Options}
	if err := own.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.session.Close()) }()
	if err := own.pinAsGold(ctx, c); err != nil {
		return err
	}
	left, err := own.number(ctx, c.Reconciliation.Left)
	if err != nil {
		return fmt.Errorf("left: %w", err)
	}
	right, err := own.number(ctx, c.Reconciliation.Right)
	if err != nil {
		return fmt.Errorf("right: %w", err)
	}
	res.Observed = left + " and " + right
	res.Expected = "the same number"
	if t := c.Reconciliation.Tolerance; t > 0 {
		res.Expected = fmt.Sprintf("two numbers that differ by %d at most", t)
	}
	// DuckDB compares, so that neither side passes through a float.
	n, err := own.session.Count(ctx, fmt.Sprintf("SELECT CASE WHEN abs(%s - %s) <= %d THEN 1 ELSE 0 END", left, right, c.Reconciliation.Tolerance))
	if err != nil {
		return err
	}
	if n == 0 {
		res.Status = Failed
	}
	return nil
}

// number is the one value of a query.
func (r *runner) number(ctx context.Context, query string) (string, error) {
	if err := duck.CheckReads(query); err != nil {
		return "", err
	}
	query, err := r.shelf.Prepare(ctx, query)
	if err != nil {
		return "", err
	}
	rows, err := r.session.Query(ctx, query, duck.Text)
	if err != nil {
		return "", err
	}
	defer func() { _ = rows.Close() }()
	row, err := rows.Next()
	if err != nil {
		return "", err
	}
	if len(row) != 1 || !row[0].Valid {
		return "", failure.New(failure.Config, "want one row with one number")
	}
	if _, err := strconv.ParseFloat(row[0].String, 64); err != nil {
		return "", failure.New(failure.Config, "%q is not a number", row[0].String)
	}
	return row[0].String, nil
}

// pinAsGold reads the sources of the gold tables that the check names at the
// snapshots that these were made from. Of several, the newest one counts for all
// of them: they are then not of the same run, and the check may well say so.
func (r *runner) pinAsGold(ctx context.Context, c pipeline.Check) error {
	if r.GoldSchema == "" {
		return nil
	}
	text := strings.ToLower(c.Reconciliation.Left + " " + c.Reconciliation.Right)
	pins := map[string]gold.InRef{}
	for _, n := range r.shelf.Tables() {
		name, ok := strings.CutPrefix(n.Name, r.GoldSchema+".")
		if !ok || !strings.Contains(text, strings.ToLower(name)) {
			continue
		}
		rec, err := gold.RecordOf(r.shelf.Find(n.Name), name)
		if err != nil {
			return err
		}
		if rec == nil {
			continue
		}
		for table, in := range rec.Inputs {
			if in.Sequence >= pins[table].Sequence && in.SnapshotID != 0 {
				pins[table] = in
			}
		}
	}
	for name, in := range pins {
		if r.shelf.Find(name) == nil {
			continue
		}
		if err := r.shelf.At(ctx, name, duck.AsOf{Snapshot: in.SnapshotID}); err != nil {
			return err
		}
	}
	return nil
}

// completeness compares the position of a table with the topic's end, and for a
// table that keeps the offsets, the rows with the position. The end is asked for
// first, the table loaded after it.
func (r *runner) completeness(ctx context.Context, c pipeline.Check, res *Result) error {
	if r.Ends == nil {
		return failure.New(failure.Config, "there is no broker to ask for the end of topic %s", c.Completeness.Topic)
	}
	ends, err := r.Ends(ctx, c.Completeness.Topic)
	if err != nil {
		return err
	}
	ident, err := lake.ParseName(c.Table)
	if err != nil {
		return err
	}
	t, err := r.Catalog.LoadTable(ctx, ident)
	if err != nil {
		return err
	}
	res.SnapshotID = lake.HeadOf(t).ID
	position, err := positionOf(t, c.Completeness.Topic)
	if err != nil {
		return err
	}
	var lag int64
	for p, end := range ends {
		lag += max(0, end-position[p])
	}
	res.Expected = fmt.Sprintf("at most %d records of %s missing, no offset twice", c.Completeness.MaxLag, c.Completeness.Topic)
	res.Observed = fmt.Sprintf("%d missing", lag)
	if lag > c.Completeness.MaxLag {
		res.Status = Failed
	}
	return r.offsets(ctx, t, c, position, res)
}

// positionOf is how far a table is in a topic, by its own snapshot.
func positionOf(t *table.Table, topic string) (map[int32]int64, error) {
	k, err := scan.Offsets(t.CurrentSnapshot())
	if err != nil {
		return nil, err
	}
	if k == nil {
		return nil, failure.New(failure.Config, "table %s records no position in Kafka", lake.Name(t.Identifier()))
	}
	out := map[int32]int64{}
	k.Each(func(name, _ string, partition int32, at batchPosition) {
		if name == topic {
			out[partition] = at.NextOffset
		}
	})
	if len(out) == 0 {
		return nil, failure.New(failure.Config, "table %s records no position in topic %s", lake.Name(t.Identifier()), topic)
	}
	return out, nil
}

// offsetsQuery counts rows and distinct offsets of a topic in a table, by partition.
// It sets a bit for each offset, 4,096 of them in each group: less than a byte of
// memory a row where offsets lie close, where count(DISTINCT) keeps fifty, and a
// twentieth of the time.
const offsetsQuery = `SELECT partition, sum(n)::BIGINT, sum(bits)::BIGINT, min(least), max(most) FROM (
	SELECT partition, "offset" >> 12, count(*) AS n, min("offset") AS least, max("offset") AS most,
		bit_count(bitstring_agg("offset" & 4095, 0, 4095)) AS bits
	FROM %s WHERE topic = %s GROUP BY 1, 2) GROUP BY partition`

// offsets looks at the rows of a table that keeps topic, partition and offset.
func (r *runner) offsets(ctx context.Context, t *table.Table, c pipeline.Check, position map[int32]int64, res *Result) error {
	for _, name := range []string{"topic", "partition", "offset"} {
		if _, ok := t.Schema().FindFieldByName(name); !ok {
			return nil
		}
	}
	declared, err := marker.DeclaredDeletes(t.Properties())
	if err != nil {
		return failure.Wrap(failure.Config, err, "table %s", lake.Name(t.Identifier()))
	}
	const place, view = "weir complete", "rows"
	if _, err := r.session.Mount(ctx, place, view, duck.Head(t)); err != nil {
		return err
	}
	rows, err := r.session.DB.QueryContext(ctx, fmt.Sprintf(offsetsQuery, duck.Relation(place, view), duck.Quote(c.Completeness.Topic)))
	if err != nil {
		return duck.Classified(ctx, err)
	}
	defer rows.Close()
	var twice, holes, beyond int64
	for rows.Next() {
		var p int32
		var n, distinct, least, most int64
		if err := rows.Scan(&p, &n, &distinct, &least, &most); err != nil {
			return duck.Classified(ctx, err)
		}
		res.Rows += n
		twice += n - distinct
		if most >= position[p] {
			beyond++
		} else {
			before := batch.Range{Topic: c.Completeness.Topic, Partition: p, From: least, To: position[p]}
			erased, _, err := marker.DeclaredWithin(declared, before)
			if err != nil {
				return failure.Wrap(failure.Config, err, "table %s", lake.Name(t.Identifier()))
			}
			holes += position[p] - least - distinct - erased
		}
	}
	if err := rows.Err(); err != nil {
		return duck.Classified(ctx, err)
	}
	var wrong []string
	note := func(n int64, text string, fails bool) {
		if n == 0 {
			return
		}
		wrong = append(wrong, fmt.Sprintf("%d %s", n, text))
		if fails {
			res.Status = Failed
			res.FailingRows += n
		}
	}
	note(twice, "offsets twice", true)
	note(beyond, "partitions beyond the recorded position", true)
	gapless := r.Gapless != nil && r.Gapless(c.Completeness.Topic)
	text := "offsets before the position without a row"
	if !gapless {
		text += " (marks of transactions, or compaction; weir audit tells)"
	}
	note(holes, text, gapless)
	if len(wrong) > 0 {
		res.Observed += ", " + strings.Join(wrong, ", ")
	}
	return nil
}

// Alertable are the results that an alert of the severity is about.
func Alertable(results []Result, severity string) []Result {
	var out []Result
	for _, r := range results {
		if !r.OK() || (severity == pipeline.SeverityWarn && r.Status == Warned) {
			out = append(out, r)
		}
	}
	return out
}

// Select are the checks of a job or a command; nil or "all" is every one.
func Select(all []pipeline.Check, names []string) ([]pipeline.Check, error) {
	if len(names) == 0 || slices.Contains(names, pipeline.AllChecks) {
		return all, nil
	}
	by := map[string]pipeline.Check{}
	for _, c := range all {
		by[c.Name] = c
	}
	var out []pipeline.Check
	for _, n := range names {
		c, ok := by[n]
		if !ok {
			return nil, failure.New(failure.Config, "there is no check %q (%s)", n, strings.Join(slices.Sorted(maps.Keys(by)), ", "))
		}
		out = append(out, c)
	}
	return out, nil
}
