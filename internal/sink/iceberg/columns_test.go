package iceberg_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	iceberggo "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/iceberg"
)

func decimal(precision int32) arrow.DataType {
	return &arrow.Decimal128Type{Precision: precision, Scale: 2}
}

// before are the columns of the first definition.
var before = []arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "ts", Type: batch.Timestamp},
	{Name: "small", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "ratio", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
	{Name: "price", Type: decimal(9), Nullable: true},
	{Name: "user", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "kind", Type: arrow.BinaryTypes.String},
	{Name: "old", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "quiet", Type: arrow.BinaryTypes.String, Nullable: true},
}

// changed gives before with some fields in another way: by name, nil takes one
// away.
func changed(by map[string]*arrow.Field, more ...arrow.Field) []arrow.Field {
	var out []arrow.Field
	for _, f := range before {
		g, ok := by[f.Name]
		switch {
		case !ok:
			out = append(out, f)
		case g != nil:
			out = append(out, *g)
		}
	}
	return append(out, more...)
}

// definition is a query as one version of its file declares it.
type definition struct {
	fields    []arrow.Field
	evolution *column.Evolution
}

func (l lakeStore) defined(t *testing.T, query string, d definition, hooks lake.CommitHooks) *iceberg.Sink {
	t.Helper()
	schema, err := table.ArrowSchemaToIcebergWithFreshIDs(arrow.NewSchema(d.fields, nil), false)
	if err != nil {
		t.Fatal(err)
	}
	day := iceberggo.NewPartitionSpec(iceberggo.PartitionField{SourceIDs: []int{2}, FieldID: 1000, Name: "ts_day", Transform: iceberggo.DayTransform{}})
	s, err := iceberg.New(iceberg.Options{Catalog: l.catalog(t).WithHooks(hooks), Table: l.ident(), Query: query, Arrow: arrow.NewSchema(d.fields, nil),
		Schema: schema, Partition: day, Clock: quick{}, Evolution: d.evolution})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start claims the table as the next start of the query does.
func start(s *iceberg.Sink) (*run, error) {
	f, err := s.Facts(context.Background(), "q")
	if err != nil {
		return nil, err
	}
	m := &marker.Marker{Format: 1, Kind: marker.KindStream, QueryName: "q", QueryID: "id", BatchID: -1, Position: kafkaAt(0)}
	if f.Marker != nil {
		again := *f.Marker
		m = &again
	}
	m.Claim, m.Attempt, m.Epoch = true, clock.Nonce(), marker.Epoch{Number: m.Epoch.Number + 1, Nonce: clock.Nonce()}
	p, moved, err := s.Claim(context.Background(), f, m)
	if err == nil && moved {
		err = errors.New("the head moved")
	}
	return &run{s: s, permit: p, cur: m}, err
}

// write commits a batch of one row: the values are made of the batch id.
func (r *run) write(t *testing.T, fields []arrow.Field) {
	t.Helper()
	m := *r.cur
	m.Claim, m.BatchID, m.Attempt = false, m.BatchID+1, clock.Nonce()
	m.Position = kafkaAt(m.BatchID + 1)
	m.PlanHash = marker.Hash([]byte(m.Position.String()))
	st, err := r.s.Stage(t.Context(), m.BatchID, m.Attempt)
	if err == nil {
		err = st.Write(rowOf(m.BatchID, fields))
	}
	var staged sink.Staged
	if err == nil {
		staged, err = st.Close(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	done, err := r.s.Commit(t.Context(), r.permit, r.cur, staged, &m)
	if err != nil {
		t.Fatal(err)
	}
	r.cur = done.Marker
}

func rowOf(n int64, fields []arrow.Field) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	for i, f := range fields {
		switch x := b.Field(i).(type) {
		case *array.Int64Builder:
			x.Append(n)
		case *array.Int32Builder:
			x.Append(int32(n))
		case *array.Float32Builder:
			x.Append(float32(n) + 0.5)
		case *array.Float64Builder:
			x.Append(float64(n) + 0.5)
		case *array.Decimal128Builder:
			x.Append(decimal128.FromI64(100*n + 25))
		case *array.TimestampBuilder:
			x.Append(arrow.Timestamp(1_772_366_400_000_000 + n))
		case *array.StringBuilder:
			x.Append(f.Name + "-" + string(rune('a'+n)))
		case *array.ListBuilder:
			x.AppendNull()
		}
	}
	return b.NewRecordBatch()
}

// after is the second definition: every change that loses nothing.
func after() definition {
	long, double := arrow.Field{Name: "small", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, arrow.Field{Name: "ratio", Type: arrow.PrimitiveTypes.Float64, Nullable: true}
	price, editor := arrow.Field{Name: "price", Type: decimal(12), Nullable: true}, arrow.Field{Name: "editor", Type: arrow.BinaryTypes.String, Nullable: true}
	kind := arrow.Field{Name: "kind", Type: arrow.BinaryTypes.String, Nullable: true}
	fields := changed(map[string]*arrow.Field{"small": &long, "ratio": &double, "price": &price, "user": &editor, "kind": &kind, "old": nil, "quiet": nil},
		arrow.Field{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true})
	fields = slices.Insert(fields, 2, arrow.Field{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true})
	return definition{fields, &column.Evolution{Renamed: map[string]string{"editor": "user"}, Drop: []string{"old"}, Keep: []string{"quiet"}}}
}

const readAll = `
import json, sys
from pyiceberg.catalog.sql import SqlCatalog
cat = SqlCatalog("weir", uri="sqlite:///" + sys.argv[1], warehouse="file://" + sys.argv[2])
t = cat.load_table("bronze.events")
rows = sorted(t.scan().to_arrow().to_pylist(), key=lambda r: r["id"])
duck = t.scan().to_duckdb("events").execute("select id, editor, small from events order by id").fetchall()
print(json.dumps({"columns": [[f.field_id, f.name, str(f.field_type), f.required] for f in t.schema().fields],
    "rows": [{k: str(v) for k, v in r.items() if k != "ts"} for r in rows], "duck": duck}))
`

func TestPyIcebergReadsOldFilesUnderTheNewColumns(t *testing.T) {
	py := python(t)
	l, _ := harness(t)
	evolve(t, l)
	cmd := exec.Command(py, "-W", "ignore", "-c", readAll, filepath.Join(l.dir, "catalog.db"), filepath.Join(l.dir, "warehouse"))
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if err := json.Unmarshal([]byte(`{
		"columns": [[1,"id","long",true],[2,"ts","timestamptz",true],[10,"tags","list<string>",false],[3,"small","long",false],[4,"ratio","double",false],
			[5,"price","decimal(12, 2)",false],[6,"editor","string",false],[7,"kind","string",false],[11,"note","string",false],[9,"quiet","string",false]],
		"rows": [
			{"id":"0","tags":"None","small":"0","ratio":"0.5","price":"0.25","editor":"user-a","kind":"kind-a","note":"None","quiet":"quiet-a"},
			{"id":"1","tags":"None","small":"1","ratio":"1.5","price":"1.25","editor":"user-b","kind":"kind-b","note":"None","quiet":"quiet-b"},
			{"id":"2","tags":"None","small":"2","ratio":"2.5","price":"2.25","editor":"editor-c","kind":"kind-c","note":"note-c","quiet":"None"}],
		"duck": [[0,"user-a",0],[1,"user-b",1],[2,"editor-c",2]]}`), &want); err != nil {
		t.Fatal(err)
	}
	// The ids of tags and of its element are the library's choice.
	columns := got.(map[string]any)["columns"].([]any)
	for _, c := range columns {
		if f := c.([]any); f[1] == "tags" || f[1] == "note" {
			f[0] = map[string]float64{"tags": 10, "note": 11}[f[1].(string)]
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

// evolve writes two rows under the first definition and one under the second.
func evolve(t *testing.T, l lakeStore) *run {
	t.Helper()
	r, err := start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{}))
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, before)
	r.write(t, before)
	d := after()
	if r, err = start(l.defined(t, "q", d, lake.CommitHooks{})); err != nil {
		t.Fatal(err)
	}
	r.write(t, d.fields)
	return r
}

func TestAChangeOfColumnsIsMadeByOneCommitAndNotMadeAgain(t *testing.T) {
	l, _ := harness(t)
	r := evolve(t, l)
	c := l.catalog(t)
	tbl := l.load(t, c)
	if n := len(tbl.Schemas()); n != 2 {
		t.Fatalf("%d schemas", n)
	}
	// The snapshot of the claim is the first of the new columns.
	claim := tbl.SnapshotByID(*tbl.CurrentSnapshot().ParentSnapshotID)
	if got := lake.SummaryValue(claim, marker.KeyBatchID); got != "1" || claim.SchemaID == nil || *claim.SchemaID != tbl.Schema().ID {
		t.Fatalf("batch %s, schema %v of %d", got, claim.SchemaID, tbl.Schema().ID)
	}
	// State is rebuilt under the new names, of rows of both kinds.
	rows := 0
	if err := r.s.RebuildScan(t.Context(), r.cur, []string{"ts", "editor"}, "ts", marker.MinTime, counting(&rows)); err != nil || rows != 3 {
		t.Fatalf("%d rows, %v", rows, err)
	}
	if _, err := start(l.defined(t, "q", after(), lake.CommitHooks{})); err != nil {
		t.Fatal(err)
	}
	if n := len(l.load(t, c).Schemas()); n != 2 {
		t.Fatalf("another start made %d schemas", n)
	}
}

// A crash, or a lost answer, around the swap of the claim that changes the
// columns: the table has all of it or nothing.
func TestAClaimWhoseAnswerIsLostHasChangedTheColumnsOnceOrNot(t *testing.T) {
	for _, c := range []struct {
		what  string
		hooks func(once func() error) lake.CommitHooks
	}{
		{"before the swap", func(once func() error) lake.CommitHooks {
			return lake.CommitHooks{Before: func(context.Context, table.Identifier) error { return once() }}
		}},
		{"after the swap", func(once func() error) lake.CommitHooks {
			return lake.CommitHooks{After: func(context.Context, table.Identifier) error { return once() }}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			l, _ := harness(t)
			r, err := start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{}))
			if err != nil {
				t.Fatal(err)
			}
			r.write(t, before)
			calls := 0
			d := after()
			r, err = start(l.defined(t, "q", d, c.hooks(func() error {
				if calls++; calls == 1 {
					return errors.New("the line was cut")
				}
				return nil
			})))
			if err != nil {
				t.Fatal(err)
			}
			r.write(t, d.fields)
			tbl := l.load(t, l.catalog(t))
			if n := len(tbl.Schemas()); n != 2 || len(l.ids(t)) != 2 {
				t.Fatalf("%d schemas, ids %v", n, l.ids(t))
			}
		})
	}
}

func TestWhatWouldLoseSomethingIsRefusedByNameWithTheWayOut(t *testing.T) {
	l, _ := harness(t)
	fixed := &column.Evolution{Fixed: map[string]string{"user": "it is one of the keys", "small": "it is one of the keys", "account": "it is one of the keys"}}
	r, err := start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{}))
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, before)
	head := l.load(t, l.catalog(t)).MetadataLocation()
	field := func(name string, typ arrow.DataType, nullable bool) *arrow.Field {
		return &arrow.Field{Name: name, Type: typ, Nullable: nullable}
	}
	long, text := arrow.DataType(arrow.PrimitiveTypes.Int64), arrow.DataType(arrow.BinaryTypes.String)
	for _, c := range []struct {
		what      string
		fields    []arrow.Field
		evolution *column.Evolution
		want      []string
	}{
		{"narrower", changed(map[string]*arrow.Field{"id": field("id", arrow.PrimitiveTypes.Int32, false)}), nil, []string{`"id"`, "writes int", "has long", "narrower"}},
		{"another type", changed(map[string]*arrow.Field{"user": field("user", long, true)}), nil, []string{`"user"`, "writes long", "has string", "another name"}},
		{"another scale", changed(map[string]*arrow.Field{"price": field("price", &arrow.Decimal128Type{Precision: 12, Scale: 3}, true)}), nil, []string{`"price"`, "decimal(12, 3)", "decimal(9, 2)"}},
		{"less precision", changed(map[string]*arrow.Field{"price": field("price", decimal(8), true)}), nil, []string{`"price"`, "decimal(8, 2)", "narrower"}},
		{"required now", changed(map[string]*arrow.Field{"user": field("user", text, false)}), nil, []string{`"user"`, "optional string", "required string", "leave required away"}},
		{"new and required", changed(nil, *field("more", long, false)), nil, []string{`"more"`, "required long", "leave required away"}},
		{"gone", changed(map[string]*arrow.Field{"user": nil}), nil, []string{`"user"`, "does not declare it any more", "dropColumns", "keepColumns"}},
		{"gone and required", changed(map[string]*arrow.Field{"kind": nil}), nil, []string{`"kind"`, "requires a value"}},
		{"renamed without a word", changed(map[string]*arrow.Field{"small": field("little", arrow.PrimitiveTypes.Int32, true)}), nil, []string{`"small"`, "renamedFrom: small"}},
		{"only another case", changed(map[string]*arrow.Field{"small": field("Small", arrow.PrimitiveTypes.Int32, true)}), nil, []string{`"Small"`, "by case"}},
		{"a key under another name", changed(map[string]*arrow.Field{"user": field("account", text, true)}),
			&column.Evolution{Renamed: map[string]string{"account": "user"}, Fixed: fixed.Fixed}, []string{`"account"`, "it is one of the keys"}},
		{"a wider key", changed(map[string]*arrow.Field{"small": field("small", long, true)}), fixed, []string{`"small"`, "int", "long", "it is one of the keys"}},
		{"a partition column dropped", changed(map[string]*arrow.Field{"ts": nil}), &column.Evolution{Drop: []string{"ts"}}, []string{`"ts"`, "partitioned by it"}},
		{"a partition column renamed", changed(map[string]*arrow.Field{"ts": field("at", batch.Timestamp, false)}),
			&column.Evolution{Renamed: map[string]string{"at": "ts"}}, []string{`"at"`, "partitioned by it"}},
		{"two at once", changed(map[string]*arrow.Field{"user": nil, "id": field("id", arrow.PrimitiveTypes.Int32, false)}), nil, []string{`"user"`, `"id"`}},
	} {
		e := c.evolution
		if e == nil {
			e = &column.Evolution{}
		}
		_, err := start(l.defined(t, "q", definition{c.fields, e}, lake.CommitHooks{}))
		if !failure.Is(err, failure.SchemaConflict) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q is not in %v", c.what, w, err)
			}
		}
	}
	if now := l.load(t, l.catalog(t)).MetadataLocation(); now != head {
		t.Fatal("a refused change has touched the table")
	}
}

