// Package bronzetest makes bronze tables for tests: a SQLite catalog and a
// warehouse in a temporary folder, commits with the markers of a Kafka query,
// and what other people do to a table (compaction, expiry, deletes, rollback).
package bronzetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
	"github.com/weirlake/weir/internal/marker"
)

// Names of the query and the topic that feed the table.
const (
	Query   = "bronze"
	QueryID = "11111111-1111-4111-8111-111111111111"
	Cluster = "cluster-1"
	Topic   = "wiki.recentchange"
	TopicID = "AAAAAAAAAAAAAAAAAAAAAA"
)

// Ident is the table's name.
var Ident = table.Identifier{"bronze", "recentchange"}

// Schema is the iceberg schema of batch.KafkaSchema.
func Schema() *iceberg.Schema {
	p := iceberg.PrimitiveTypes
	return iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "topic", Type: p.String, Required: true},
		iceberg.NestedField{ID: 2, Name: "partition", Type: p.Int32, Required: true},
		iceberg.NestedField{ID: 3, Name: "offset", Type: p.Int64, Required: true},
		iceberg.NestedField{ID: 4, Name: "timestamp", Type: p.TimestampTz, Required: true},
		iceberg.NestedField{ID: 5, Name: "timestamp_type", Type: p.Int32, Required: true},
		iceberg.NestedField{ID: 6, Name: "key", Type: p.Binary},
		iceberg.NestedField{ID: 7, Name: "value", Type: p.Binary},
		iceberg.NestedField{ID: 8, Name: "headers", Type: &iceberg.ListType{ElementID: 11, ElementRequired: true, Element: &iceberg.StructType{FieldList: []iceberg.NestedField{
			{ID: 12, Name: "key", Type: p.String, Required: true},
			{ID: 13, Name: "value", Type: p.Binary},
		}}}},
		iceberg.NestedField{ID: 9, Name: "ingested_at", Type: p.TimestampTz, Required: true},
		iceberg.NestedField{ID: 10, Name: "topic_id", Type: p.String},
	)
}

// Row is one Kafka record.
type Row struct {
	Topic     string // Topic where empty
	Partition int32
	Offset    int64
	Micros    int64
	Value     string
}

// Table is a bronze table under test.
type Table struct {
	t      testing.TB
	Dir    string
	Cat    *lake.Catalog
	vector *batch.KafkaPosition
	batch  int64
	// As is the query that the next commits are of, Query where empty, and
	// Watermark what they say of it, 0 for none.
	As        string
	Watermark int64
}

// New makes an empty table, partitioned by day of the timestamp, and claims it
// with the partitions 0 … partitions-1 at offset 0.
func New(t testing.TB, partitions int32) *Table {
	t.Helper()
	b := Open(t, t.TempDir())
	b.Create()
	at := map[int32]int64{}
	for p := range partitions {
		at[p] = 0
	}
	b.Begin(at)
	return b
}

// Begin makes the first claim of the Kafka query, at the given offsets.
func (b *Table) Begin(at map[int32]int64) {
	b.t.Helper()
	b.vector = &batch.KafkaPosition{ClusterID: Cluster}
	for p, off := range at {
		b.vector.Set(Topic, TopicID, p, batch.PartitionPosition{NextOffset: off, LastOffset: -1, LeaderEpoch: -1})
	}
	b.batch = -1
	b.Commit()
}

// Open opens a catalog in dir without making a table.
func Open(t testing.TB, dir string) *Table {
	t.Helper()
	cat, err := lake.Open(t.Context(), lake.Config{URI: filepath.Join(dir, "catalog.db"), Warehouse: filepath.Join(dir, "warehouse")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cat.Close() })
	return &Table{t: t, Dir: dir, Cat: cat}
}

// Create makes the table in the catalog.
func (b *Table) Create() {
	b.t.Helper()
	spec := iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{4}, FieldID: 1000, Name: "timestamp_day", Transform: iceberg.DayTransform{}})
	if _, err := b.Cat.EnsureTable(b.t.Context(), Ident, Schema(), spec, nil); err != nil {
		b.t.Fatal(err)
	}
}

// CreateUnpartitioned makes the table without a partition spec.
func (b *Table) CreateUnpartitioned() {
	b.t.Helper()
	if _, err := b.Cat.EnsureTable(b.t.Context(), Ident, Schema(), *iceberg.UnpartitionedSpec, nil); err != nil {
		b.t.Fatal(err)
	}
}

