package engine_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	iceberggo "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/sink/iceberg"
)

// lakeWorld is a world whose tables are Iceberg's, in a folder.
type lakeWorld struct {
	*world
	dir string
}

var tableOf = map[string]table.Identifier{operator.Main: {"silver", "edits"}, operator.DeadLetter: {"silver", "dead"}}

func newLakeWorld(t *testing.T, records int64) *lakeWorld {
	return &lakeWorld{newWorld(t, records).withDeadLetters(), t.TempDir()}
}

func (l *lakeWorld) catalog(t *testing.T) *lake.Catalog {
	c, err := lake.Open(t.Context(), lake.Config{URI: filepath.Join(l.dir, "catalog.db"), Warehouse: filepath.Join(l.dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// sinks replaces the sinks in memory. Their claims and commits are operations
// of the process like those of the checkpoint.
func (l *lakeWorld) sinks(c *lake.Catalog) setup {
	hooked := c.WithHooks(lake.CommitHooks{
		Before: func(_ context.Context, ident table.Identifier) error {
			return l.power.step(lake.Name(ident) + " commit")
		},
		After: func(_ context.Context, ident table.Identifier) error {
			return l.power.step(lake.Name(ident) + " answer")
		},
	})
	return func(q *engine.Query, _ *fakeSource) {
		shapes := q.Transform.Outputs()
		for i, o := range q.Outputs {
			schema, err := table.ArrowSchemaToIcebergWithFreshIDs(shapes[o.Name], false)
			if err != nil {
				l.t.Fatal(err)
			}
			role := iceberg.Main
			if o.Name == operator.DeadLetter {
				role = iceberg.Side
			}
			q.Outputs[i].Sink, err = iceberg.New(iceberg.Options{Catalog: hooked, Table: tableOf[o.Name], Query: q.Name, Role: role,
				Arrow: shapes[o.Name], Schema: schema, Partition: *iceberggo.UnpartitionedSpec, Clock: clock.System{},
				Limits: iceberg.Limits{Errors: 2}})
			if err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

func (l *lakeWorld) rows(t *testing.T, c *lake.Catalog, output string) map[string]int {
	t.Helper()
	tbl, err := c.LoadTable(t.Context(), tableOf[output])
	if err != nil {
		t.Fatal(err)
	}
	all, err := tbl.Scan().ToArrowTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer all.Release()
	out := map[string]int{}
	r := array.NewTableReader(all, 0)
	defer r.Release()
	for r.Next() {
		for i := range int(r.RecordBatch().NumRows()) {
			out[strings.Clone(place(r.RecordBatch(), i))]++
		}
	}
	return out
}

// TestKillsOnIcebergTablesEndWithTheTablesOfAnUndisturbedRun is the crash loop
// on the real sink: the process dies before every operation of the checkpoint,
// before every commit and after every commit whose answer it never gets.
func TestKillsOnIcebergTablesEndWithTheTablesOfAnUndisturbedRun(t *testing.T) {
	every := 1
	if testing.Short() {
		every = 17
	}
	ref := newLakeWorld(t, 50)
	ref.limit = 40
	rc := ref.catalog(t)
	ref.must(ref.sinks(rc))
	wantMain, wantSide := ref.rows(t, rc, operator.Main), ref.rows(t, rc, operator.DeadLetter)
	ops := ref.power.ops
	if len(wantMain) == 0 || len(wantSide) == 0 {
		t.Fatal("nothing to compare")
	}
	kills := 0
	for k := 0; k < len(ops); k += every {
		w := newLakeWorld(t, 50)
		w.limit = 40
		c := w.catalog(t)
		w.power.restart(k)
		_ = w.run(w.sinks(c))
		w.reboot(k%2 == 0)
		if err := w.run(w.sinks(c)); err != nil {
			t.Fatalf("killed before operation %d (%s): %v", k, ops[k], err)
		}
		wantRows(t, ops[k]+": main", w.rows(t, c, operator.Main), wantMain)
		wantRows(t, ops[k]+": side", w.rows(t, c, operator.DeadLetter), wantSide)
		w.completeLog(2)
		if got, want := w.counters(), ref.counters(); got != want {
			t.Fatalf("killed before operation %d (%s): counts %+v, undisturbed %+v", k, ops[k], got, want)
		}
		kills++
	}
	t.Logf("%d kills", kills)
}

// TestStateRebuiltFromAnIcebergTableIsWhatWasLost loses the folder and delivers
// old events again: each must be recognised.
func TestStateRebuiltFromAnIcebergTableIsWhatWasLost(t *testing.T) {
	w := newLakeWorld(t, 80)
	w.limit = 40
	c := w.catalog(t)
	w.must(w.sinks(c))
	before := w.rows(t, c, operator.Main)
	w.disk.Wipe()
	w.reboot(false)
	old := w.kafka.value
	w.kafka.value = func(p int32, off int64) string {
		if off >= 80 {
			return old(p, off-10)
		}
		return old(p, off)
	}
	w.kafka.produce(0, 10)
	w.kafka.produce(1, 10)
	w.must(w.sinks(c))
	wantRows(t, "main", w.rows(t, c, operator.Main), before)
}
