// Package care measures whether a table stays as quick and as small as it was,
// after a day of a commit a second: the commits are real, the seconds between
// them are not waited for.
package care

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/sink"
)

const (
	// Day is a commit a second for 24 hours.
	Day = 86_400
	// everyBatches is how often the engine looks after a table.
	everyBatches = 50
	tableName    = "bronze.events"
	queryName    = "bronze"
	valueBytes   = 200
)

// Options are those of a measurement.
type Options struct {
	// Commits are a second of the table's time apart; 0 means Day.
	Commits int
	// Rows are those of each commit; 0 means 10.
	Rows int
	// Bucket is how many commits are one line of the result; 0 means an hour.
	Bucket int
	// Dir, where set, is a folder for the catalog and the files, on the disk; else
	// they are in memory.
	Dir string
	// Most, where set, is how long the measurement may take: what was reached by
	// then is the result.
	Most     time.Duration
	Settings maintain.Settings
	Progress io.Writer
}

// Bucket is what a number of commits came to.
type Bucket struct {
	Commits        int     `json:"commits"`
	CommitMedianMS float64 `json:"commit_median_ms"`
	CommitP95MS    float64 `json:"commit_p95_ms"`
	// CPUMS is the processor time for each commit, its share of the care included:
	// it says more than the clock where others use the machine.
	CPUMS         float64 `json:"cpu_ms"`
	CareMedianMS  float64 `json:"care_median_ms"`
	CareMaxMS     float64 `json:"care_max_ms"`
	MetadataBytes int64   `json:"metadata_bytes"`
	Snapshots     int     `json:"snapshots"`
	Manifests     int     `json:"manifests"`
	DataFiles     int64   `json:"data_files"`
	FilesMost     int     `json:"files_of_a_partition_most"`
	StoredFiles   int     `json:"stored_files"`
	StoredBytes   int64   `json:"stored_bytes"`
	HeapMB        float64 `json:"heap_mb"`
}

// Report is the result.
type Report struct {
	Commits int             `json:"commits"`
	Rows    int64           `json:"rows"`
	Planned int             `json:"planned"`
	Storage string          `json:"storage"`
	Seconds float64         `json:"seconds"`
	Ratio   float64         `json:"last_to_first"`
	Buckets []Bucket        `json:"buckets"`
	Health  maintain.Health `json:"health"`
}

// virtual is a clock that moves a second with each commit.
type virtual struct {
	mu  sync.Mutex
	now time.Time
}

func (v *virtual) Now() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now
}

func (v *virtual) Sleep(ctx context.Context, d time.Duration) error {
	v.pass(d)
	return ctx.Err()
}

func (v *virtual) pass(d time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = v.now.Add(d)
}

// day is one measurement under way.
type day struct {
	o       Options
	real    clock.Clock
	clock   *virtual
	mem     *memoryFiles
	catalog *lake.Catalog
	s       sink.Sink
	permit  sink.Permit
	cur     *marker.Marker
	commits []float64
	cares   []float64
	cpu     time.Duration // as of the last bucket
	rep     Report
}

// Run measures.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Commits <= 0 {
		o.Commits = Day
	}
	if o.Rows <= 0 {
		o.Rows = 10
	}
	if o.Bucket <= 0 {
		o.Bucket = 3600
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	d := &day{o: o, real: clock.System{}, clock: &virtual{now: clock.System{}.Now().Truncate(24 * time.Hour)}}
	d.rep = Report{Planned: o.Commits, Storage: "memory", Buckets: []Bucket{}}
	if err := d.open(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = d.catalog.Close() }()
	if err := d.claim(ctx); err != nil {
		return nil, err
	}
	began := d.real.Now()
	d.cpu = cpuTime()
	for n := 1; n <= o.Commits; n++ {
		if err := d.commit(ctx, n); err != nil {
			return nil, err
		}
		if n%o.Bucket == 0 || n == o.Commits {
			if err := d.bucket(ctx, n); err != nil {
				return nil, err
			}
			if o.Most > 0 && d.real.Now().Sub(began) > o.Most {
				break
			}
		}
	}
	d.rep.Seconds = d.real.Now().Sub(began).Seconds()
	if b := d.rep.Buckets; b[0].CommitMedianMS > 0 {
		d.rep.Ratio = b[len(b)-1].CommitMedianMS / b[0].CommitMedianMS
	}
	return &d.rep, d.count(ctx)
}

