package delta

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/weirlake/weir/internal/objstore"
)

const (
	// checkpointRowGroup bounds a row group of a checkpoint.
	checkpointRowGroup = 64 << 10
	// cleanupMax bounds how many log files one clean-up removes.
	cleanupMax = 2000
	// cleanupAgeMin is the age under which a commit is never removed, whatever
	// the table's retention says: a writer may have read the version before it.
	cleanupAgeMin = 2 * trustedFor
)

var (
	stringMap  = arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "value", Type: arrow.BinaryTypes.String, Nullable: true})
	stringList = arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.BinaryTypes.String, Nullable: true})

	checkpointSchema = arrow.NewSchema([]arrow.Field{
		optional("txn", arrow.StructOf(
			optional("appId", arrow.BinaryTypes.String), optional("version", arrow.PrimitiveTypes.Int64), optional("lastUpdated", arrow.PrimitiveTypes.Int64))),
		optional("add", arrow.StructOf(
			optional("path", arrow.BinaryTypes.String), optional("partitionValues", stringMap), optional("size", arrow.PrimitiveTypes.Int64),
			optional("modificationTime", arrow.PrimitiveTypes.Int64), optional("dataChange", arrow.FixedWidthTypes.Boolean),
			optional("tags", stringMap), optional("stats", arrow.BinaryTypes.String))),
		optional("remove", arrow.StructOf(
			optional("path", arrow.BinaryTypes.String), optional("deletionTimestamp", arrow.PrimitiveTypes.Int64),
			optional("dataChange", arrow.FixedWidthTypes.Boolean), optional("extendedFileMetadata", arrow.FixedWidthTypes.Boolean),
			optional("partitionValues", stringMap), optional("size", arrow.PrimitiveTypes.Int64))),
		optional("metaData", arrow.StructOf(
			optional("id", arrow.BinaryTypes.String), optional("name", arrow.BinaryTypes.String), optional("description", arrow.BinaryTypes.String),
			optional("format", arrow.StructOf(optional("provider", arrow.BinaryTypes.String), optional("options", stringMap))),
			optional("schemaString", arrow.BinaryTypes.String), optional("partitionColumns", stringList),
			optional("configuration", stringMap), optional("createdTime", arrow.PrimitiveTypes.Int64))),
		optional("protocol", arrow.StructOf(
			optional("minReaderVersion", arrow.PrimitiveTypes.Int32), optional("minWriterVersion", arrow.PrimitiveTypes.Int32),
			optional("readerFeatures", stringList), optional("writerFeatures", stringList))),
	}, nil)
)

// The columns of checkpointSchema.
const (
	ckTxn = iota
	ckAdd
	ckRemove
	ckMetadata
	ckProtocol
)

func optional(name string, t arrow.DataType) arrow.Field {
	return arrow.Field{Name: name, Type: t, Nullable: true}
}

// Checkpoint writes the state of a snapshot as a log checkpoint and names it in
// _last_checkpoint, unless a newer one is named there. Readers that find the
// one without the other only read more commits.
func (t *Table) Checkpoint(ctx context.Context, s *Snapshot) error {
	rows, rec := t.checkpointRecord(s)
	defer rec.Release()
	var b bytes.Buffer
	if err := writeParquet(&b, rec); err != nil {
		return fmt.Errorf("encode checkpoint %d of Delta table %s: %w", s.Version, t.Location(), err)
	}
	if err := t.storage.Put(ctx, checkpointKey(s.Version), b.Bytes()); err != nil {
		return fmt.Errorf("write checkpoint %d of Delta table %s: %w", s.Version, t.Location(), err)
	}
	h, ok, err := t.readHint(ctx)
	if err != nil {
		return err
	}
	if ok && h.Version >= s.Version {
		return nil
	}
	body, err := json.Marshal(hint{Version: s.Version, Size: rows, SizeInBytes: int64(b.Len()), NumOfAddFiles: int64(s.NumFiles())})
	if err != nil {
		return err
	}
	if err := t.storage.Put(ctx, lastCheckpoint, body); err != nil {
		return fmt.Errorf("name checkpoint %d of Delta table %s: %w", s.Version, t.Location(), err)
	}
	return nil
}

func writeParquet(b *bytes.Buffer, rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // pqarrow reports some faults by panicking
			err = fmt.Errorf("%v", p)
		}
	}()
	w, err := pqarrow.NewFileWriter(rec.Schema(), b, parquet.NewWriterProperties(
		parquet.WithCompression(compress.Codecs.Snappy), parquet.WithMaxRowGroupLength(checkpointRowGroup),
	), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	if err := w.WriteBuffered(rec); err != nil {
		return err
	}
	return w.Close()
}

