package datafile

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

const (
	// zstdLevel 1: level 3 costs 30 to 50 % more CPU for 2 % of size.
	zstdLevel = 1
	// pageBytes is the page size aimed at.
	pageBytes = 1 << 20
	// batchBytes is how much a column writer takes before it looks at its page
	// size: pages exceed pageBytes by up to this much. The library counts it in
	// rows (default 1,024), so that it is set per row group from the widest
	// column's mean.
	batchBytes = pageBytes / 8
	// statBytesMax is the longest minimum or maximum that statistics keep.
	// Longer values (whole JSON documents) would put kilobytes a page in the
	// page index that no reader prunes by.
	statBytesMax = 256
	// dictionaryValueMax is the mean length of values above which no dictionary is
	// tried: a row group has few of them.
	dictionaryValueMax = 4 << 10
	// sampleRows is how many rows of a row group decide on its dictionaries.
	sampleRows = 512
	// dictionaryBytesMax is where the library gives up a dictionary that a
	// sample had suggested.
	dictionaryBytesMax = 1 << 20
)

// rowGroup is one encoded row group: a whole Parquet file in memory, whose
// footer tells where its parts are.
type rowGroup struct {
	buf  *bytes.Buffer
	meta *metadata.FileMetaData
	rows int64
}

var rowGroupBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (g *rowGroup) release() {
	if g != nil && g.buf != nil {
		g.buf.Reset()
		rowGroupBuffers.Put(g.buf)
		g.buf = nil
	}
}

// encodeRowGroup encodes the records, all of schema sc, as one row group.
func encodeRowGroup(sc *arrow.Schema, recs []arrow.RecordBatch) (g *rowGroup, err error) {
	defer func() {
		if p := recover(); p != nil { // pqarrow reports some faults by panicking
			g.release()
			g, err = nil, fmt.Errorf("encode row group: %v", p)
		}
	}()
	tbl := array.NewTableFromRecords(sc, recs)
	defer tbl.Release()
	g = &rowGroup{buf: rowGroupBuffers.Get().(*bytes.Buffer), rows: tbl.NumRows()}
	props := parquet.NewWriterProperties(encodings(sc, recs)...)
	fw, err := pqarrow.NewFileWriter(sc, g.buf, props, pqarrow.NewArrowWriterProperties(pqarrow.WithCoerceTimestamps(arrow.Microsecond)))
	if err == nil {
		err = fw.WriteTable(tbl, tbl.NumRows())
	}
	if err == nil {
		err = fw.Close()
	}
	if err == nil {
		g.meta, err = fw.FileMetadata()
	}
	if err != nil {
		g.release()
		return nil, fmt.Errorf("encode row group: %w", err)
	}
	if g.meta.NumRowGroups() != 1 || g.meta.GetNumRows() != g.rows {
		n := g.meta.GetNumRows()
		g.release()
		return nil, fmt.Errorf("encode row group: %d rows given, %d encoded", tbl.NumRows(), n)
	}
	return g, nil
}

// encodings chooses the writer properties for a row group from its contents.
//
// Dictionaries pay for topic, type or wiki and cost a hash of every byte for
// nothing on JSON values or ids; a sample tells them apart. Whole numbers and
// times are stored as deltas.
func encodings(sc *arrow.Schema, recs []arrow.RecordBatch) []parquet.WriterProperty {
	var rows, widest int64
	for _, r := range recs {
		rows += r.NumRows()
	}
	opts := []parquet.WriterProperty{
		parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithCompressionLevel(zstdLevel),
		parquet.WithDataPageSize(pageBytes),
		parquet.WithDictionaryPageSizeLimit(dictionaryBytesMax),
		parquet.WithMaxStatsSize(statBytesMax),
		parquet.WithPageIndexEnabled(true),
		parquet.WithDictionaryDefault(true),
		parquet.WithStoreDecimalAsInteger(true), // Iceberg's own form, where the digits fit
	}
	for i, f := range sc.Fields() {
		var bytes int64
		for _, r := range recs {
			bytes += arrayBytes(r.Column(i).Data(), 0, int(r.NumRows()))
		}
		widest = max(widest, bytes)
		switch f.Type.ID() {
		case arrow.INT64, arrow.TIMESTAMP, arrow.TIME64:
			opts = append(opts, parquet.WithDictionaryFor(f.Name, false), parquet.WithEncodingFor(f.Name, parquet.Encodings.DeltaBinaryPacked))
		case arrow.STRING, arrow.BINARY:
			if bytes > rows*statBytesMax { // their bounds would be copied, and left out
				opts = append(opts, parquet.WithStatsFor(f.Name, false))
			}
			if bytes > rows*dictionaryValueMax || mostlyDistinct(recs, i) {
				opts = append(opts, parquet.WithDictionaryFor(f.Name, false))
			}
		}
	}
	batch := int64(1024)
	if rows > 0 && widest/rows > 0 {
		batch = min(batch, max(1, batchBytes/(widest/rows)))
	}
	return append(opts, parquet.WithBatchSize(batch))
}

// mostlyDistinct looks at the values of a column in evenly spaced rows.
func mostlyDistinct(recs []arrow.RecordBatch, col int) bool {
	var rows int64
	for _, r := range recs {
		rows += r.NumRows()
	}
	step := max(1, rows/sampleRows)
	seen := map[string]struct{}{}
	n, at := 0, int64(0)
	for _, r := range recs {
		for ; at < r.NumRows(); at += step {
			var v string
			switch a := r.Column(col).(type) {
			case *array.String:
				if a.IsNull(int(at)) {
					continue
				}
				v = a.Value(int(at))
			case *array.Binary:
				if a.IsNull(int(at)) {
					continue
				}
				v = a.ValueString(int(at))
			}
			n++
			seen[v] = struct{}{}
		}
		at -= r.NumRows()
	}
	return n > 8 && len(seen)*2 > n
}

// recordBytes is the memory of the rows [from, to) of a record.
func recordBytes(rec arrow.RecordBatch, from, to int) int64 {
	var n int64
	for _, c := range rec.Columns() {
		n += arrayBytes(c.Data(), from, to)
	}
	return n
}

// arrayBytes is the memory of the values [from, to) of an array, without
// validity bits.
func arrayBytes(d arrow.ArrayData, from, to int) int64 {
	if to <= from {
		return 0
	}
	switch dt := d.DataType().(type) {
	case *arrow.StringType, *arrow.BinaryType:
		lo, hi := offsets32(d, from, to)
		return int64(hi-lo) + 4*int64(to-from)
	case *arrow.ListType:
		lo, hi := offsets32(d, from, to)
		return arrayBytes(d.Children()[0], lo, hi) + 4*int64(to-from)
	case *arrow.StructType:
		var n int64
		for _, k := range d.Children() {
			n += arrayBytes(k, d.Offset()+from, d.Offset()+to)
		}
		return n
	case arrow.FixedWidthDataType:
		return int64(dt.BitWidth()) * int64(to-from) / 8
	}
	return 0
}

func offsets32(d arrow.ArrayData, from, to int) (int, int) {
	b := d.Buffers()[1]
	if b == nil || b.Len() == 0 {
		return 0, 0
	}
	o := arrow.Int32Traits.CastFromBytes(b.Bytes())
	return int(o[d.Offset()+from]), int(o[d.Offset()+to])
}
