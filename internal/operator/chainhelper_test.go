package operator

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// newRecord makes a record of some of another's columns.
func newRecord(rec arrow.RecordBatch, fields []arrow.Field, cols ...int) arrow.RecordBatch {
	var arrays []arrow.Array
	for _, c := range cols {
		arrays = append(arrays, rec.Column(c))
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, rec.NumRows())
}
