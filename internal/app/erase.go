package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/erase"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/pipeline"
)

// An erasure is a set of places in Kafka, found once and written down before any
// table loses a row: a file beside the checkpoints, created once. From then on it
// is carried out table by table, in the order in which rows flow, each table in
// one commit (package erase); it is recorded in ops.erasures, and the file goes.
// Whoever runs the command next finishes what a crash has left. The file is the
// only place that holds the condition itself: ops.erasures keeps it without its
// values, because those are what was to be erased.

// erasuresFolder, below the checkpoint location, holds the plans of erasures that
// are not finished.
const erasuresFolder = "_erasures"

// erasePlanFormat is the version of such a file.
const erasePlanFormat = 1

// EraseRequest says what is to be erased.
type EraseRequest struct {
	// Table is the one whose columns Where is about.
	Table string
	// Where is a condition in the language of a query's filter; Contains a text
	// that the key or the value of a Kafka record holds. Either may be empty.
	Where, Contains string
	// ID names the erasure, empty for one that is made up. By and Reason are for
	// the record.
	ID, By, Reason string
	DryRun         bool
	// Expire takes the snapshots that still hold erased rows out of the tables.
	Expire bool
}

// EraseReport is what an erasure has come to.
type EraseReport struct {
	ID string `json:"id,omitempty"`
	// Condition is without its values.
	Condition string    `json:"condition"`
	At        time.Time `json:"requested_at,omitzero"`
	// Resumed is set where an earlier command had begun it, Repeated where one had
	// finished it, DryRun where nothing was erased.
	Resumed  bool `json:"resumed,omitempty"`
	Repeated bool `json:"repeated,omitempty"`
	DryRun   bool `json:"dry_run,omitempty"`
	// Records are the Kafka records that the condition meets, by partition.
	Records int64                   `json:"records"`
	Places  []marker.DeclaredDelete `json:"places"`
	Tables  []ErasedTable           `json:"tables"`
	// Untouched are tables below, or beside, that may hold what was made of the
	// rows.
	Untouched []UntouchedTable `json:"untouched,omitempty"`
	// Topics still hold the records.
	Topics []string `json:"topics,omitempty"`
}

// ErasedTable is what was taken of one table.
type ErasedTable struct {
	Table          string `json:"table"`
	Rows           int64  `json:"rows"`
	FilesRewritten int    `json:"files_rewritten"`
	SnapshotID     int64  `json:"snapshot_id,omitempty"`
	// OldSnapshots are those that still hold the rows; Expired were taken out.
	OldSnapshots int `json:"old_snapshots"`
	Expired      int `json:"expired_snapshots,omitempty"`
}

// UntouchedTable is a table that was left as it is.
type UntouchedTable struct {
	Table string `json:"table"`
	Why   string `json:"why"`
}

// erasePlan is the file of an erasure that is not finished.
type erasePlan struct {
	Format      int                     `json:"format"`
	ID          string                  `json:"id"`
	Table       string                  `json:"table"`
	Where       string                  `json:"where,omitempty"`
	Condition   string                  `json:"condition"`
	RequestedBy string                  `json:"requested_by"`
	Reason      string                  `json:"reason,omitempty"`
	RequestedAt time.Time               `json:"requested_at"`
	Places      []marker.DeclaredDelete `json:"places"`
	Targets     []eraseTarget           `json:"targets"`
	Untouched   []UntouchedTable        `json:"untouched,omitempty"`
	Topics      []string                `json:"topics,omitempty"`
}

// eraseTarget is a table that loses rows: those at the plan's places, or those
// that meet its condition where they have no place.
type eraseTarget struct {
	Table       string        `json:"table"`
	Query       string        `json:"query"`
	ByCondition bool          `json:"by_condition,omitempty"`
	Columns     erase.Columns `json:"columns"`
}

var eraseID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// eraser is an opened pipeline with its unfinished erasures.
type eraser struct {
	a     *App
	store objstore.Store
}

