package delta

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// readCheckpoint reads the checkpoint of a version, in one file or several.
func (t *Table) readCheckpoint(ctx context.Context, version int64, parts int) (*Snapshot, error) {
	s := noTable()
	s.Version, s.checkpoint = version, version
	c := changes{add: map[string]*Add{}, remove: map[string]*Remove{}, txn: map[string]Txn{}}
	for p := 1; p <= max(parts, 1); p++ {
		key := checkpointKey(version)
		if parts > 1 {
			key = fmt.Sprintf("%s%0*d.checkpoint.%010d.%010d.parquet", logFolder, versionDigits, version, p, parts)
		}
		if err := t.readCheckpointFile(ctx, key, s, &c); err != nil {
			return nil, fmt.Errorf("read checkpoint %s of Delta table %s: %w", key, t.Location(), err)
		}
	}
	if s.Protocol == nil || s.Metadata == nil {
		return nil, fmt.Errorf("read checkpoint %d of Delta table %s: %w", version, t.Location(), errNoState)
	}
	var err error
	if s.Schema, err = ArrowSchema(s.Metadata.SchemaString); err != nil {
		return nil, err
	}
	s.files = layered[*Add]{base: c.add, n: len(c.add)}
	s.removed = layered[*Remove]{base: c.remove, n: len(c.remove)}
	s.txns = layered[Txn]{base: c.txn, n: len(c.txn)}
	return s, nil
}