// open makes the table as a pipeline does.
func (d *day) open(ctx context.Context) (err error) {
	if d.o.Dir == "" {
		d.mem = newMemory(d.clock)
		d.catalog = lake.Over(d.mem, iceberg.Properties{"warehouse": scheme + "://day"})
	} else {
		d.rep.Storage = "disk"
		d.catalog, err = lake.Open(ctx, lake.Config{URI: filepath.Join(d.o.Dir, "catalog.db"), Warehouse: filepath.Join(d.o.Dir, "warehouse")})
		if err != nil {
			return err
		}
	}
	d.s, err = app.IcebergSink(d.catalog, app.SinkSpec{
		Query: queryName, Table: tableName, Shape: batch.KafkaSchema, Clock: d.clock, Care: d.o.Settings,
		PartitionBy: []pipeline.PartitionField{{Transform: "day", Column: "timestamp"}},
	})
	return err
}

func at(next int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "care", Topics: map[string]batch.TopicPosition{}}
	k.Set("events", "id", 0, batch.PartitionPosition{NextOffset: next, LastOffset: next - 1, Rows: next})
	return batch.Position{Kafka: k}
}

func (d *day) claim(ctx context.Context) error {
	f, err := d.s.Facts(ctx, queryName)
	if err != nil {
		return err
	}
	d.cur = &marker.Marker{Format: 1, Kind: marker.KindStream, QueryName: queryName, QueryID: clock.Nonce(), BatchID: -1, Claim: true,
		Attempt: clock.Nonce(), Epoch: marker.Epoch{Number: 1, Nonce: clock.Nonce()}, Position: at(0)}
	permit, moved, err := d.s.Claim(ctx, f, d.cur)
	if err == nil && moved {
		err = failure.New(failure.Runtime, "the table is not new")
	}
	d.permit = permit
	return err
}

// commit is one batch, and what the engine does after some of them.
func (d *day) commit(ctx context.Context, n int) error {
	m := *d.cur
	m.Claim, m.BatchID, m.Attempt = false, d.cur.BatchID+1, clock.Nonce()
	first := m.BatchID * int64(d.o.Rows)
	m.Position, m.BatchTime = at(first+int64(d.o.Rows)), d.clock.Now()
	m.PlanHash = marker.Hash([]byte(m.Position.String()))
	began := d.real.Now()
	st, err := d.s.Stage(ctx, m.BatchID, m.Attempt)
	if err != nil {
		return err
	}
	if err := st.Write(d.rows(first)); err != nil {
		st.Abort()
		return err
	}
	staged, err := st.Close(ctx)
	if err != nil {
		return err
	}
	done, err := d.s.Commit(ctx, d.permit, d.cur, staged, &m)
	if err != nil {
		return err
	}
	d.commits = append(d.commits, ms(d.real.Now().Sub(began)))
	d.cur = done.Marker
	d.rep.Commits = n
	if n%everyBatches == 0 {
		began := d.real.Now()
		m := d.s.(engine.Maintainer)
		if err := errors.Join(m.Maintain(ctx), m.Settle(ctx, true)); err != nil {
			return err
		}
		d.cares = append(d.cares, ms(d.real.Now().Sub(began)))
	}
	d.clock.pass(time.Second)
	return nil
}

// rows are those of one batch, as bronze stores them.
func (d *day) rows(first int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	now := arrow.Timestamp(d.clock.Now().UnixMicro())
	value := make([]byte, valueBytes)
	for i := range d.o.Rows {
		copy(value, fmt.Sprintf(`{"id":%d,"title":"page %d"}`, first+int64(i), (first+int64(i))*7919%100_003))
		b.Field(batch.ColTopic).(*array.StringBuilder).Append("events")
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(0)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(first + int64(i))
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(now)
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		b.Field(batch.ColKey).AppendNull()
		b.Field(batch.ColValue).(*array.BinaryBuilder).Append(value)
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(now)
		b.Field(batch.ColTopicID).(*array.StringBuilder).Append("id")
	}
	return b.NewRecordBatch()
}

