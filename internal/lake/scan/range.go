// Package scan reads the Kafka rows of a table at a pinned snapshot by offset:
// the rows with from ≤ offset < to of each asked (topic, partition), in the
// order of topic, partition, offset.
//
// There are two ways to the same rows. The incremental one reads only the files
// that snapshots after a given one have added; it is taken where the chain of
// snapshots is whole and holds nothing but appends and compactions. The other
// looks at all files of the pinned snapshot, pruned by statistics. Either way
// the rows are chosen by their offsets, never by the file that they are in.
//
// Parquet is read here, by field id and with conversion to batch.KafkaSchema,
// because compaction by other engines rewrites the files with other widths,
// units and encodings. Only files with deletes go through the library's scan.
package scan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/apache/arrow-go/v18/arrow"
	iceio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	_ "github.com/weirlake/weir/internal/lake/datafile" // registers the faster zstd
)

// parallelDefault is how many row groups are decoded at the same time.
const parallelDefault = 2

// Request says what to read.
type Request struct {
	Table *table.Table
	// SnapshotID is the pinned snapshot; it must be in the table's metadata.
	SnapshotID int64
	// Since is the snapshot up to which everything was read before, 0 if it is
	// not known. It is a hint: it is used only where the summary of that
	// snapshot says that no wanted row was in the table yet.
	Since int64
	Want  []batch.Range
	// Schema is the shape of the table's rows; nil is batch.KafkaSchema.
	Schema *arrow.Schema
	// Place says where in the rows their place in Kafka stands; zero is where
	// batch.KafkaSchema has it.
	Place Place
	// Renamed gives, by the name of a column of the schema, the one that it has in
	// a table in which it has not been renamed yet.
	Renamed map[string]string
	// Columns to emit, of the schema; all of them where empty.
	Columns []string
	// Parallel is how many row groups are decoded at once; 0 for the default.
	Parallel int
}

// Place names the columns of a row's topic, partition and offset. Without a
// topic column every row is of the topic Fixed.
type Place struct {
	Topic, Partition, Offset string
	Fixed                    string
}

// kafkaPlace is the place in batch.KafkaSchema.
var kafkaPlace = Place{Topic: "topic", Partition: "partition", Offset: "offset"}

// Result says how the rows were found.
type Result struct {
	Rows int64
	// Incremental is true where only the files of the new snapshots were read;
	// Reason says why not.
	Incremental bool
	Reason      string
	// Files were opened; of their row groups, RowGroups were decoded and
	// RowGroupsSkipped were not, by their statistics.
	Files, RowGroups, RowGroupsSkipped int
}

// Range emits the wanted rows as records of the requested columns, which emit
// takes over. All rows are decoded before the first is emitted, since any file
// may hold rows of any partition: memory is what the wanted rows take, plus
// Parallel row groups.
func Range(ctx context.Context, req Request, emit func(arrow.RecordBatch) error) (Result, error) {
	snap := req.Table.SnapshotByID(req.SnapshotID)
	if snap == nil {
		return Result{}, failure.New(failure.SourceChanged, "table %s no longer has snapshot %d", name(req.Table), req.SnapshotID).
			WithHint("it was expired or the table was replaced while it was read; restart the query")
	}
	r, err := newReader(ctx, req)
	if err != nil {
		return Result{}, err
	}
	defer r.release()
	if len(r.want) == 0 {
		return Result{Incremental: true}, nil
	}
	res := Result{}
	snaps, reason := chain(req.Table, snap, req.Since, req.Want)
	if reason == "" {
		reason, err = r.incremental(ctx, snaps)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Result{}, err
		}
		if err != nil {
			// Expiry may delete the files of a snapshot between the load of the
			// table and now; the pinned snapshot holds the rows all the same.
			reason = "a file of an intermediate snapshot is gone"
		}
	}
	res.Incremental = reason == ""
	res.Reason = reason
	if reason != "" {
		r.reset()
		if err := r.full(ctx, snap); err != nil {
			return Result{}, err
		}
	}
	res.Files, res.RowGroups, res.RowGroupsSkipped = r.files, r.groups, r.skipped
	res.Rows, err = r.emit(emit)
	return res, err
}

func name(t *table.Table) string {
	s := ""
	for i, p := range t.Identifier() {
		if i > 0 {
			s += "."
		}
		s += p
	}
	return s
}