func (t *Table) readCheckpointFile(ctx context.Context, key string, s *Snapshot, c *changes) (err error) {
	defer func() {
		if p := recover(); p != nil { // a damaged file makes the library panic in places
			err = fmt.Errorf("%v", p)
		}
	}()
	in, err := t.storage.Open(ctx, key)
	if err != nil {
		return err
	}
	defer in.Close()
	pf, err := file.NewParquetReader(in)
	if err != nil {
		return err
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	for group := range pf.NumRowGroups() {
		tbl, err := fr.ReadRowGroups(ctx, leaves(pf), []int{group})
		if err != nil {
			return err
		}
		err = readActions(tbl, func(a Action) {
			// In a checkpoint nothing replaces anything.
			switch {
			case a.Remove != nil:
				c.remove[a.Remove.Path] = a.Remove
			case a.Add != nil:
				c.add[a.Add.Path] = a.Add
			default:
				s.one(a, c)
			}
		})
		tbl.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// leaves are the columns of the actions that are known; parsed statistics and
// partition values, which cost most, are left out.
func leaves(pf *file.Reader) []int {
	sc := pf.MetaData().Schema
	var out []int
	for i := range sc.NumColumns() {
		path := sc.Column(i).ColumnPath()
		if len(path) < 2 {
			continue
		}
		at := checkpointSchema.FieldIndices(path[0])
		if len(at) == 0 {
			continue
		}
		if _, known := checkpointSchema.Field(at[0]).Type.(*arrow.StructType).FieldIdx(path[1]); known || path[1] == "deletionVector" {
			out = append(out, i)
		}
	}
	return out
}

func readActions(tbl arrow.Table, emit func(Action)) error {
	tr := array.NewTableReader(tbl, 0)
	defer tr.Release()
	for tr.Next() {
		rec := tr.RecordBatch()
		for i, f := range rec.Schema().Fields() {
			st, ok := rec.Column(i).(*array.Struct)
			if !ok {
				continue
			}
			r := newRow(st)
			for row := range st.Len() {
				if st.IsValid(row) {
					r.at = row
					if err := readAction(f.Name, r, emit); err != nil {
						return err
					}
				}
			}
		}
	}
	return tr.Err()
}

func readAction(kind string, r *row, emit func(Action)) error {
	switch kind {
	case "protocol":
		emit(Action{Protocol: &Protocol{MinReaderVersion: int(r.num("minReaderVersion")), MinWriterVersion: int(r.num("minWriterVersion")),
			ReaderFeatures: r.list("readerFeatures"), WriterFeatures: r.list("writerFeatures")}})
	case "metaData":
		m := &Metadata{ID: r.str("id"), Name: r.str("name"), Description: r.str("description"), SchemaString: r.str("schemaString"),
			PartitionColumns: r.list("partitionColumns"), Configuration: plainMap(r.dict("configuration")), CreatedTime: r.num("createdTime"),
			Format: Format{Provider: "parquet", Options: map[string]string{}}}
		if f, ok := r.cols["format"].(*array.Struct); ok && f.IsValid(r.at) {
			fr := newRow(f)
			fr.at = r.at
			m.Format = Format{Provider: fr.str("provider"), Options: plainMap(fr.dict("options"))}
		}
		if m.PartitionColumns == nil {
			m.PartitionColumns = []string{}
		}
		emit(Action{Metadata: m})
	case "txn":
		emit(Action{Txn: &Txn{AppID: r.str("appId"), Version: r.num("version"), LastUpdated: r.num("lastUpdated")}})
	case "add":
		if d := r.cols["deletionVector"]; d != nil && d.IsValid(r.at) {
			return fmt.Errorf("data file %s has a deletion vector", r.str("path"))
		}
		values := r.dict("partitionValues")
		if values == nil {
			values = map[string]*string{}
		}
		a := &Add{Path: r.str("path"), PartitionValues: values, Size: r.num("size"), ModificationTime: r.num("modificationTime"),
			Stats: r.str("stats")}
		if tags := r.dict("tags"); tags != nil {
			a.Tags = plainMap(tags)
		}
		emit(Action{Add: a})
	case "remove":
		emit(Action{Remove: &Remove{Path: r.str("path"), DeletionTimestamp: r.num("deletionTimestamp"),
			ExtendedFileMetadata: r.flag("extendedFileMetadata"), PartitionValues: r.dict("partitionValues"), Size: r.num("size")}})
	}
	return nil
}

// row reads the fields of a struct column by name; what is missing is zero.
type row struct {
	cols map[string]arrow.Array
	at   int
}

func newRow(st *array.Struct) *row {
	r := &row{cols: map[string]arrow.Array{}}
	for i, f := range st.DataType().(*arrow.StructType).Fields() {
		r.cols[f.Name] = st.Field(i)
	}
	return r
}

func (r *row) str(name string) string {
	a := r.cols[name]
	if a == nil || a.IsNull(r.at) {
		return ""
	}
	return text(a, r.at)
}

// text copies a string, of whatever arrow type other engines stored it as.
func text(a arrow.Array, i int) string {
	switch s := a.(type) {
	case *array.String:
		return string([]byte(s.Value(i)))
	case *array.LargeString:
		return string([]byte(s.Value(i)))
	}
	return a.ValueStr(i)
}

func (r *row) num(name string) int64 {
	a := r.cols[name]
	if a == nil || a.IsNull(r.at) {
		return 0
	}
	switch n := a.(type) {
	case *array.Int64:
		return n.Value(r.at)
	case *array.Int32:
		return int64(n.Value(r.at))
	}
	return 0
}

func (r *row) flag(name string) bool {
	b, ok := r.cols[name].(*array.Boolean)
	return ok && b.IsValid(r.at) && b.Value(r.at)
}

func (r *row) list(name string) []string {
	l, ok := r.cols[name].(*array.List)
	if !ok || l.IsNull(r.at) {
		return nil
	}
	from, to := l.ValueOffsets(r.at)
	out := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		out = append(out, text(l.ListValues(), int(i)))
	}
	return out
}

func (r *row) dict(name string) map[string]*string {
	m, ok := r.cols[name].(*array.Map)
	if !ok || m.IsNull(r.at) {
		return nil
	}
	from, to := m.ValueOffsets(r.at)
	out := make(map[string]*string, to-from)
	for i := int(from); i < int(to); i++ {
		k := text(m.Keys(), i)
		if m.Items().IsNull(i) {
			out[k] = nil
			continue
		}
		v := text(m.Items(), i)
		out[k] = &v
	}
	return out
}

func plainMap(m map[string]*string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		if v != nil {
			out[k] = *v
		}
	}
	return out
}
