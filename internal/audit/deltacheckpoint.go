package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// checkpointRows is how many rows of a checkpoint are read at once.
const checkpointRows = 4096

// readCheckpoint applies the Parquet checkpoint that the hint names.
func (t *deltaTable) readCheckpoint(ctx context.Context, store Store, h hint) error {
	names := []string{fmt.Sprintf("%020d.checkpoint.parquet", h.Version)}
	if h.Parts > 1 {
		names = nil
		for p := 1; p <= h.Parts; p++ {
			names = append(names, fmt.Sprintf("%020d.checkpoint.%010d.%010d.parquet", h.Version, p, h.Parts))
		}
	}
	for _, name := range names {
		err := t.readCheckpointFile(ctx, store, t.dir+deltaLog+name)
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("checkpoint %s of table %s, which _last_checkpoint names, is not there (this audit knows classic and multi-part checkpoints): %w", name, t.dir, err)
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s of table %s: %w", name, t.dir, err)
		}
	}
	return nil
}

func (t *deltaTable) readCheckpointFile(ctx context.Context, store Store, location string) error {
	src, err := store.Open(ctx, location)
	if err != nil {
		return err
	}
	defer src.Close()
	pf, err := file.NewParquetReader(readerAtSeeker{io.NewSectionReader(src, 0, src.Size())})
	if err != nil {
		return err
	}
	defer pf.Close()
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: checkpointRows}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	records, err := r.GetRecordReader(ctx, nil, nil)
	if err != nil {
		return err
	}
	defer records.Release()
	for records.Next() {
		if err := t.applyRecord(records.RecordBatch()); err != nil {
			return err
		}
	}
	if err := records.Err(); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// applyRecord turns the rows of a checkpoint back into actions.
func (t *deltaTable) applyRecord(rec arrow.RecordBatch) error {
	columns := map[string]*array.Struct{}
	for i, f := range rec.Schema().Fields() {
		if s, ok := rec.Column(i).(*array.Struct); ok {
			columns[f.Name] = s
		}
	}
	for row := range int(rec.NumRows()) {
		for name, s := range columns {
			if s.IsNull(row) {
				continue
			}
			if err := t.apply(actionOf(name, s, row)); err != nil {
				return err
			}
		}
	}
	return nil
}

func actionOf(name string, s *array.Struct, row int) deltaAction {
	v := structRow{s, row}
	switch name {
	case "add":
		a := &deltaAdd{Path: v.text("path"), Stats: v.text("stats"), PartitionValues: v.texts("partitionValues")}
		if dv, ok := v.field("deletionVector").(*array.Struct); ok && dv.IsValid(row) {
			a.DeletionVector = []byte("{}")
		}
		return deltaAction{Add: a}
	case "txn":
		return deltaAction{Txn: &deltaTxn{AppID: v.text("appId"), Version: v.number("version")}}
	case "metaData":
		m := &deltaMetaData{ID: v.text("id"), SchemaString: v.text("schemaString"), Configuration: map[string]string{}}
		for k, text := range v.texts("configuration") {
			if text != nil {
				m.Configuration[k] = *text
			}
		}
		return deltaAction{MetaData: m}
	case "protocol":
		return deltaAction{Protocol: &deltaProtocol{MinReaderVersion: int(v.number("minReaderVersion")), ReaderFeatures: v.list("readerFeatures")}}
	}
	return deltaAction{}
}

// structRow is one row of a struct column.
type structRow struct {
	s   *array.Struct
	row int
}

func (v structRow) field(name string) arrow.Array {
	i, ok := v.s.DataType().(*arrow.StructType).FieldIdx(name)
	if !ok {
		return nil
	}
	return v.s.Field(i)
}

func (v structRow) text(name string) string {
	return textAt(v.field(name), v.row)
}

func textAt(a arrow.Array, i int) string {
	switch c := a.(type) {
	case *array.String:
		if c.IsValid(i) {
			return c.Value(i)
		}
	case *array.LargeString:
		if c.IsValid(i) {
			return c.Value(i)
		}
	}
	return ""
}

func (v structRow) number(name string) int64 {
	switch c := v.field(name).(type) {
	case *array.Int64:
		if c.IsValid(v.row) {
			return c.Value(v.row)
		}
	case *array.Int32:
		if c.IsValid(v.row) {
			return int64(c.Value(v.row))
		}
	}
	return 0
}

// texts is a map of texts; a null value is nil.
func (v structRow) texts(name string) map[string]*string {
	c, ok := v.field(name).(*array.Map)
	if !ok || c.IsNull(v.row) {
		return nil
	}
	out := map[string]*string{}
	from, to := c.ValueOffsets(v.row)
	for i := int(from); i < int(to); i++ {
		var value *string
		if items := c.Items(); items.IsValid(i) {
			text := textAt(items, i)
			value = &text
		}
		out[textAt(c.Keys(), i)] = value
	}
	return out
}

func (v structRow) list(name string) (out []string) {
	c, ok := v.field(name).(*array.List)
	if !ok || c.IsNull(v.row) {
		return nil
	}
	from, to := c.ValueOffsets(v.row)
	for i := int(from); i < int(to); i++ {
		out = append(out, textAt(c.ListValues(), i))
	}
	return out
}