// checkpointRecord lists the state as one row an action. Tombstones that have
// outlived the retention and transactions that the table lets go are left out.
func (t *Table) checkpointRecord(s *Snapshot) (int64, arrow.RecordBatch) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, checkpointSchema)
	defer b.Release()
	rows := int64(0)
	row := func(col int, fill func(*array.StructBuilder)) {
		rows++
		for i := range checkpointSchema.NumFields() {
			sb := b.Field(i).(*array.StructBuilder)
			if i == col {
				sb.Append(true)
				fill(sb)
			} else {
				sb.AppendNull()
			}
		}
	}
	row(ckProtocol, func(sb *array.StructBuilder) { appendProtocol(sb, s.Protocol) })
	row(ckMetadata, func(sb *array.StructBuilder) { appendMetadata(sb, s.Metadata) })
	now := t.nowMillis()
	keep := s.Metadata.interval(PropTxnRetention, 0)
	s.Txns("", func(x Txn) bool {
		if keep > 0 && x.LastUpdated > 0 && x.LastUpdated < now-keep.Milliseconds() {
			return true
		}
		row(ckTxn, func(sb *array.StructBuilder) {
			appendStr(sb, 0, x.AppID)
			appendInt(sb, 1, x.Version)
			appendIntOrNull(sb, 2, x.LastUpdated)
		})
		return true
	})
	for _, a := range s.Files() {
		row(ckAdd, func(sb *array.StructBuilder) { appendAdd(sb, a) })
	}
	oldest := now - s.Metadata.interval(PropFileRetention, defaultFileRetention).Milliseconds()
	for _, p := range s.removed.keys() {
		if r, _ := s.removed.get(p); r.DeletionTimestamp >= oldest {
			row(ckRemove, func(sb *array.StructBuilder) { appendRemove(sb, r) })
		}
	}
	return rows, b.NewRecordBatch()
}

func appendProtocol(sb *array.StructBuilder, p *Protocol) {
	sb.FieldBuilder(0).(*array.Int32Builder).Append(int32(p.MinReaderVersion))
	sb.FieldBuilder(1).(*array.Int32Builder).Append(int32(p.MinWriterVersion))
	appendList(sb, 2, p.ReaderFeatures, p.MinReaderVersion < readerVersionWithFeature)
	appendList(sb, 3, p.WriterFeatures, p.MinWriterVersion < writerVersionWithFeature)
}

func appendMetadata(sb *array.StructBuilder, m *Metadata) {
	appendStr(sb, 0, m.ID)
	appendStrOrNull(sb, 1, m.Name)
	appendStrOrNull(sb, 2, m.Description)
	f := sb.FieldBuilder(3).(*array.StructBuilder)
	f.Append(true)
	appendStr(f, 0, m.Format.Provider)
	appendMap(f, 1, pointers(m.Format.Options))
	appendStr(sb, 4, m.SchemaString)
	appendList(sb, 5, m.PartitionColumns, false)
	appendMap(sb, 6, pointers(m.Configuration))
	appendIntOrNull(sb, 7, m.CreatedTime)
}

func appendAdd(sb *array.StructBuilder, a *Add) {
	appendStr(sb, 0, a.Path)
	appendMap(sb, 1, a.PartitionValues)
	appendInt(sb, 2, a.Size)
	appendInt(sb, 3, a.ModificationTime)
	appendBool(sb, 4, false) // a checkpoint changes nothing
	if a.Tags == nil {
		sb.FieldBuilder(5).AppendNull()
	} else {
		appendMap(sb, 5, pointers(a.Tags))
	}
	appendStrOrNull(sb, 6, a.Stats)
}

func appendRemove(sb *array.StructBuilder, r *Remove) {
	appendStr(sb, 0, r.Path)
	appendIntOrNull(sb, 1, r.DeletionTimestamp)
	appendBool(sb, 2, false)
	appendBool(sb, 3, r.ExtendedFileMetadata)
	if r.PartitionValues == nil {
		sb.FieldBuilder(4).AppendNull()
	} else {
		appendMap(sb, 4, r.PartitionValues)
	}
	appendIntOrNull(sb, 5, r.Size)
}

func appendStr(sb *array.StructBuilder, i int, v string) {
	sb.FieldBuilder(i).(*array.StringBuilder).Append(v)
}

