package datafile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// rowGroupBytes and rowGroupRows bound a row group, before encoding. About
	// 14,000 bronze rows of 1.1 KB; narrow rows come to rowGroupRows. Up to four
	// row groups are in memory: one filling, one waiting, two being encoded.
	rowGroupBytes = 16 << 20
	rowGroupRows  = 128 << 10
	// openBytesMax bounds the rows that wait, over all partitions, for their
	// row group to fill: the largest is encoded early when they exceed it.
	openBytesMax = 2 * rowGroupBytes
	// splitBytesMin is the size from which the last rows are cut into one row
	// group per encoder, so that closing a small batch uses every core.
	splitBytesMin = 6 << 20
	// parallelDefault is the number of encoders. Beyond it encoding would take
	// the cores that fetching and parsing need.
	parallelDefault = 2
	// targetBytesDefault is the size of a file at which the next one begins.
	targetBytesDefault = 256 << 20
	// closersMax bounds how many finished files are made durable at once.
	closersMax = 4
)

// Writer writes the rows of one attempt of one batch: one file per partition
// value, or several where a file reaches its target size.
//
// Rows are gathered per partition into row groups, encoded by Spec.Parallel
// goroutines while further rows arrive, and appended to their files in order
// by one goroutine. Write blocks while every encoder is busy, so a writer holds
// at most openBytesMax of waiting rows, Parallel × rowGroupBytes of rows that
// are being encoded, and (Parallel + 1) encoded row groups: with two encoders
// 96 MiB and what three row groups come to, about 115 MB for JSON values, at
// most 170 MB where nothing compresses. A record that Write was given stays in
// memory until its last row is encoded.
//
// Write, Close and Abort are called from one goroutine.
type Writer struct {
	spec   Spec
	prefix string
	onFile func()
	// table is the shape of the rows, schema that of the files: they differ
	// where partition columns are not stored (PlainSpec).
	table  *arrow.Schema
	schema *arrow.Schema
	parts  splitter
	conf   *conformer
	// describe makes the entry of a finished file.
	describe describer

	open      map[int]*chunk // by partition
	openBytes int64
	rowsIn    int64

	jobs    chan *job // to the encoders; unbuffered
	ordered chan *job // to the appender, in the order of submission
	wg      sync.WaitGroup
	err     atomic.Pointer[error]
	done    bool

	// Owned by the appender until wg is done.
	files  map[int]*fileState
	closed []*fileState
	nextNo int
}

// splitter cuts records by partition. Partitions have dense numbers from 0.
type splitter interface {
	split(ctx context.Context, rec arrow.RecordBatch) ([]part, error)
	count() int
	value(id int) partitionValue
}

// describer makes the entry of a finished file from its footer.
type describer func(meta *metadata.FileMetaData, path string, bytes int64, pv partitionValue) (File, error)

// chunk is the rows of a partition that wait for their row group.
type chunk struct {
	recs  []arrow.RecordBatch
	bytes int64
	rows  int64
}

// job is one row group on its way.
type job struct {
	part int
	pv   partitionValue
	recs []arrow.RecordBatch
	out  chan *rowGroup // closed without a value after an error
	// encoded is closed when the rows are let go of.
	encoded chan struct{}
}

// NewWriter opens a writer. Files are named namePrefix + a running number;
// onFile, if set, is called after each file has become durable, from one
// goroutine at a time.
func NewWriter(spec Spec, namePrefix string, onFile func()) (*Writer, error) {
	if spec.Schema == nil || spec.FS == nil || spec.Location == "" {
		return nil, errors.New("datafile: schema, file system and location are required")
	}
	sc, err := tableSchema(spec.Schema)
	if err != nil {
		return nil, err
	}
	parts, err := newPartitioner(spec.Schema, spec.PartitionSpec)
	if err != nil {
		return nil, err
	}
	w := &Writer{spec: spec, prefix: namePrefix, onFile: onFile, table: sc, schema: sc, parts: parts,
		describe: func(meta *metadata.FileMetaData, path string, bytes int64, pv partitionValue) (File, error) {
			return describe(spec, meta, path, bytes, pv)
		}}
	w.start()
	return w, nil
}

// start fills in the defaults and starts the goroutines.
func (w *Writer) start() {
	spec := &w.spec
	if spec.Parallel <= 0 {
		spec.Parallel = parallelDefault
	}
	if spec.TargetBytes <= 0 {
		spec.TargetBytes = targetBytesDefault
	}
	w.open, w.files = map[int]*chunk{}, map[int]*fileState{}
	w.jobs, w.ordered = make(chan *job), make(chan *job, spec.Parallel)
	for range spec.Parallel {
		w.wg.Add(1)
		go w.encodeJobs()
	}
	w.wg.Add(1)
	go w.appendJobs()
}

// fail records the first error.
func (w *Writer) fail(err error) { w.err.CompareAndSwap(nil, &err) }

func (w *Writer) failed() error {
	if p := w.err.Load(); p != nil {
		return *p
	}
	return nil
}

// Write takes over rec and queues it for encoding. It may block, and reports
// the first error of any file of this writer.
func (w *Writer) Write(rec arrow.RecordBatch) error {
	defer rec.Release()
	if w.done {
		return errors.New("datafile: write to a closed writer")
	}
	if err := w.failed(); err != nil {
		return err
	}
	if w.conf == nil || !w.conf.src.Equal(rec.Schema()) {
		c, err := newConformer(rec.Schema(), w.table)
		if err != nil {
			return err
		}
		w.conf = c
	}
	shaped, err := w.conf.record(rec)
	if err != nil {
		return err
	}
	defer shaped.Release()
	pieces, err := w.parts.split(context.Background(), shaped)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		w.take(p)
	}
	w.rowsIn += rec.NumRows()
	return w.failed()
}

