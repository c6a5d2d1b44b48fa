package datafile

import (
	"fmt"
	"maps"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"
)

// describe makes the manifest entry of a finished file from its footer.
func describe(spec Spec, meta *metadata.FileMetaData, path string, bytes int64, pv partitionValue) (File, error) {
	unbounded, err := columnsWithoutBounds(meta)
	if err != nil {
		return File{}, fmt.Errorf("describe data file %s: %w", path, err)
	}
	props := maps.Clone(spec.Properties)
	if props == nil {
		props = iceberg.Properties{}
	}
	for name := range unbounded {
		props[table.MetricsModeColumnConfPrefix+"."+name] = "counts"
	}
	df, err := table.DataFileFromMetadata(table.DataFileArgs{
		Schema:          spec.Schema,
		Spec:            spec.PartitionSpec,
		Format:          iceberg.ParquetFile,
		Metadata:        meta,
		FilePath:        path,
		FileSize:        bytes,
		Content:         iceberg.EntryContentData,
		PartitionValues: pv.values,
		Properties:      props,
		FormatVersion:   spec.FormatVersion,
	})
	if err != nil {
		return File{}, fmt.Errorf("describe data file %s: %w", path, err)
	}
	enc, err := encode(spec, df)
	if err != nil {
		return File{}, err
	}
	return File{DataFile: df, Path: path, Rows: df.Count(), Bytes: bytes, Encoded: enc}, nil
}

// columnsWithoutBounds names the columns of which at least one row group has
// values but no minimum and maximum (they were longer than statBytesMax). The
// library takes a file's bounds from the row groups that have them; with one
// left out the bounds are too narrow, and a reader that prunes by them loses
// rows.
func columnsWithoutBounds(meta *metadata.FileMetaData) (map[string]bool, error) {
	out := map[string]bool{}
	for g := range meta.NumRowGroups() {
		rg := meta.RowGroup(g)
		for i := range rg.NumColumns() {
			cc, err := rg.ColumnChunk(i)
			if err != nil {
				return nil, err
			}
			if t := cc.Type(); t != parquet.Types.ByteArray && t != parquet.Types.FixedLenByteArray {
				continue
			}
			path := cc.PathInSchema().String()
			if len(cc.PathInSchema()) > 1 {
				continue // bounds of list and map elements are not kept
			}
			st, err := cc.Statistics()
			if err != nil || st == nil {
				out[path] = true
				continue
			}
			if !st.HasMinMax() && (!st.HasNullCount() || st.NullCount() < cc.NumValues()) {
				out[path] = true
			}
		}
	}
	return out, nil
}
