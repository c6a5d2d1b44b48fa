package audit

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	icebergsql "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// rowAt is one row's place in Kafka, with an event id for silver.
type rowAt struct {
	partition int32
	offset    int64
	id        string
	topic     string // empty is the fixture's own
}

// fixture is a lake and a broker, made with other people's code.
type fixture struct {
	t       *testing.T
	dir     string
	brokers []string
	cat     *icebergsql.Catalog
	client  *kgo.Client
}

const topic = "t"

func newFixture(t *testing.T, partitions int32) *fixture {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	dir := t.TempDir()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "catalog.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	cat, err := icebergsql.NewCatalog("weir", db, icebergsql.SQLite, iceberg.Properties{
		"warehouse": "file://" + filepath.Join(dir, "warehouse"), "init_catalog_tables": "true"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, ns := range []string{"bronze", "silver", "ops"} {
		if err := cat.CreateNamespace(ctx, catalog.ToIdentifier(ns), nil); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &fixture{t: t, dir: dir, brokers: cluster.ListenAddrs(), cat: cat, client: cl}
}

// publish writes n records to a partition and returns their offsets.
func (f *fixture) publish(partition int32, n int) (offsets []int64) {
	f.t.Helper()
	for i := range n {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "%d", i)}
		if err := f.client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			f.t.Fatal(err)
		}
		offsets = append(offsets, r.Offset)
	}
	return offsets
}

// transaction writes n records and commits or aborts them: a marker that is no
// record follows either way.
func (f *fixture) transaction(partition int32, n int, commit bool) (offsets []int64) {
	f.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.TransactionalID("tx"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		f.t.Fatal(err)
	}
	for range n {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte("x")}
		if err := cl.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			f.t.Fatal(err)
		}
		offsets = append(offsets, r.Offset)
	}
	if err := cl.EndTransaction(context.Background(), kgo.TransactionEndTry(commit)); err != nil {
		f.t.Fatal(err)
	}
	return offsets
}

func (f *fixture) trim(partition int32, offset int64) {
	f.t.Helper()
	var os kadm.Offsets
	os.AddOffset(topic, partition, offset, -1)
	if _, err := kadm.NewClient(f.client).DeleteRecords(context.Background(), os); err != nil {
		f.t.Fatal(err)
	}
}

var bronzeSchema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "topic", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 2, Name: "partition", Type: iceberg.PrimitiveTypes.Int32, Required: true},
	iceberg.NestedField{ID: 3, Name: "offset", Type: iceberg.PrimitiveTypes.Int64, Required: true},
)

var silverSchema = iceberg.NewSchema(0,
	iceberg.NestedField{ID: 1, Name: "event_id", Type: iceberg.PrimitiveTypes.String},
	iceberg.NestedField{ID: 2, Name: "kafka_partition", Type: iceberg.PrimitiveTypes.Int32},
	iceberg.NestedField{ID: 3, Name: "kafka_offset", Type: iceberg.PrimitiveTypes.Int64},
)

func (f *fixture) create(name string, schema *iceberg.Schema) *table.Table {
	f.t.Helper()
	tbl, err := f.cat.CreateTable(context.Background(), catalog.ToIdentifier(name), schema,
		catalog.WithProperties(iceberg.Properties{"format-version": "2"}))
	if err != nil {
		f.t.Fatal(err)
	}
	return tbl
}

// append commits rows with a snapshot summary.
func (f *fixture) append(tbl *table.Table, summary iceberg.Properties, rows ...rowAt) *table.Table {
	f.t.Helper()
	schema, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		f.t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for _, r := range rows {
		for i, field := range schema.Fields() {
			switch field.Name {
			case "topic":
				b.Field(i).(*array.StringBuilder).Append(cmp.Or(r.topic, topic))
			case "event_id":
				b.Field(i).(*array.StringBuilder).Append(r.id)
			case "partition", "kafka_partition":
				b.Field(i).(*array.Int32Builder).Append(r.partition)
			case "offset", "kafka_offset":
				b.Field(i).(*array.Int64Builder).Append(r.offset)
			}
		}
	}
	rec := b.NewRecordBatch()
	rdr, err := array.NewRecordReader(schema, []arrow.RecordBatch{rec})
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := tbl.Append(context.Background(), rdr, summary)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// load gives a table as it is now.
func (f *fixture) load(name string) *table.Table {
	f.t.Helper()
	tbl, err := f.cat.LoadTable(context.Background(), catalog.ToIdentifier(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return tbl
}

// property sets a table property.
func (f *fixture) property(tbl *table.Table, key, value string) *table.Table {
	f.t.Helper()
	tx := tbl.NewTransaction()
	if err := tx.SetProperties(iceberg.Properties{key: value}); err != nil {
		f.t.Fatal(err)
	}
	out, err := tx.Commit(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// reached is a snapshot summary that says how far each partition has come.
func reached(next ...int64) iceberg.Properties {
	s := `{"cluster_id":"","topics":{"` + topic + `":{"partitions":{`
	for p, n := range next {
		if p > 0 {
			s += ","
		}
		s += fmt.Sprintf(`"%d":{"next_offset":%d}`, p, n)
	}
	return iceberg.Properties{"weir.offsets": s + "}}}}"}
}

func span0(partition int32, from, to int64) []rowAt {
	var out []rowAt
	for o := from; o < to; o++ {
		out = append(out, rowAt{partition: partition, offset: o, id: fmt.Sprintf("id-%d-%d", partition, o)})
	}
	return out
}

func (f *fixture) audit(tables ...TableConfig) *Report {
	f.t.Helper()
	cfg := Config{Catalog: SQLiteCatalog{Path: filepath.Join(f.dir, "catalog.db")}, Brokers: f.brokers, Tables: tables, ProgressTable: "ops.stream_progress"}
	rep, err := Run(context.Background(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return rep
}

func (f *fixture) auditBronze() *TableReport {
	f.t.Helper()
	return f.audit(TableConfig{Name: "bronze.r", Topic: topic}).Tables[0]
}

// appendProgress adds one row to a progress table.
func (f *fixture) appendProgress(tbl *table.Table, query string, batch int64, c counters) *table.Table {
	f.t.Helper()
	schema, err := table.SchemaToArrowSchema(tbl.Schema(), nil, true, false)
	if err != nil {
		f.t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	b.Field(0).(*array.StringBuilder).Append(query)
	b.Field(1).(*array.StringBuilder).Append("q")
	for i, v := range []int64{batch, c.Read, c.Emitted, c.Filtered, c.Duplicate, c.Late, c.DeadLettered} {
		b.Field(2 + i).(*array.Int64Builder).Append(v)
	}
	rdr, err := array.NewRecordReader(schema, []arrow.RecordBatch{b.NewRecordBatch()})
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := tbl.Append(context.Background(), rdr, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}