// Erase finishes what earlier commands have begun, then finds and erases what is
// asked for. The reports are in that order; the last one is the request's.
func Erase(ctx context.Context, p *pipeline.Pipeline, r EraseRequest, o Options) ([]*EraseReport, error) {
	if r.ID == "" {
		r.ID = "erase-" + clock.Nonce()
	}
	switch {
	case !eraseID.MatchString(r.ID):
		return nil, failure.New(failure.Config, "--id %q: letters, digits, dots, dashes and underscores, at most 64", r.ID)
	case r.Table == "":
		return nil, failure.New(failure.Config, "--table says whose columns the condition is about; the pipeline writes %v", mainTables(p))
	case r.Where == "" && r.Contains == "":
		return nil, failure.New(failure.Config, "--where or --contains says which rows are to go")
	}
	a := &App{P: p, opts: o, notify: map[string]*notifier{}}
	a.fillOptions()
	if err := a.openCatalog(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	store, err := a.openCheckpoint(ctx, a.aside(erasuresFolder))
	if err != nil {
		return nil, err
	}
	e := &eraser{a: a, store: store}
	line, err := e.lineage(r.Table)
	if err != nil {
		return nil, err
	}
	rebuilds, err := a.unfinished(ctx, ".json")
	if err != nil {
		return nil, err
	}
	for _, n := range line.nodes {
		if rebuilds[n.query.Name] {
			return nil, failure.New(failure.Config, "query %s is being rebuilt: the table beside its own holds what is to be erased", n.query.Name).
				WithHint("finish the rebuild first (weir rebuild FILE %s), or remove it (--abort)", n.query.Name)
		}
	}
	var out []*EraseReport
	if !r.DryRun {
		if out, err = e.finishOthers(ctx); err != nil {
			return out, err
		}
		if i := slices.IndexFunc(out, func(done *EraseReport) bool { return done.ID == r.ID }); i >= 0 {
			// The command that was killed, given again.
			own := out[i]
			return append(slices.Delete(out, i, i+1), own), e.expire(ctx, r, line, []*EraseReport{own})
		}
	}
	done, err := e.erase(ctx, r, line)
	if done != nil {
		out = append(out, done)
	}
	if err != nil {
		return out, err
	}
	return out, e.expire(ctx, r, line, out)
}

func mainTables(p *pipeline.Pipeline) (out []string) {
	for _, q := range p.Queries {
		if q.To.Iceberg != nil && !slices.Contains(out, q.To.Iceberg.Table) {
			out = append(out, q.To.Iceberg.Table)
		}
	}
	return out
}

// erase finds what the request is about and carries it out.
func (e *eraser) erase(ctx context.Context, r EraseRequest, line *lineage) (*EraseReport, error) {
	if before, err := e.before(ctx, r, line); before != nil || err != nil {
		return before, err
	}
	plan, err := e.plan(ctx, r, line)
	if err != nil {
		return nil, err
	}
	if r.DryRun {
		return e.dryRun(ctx, plan)
	}
	if empty, err := e.nothing(ctx, plan); err != nil || empty {
		return plan.report(), err
	}
	body, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	created, existing, err := e.store.CreateOnce(ctx, plan.ID+".json", body)
	if err != nil {
		return nil, fmt.Errorf("write down the erasure in %s: %w", e.store.Location(), err)
	}
	if !created {
		// Another command with the same id was a moment earlier: its plan counts.
		if plan, err = decodePlan(plan.ID+".json", existing); err != nil {
			return nil, err
		}
	}
	fault.Reach(erase.Scope, fault.ErasePlanned)
	return e.carryOut(ctx, plan)
}

// before is the report of an erasure that the tables have seen, nil where they
// have not: an id is used once.
func (e *eraser) before(ctx context.Context, r EraseRequest, line *lineage) (*EraseReport, error) {
	out := &EraseReport{ID: r.ID, Condition: withoutValues(r), Repeated: true, Places: []marker.DeclaredDelete{}}
	for _, name := range line.tables() {
		t, err := e.a.loadNamed(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", name, err)
		}
		if t == nil {
			continue
		}
		declared, err := marker.DeclaredDeletes(t.Properties())
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "table %s", name)
		}
		if done := erase.Of(t, declared, r.ID); done != nil {
			out.Tables = append(out.Tables, ErasedTable{Table: name, Rows: done.Rows, SnapshotID: done.SnapshotID, OldSnapshots: olderThan(t, r.ID)})
		}
	}
	if out.Tables == nil {
		return nil, nil //nolint:nilnil // a new one
	}
	return out, nil
}