// The file of before the change, started on the table of after it, would fill
// the new columns with nulls.
func TestAnOlderFileOnANewerTableStops(t *testing.T) {
	l, _ := harness(t)
	evolve(t, l)
	_, err := start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{}))
	if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), "if this file is older than the table, use the newer one") {
		t.Fatal(err)
	}
}

// Columns that the program itself has (dead letters, Kafka rows): one that
// an older binary does not know stays, and is null in its rows.
func TestColumnsOfTheProgramsOwnGrowAndAreLeftAloneByAnOlderOne(t *testing.T) {
	l, _ := harness(t)
	newer := changed(nil, arrow.Field{Name: "more", Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	for _, fields := range [][]arrow.Field{before, newer, before, newer} {
		r, err := start(l.defined(t, "q", definition{fields, nil}, lake.CommitHooks{}))
		if err != nil {
			t.Fatal(err)
		}
		r.write(t, fields)
	}
	tbl := l.load(t, l.catalog(t))
	if f, ok := tbl.Schema().FindFieldByName("more"); !ok || f.ID != 10 || len(l.ids(t)) != 4 {
		t.Fatalf("%s, ids %v", tbl.Schema(), l.ids(t))
	}
}

// A query that has not written to a table does not change it: it may be pointed
// at the wrong one. Columns that somebody else added are nobody's loss.
func TestOnlyAQueryOfTheTableChangesIt(t *testing.T) {
	l, _ := harness(t)
	r, err := start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{}))
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, before)
	other := l.defined(t, "other", definition{changed(nil, arrow.Field{Name: "more", Type: arrow.PrimitiveTypes.Int64, Nullable: true}), &column.Evolution{}}, lake.CommitHooks{})
	f, err := other.Facts(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	m := &marker.Marker{Format: 1, Kind: marker.KindStream, QueryName: "other", QueryID: "other-id", BatchID: -1, Claim: true, Attempt: clock.Nonce(), Epoch: marker.Epoch{Number: 1, Nonce: "n"}}
	if _, _, err := other.Claim(t.Context(), f, m); !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), `"more"`) {
		t.Fatalf("%v", err)
	}
	tbl := l.load(t, l.catalog(t))
	txn := tbl.NewTransaction()
	if err := txn.UpdateSchema(true, false).AddColumn([]string{"theirs"}, iceberggo.PrimitiveTypes.String, "", false, nil).Commit(); err != nil {
		t.Fatal(err)
	}
	if _, err := txn.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err = start(l.defined(t, "q", definition{before, &column.Evolution{}}, lake.CommitHooks{})); err != nil {
		t.Fatal(err)
	}
	r.write(t, before)
}