// AppendFiles appends files that exist already, without a marker.
func (b *Table) AppendFiles(files ...iceberg.DataFile) {
	b.t.Helper()
	b.txn(func(_ *table.Table, txn *table.Transaction) error {
		return txn.AddDataFiles(b.t.Context(), files, nil, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
	})
}

// Load loads the table.
func (b *Table) Load() *table.Table {
	b.t.Helper()
	tbl, err := b.Cat.LoadTable(b.t.Context(), Ident)
	if err != nil {
		b.t.Fatal(err)
	}
	return tbl
}

// Vector is the offset vector that the next commit starts from.
func (b *Table) Vector() *batch.KafkaPosition { return b.vector.Clone() }

// AddPartition adds a partition at offset 0 to the vector of the next commit.
func (b *Table) AddPartition(p int32) {
	b.vector.Set(Topic, TopicID, p, batch.PartitionPosition{LastOffset: -1, LeaderEpoch: -1})
}

// Record makes a record of rows.
func Record(rows ...Row) arrow.RecordBatch {
	rb := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer rb.Release()
	for _, r := range rows {
		topic := r.Topic
		if topic == "" {
			topic = Topic
		}
		rb.Field(batch.ColTopic).(*array.StringBuilder).Append(topic)
		rb.Field(batch.ColPartition).(*array.Int32Builder).Append(r.Partition)
		rb.Field(batch.ColOffset).(*array.Int64Builder).Append(r.Offset)
		rb.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(r.Micros))
		rb.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		if r.Offset%3 == 0 {
			rb.Field(batch.ColKey).AppendNull()
		} else {
			rb.Field(batch.ColKey).(*array.BinaryBuilder).Append([]byte{0xff, byte(r.Offset)})
		}
		rb.Field(batch.ColValue).(*array.BinaryBuilder).Append([]byte(r.Value))
		l := rb.Field(batch.ColHeaders).(*array.ListBuilder)
		l.Append(r.Offset%5 != 0)
		if r.Offset%5 != 0 {
			s := l.ValueBuilder().(*array.StructBuilder)
			for h := range r.Offset % 3 {
				s.Append(true)
				s.FieldBuilder(0).(*array.StringBuilder).Append(fmt.Sprintf("h%d", h))
				if h == 0 {
					s.FieldBuilder(1).AppendNull()
				} else {
					s.FieldBuilder(1).(*array.BinaryBuilder).Append([]byte{byte(h), 0})
				}
			}
		}
		rb.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(arrow.Timestamp(1_767_225_600_000_000))
		rb.Field(batch.ColTopicID).(*array.StringBuilder).Append(TopicID)
	}
	return rb.NewRecordBatch()
}

// Rows makes n rows of a partition from an offset on. Their timestamps start
// on day (days since 1970) and cross to the next one half-way.
func Rows(partition int32, from int64, n int, day int64) []Row {
	out := make([]Row, 0, n)
	for i := range n {
		micros := day*86_400_000_000 + int64(i)*1000
		if i >= n/2 {
			micros += 86_400_000_000
		}
		off := from + int64(i)
		out = append(out, Row{Partition: partition, Offset: off, Micros: micros, Value: fmt.Sprintf(`{"p":%d,"o":%d}`, partition, off)})
	}
	return out
}

