package datafile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
)

// bronze is the iceberg schema of batch.KafkaSchema.
func bronze() *iceberg.Schema {
	return iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "topic", Type: iceberg.PrimitiveTypes.String, Required: true},
		iceberg.NestedField{ID: 2, Name: "partition", Type: iceberg.PrimitiveTypes.Int32, Required: true},
		iceberg.NestedField{ID: 3, Name: "offset", Type: iceberg.PrimitiveTypes.Int64, Required: true},
		iceberg.NestedField{ID: 4, Name: "timestamp", Type: iceberg.PrimitiveTypes.TimestampTz, Required: true},
		iceberg.NestedField{ID: 5, Name: "timestamp_type", Type: iceberg.PrimitiveTypes.Int32, Required: true},
		iceberg.NestedField{ID: 6, Name: "key", Type: iceberg.PrimitiveTypes.Binary},
		iceberg.NestedField{ID: 7, Name: "value", Type: iceberg.PrimitiveTypes.Binary},
		iceberg.NestedField{ID: 8, Name: "headers", Type: &iceberg.ListType{ElementID: 9, ElementRequired: true, Element: &iceberg.StructType{FieldList: []iceberg.NestedField{
			{ID: 10, Name: "key", Type: iceberg.PrimitiveTypes.String, Required: true},
			{ID: 11, Name: "value", Type: iceberg.PrimitiveTypes.Binary},
		}}}},
		iceberg.NestedField{ID: 12, Name: "ingested_at", Type: iceberg.PrimitiveTypes.TimestampTz, Required: true},
		iceberg.NestedField{ID: 13, Name: "topic_id", Type: iceberg.PrimitiveTypes.String},
	)
}

func byDay() iceberg.PartitionSpec {
	return iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{4}, FieldID: 1000, Name: "timestamp_day", Transform: iceberg.DayTransform{}})
}

// row is a Kafka record of the tests.
type row struct {
	partition  int32
	offset     int64
	micros     int64
	key, value []byte
	headers    []string
}

func record(rows ...row) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	for _, r := range rows {
		b.Field(batch.ColTopic).(*array.StringBuilder).Append("t")
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(r.partition)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(r.offset)
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(r.micros))
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		appendBytes(b.Field(batch.ColKey).(*array.BinaryBuilder), r.key)
		appendBytes(b.Field(batch.ColValue).(*array.BinaryBuilder), r.value)
		l := b.Field(batch.ColHeaders).(*array.ListBuilder)
		if r.headers == nil {
			l.AppendNull()
		} else {
			l.Append(true)
			s := l.ValueBuilder().(*array.StructBuilder)
			for _, h := range r.headers {
				s.Append(true)
				s.FieldBuilder(0).(*array.StringBuilder).Append(h)
				appendBytes(s.FieldBuilder(1).(*array.BinaryBuilder), []byte("v-"+h))
			}
		}
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(1_700_000_000_000_000)
		b.Field(batch.ColTopicID).(*array.StringBuilder).Append("id-t")
	}
	return b.NewRecordBatch()
}

func appendBytes(b *array.BinaryBuilder, v []byte) {
	if v == nil {
		b.AppendNull()
	} else {
		b.Append(v)
	}
}

// localFS keeps files in a folder; faults are injected by path.
type localFS struct {
	mu   sync.Mutex
	fail func(op, path string) error
	made []string
}

func (l *localFS) check(op, path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail(op, path)
	}
	return nil
}

func (l *localFS) Create(path string) (io.WriteCloser, error) {
	if err := l.check("create", path); err != nil {
		return nil, err
	}
	p := strings.TrimPrefix(path, "file://")
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(p)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.made = append(l.made, path)
	l.mu.Unlock()
	return &localFile{File: f, fs: l, path: path}, nil
}

type localFile struct {
	*os.File
	fs   *localFS
	path string
}

