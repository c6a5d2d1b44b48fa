package bench

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// The benchmarks, and the two lists of them.
const (
	Bronze    = "bronze"
	Silver    = "silver"
	Ingest    = "ingest"
	Freshness = "freshness"
	Startup   = "startup"
	Recovery  = "recovery"
	Sinks     = "sinks"
	Gold      = "gold"
	Small     = "small"
	Large     = "large"
	IDs       = "ids"
	History   = "history"

	All   = "all"
	Quick = "quick"
)

// Description is a benchmark and what it measures.
type Description struct{ Name, Text string }

// List describes what there is.
func List() []Description {
	return []Description{
		{Bronze, "a backlog of a topic into the bronze table"},
		{Silver, "the same backlog into bronze and silver, both at once"},
		{Ingest, "a stream of server-sent events through the contract into Kafka, until acknowledged"},
		{Freshness, "from the append to Kafka, and from the event's time, until another process reads it in bronze and silver"},
		{Startup, "from the start of the process until the first commit is visible, 1,000 rows waiting"},
		{Recovery, "from a SIGKILL in mid-backlog until the first new commit is visible"},
		{Sinks, "staging and commit of batches in memory into each sink; Postgres beside psql's COPY (--postgres), Cassandra (--cassandra)"},
		{Gold, fmt.Sprintf("the four marts over %d × --rows of silver, beside plain DuckDB on the same Parquet files", goldFactor)},
		{Small, fmt.Sprintf("a backlog of %d × --rows records of %d bytes into bronze", smallFactor, smallBytes)},
		{Large, "a backlog of records of a megabyte into bronze, beside compressing and writing the same bytes"},
		{IDs, fmt.Sprintf("%d × --rows ids that all stay in the state of dedup, and a SIGKILL with them", smallFactor)},
		{History, "the same backlog again and again into one table, ten and fifty times, and after ten thousand commits"},
		{All, "all of them"},
		{Quick, "all of them, small: a few minutes"},
	}
}

var order = []string{Bronze, Silver, Ingest, Freshness, Startup, Recovery, Small, Large, IDs, Sinks, Gold, History}

// Compressions of the preloaded topic.
const (
	None = "none"
	Zstd = "zstd"
	Both = "both"
)

// Options say what is measured and with what. The zero value of a number takes
// its default.
type Options struct {
	// Names are benchmarks or lists of them.
	Names []string
	// Binary is the program that is measured.
	Binary string
	// Dir is where everything is kept while it is measured; a folder of its own
	// is made in it and removed at the end.
	Dir string
	// Rows of the backlog and of the ingested stream.
	Rows int64
	// Partitions of the topic.
	Partitions int
	// Compression of the preloaded topic: none, zstd or both.
	Compression string
	// MaxOffsets is maxOffsetsPerTrigger of both queries; 0 is the shipped
	// pipeline's.
	MaxOffsets int64
	// Trigger is the interval of the queries where the stream is live.
	Trigger time.Duration
	// Rates are events per second, each played for Seconds.
	Rates   []int
	Seconds int
	// Kills is how often the process is killed, and how often it is started.
	Kills int
	// Repeat measures everything so often; the medians are reported.
	Repeat int
	// Kafka are the bootstrap servers of a broker that runs; KafkaScript starts
	// one; without either the embedded broker is started as a process.
	Kafka       []string
	KafkaScript string
	// Postgres is the URL of a database for tables of its own; empty leaves it out.
	Postgres string
	// Cassandra is host:port/keyspace, for a table of its own; empty leaves it out.
	Cassandra string
	// Port of a broker that is started; 0 takes a free one.
	Port int
	// QuietWait is how long each measurement may wait for others to leave the
	// machine alone.
	QuietWait time.Duration
	// Record appends the results of every measurement to this file, one JSON object
	// a line; with Resume, what this binary gave there under the same settings is
	// not measured again.
	Record string
	Resume bool
	// Profile is a folder for CPU and heap profiles of the measured processes.
	Profile string
	Keep    bool
	Seed    uint64
	// Progress receives lines for people.
	Progress io.Writer
	Clock    clock.Clock

	quick bool
}