// finishOthers carries out what commands before this one have left.
func (e *eraser) finishOthers(ctx context.Context) ([]*EraseReport, error) {
	left, err := e.store.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read the unfinished erasures in %s: %w", e.store.Location(), err)
	}
	var out []*EraseReport
	for _, f := range left {
		if !strings.HasSuffix(f.Key, ".json") {
			continue
		}
		body, err := e.store.Get(ctx, f.Key)
		if errors.Is(err, objstore.ErrNotExist) {
			continue // another command has finished it
		}
		if err == nil {
			err = objstore.Settle(ctx, e.store, f.Key)
		}
		if err != nil {
			return out, fmt.Errorf("read the unfinished erasure %s: %w", f.Key, err)
		}
		plan, err := decodePlan(f.Key, body)
		if err != nil {
			return out, err
		}
		done, err := e.carryOut(ctx, plan)
		if done != nil {
			done.Resumed = true
			out = append(out, done)
		}
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

func decodePlan(key string, body []byte) (*erasePlan, error) {
	plan := &erasePlan{}
	if err := json.Unmarshal(body, plan); err != nil {
		return nil, failure.Wrap(failure.Checkpoint, err, "unfinished erasure %s", key)
	}
	if plan.Format != erasePlanFormat {
		return nil, failure.New(failure.Checkpoint, "unfinished erasure %s has the format %d, this version knows %d", key, plan.Format, erasePlanFormat)
	}
	return plan, nil
}

func (p *erasePlan) report() *EraseReport {
	out := &EraseReport{ID: p.ID, Condition: p.Condition, At: p.RequestedAt, Places: []marker.DeclaredDelete{}, Tables: []ErasedTable{}, Untouched: p.Untouched, Topics: p.Topics}
	for _, d := range p.Places {
		out.Records += d.Rows
		out.Places = append(out.Places, d)
	}
	return out
}

// rule is what the plan says of one table.
func (e *eraser) rule(p *erasePlan, t eraseTarget) (erase.Rule, error) {
	if !t.ByCondition {
		places, err := marker.PlacesIn(p.Places)
		return erase.Rule{Columns: t.Columns, Places: places}, err
	}
	q, err := QueryByName(e.a.P, t.Query)
	if err != nil {
		return erase.Rule{}, err
	}
	return conditionOn(q, p.Where, t.Columns, e.a.opts.Clock)
}

// carryOut takes the rows out of every table of the plan, records it, and removes
// the plan. Each step finds what it has done before.
func (e *eraser) carryOut(ctx context.Context, p *erasePlan) (*EraseReport, error) {
	out := p.report()
	var rows []erasureRow
	for _, t := range p.Targets {
		ident, err := lake.ParseName(t.Table)
		if err != nil {
			return out, err
		}
		rule, err := e.rule(p, t)
		if err != nil {
			return out, fmt.Errorf("erasure %s: %w", p.ID, err)
		}
		done, err := erase.Apply(ctx, erase.Options{Catalog: e.a.Catalog, Table: ident, ID: p.ID, Rule: rule, Clock: e.a.opts.Clock})
		if errors.Is(err, lake.ErrNoTable) {
			continue // nobody has written it yet
		}
		if err != nil {
			return out, fmt.Errorf("erasure %s: %w", p.ID, err)
		}
		fault.Reach(erase.Scope, fault.EraseCommitted)
		left, err := e.oldSnapshots(ctx, ident, p.ID)
		if err != nil {
			return out, err
		}
		out.Tables = append(out.Tables, ErasedTable{Table: t.Table, Rows: done.Rows, FilesRewritten: done.FilesRewritten, SnapshotID: done.SnapshotID, OldSnapshots: left})
		rows = append(rows, erasureRows(p, t.Table, done, e.a.opts.Clock.Now())...)
	}
	if err := e.record(ctx, p.ID, rows); err != nil {
		return out, err
	}
	fault.Reach(erase.Scope, fault.EraseRecorded)
	if err := e.store.Delete(ctx, p.ID+".json"); err != nil {
		return out, fmt.Errorf("remove the plan of erasure %s: %w", p.ID, err)
	}
	fault.Reach(erase.Scope, fault.EraseDone)
	return out, nil
}

// nothing reports whether the plan would take no row of any table.
func (e *eraser) nothing(ctx context.Context, p *erasePlan) (bool, error) {
	if len(p.Places) > 0 {
		return false, nil
	}
	n, err := e.count(ctx, p, nil)
	return n == 0, err
}

// count is how many rows of the tables the plan takes.
func (e *eraser) count(ctx context.Context, p *erasePlan, each func(t eraseTarget, rows int64)) (sum int64, err error) {
	for _, t := range p.Targets {
		ident, err := lake.ParseName(t.Table)
		if err != nil {
			return 0, err
		}
		rule, err := e.rule(p, t)
		if err != nil {
			return 0, err
		}
		n, _, err := erase.Count(ctx, e.a.Catalog, ident, rule)
		if errors.Is(err, lake.ErrNoTable) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += n
		if each != nil {
			each(t, n)
		}
	}
	return sum, nil
}

func (e *eraser) dryRun(ctx context.Context, p *erasePlan) (*EraseReport, error) {
	out := p.report()
	out.ID, out.DryRun = "", true
	_, err := e.count(ctx, p, func(t eraseTarget, rows int64) {
		out.Tables = append(out.Tables, ErasedTable{Table: t.Table, Rows: rows})
	})
	return out, err
}

// oldSnapshots counts the snapshots of a table from before an erasure.
func (e *eraser) oldSnapshots(ctx context.Context, ident table.Identifier, id string) (n int, err error) {
	t, err := e.a.Catalog.LoadTablePatiently(ctx, ident, e.a.opts.Clock)
	if err != nil {
		return 0, err
	}
	return olderThan(t, id), nil
}

// olderThan counts the snapshots from before an erasure that has rows to hide; one
// that took none leaves nothing behind. Where its own snapshot has expired, so
// have those before it, unless something else keeps them.
func olderThan(t *table.Table, id string) (n int) {
	declared, err := marker.DeclaredDeletes(t.Properties())
	if err != nil {
		return 0
	}
	done := erase.Of(t, declared, id)
	if done == nil || done.Rows == 0 {
		return 0
	}
	for _, s := range t.Metadata().Snapshots() {
		if s.SequenceNumber < done.Sequence {
			n++
		}
	}
	return n
}

// expire takes old snapshots out of the tables, down to what tags, branches and
// the last batch of each query hold.
func (e *eraser) expire(ctx context.Context, r EraseRequest, line *lineage, reports []*EraseReport) error {
	if !r.Expire || r.DryRun {
		return nil
	}
	for _, name := range line.tables() {
		ident, err := lake.ParseName(name)
		if err != nil {
			return err
		}
		expired, _, err := maintain.Expire(ctx, e.a.Catalog, ident, maintain.Settings{Retention: lake.Retention{Keep: 1}, Clock: e.a.opts.Clock, Scope: erase.Scope})
		if errors.Is(err, lake.ErrNoTable) {
			continue
		}
		if err != nil {
			return fmt.Errorf("expire snapshots of %s: %w", name, err)
		}
		for _, rep := range reports {
			for i := range rep.Tables {
				if rep.Tables[i].Table != name {
					continue
				}
				rep.Tables[i].Expired = expired
				if rep.Tables[i].OldSnapshots, err = e.oldSnapshots(ctx, ident, rep.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// whoAsks is the user that runs the command.
func whoAsks() string {
	host, _ := os.Hostname()
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return host
}

// literal is a value in a condition.
var literal = regexp.MustCompile(`'(?:[^']|'')*'|\b\d+(?:\.\d+)?\b`)

// withoutValues is a condition as it may be kept.
func withoutValues(r EraseRequest) string {
	var out []string
	if r.Where != "" {
		out = append(out, literal.ReplaceAllString(r.Where, "?"))
	}
	if r.Contains != "" {
		out = append(out, "the record contains ?")
	}
	return strings.Join(out, " OR ")
}