func (f *localFile) Write(b []byte) (int, error) {
	if err := f.fs.check("write", f.path); err != nil {
		return 0, err
	}
	return f.File.Write(b)
}

func (f *localFile) Close() error {
	if err := f.fs.check("close", f.path); err != nil {
		f.File.Close()
		return err
	}
	return f.File.Close()
}

func spec(t testing.TB, fs FS, ps iceberg.PartitionSpec) Spec {
	return Spec{Schema: bronze(), PartitionSpec: ps, FormatVersion: 2, Location: "file://" + t.TempDir(), FS: fs}
}

// writeAll writes the records and returns the files.
func writeAll(t *testing.T, s Spec, recs ...arrow.RecordBatch) []File {
	t.Helper()
	w, err := NewWriter(s, "b0-a1-", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	files, err := w.Close(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// readBack reads a file with the library's own reader.
func readBack(t *testing.T, path string) arrow.Table {
	t.Helper()
	b, err := os.ReadFile(strings.TrimPrefix(path, "file://"))
	if err != nil {
		t.Fatal(err)
	}
	tbl, err := pqarrow.ReadTable(t.Context(), bytes.NewReader(b), nil, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return tbl
}

// lines renders the rows of the files, in their order.
func lines(t *testing.T, files []File) []string {
	t.Helper()
	var out []string
	for _, f := range files {
		tbl := readBack(t, f.Path)
		tr := array.NewTableReader(tbl, -1)
		for tr.Next() {
			out = append(out, recordLines(tr.RecordBatch())...)
		}
		tr.Release()
		tbl.Release()
	}
	return out
}

func recordLines(rec arrow.RecordBatch) []string {
	var out []string
	for i := range int(rec.NumRows()) {
		var s strings.Builder
		for _, c := range rec.Columns() {
			fmt.Fprintf(&s, "%s|", c.ValueStr(i))
		}
		out = append(out, s.String())
	}
	return out
}

const day = int64(24 * time.Hour / time.Microsecond)

func TestRowsComeBackAsTheyWereWrittenOneFileADay(t *testing.T) {
	var rows []row
	for i := range int64(300) {
		r := row{partition: int32(i % 3), offset: i, micros: 20_000*day + i*day/100, value: []byte(fmt.Sprintf(`{"n":%d}`, i))}
		if i%2 == 0 {
			r.key, r.headers = []byte{byte(i)}, []string{"a", "b"}[:i%3]
		}
		if i%7 == 0 {
			r.value = nil
		}
		rows = append(rows, r)
	}
	rec := record(rows...)
	want := recordLines(rec)
	files := writeAll(t, spec(t, &localFS{}, byDay()), rec)
	if len(files) != 3 {
		t.Fatalf("%d files, want one for each of 3 days", len(files))
	}
	got := lines(t, files)
	if !slices.Equal(got, want) {
		t.Fatalf("rows differ:\n got %d %v\nwant %d %v", len(got), got[:3], len(want), want[:3])
	}
	for i, f := range files {
		if d := f.DataFile.Partition()[1000]; d != iceberg.Date(20_000+i) {
			t.Errorf("file %d: partition value %v (%T)", i, d, d)
		}
		if !strings.Contains(f.Path, "timestamp_day=2024-10-0") {
			t.Errorf("file %d is at %s", i, f.Path)
		}
		if f.Rows != 100 || f.DataFile.Count() != 100 || f.Bytes != f.DataFile.FileSizeBytes() {
			t.Errorf("file %d: %d rows, %d bytes", i, f.Rows, f.Bytes)
		}
		if st, err := os.Stat(strings.TrimPrefix(f.Path, "file://")); err != nil || st.Size() != f.Bytes {
			t.Errorf("file %d: %v", i, err)
		}
	}
}

// The library's partitioned writer loses rows when it cannot open the file of
// one partition: the error is swallowed and the commit succeeds.
func TestAFailedOpenOfOnePartitionsFileIsAnErrorAndNeverASilentLoss(t *testing.T) {
	boom := errors.New("no space left on device")
	for _, op := range []string{"create", "write", "close"} {
		fs := &localFS{fail: func(o, path string) error {
			if o == op && strings.Contains(path, "2024-10-05") {
				return boom
			}
			return nil
		}}
		w, err := NewWriter(spec(t, fs, byDay()), "x-", nil)
		if err != nil {
			t.Fatal(err)
		}
		err = w.Write(record(row{micros: 20_000 * day}, row{micros: 20_001 * day, offset: 1}, row{micros: 20_002 * day, offset: 2}))
		if err == nil {
			_, err = w.Close(t.Context())
		}
		w.Abort()
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), "2024-10-05") {
			t.Errorf("%s fails: got %v, want an error that names the file", op, err)
		}
	}
}

func TestWriteReportsAnEarlierFailure(t *testing.T) {
	boom := errors.New("boom")
	w, err := NewWriter(spec(t, &localFS{fail: func(string, string) error { return boom }}, *iceberg.UnpartitionedSpec), "x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("x"), rowGroupBytes)
	for i := range int64(10) {
		if err = w.Write(record(row{offset: i, value: big})); err != nil {
			break
		}
	}
	w.Abort()
	if !errors.Is(err, boom) {
		t.Fatalf("ten row groups were taken although no file can be made: %v", err)
	}
}

func TestRowGroupsEncodedApartMakeOneSoundFile(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, 512<<10)
	for i := range block {
		block[i] = byte('a' + r.IntN(4))
	}
	var recs []arrow.RecordBatch
	var want []string
	off := int64(0)
	for range 9 { // 9 × 8 MiB: several row groups, each with several pages
		var rows []row
		for range 64 {
			at := r.IntN(384 << 10)
			rows = append(rows, row{offset: off, micros: off, value: block[at : at+128<<10]})
			off++
		}
		rec := record(rows...)
		want = append(want, recordLines(rec)...)
		recs = append(recs, rec)
	}
	files := writeAll(t, spec(t, &localFS{}, *iceberg.UnpartitionedSpec), recs...)
	if len(files) != 1 {
		t.Fatalf("%d files", len(files))
	}
	if !slices.Equal(lines(t, files), want) {
		t.Fatal("rows differ")
	}
	rd, err := file.OpenParquetFile(strings.TrimPrefix(files[0].Path, "file://"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	if rd.NumRowGroups() < 3 {
		t.Fatalf("%d row groups", rd.NumRowGroups())
	}
	checkPageIndex(t, rd)
	if n := len(files[0].DataFile.SplitOffsets()); n != rd.NumRowGroups() {
		t.Errorf("%d split offsets for %d row groups", n, rd.NumRowGroups())
	}
}

// checkPageIndex walks the offset index of every row group: the pages must be
// where the index says, and cover the rows.
func checkPageIndex(t *testing.T, rd *file.Reader) {
	t.Helper()
	pages := 0
	for g := range rd.NumRowGroups() {
		ixr, err := rd.GetPageIndexReader().RowGroup(g)
		if err != nil || ixr == nil {
			t.Fatalf("row group %d has no page index: %v", g, err)
		}
		md := rd.MetaData().RowGroup(g)
		for c := range md.NumColumns() {
			oi, err := ixr.GetOffsetIndex(c)
			if err != nil || oi == nil {
				t.Fatalf("row group %d column %d has no offset index: %v", g, c, err)
			}
			cc, _ := md.ColumnChunk(c)
			locs := oi.GetPageLocations()
			if locs[0].Offset != cc.DataPageOffset() || locs[0].FirstRowIndex != 0 {
				t.Errorf("row group %d column %d: first page at %d, data at %d", g, c, locs[0].Offset, cc.DataPageOffset())
			}
			pages += len(locs)
		}
		ci, err := ixr.GetColumnIndex(2)
		if err != nil || ci == nil {
			t.Errorf("row group %d has no column index for the offset: %v", g, err)
		}
	}
	if pages < 20 {
		t.Errorf("only %d pages", pages)
	}
}

func TestAFileEndsAtItsTargetSize(t *testing.T) {
	s := spec(t, &localFS{}, *iceberg.UnpartitionedSpec)
	s.TargetBytes = 1
	n := 0
	w, err := NewWriter(s, "x-", func() { n++ })
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("x"), rowGroupBytes/2)
	for i := range int64(6) {
		if err := w.Write(record(row{offset: i, value: big})); err != nil {
			t.Fatal(err)
		}
	}
	files, err := w.Close(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 3 || n != len(files) {
		t.Fatalf("%d files, %d reported durable", len(files), n)
	}
	for i, f := range files {
		if !strings.HasSuffix(f.Path, fmt.Sprintf("x-%05d.parquet", i)) {
			t.Errorf("file %d is %s", i, f.Path)
		}
	}
}

func TestRowsThatAlternateBetweenDaysAreGatheredWithNestedColumns(t *testing.T) {
	var rows []row
	for i := range int64(500) {
		rows = append(rows, row{offset: i, micros: (20_000 + i%5) * day, headers: []string{fmt.Sprint(i)}, value: []byte(fmt.Sprint(i))})
	}
	rec := record(rows...)
	all := recordLines(rec)
	var want []string
	for d := range 5 {
		for i := d; i < 500; i += 5 {
			want = append(want, all[i])
		}
	}
	if got := lines(t, writeAll(t, spec(t, &localFS{}, byDay()), rec)); !slices.Equal(got, want) {
		t.Fatal("rows differ")
	}
}

func TestIdentityPartitionsHoldNullsAndOddStrings(t *testing.T) {
	sc := iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "wiki", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 2, Name: "n", Type: iceberg.PrimitiveTypes.Int32, Required: true})
	ps := iceberg.NewPartitionSpec(
		iceberg.PartitionField{SourceIDs: []int{1}, FieldID: 1000, Name: "wiki", Transform: iceberg.IdentityTransform{}},
		iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1001, Name: "n", Transform: iceberg.IdentityTransform{}})
	asc := arrow.NewSchema([]arrow.Field{{Name: "wiki", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "n", Type: arrow.PrimitiveTypes.Int32}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, asc)
	names := []any{"a/b", nil, "ä=1", "a/b", "", nil}
	for i, v := range names {
		if v == nil {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.StringBuilder).Append(v.(string))
		}
		b.Field(1).(*array.Int32Builder).Append(int32(i % 2))
	}
	rec := b.NewRecordBatch()
	s := Spec{Schema: sc, PartitionSpec: ps, FormatVersion: 2, Location: "file://" + t.TempDir(), FS: &localFS{}}
	files := writeAll(t, s, rec)
	got := map[string]int64{}
	for _, f := range files {
		back, err := Decode(s, f.Encoded)
		if err != nil {
			t.Fatal(err)
		}
		got[fmt.Sprintf("%v/%v", back.Partition()[1000], back.Partition()[1001])] += back.Count()
	}
	want := map[string]int64{"a/b/0": 1, "<nil>/1": 2, "ä=1/0": 1, "a/b/1": 1, "/0": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAnEncodedFileDecodesToTheSameManifestEntry(t *testing.T) {
	s := spec(t, &localFS{}, byDay())
	for _, f := range writeAll(t, s, record(row{offset: 7, micros: 20_000*day + 5, value: []byte("v")}, row{offset: 9, micros: 20_000*day + 6})) {
		got, err := Decode(s, f.Encoded)
		if err != nil {
			t.Fatal(err)
		}
		d := f.DataFile
		a := fmt.Sprint(d.FilePath(), d.Count(), d.FileSizeBytes(), d.Partition(), d.LowerBoundValues(), d.UpperBoundValues(), d.NullValueCounts(), d.ValueCounts(), d.ColumnSizes(), d.SplitOffsets(), d.SpecID())
		b := fmt.Sprint(got.FilePath(), got.Count(), got.FileSizeBytes(), got.Partition(), got.LowerBoundValues(), got.UpperBoundValues(), got.NullValueCounts(), got.ValueCounts(), got.ColumnSizes(), got.SplitOffsets(), got.SpecID())
		if a != b {
			t.Errorf("differs:\n%s\n%s", a, b)
		}
		lo, _ := iceberg.LiteralFromBytes(iceberg.PrimitiveTypes.Int64, got.LowerBoundValues()[3])
		hi, _ := iceberg.LiteralFromBytes(iceberg.PrimitiveTypes.Int64, got.UpperBoundValues()[3])
		if lo.Any() != int64(7) || hi.Any() != int64(9) {
			t.Errorf("offset bounds %v to %v", lo, hi)
		}
	}
}

// A row group whose longest value exceeds the statistics' limit has no bounds;
// the bounds of the others alone would let readers skip it.
func TestBoundsAreLeftOutWhereOneRowGroupHasNone(t *testing.T) {
	long := bytes.Repeat([]byte("z"), rowGroupBytes)
	files := writeAll(t, spec(t, &localFS{}, *iceberg.UnpartitionedSpec),
		record(row{offset: 1, key: []byte("a"), value: long}), record(row{offset: 2, key: bytes.Repeat([]byte("b"), 1000), value: long}))
	d := files[0].DataFile
	if _, ok := d.LowerBoundValues()[6]; ok {
		t.Errorf("key has a lower bound %q although one row group has none", d.LowerBoundValues()[6])
	}
	if _, ok := d.UpperBoundValues()[6]; ok {
		t.Errorf("key has an upper bound %q although one row group has none", d.UpperBoundValues()[6])
	}
	if d.NullValueCounts()[6] != 0 || d.ValueCounts()[6] != 2 {
		t.Errorf("key: %d values, %d nulls", d.ValueCounts()[6], d.NullValueCounts()[6])
	}
	for _, nested := range []int{10, 11} {
		if _, ok := d.LowerBoundValues()[nested]; ok {
			t.Errorf("field %d in a list has bounds", nested)
		}
	}
}

func TestParquetColumnsCarryTheTablesFieldIDs(t *testing.T) {
	files := writeAll(t, spec(t, &localFS{}, byDay()), record(row{micros: day, headers: []string{"h"}}))
	rd, err := file.OpenParquetFile(strings.TrimPrefix(files[0].Path, "file://"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	var ids []int32
	sc := rd.MetaData().Schema
	for i := range sc.NumColumns() {
		ids = append(ids, sc.Column(i).SchemaNode().FieldID())
	}
	if want := []int32{1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13}; !slices.Equal(ids, want) {
		t.Fatalf("field ids %v, want %v", ids, want)
	}
}

func TestRowsThatDoNotFitTheTableAreRefusedByColumn(t *testing.T) {
	fields := batch.KafkaSchema.Fields()
	with := func(f func([]arrow.Field) []arrow.Field) *arrow.Schema {
		return arrow.NewSchema(f(slices.Clone(fields)), nil)
	}
	cases := map[string]*arrow.Schema{
		`lack column "offset"`: with(func(f []arrow.Field) []arrow.Field { return slices.Delete(f, 2, 3) }),
		`no column "extra"`: with(func(f []arrow.Field) []arrow.Field {
			return append(f, arrow.Field{Name: "extra", Type: arrow.BinaryTypes.String})
		}),
		`column "offset" is int32`:   with(func(f []arrow.Field) []arrow.Field { f[2].Type = arrow.PrimitiveTypes.Int32; return f }),
		`column "timestamp" is time`: with(func(f []arrow.Field) []arrow.Field { f[3].Type = arrow.FixedWidthTypes.Timestamp_ns; return f }),
	}
	for want, sc := range cases {
		b := array.NewRecordBuilder(memory.DefaultAllocator, sc)
		rec := b.NewRecordBatch()
		w, err := NewWriter(spec(t, &localFS{}, byDay()), "x-", nil)
		if err != nil {
			t.Fatal(err)
		}
		err = w.Write(rec)
		w.Abort()
		if !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	// Columns may come in another order, and optional ones may be missing.
	back := with(func(f []arrow.Field) []arrow.Field { slices.Reverse(f); return f[1:] })
	b := array.NewRecordBuilder(memory.DefaultAllocator, back)
	for i, f := range back.Fields() {
		if f.Nullable {
			b.Field(i).AppendNull()
		} else {
			b.Field(i).AppendEmptyValue()
		}
	}
	if files := writeAll(t, spec(t, &localFS{}, byDay()), b.NewRecordBatch()); files[0].Rows != 1 {
		t.Error("row lost")
	}
}

func TestANullInARequiredColumnIsRefused(t *testing.T) {
	fields := slices.Clone(batch.KafkaSchema.Fields())
	fields[2].Nullable = true
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	for i := range fields {
		if fields[i].Nullable {
			b.Field(i).AppendNull()
		} else {
			b.Field(i).AppendEmptyValue()
		}
	}
	w, err := NewWriter(spec(t, &localFS{}, byDay()), "x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if err := w.Write(b.NewRecordBatch()); !failure.Is(err, failure.SchemaConflict) || !strings.Contains(err.Error(), `"offset" holds a null`) {
		t.Fatalf("got %v", err)
	}
}

func TestAnAbandonedWriterStopsAndAnEmptyOneMakesNoFile(t *testing.T) {
	fs := &localFS{}
	w, err := NewWriter(spec(t, fs, byDay()), "x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(record(row{micros: day})); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	w.Abort()
	if _, err := w.Close(context.Background()); err == nil {
		t.Error("an abandoned writer closed as if it were whole")
	}
	if files := writeAll(t, spec(t, fs, byDay()), record()); len(files) != 0 || len(fs.made) != 0 {
		t.Errorf("%d files for no rows", len(fs.made))
	}
}

func TestManyPartitionsAtOnceStayWithinTheOpenRowsLimit(t *testing.T) {
	w, err := NewWriter(spec(t, &localFS{}, byDay()), "x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	v := bytes.Repeat([]byte("v"), 1<<20)
	n := int64(0)
	for range 6 {
		for d := range int64(20) {
			if err := w.Write(record(row{offset: n, micros: d * day, value: v})); err != nil {
				t.Fatal(err)
			}
			n++
			if w.openBytes > openBytesMax {
				t.Fatalf("%d bytes wait", w.openBytes)
			}
		}
	}
	files, err := w.Close(t.Context())
	if err != nil || len(files) != 20 {
		t.Fatalf("%d files: %v", len(files), err)
	}
}

func TestAWriterInTurnLetsGoOfARowGroupBeforeItFillsTheNext(t *testing.T) {
	s := spec(t, &localFS{}, byDay())
	s.Parallel, s.InTurn = 1, true
	w, err := NewWriter(s, "x-", nil)
	if err != nil {
		t.Fatal(err)
	}
	const records = 5
	var last *memory.Buffer
	for n := range int64(records) {
		rec := record(row{offset: n, value: bytes.Repeat([]byte{byte(n)}, rowGroupBytes)}) // a row group by itself
		value := rec.Column(batch.ColValue).Data().Buffers()[2]
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		if last != nil && last.Len() > 0 {
			t.Fatalf("record %d is still held when the one after it was taken", n-1)
		}
		last = value
	}
	files, err := w.Close(t.Context())
	if err != nil || len(files) != 1 || files[0].Rows != records {
		t.Fatalf("%+v: %v", files, err)
	}
}