// Defaults.
const (
	rowsDefault       = 1_000_000
	rowsQuick         = 400_000
	partitionsDefault = 4
	maxOffsetsDefault = 100_000
	TriggerDefault    = 50 * time.Millisecond
	secondsDefault    = 45
	secondsQuick      = 10
	killsDefault      = 10
	killsQuick        = 4
)

func ratesDefault() []int { return []int{100, 1000, 5000, 15000, 50000} }

// fill sets what was left out and refuses what makes no sense.
func (o *Options) fill() error {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	if o.Compression == "" {
		o.Compression = None
	}
	quick := slices.Contains(o.Names, Quick)
	o.quick = quick
	def := func(v *int64, full, small int64) {
		if *v == 0 {
			if *v = full; quick {
				*v = small
			}
		}
	}
	seconds, kills, parts, repeat := int64(o.Seconds), int64(o.Kills), int64(o.Partitions), int64(o.Repeat)
	def(&o.Rows, rowsDefault, rowsQuick)
	def(&seconds, secondsDefault, secondsQuick)
	def(&kills, killsDefault, killsQuick)
	def(&parts, partitionsDefault, partitionsDefault)
	def(&repeat, 1, 1)
	def(&o.MaxOffsets, maxOffsetsDefault, maxOffsetsDefault)
	o.Seconds, o.Kills, o.Partitions, o.Repeat = int(seconds), int(kills), int(parts), int(repeat)
	if len(o.Rates) == 0 {
		if o.Rates = ratesDefault(); quick {
			o.Rates = []int{5000}
		}
	}
	if err := o.check(); err != nil {
		return err
	}
	return o.names()
}

func (o *Options) check() error {
	var faults []string
	for name, bad := range map[string]bool{
		"rows": o.Rows < 1000, "seconds": o.Seconds < 3, "kills": o.Kills < 1, "partitions": o.Partitions < 1,
		"repeat": o.Repeat < 1, "max-offsets": o.MaxOffsets < 1, "trigger": o.Trigger < 0,
		"rate": slices.ContainsFunc(o.Rates, func(r int) bool { return r < 1 }),
	} {
		if bad {
			faults = append(faults, "--"+name+" is too small")
		}
	}
	slices.Sort(faults)
	if !slices.Contains([]string{None, Zstd, Both}, o.Compression) {
		faults = append(faults, "--compression is neither none, zstd nor both")
	}
	if o.Resume && o.Record == "" {
		faults = append(faults, "--resume needs --record")
	}
	if len(o.Kafka) > 0 && o.KafkaScript != "" {
		faults = append(faults, "--kafka and --kafka-script exclude each other")
	}
	if len(faults) > 0 {
		return failure.New(failure.Config, "bench: %s", strings.Join(faults, "; "))
	}
	return nil
}

// names expands the lists and checks the rest.
func (o *Options) names() error {
	want := map[string]bool{}
	for _, n := range o.Names {
		switch {
		case n == All || n == Quick:
			for _, each := range order {
				want[each] = true
			}
		case slices.Contains(order, n):
			want[n] = true
		default:
			return failure.New(failure.Config, "there is no benchmark %q", n).
				WithHint("weir bench --list shows what there is")
		}
	}
	if len(want) == 0 {
		return failure.New(failure.Config, "which benchmark?").WithHint("weir bench --list shows what there is")
	}
	o.Names = nil
	for _, n := range order {
		if want[n] {
			o.Names = append(o.Names, n)
		}
	}
	return nil
}

func (o *Options) compressions() []string {
	if o.Compression == Both {
		return []string{None, Zstd}
	}
	return []string{o.Compression}
}

// workDir makes the folder of this run.
func (o *Options) workDir() (string, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return "", failure.Wrap(failure.Config, err, "the folder of the benchmark")
	}
	dir, err := os.MkdirTemp(o.Dir, "weir-bench-")
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "the folder of the benchmark")
	}
	return filepath.Abs(dir)
}

// linux is where the kernel's accounts of a process can be read.
const linux = runtime.GOOS == "linux"