func appendStrOrNull(sb *array.StructBuilder, i int, v string) {
	if v == "" {
		sb.FieldBuilder(i).AppendNull()
		return
	}
	appendStr(sb, i, v)
}

func appendInt(sb *array.StructBuilder, i int, v int64) {
	sb.FieldBuilder(i).(*array.Int64Builder).Append(v)
}

func appendIntOrNull(sb *array.StructBuilder, i int, v int64) {
	if v == 0 {
		sb.FieldBuilder(i).AppendNull()
		return
	}
	appendInt(sb, i, v)
}

func appendBool(sb *array.StructBuilder, i int, v bool) {
	sb.FieldBuilder(i).(*array.BooleanBuilder).Append(v)
}

func appendList(sb *array.StructBuilder, i int, v []string, null bool) {
	lb := sb.FieldBuilder(i).(*array.ListBuilder)
	if null {
		lb.AppendNull()
		return
	}
	lb.Append(true)
	for _, s := range v {
		lb.ValueBuilder().(*array.StringBuilder).Append(s)
	}
}

func appendMap(sb *array.StructBuilder, i int, m map[string]*string) {
	mb := sb.FieldBuilder(i).(*array.MapBuilder)
	mb.Append(true)
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		mb.KeyBuilder().(*array.StringBuilder).Append(k)
		if v := m[k]; v != nil {
			mb.ItemBuilder().(*array.StringBuilder).Append(*v)
		} else {
			mb.ItemBuilder().AppendNull()
		}
	}
}

func pointers(m map[string]string) map[string]*string {
	out := make(map[string]*string, len(m))
	for k, v := range m {
		out[k] = &v
	}
	return out
}

// maintainLog is what the writer of a version owes the log: a checkpoint when
// one is due and the removal of what has outlived its retention. Whatever fails
// here is made up for by a later commit.
func (t *Table) maintainLog(ctx context.Context, s *Snapshot) {
	every := s.Metadata.checkpointInterval()
	if s.Version == 0 || s.Version%every != 0 && s.Version-s.checkpoint < 2*every {
		return
	}
	if s.Version%every != 0 {
		// Somebody else may have written it: the snapshot only knows what it read.
		if h, ok, err := t.readHint(ctx); err == nil && ok && s.Version-h.Version < 2*every {
			t.noteCheckpoint(s, h.Version)
			return
		}
	}
	if err := t.Checkpoint(ctx, s); err != nil {
		t.opts.Warn(err)
		return
	}
	t.noteCheckpoint(s, s.Version)
	if _, err := t.CleanLog(ctx, s); err != nil {
		t.opts.Warn(err)
	}
}

func (t *Table) noteCheckpoint(s *Snapshot, version int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == s {
		noted := *s
		noted.checkpoint = version
		t.last = &noted
	}
}

// CleanLog removes commits and checkpoints that nobody can need any more: those
// before the newest checkpoint that is itself older than
// delta.logRetentionDuration. Versions within the retention stay readable.
func (t *Table) CleanLog(ctx context.Context, s *Snapshot) (removed int, err error) {
	if s.Metadata.Configuration[PropLogCleanup] == "false" {
		return 0, nil
	}
	keep := max(s.Metadata.interval(PropLogRetention, defaultLogRetention), cleanupAgeMin)
	oldest := t.opts.Clock.Now().Add(-keep)
	list, err := t.storage.List(ctx, logFolder)
	if err != nil {
		return 0, t.unreachable(err)
	}
	before := int64(NoVersion)
	for _, i := range list {
		// Multi-part checkpoints are other engines'; theirs are never the
		// ground that a removal stands on.
		if v, _, parts, ok := logFile(i.Key); ok && parts == 1 && v <= s.Version && i.Modified.Before(oldest) {
			before = max(before, v)
		}
	}
	// A checkpoint that cannot be read must not be all that is left.
	if before <= 0 {
		return 0, nil
	}
	if _, err := t.readCheckpoint(ctx, before, 1); err != nil {
		return 0, err
	}
	for _, i := range list { // in key order: oldest first, so that a gap never opens in the middle
		v, _, _, ok := logFile(i.Key)
		if !ok || v >= before || !expired(i, oldest) || removed >= cleanupMax {
			continue
		}
		if err := t.storage.Delete(ctx, i.Key); err != nil {
			return removed, fmt.Errorf("clean the log of Delta table %s: %w", t.Location(), err)
		}
		removed++
	}
	return removed, nil
}

func expired(i objstore.Info, oldest time.Time) bool { return i.Modified.Before(oldest) }

var errNoState = errors.New("it holds no protocol or no metadata")
