package check

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	_ "github.com/weirlake/weir/internal/duck/link" // the tests run checks
	"github.com/weirlake/weir/internal/erase"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
)

// still is a clock that stands.
type still struct{ clock.System }

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func (still) Now() time.Time { return now }

// row is one of bronze.t.
type row struct {
	partition int32
	offset    int64
	kind      string
	at        time.Time
}

var schema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "topic", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 2, Name: "partition", Type: iceberg.PrimitiveTypes.Int32},
	iceberg.NestedField{ID: 3, Name: "offset", Type: iceberg.PrimitiveTypes.Int64},
	iceberg.NestedField{ID: 4, Name: "kind", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 5, Name: "at", Type: iceberg.PrimitiveTypes.TimestampTz},
)

type world struct {
	t *testing.T
	c *lake.Catalog
	b *Book
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	c, err := lake.Open(context.Background(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &world{t, c, NewBook(c, []string{"ops", "checks"}, still{})}
}

// add commits rows to bronze.t, with the position that they lead to.
func (w *world) add(position map[int32]int64, rows ...row) {
	w.t.Helper()
	ctx := context.Background()
	t, err := w.c.EnsureTable(ctx, []string{"bronze", "t"}, schema, *iceberg.UnpartitionedSpec, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{
		{Name: "topic", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "partition", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "offset", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "kind", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "at", Type: batch.Timestamp, Nullable: true},
	}, nil))
	defer b.Release()
	for _, r := range rows {
		b.Field(0).(*array.StringBuilder).Append("t")
		b.Field(1).(*array.Int32Builder).Append(r.partition)
		b.Field(2).(*array.Int64Builder).Append(r.offset)
		if r.kind == "" {
			b.Field(3).AppendNull()
		} else {
			b.Field(3).(*array.StringBuilder).Append(r.kind)
		}
		b.Field(4).(*array.TimestampBuilder).Append(arrow.Timestamp(r.at.UnixMicro()))
	}
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		w.t.Fatal(err)
	}
	dw, err := datafile.NewWriter(datafile.Spec{
		Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: 2, Location: lake.DataLocation(t), FS: storage,
	}, "t-"+clock.Nonce(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := dw.Write(b.NewRecordBatch()); err != nil {
		w.t.Fatal(err)
	}
	files, err := dw.Close(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	k := &batch.KafkaPosition{Topics: map[string]batch.TopicPosition{"t": {ID: "id", Partitions: map[int32]batch.PartitionPosition{}}}}
	for p, next := range position {
		k.Topics["t"].Partitions[p] = batch.PartitionPosition{NextOffset: next}
	}
	ch := lake.Change{Summary: map[string]string{marker.KeyOffsets: encoded(k)}}
	for _, f := range files {
		ch.Files = append(ch.Files, f.DataFile)
	}
	if _, err := w.c.Commit(ctx, t, ch); err != nil {
		w.t.Fatal(err)
	}
}

// run evaluates one check.
func (w *world) run(c pipeline.Check, ends map[int32]int64, gapless bool) Result {
	w.t.Helper()
	if c.Name == "" {
		c.Name = "c"
	}
	if c.Severity == "" {
		c.Severity = pipeline.SeverityError
	}
	res, err := Run(context.Background(), Options{
		Catalog: w.c, Clock: still{}, Checks: []pipeline.Check{c}, Book: w.b, GoldSchema: "gold",
		Ends:    func(context.Context, string) (map[int32]int64, error) { return ends, nil },
		Gapless: func(string) bool { return gapless },
	})
	if len(res) != 1 {
		w.t.Fatalf("%d results, %v", len(res), err)
	}
	if res[0].OK() == failure.Is(err, failure.Mismatch) {
		w.t.Errorf("result %+v with error %v", res[0], err)
	}
	return res[0]
}

func TestEachKindOfCheckTellsGoodFromBad(t *testing.T) {
	w := newWorld(t)
	w.add(map[int32]int64{0: 3, 1: 1}, row{0, 0, "a", now.Add(-time.Hour)}, row{0, 1, "b", now.Add(-time.Minute)}, row{0, 2, "", now.Add(-time.Hour)}, row{1, 0, "a", now.Add(-time.Hour)})
	const table = "bronze.t"
	complete := pipeline.Check{Table: table, Completeness: &pipeline.Completeness{Topic: "t", MaxLag: 1}}
	for name, c := range map[string]struct {
		check pipeline.Check
		ends  map[int32]int64
		want  string
		says  string
	}{
		"offsets are unique":       {pipeline.Check{Table: table, Duplicates: []string{"partition", "offset"}}, nil, Passed, "none"},
		"kinds are not":            {pipeline.Check{Table: table, Duplicates: []string{"kind"}}, nil, Failed, "1 values"},
		"no kind is null":          {pipeline.Check{Table: table, NotNull: []string{"kind", "topic"}}, nil, Failed, "1 rows"},
		"no kind is null, of some": {pipeline.Check{Table: table, NotNull: []string{"kind"}, Where: "\"offset\" < 2"}, nil, Passed, "none"},
		"kinds are known":          {pipeline.Check{Table: table, AcceptedValues: &pipeline.AcceptedValues{Column: "kind", Values: []string{"a", "b"}}}, nil, Passed, "none"},
		"a kind is not":            {pipeline.Check{Table: table, AcceptedValues: &pipeline.AcceptedValues{Column: "kind", Values: []string{"a"}}}, nil, Failed, "1 rows"},
		"fresh":                    {pipeline.Check{Table: table, Freshness: &pipeline.Freshness{Column: "at", MaxAge: time.Minute}}, nil, Passed, "1m0s old"},
		"stale":                    {pipeline.Check{Table: table, Freshness: &pipeline.Freshness{Column: "at", MaxAge: 59 * time.Second}}, nil, Failed, "1m0s old"},
		"stale, only a warning":    {pipeline.Check{Table: table, Severity: pipeline.SeverityWarn, Freshness: &pipeline.Freshness{Column: "at", MaxAge: time.Second}}, nil, Warned, "1m0s old"},
		"enough rows":              {pipeline.Check{Table: table, RowCount: &pipeline.RowCount{Min: 4, Max: 4}}, nil, Passed, "4 rows"},
		"too few":                  {pipeline.Check{Table: table, RowCount: &pipeline.RowCount{Min: 5}}, nil, Failed, "4 rows"},
		"agree":                    {pipeline.Check{Reconciliation: &pipeline.Reconciliation{Left: "SELECT count(*) FROM bronze.t", Right: "SELECT 5", Tolerance: 1}}, nil, Passed, "4 and 5"},
		"do not":                   {pipeline.Check{Reconciliation: &pipeline.Reconciliation{Left: "SELECT count(*) FROM bronze.t", Right: "SELECT 5"}}, nil, Failed, "4 and 5"},
		"rows are failures":        {pipeline.Check{SQL: "SELECT * FROM bronze.t WHERE kind = 'b';"}, nil, Failed, "1 rows"},
		"not a query":              {pipeline.Check{SQL: "DROP TABLE x"}, nil, Broken, "only reads"},
		"no such column":           {pipeline.Check{Table: table, NotNull: []string{"nope"}}, nil, Broken, "nope"},
		"no such table":            {pipeline.Check{Table: "a.b", NotNull: []string{"x"}}, nil, Broken, "does not exist"},
		"complete":                 {complete, map[int32]int64{0: 3, 1: 2}, Passed, "1 missing"},
		"behind":                   {complete, map[int32]int64{0: 3, 1: 3}, Failed, "2 missing"},
		"a partition is missing":   {complete, map[int32]int64{0: 3, 1: 1, 2: 9}, Failed, "9 missing"},
	} {
		got := w.run(c.check, c.ends, true)
		if got.Status != c.want || !strings.Contains(got.Observed+got.Error, c.says) {
			t.Errorf("%s: %s %q %q, want %s and %q", name, got.Status, got.Observed, got.Error, c.want, c.says)
		}
		if got.Status == Failed && c.check.SQL != "" && len(got.Samples) != 1 {
			t.Errorf("%s: samples %v", name, got.Samples)
		}
	}
}

func TestCompletenessSeesOffsetsTwiceAndHoles(t *testing.T) {
	c := pipeline.Check{Table: "bronze.t", Completeness: &pipeline.Completeness{Topic: "t"}}
	w := newWorld(t)
	w.add(map[int32]int64{0: 4}, row{partition: 0, offset: 0, at: now}, row{partition: 0, offset: 1, at: now}, row{partition: 0, offset: 3, at: now})
	ends := map[int32]int64{0: 4}
	if r := w.run(c, ends, true); r.Status != Failed || !strings.Contains(r.Observed, "1 offsets before the position without a row") {
		t.Errorf("a hole in a topic without transactions: %+v", r)
	}
	if r := w.run(c, ends, false); r.Status != Passed || !strings.Contains(r.Observed, "marks of transactions") {
		t.Errorf("a hole that a mark may explain: %+v", r)
	}
	w.add(map[int32]int64{0: 4}, row{partition: 0, offset: 2, at: now}, row{partition: 0, offset: 2, at: now})
	if r := w.run(c, ends, true); r.Status != Failed || !strings.Contains(r.Observed, "1 offsets twice") {
		t.Errorf("an offset twice: %+v", r)
	}
	w.add(map[int32]int64{0: 4}, row{partition: 0, offset: 7, at: now})
	if r := w.run(c, ends, false); r.Status != Failed || !strings.Contains(r.Observed, "beyond the recorded position") {
		t.Errorf("a row that the position does not know: %+v", r)
	}
}

func TestTheRowCountIsComparedWithTheLastRun(t *testing.T) {
	w := newWorld(t)
	drift := pipeline.Check{Name: "drift", Table: "bronze.t", RowCount: &pipeline.RowCount{MaxDropPercent: 10, MaxGrowthPercent: 100}}
	rows := func(from, n int64) {
		var all []row
		for i := range n {
			all = append(all, row{partition: 0, offset: from + i, at: now})
		}
		w.add(map[int32]int64{0: from + n}, all...)
	}
	rows(0, 10)
	if r := w.run(drift, nil, true); r.Status != Passed || r.Expected != "nothing to compare with yet" {
		t.Errorf("first: %+v", r)
	}
	rows(10, 10)
	if r := w.run(drift, nil, true); r.Status != Passed {
		t.Errorf("twice as many: %+v", r)
	}
	rows(20, 21)
	if r := w.run(drift, nil, true); r.Status != Failed {
		t.Errorf("more than twice as many: %+v", r)
	}
}

func TestRowsThatWereErasedOnPurposeAreNoDropAndOthersStillAre(t *testing.T) {
	w := newWorld(t)
	drift := pipeline.Check{Name: "drift", Table: "bronze.t", RowCount: &pipeline.RowCount{MaxDropPercent: 10}}
	var all []row
	for i := range int64(20) {
		all = append(all, row{partition: 0, offset: i, at: now})
	}
	w.add(map[int32]int64{0: 20}, all...)
	if r := w.run(drift, nil, true); r.Status != Passed {
		t.Fatalf("first: %+v", r)
	}
	erased := func(id string, offsets ...int64) {
		at := batch.TopicPartition{Topic: "t"}
		_, err := erase.Apply(context.Background(), erase.Options{Catalog: w.c, Table: []string{"bronze", "t"}, ID: id, Clock: still{},
			Rule: erase.Rule{Columns: erase.Columns{Topic: "topic", Partition: "partition", Offset: "offset"}, Places: marker.PlacesOf(map[batch.TopicPartition][]int64{at: offsets})}})
		if err != nil {
			t.Fatal(err)
		}
	}
	erased("gdpr-1", 0, 1, 2, 3, 4, 5)
	if r := w.run(drift, nil, true); r.Status != Passed || r.Observed != "14 rows, 6 were erased on purpose since the last run" {
		t.Errorf("six rows of twenty erased: %+v", r)
	}
	if r := w.run(drift, nil, true); r.Status != Passed || r.Observed != "14 rows" {
		t.Errorf("the same erasure at the next run: %+v", r)
	}
	// Rows that go beside an erasure, with nothing said of them, are a drop.
	erased("gdpr-2", 6)
	w.remember("drift", 20)
	if r := w.run(drift, nil, true); r.Status != Failed || r.Observed != "13 rows, 1 were erased on purpose since the last run" {
		t.Errorf("seven rows fewer, of which one was erased: %+v", r)
	}
}

// remember puts another number of rows into what the next run compares with.
func (w *world) remember(check string, rows int64) {
	w.t.Helper()
	last, err := w.b.remembered(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	r := Result{RunID: clock.Nonce(), Check: check, Status: Passed, Rows: rows, EvaluatedAt: now, erasures: last[check].Erasures}
	if err := w.b.Append(context.Background(), r.RunID, []Result{r}); err != nil {
		w.t.Fatal(err)
	}
}

func TestResultsComeIntoTheTableOnce(t *testing.T) {
	w := newWorld(t)
	res := []Result{{RunID: "r", Check: "a", Status: Passed, EvaluatedAt: now, Rows: 3}, {RunID: "r", Check: "b", Status: Broken, EvaluatedAt: now}}
	for range 2 {
		if err := w.b.Append(context.Background(), "r", res); err != nil {
			t.Fatal(err)
		}
	}
	if r := w.run(pipeline.Check{Table: "ops.checks", RowCount: &pipeline.RowCount{Min: 2, Max: 2}}, nil, true); r.Status != Passed {
		t.Errorf("%+v", r)
	}
	last, err := w.b.remembered(context.Background())
	if err != nil || last["a"].Rows != 3 {
		t.Errorf("%+v, %v", last, err)
	}
	if _, ok := last["b"]; ok {
		t.Error("a check that did not run is remembered")
	}
}