// bucket sums up the commits since the last one.
func (d *day) bucket(ctx context.Context, n int) error {
	cpu := cpuTime()
	ident := table.Identifier{"bronze", "events"}
	_, body, err := d.catalog.Metadata(ctx, ident)
	if err != nil {
		return err
	}
	t, err := d.catalog.LoadTable(ctx, ident)
	if err != nil {
		return err
	}
	storage, err := t.FS(ctx)
	if err != nil {
		return err
	}
	manifests, err := t.CurrentSnapshot().Manifests(storage)
	if err != nil {
		return err
	}
	data, _, err := lake.FilesOf(ctx, t)
	if err != nil {
		return err
	}
	most := map[string]int{}
	for _, f := range data {
		most[fmt.Sprint(f.Partition())]++
	}
	b := Bucket{Commits: n, CommitMedianMS: quantile(d.commits, 0.5), CommitP95MS: quantile(d.commits, 0.95),
		CareMedianMS: quantile(d.cares, 0.5), CareMaxMS: quantile(d.cares, 1), MetadataBytes: int64(len(body)),
		Snapshots: len(t.Metadata().Snapshots()), Manifests: len(manifests), DataFiles: int64(len(data))}
	b.CPUMS = ms(cpu-d.cpu) / float64(len(d.commits))
	for _, n := range most {
		b.FilesMost = max(b.FilesMost, n)
	}
	if b.StoredFiles, b.StoredBytes, err = d.stored(); err != nil {
		return err
	}
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	b.HeapMB = float64(mem.HeapAlloc-uint64(d.inMemory(b.StoredBytes))) / 1e6
	d.rep.Buckets = append(d.rep.Buckets, b)
	if h, ok := d.s.(interface{ Health() maintain.Health }); ok {
		d.rep.Health = h.Health()
	}
	d.commits, d.cares, d.cpu = nil, nil, cpuTime()
	fmt.Fprintf(d.o.Progress, "%6d commits: median %.1f ms, p95 %.1f ms, care %.0f ms (at most %.0f), metadata %d KB, %d files in the table, %d stored\n",
		n, b.CommitMedianMS, b.CommitP95MS, b.CareMedianMS, b.CareMaxMS, b.MetadataBytes/1000, b.DataFiles, b.StoredFiles)
	return nil
}

// inMemory is what the files themselves take of the heap.
func (d *day) inMemory(stored int64) int64 {
	if d.mem == nil {
		return 0
	}
	return stored
}

// stored counts everything that the table takes in its storage.
func (d *day) stored() (n int, size int64, err error) {
	if d.mem != nil {
		n, size = d.mem.count()
		return n, size, nil
	}
	err = filepath.WalkDir(filepath.Join(d.o.Dir, "warehouse"), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if i, err := e.Info(); err == nil {
			n, size = n+1, size+i.Size()
		} else if !os.IsNotExist(err) {
			return err
		}
		return nil
	})
	return n, size, err
}

// count reads the whole table at the end: every offset, each once.
func (d *day) count(ctx context.Context) error {
	t, err := d.catalog.LoadTable(ctx, table.Identifier{"bronze", "events"})
	if err != nil {
		return err
	}
	_, records, err := t.Scan(table.WithSelectedFields("offset")).ToArrowRecords(ctx)
	if err != nil {
		return err
	}
	seen := make([]bool, d.rep.Commits*d.o.Rows)
	for rec, err := range records {
		if err != nil {
			return err
		}
		for _, o := range rec.Column(0).(*array.Int64).Int64Values() {
			if o < 0 || o >= int64(len(seen)) || seen[o] {
				return failure.New(failure.Mismatch, "offset %d is in the table twice, or was never written", o)
			}
			seen[o] = true
			d.rep.Rows++
		}
		rec.Release()
	}
	if d.rep.Rows != int64(len(seen)) {
		return failure.New(failure.Mismatch, "%d of %d rows are in the table", d.rep.Rows, len(seen))
	}
	return nil
}

// cpuTime is what the process has used so far, 0 where that cannot be asked for.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func quantile(all []float64, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))]
}