// reader is one Range call.
type reader struct {
	req  Request
	fio  iceio.IO
	want wanted
	cols []column
	// sc holds all columns that are read; out of it, picks are emitted.
	sc    *arrow.Schema
	out   *arrow.Schema
	picks []int
	// at are the places of topic, partition and offset in sc; no topic is -1.
	atTopic, atPartition, atOffset int

	runs                   []run
	files, groups, skipped int
}

// column is a column that is read: its field in the table (id 0 where the
// table has none, so that it reads as null).
type column struct {
	id    int
	field arrow.Field
}

func newReader(ctx context.Context, req Request) (*reader, error) {
	if req.Parallel <= 0 {
		req.Parallel = parallelDefault
	}
	fio, err := req.Table.FS(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the file access of table %s: %w", name(req.Table), err)
	}
	r := &reader{req: req, fio: fio, want: newWanted(req.Want)}
	if r.req.Schema == nil {
		r.req.Schema = batch.KafkaSchema
	}
	if r.req.Place == (Place{}) {
		r.req.Place = kafkaPlace
	}
	names := req.Columns
	if len(names) == 0 {
		for _, f := range r.req.Schema.Fields() {
			names = append(names, f.Name)
		}
	}
	index := map[string]int{}
	add := func(n string) (int, error) {
		if i, ok := index[n]; ok {
			return i, nil
		}
		at := r.req.Schema.FieldIndices(n)
		if len(at) == 0 {
			return 0, fmt.Errorf("scan: %q is not a column of the rows", n)
		}
		c := column{field: r.req.Schema.Field(at[0])}
		if f, ok := req.Table.Schema().FindFieldByName(NameIn(req.Table, n, req.Renamed)); ok {
			c.id = f.ID
		} else if !c.field.Nullable {
			return 0, failure.New(failure.SchemaConflict, "table %s has no column %q", name(req.Table), n).
				WithHint("the source of a table query must be a table of Kafka rows (bronze), or one that a query of the pipeline has written")
		}
		index[n] = len(r.cols)
		r.cols = append(r.cols, c)
		return index[n], nil
	}
	var outFields []arrow.Field
	for _, n := range names {
		i, err := add(n)
		if err != nil {
			return nil, err
		}
		r.picks = append(r.picks, i)
		outFields = append(outFields, r.cols[i].field)
	}
	place := r.req.Place
	r.atTopic = -1
	for _, p := range []struct {
		name string
		at   *int
	}{{place.Topic, &r.atTopic}, {place.Partition, &r.atPartition}, {place.Offset, &r.atOffset}} {
		if p.name == "" {
			continue // every row is of one topic
		}
		if *p.at, err = add(p.name); err != nil {
			return nil, err
		}
		r.cols[*p.at].field.Nullable = false // a row without a place would be lost
	}
	var all []arrow.Field
	for _, c := range r.cols {
		all = append(all, c.field)
	}
	r.sc, r.out = arrow.NewSchema(all, nil), arrow.NewSchema(outFields, nil)
	return r, nil
}

// NameIn is the name of a column in a table in which it may not have been
// renamed yet.
func NameIn(t *table.Table, name string, renamed map[string]string) string {
	if _, ok := t.Schema().FindFieldByName(name); ok {
		return name
	}
	if before, ok := renamed[name]; ok {
		return before
	}
	return name
}

// wanted are the ranges by partition.
type wanted map[batch.TopicPartition][]batch.Range

func newWanted(ranges []batch.Range) wanted {
	w := wanted{}
	for _, r := range ranges {
		if r.From < r.To {
			tp := batch.TopicPartition{Topic: r.Topic, Partition: r.Partition}
			w[tp] = append(w[tp], r)
		}
	}
	return w
}

// span is what statistics say of a file or row group: the least and greatest
// partition and offset, where known.
type span struct {
	partitionMin, partitionMax, offsetMin, offsetMax *int64
}

// mayHold reports whether rows within the span can be wanted.
func (w wanted) mayHold(s span) bool {
	for tp, ranges := range w {
		p := int64(tp.Partition)
		if s.partitionMin != nil && p < *s.partitionMin || s.partitionMax != nil && p > *s.partitionMax {
			continue
		}
		for _, r := range ranges {
			if (s.offsetMin == nil || *s.offsetMin < r.To) && (s.offsetMax == nil || *s.offsetMax >= r.From) {
				return true
			}
		}
	}
	return false
}