// Files writes rows, in order of topic, partition and offset, as data files.
func (b *Table) Files(tbl *table.Table, rows []Row) []iceberg.DataFile {
	b.t.Helper()
	fs, err := lake.DataFSOf(b.t.Context(), tbl)
	if err != nil {
		b.t.Fatal(err)
	}
	w, err := datafile.NewWriter(datafile.Spec{Schema: tbl.Schema(), PartitionSpec: tbl.Spec(), FormatVersion: tbl.Metadata().Version(),
		Properties: tbl.Properties(), Location: lake.DataLocation(tbl), FS: fs}, clock.Nonce()+"-", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer w.Abort()
	rows = slices.Clone(rows)
	sort.SliceStable(rows, func(i, j int) bool {
		a, c := rows[i], rows[j]
		if a.Topic != c.Topic {
			return a.Topic < c.Topic
		}
		if a.Partition != c.Partition {
			return a.Partition < c.Partition
		}
		return a.Offset < c.Offset
	})
	if err := w.Write(Record(rows...)); err != nil {
		b.t.Fatal(err)
	}
	files, err := w.Close(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	var out []iceberg.DataFile
	for _, f := range files {
		out = append(out, f.DataFile)
	}
	return out
}

func (b *Table) query() string { return cmp.Or(b.As, Query) }

// Commit appends rows as the next batch of the Kafka query: the vector moves
// past them, the marker goes into summary and property. Without rows it is a
// zero-file snapshot.
func (b *Table) Commit(rows ...Row) *table.Table {
	b.t.Helper()
	for _, r := range rows {
		p, _ := b.vector.Get(Topic, r.Partition)
		if r.Offset+1 > p.NextOffset {
			p.NextOffset, p.LastOffset = r.Offset+1, r.Offset
		}
		p.Rows++
		b.vector.Set(Topic, TopicID, r.Partition, p)
	}
	return b.CommitAs(rows, b.vector)
}

// CommitAs appends rows under a vector of the caller's.
func (b *Table) CommitAs(rows []Row, vector *batch.KafkaPosition) *table.Table {
	b.t.Helper()
	tbl := b.Load()
	m := &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: b.query(), QueryID: QueryID, BatchID: b.batch,
		Epoch: marker.Epoch{Number: 1, Nonce: "n"}, Attempt: clock.Nonce(), Position: batch.Position{Kafka: vector.Clone()},
		Watermark: marker.Watermark{Micros: b.watermark()}, Counters: marker.Counters{Read: int64(len(rows)), Emitted: int64(len(rows))}, BatchTime: time.UnixMicro(1_767_225_600_000_000).UTC(), BaseSequence: lake.HeadOf(tbl).Sequence}
	b.batch++
	summary, err := m.Summary(vector)
	if err != nil {
		b.t.Fatal(err)
	}
	whole, err := m.Encode()
	if err != nil {
		b.t.Fatal(err)
	}
	ch := lake.Change{Summary: summary, Properties: map[string]string{marker.PropertyKey(b.query()): whole}}
	if len(rows) > 0 {
		ch.Files = b.Files(tbl, rows)
	}
	after, err := b.Cat.Commit(b.t.Context(), tbl, ch)
	if err != nil {
		b.t.Fatal(err)
	}
	return after
}

func (b *Table) watermark() int64 {
	if b.Watermark == 0 {
		return marker.MinTime
	}
	return b.Watermark
}

// ForeignAppend appends rows without any marker, as another writer would.
func (b *Table) ForeignAppend(rows ...Row) {
	b.t.Helper()
	b.txn(func(tbl *table.Table, txn *table.Transaction) error {
		return txn.AddDataFiles(b.t.Context(), b.Files(tbl, rows), nil, table.WithoutDuplicateCheck(), table.WithoutAutoNameMapping())
	})
}

// Delete deletes rows with an overwriting commit without a marker.
func (b *Table) Delete(filter iceberg.BooleanExpression) {
	b.t.Helper()
	b.txn(func(_ *table.Table, txn *table.Transaction) error { return txn.Delete(b.t.Context(), filter, nil) })
}

// SetProperty sets a table property.
func (b *Table) SetProperty(key string, value any) {
	b.t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		b.t.Fatal(err)
	}
	b.txn(func(_ *table.Table, txn *table.Transaction) error {
		return txn.SetProperties(iceberg.Properties{key: string(raw)})
	})
}

// Properties sets table properties as they are.
func (b *Table) Properties(props iceberg.Properties) {
	b.t.Helper()
	b.txn(func(_ *table.Table, txn *table.Transaction) error { return txn.SetProperties(props) })
}

// Compact rewrites all data files into new ones, as a compaction does: a
// replace snapshot without a marker.
func (b *Table) Compact(all []Row) {
	b.t.Helper()
	b.txn(func(tbl *table.Table, txn *table.Transaction) error {
		var old []iceberg.DataFile
		tasks, err := tbl.Scan().PlanFiles(b.t.Context())
		if err != nil {
			return err
		}
		for _, task := range tasks {
			old = append(old, task.File)
		}
		rw := txn.NewRewrite(nil)
		rw.Apply(old, b.Files(tbl, all), nil)
		return rw.Commit(b.t.Context())
	})
}

// ExpireAllButHead expires every snapshot but the current one, files included.
func (b *Table) ExpireAllButHead() {
	b.t.Helper()
	b.txn(func(_ *table.Table, txn *table.Transaction) error {
		return txn.ExpireSnapshots(table.WithRetainLast(1), table.WithOlderThan(0))
	})
}

// Rollback makes an older snapshot current.
func (b *Table) Rollback(snapshotID int64) {
	b.t.Helper()
	b.txn(func(_ *table.Table, txn *table.Transaction) error { return txn.RollbackToSnapshot(snapshotID) })
}

// Recreate drops the table and makes an empty one under the same name.
func (b *Table) Recreate() {
	b.t.Helper()
	if err := b.Cat.DropTable(b.t.Context(), Ident); err != nil {
		b.t.Fatal(err)
	}
	b.Create()
}

func (b *Table) txn(f func(*table.Table, *table.Transaction) error) {
	b.t.Helper()
	tbl := b.Load()
	txn := tbl.NewTransaction()
	if err := f(tbl, txn); err != nil {
		b.t.Fatal(err)
	}
	if _, err := txn.Commit(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// Lines renders the rows of a record, one string each.
func Lines(rec arrow.RecordBatch) []string {
	out := make([]string, 0, rec.NumRows())
	for i := range int(rec.NumRows()) {
		s := ""
		for _, c := range rec.Columns() {
			s += c.ValueStr(i) + "|"
		}
		out = append(out, s)
	}
	return out
}