// take adds a piece to its partition's chunk, cutting it where the chunk is
// full, and encodes what is full.
func (w *Writer) take(p part) {
	defer p.rec.Release()
	n := int(p.rec.NumRows())
	for from := 0; from < n; {
		c := w.open[p.id]
		if c == nil {
			c = &chunk{}
			w.open[p.id] = c
		}
		to := fit(p.rec, from, rowGroupBytes-c.bytes, rowGroupRows-c.rows)
		if to == from && c.rows == 0 {
			to = from + 1 // one row larger than a row group
		}
		if to > from {
			b := recordBytes(p.rec, from, to)
			c.recs = append(c.recs, p.rec.NewSlice(int64(from), int64(to)))
			c.bytes += b
			c.rows += int64(to - from)
			w.openBytes += b
		}
		if to < n || c.bytes >= rowGroupBytes || c.rows >= rowGroupRows {
			w.flush(p.id, 1)
		}
		from = to
	}
	for w.openBytes > openBytesMax {
		largest, most := -1, int64(-1)
		for id, c := range w.open {
			if c.bytes > most || (c.bytes == most && id < largest) {
				largest, most = id, c.bytes
			}
		}
		w.flush(largest, 1)
	}
}

// fit is the greatest row up to which the rows from from on stay within the
// given bytes and rows.
func fit(rec arrow.RecordBatch, from int, bytes, rows int64) int {
	lo, hi := from, min(int(rec.NumRows()), from+int(max(0, rows)))
	if recordBytes(rec, from, hi) <= bytes {
		return hi
	}
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if recordBytes(rec, from, mid) <= bytes {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// flush sends a partition's chunk to the encoders as n row groups.
func (w *Writer) flush(id, n int) {
	c := w.open[id]
	delete(w.open, id)
	w.openBytes -= c.bytes
	if c.rows == 0 {
		return
	}
	per := (c.rows + int64(n) - 1) / int64(n)
	var recs []arrow.RecordBatch
	var rows int64
	for _, r := range c.recs {
		for from := int64(0); from < r.NumRows(); {
			to := min(r.NumRows(), from+per-rows)
			recs = append(recs, r.NewSlice(from, to))
			rows += to - from
			from = to
			if rows == per {
				w.submit(id, recs)
				recs, rows = nil, 0
			}
		}
		r.Release()
	}
	if rows > 0 {
		w.submit(id, recs)
	}
}

func (w *Writer) submit(id int, recs []arrow.RecordBatch) {
	j := &job{part: id, pv: w.parts.value(id), recs: recs, out: make(chan *rowGroup, 1), encoded: make(chan struct{})}
	// First the encoder, then the appender's queue: its order is the order of
	// submission either way, and nothing waits in it that nobody works on.
	w.jobs <- j
	w.ordered <- j
	if w.spec.InTurn {
		<-j.encoded
	}
}

// encodeJobs is one encoder. After an error it only releases.
func (w *Writer) encodeJobs() {
	defer w.wg.Done()
	for j := range w.jobs {
		if w.failed() == nil {
			g, err := encodeRowGroup(w.schema, j.recs)
			if err != nil {
				w.fail(err)
			} else {
				j.out <- g
			}
		}
		releaseAll(j.recs)
		j.recs = nil
		close(j.out)
		close(j.encoded)
	}
}

func releaseAll(recs []arrow.RecordBatch) {
	for _, r := range recs {
		r.Release()
	}
}

// stop ends the goroutines and waits for them.
func (w *Writer) stop() {
	w.done = true
	close(w.jobs)
	close(w.ordered)
	w.wg.Wait()
}

// Close finishes every file and describes them, in the order in which they
// were begun. After an error the files that exist are orphans.
func (w *Writer) Close(ctx context.Context) ([]File, error) {
	if w.done {
		return nil, errors.New("datafile: close of a closed writer")
	}
	for id := range w.parts.count() {
		if c := w.open[id]; c != nil {
			n := 1
			if c.bytes >= splitBytesMin && len(w.open) < w.spec.Parallel {
				n = w.spec.Parallel
			}
			w.flush(id, n)
		}
	}
	w.stop()
	if err := ctx.Err(); err != nil {
		w.fail(err)
	}
	files, err := w.finishFiles()
	if err != nil {
		return nil, err
	}
	var rows int64
	for _, f := range files {
		rows += f.Rows
	}
	if rows != w.rowsIn {
		return nil, failure.New(failure.Runtime, "%d rows were given to the data files of %s, %d are in them", w.rowsIn, w.spec.Location, rows)
	}
	return files, nil
}

// Abort stops background work; finished files stay behind as orphans. It is
// harmless after Close.
func (w *Writer) Abort() {
	if w.done {
		return
	}
	w.fail(errors.New("datafile: aborted"))
	for id, c := range w.open {
		releaseAll(c.recs)
		delete(w.open, id)
	}
	w.stop()
	for _, f := range w.files {
		f.abort()
	}
}

// path is the location of file number no of a partition.
func (w *Writer) path(pv partitionValue, no int) string {
	dir := strings.TrimSuffix(w.spec.Location, "/")
	if pv.path != "" {
		dir += "/" + pv.path
	}
	return fmt.Sprintf("%s/%s%05d.parquet", dir, w.prefix, no)
}
