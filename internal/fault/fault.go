// Package fault holds the names of the crash points and arms them from the
// environment, so that the binary that is tested is the binary that ships.
//
// WEIR_CRASH_AT=<point>:<n> makes the process SIGKILL itself the n-th time it
// reaches the point. WEIR_CRASH_AT=<point>:<n>:hold makes it report the point
// and block for ever, so that another process kills it, and with :stop it
// suspends itself (SIGSTOP) until another process sends SIGCONT. A point may be
// qualified by the query (or "ingest") that is to reach it:
// silver/commit.swapped:2. The report is one line on standard error,
//
//	weir: crash point <scope>/<point> reached (<n>)
//
// and, where WEIR_CRASH_REPORT names a file, the same line in that file.
package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The crash points of one micro-batch, in the order of the protocol's steps.
// docs/PROTOCOL.md and the engine's doc.go use the same names.
const (
	ClaimBefore    = "claim.before"
	ClaimDone      = "claim.done"
	PlanWritten    = "plan.written"
	ReadDone       = "read.done"
	TransformDone  = "transform.done"
	StageFile      = "stage.file"
	StageState     = "stage.state"
	StageDone      = "stage.done"
	CommitBefore   = "commit.before"
	CommitSide     = "commit.side"
	CommitMetadata = "commit.metadata"
	CommitSwapped  = "commit.swapped"
	DoneWritten    = "done.written"
	ReportDone     = "report.done"
)

// The crash points of sinks outside of tables, within the step commit.
const (
	DeliverChunk = "deliver.chunk" // the receiver has acknowledged a part of the batch
	PublishFile  = "publish.file"  // the batch is committed, one of its files is visible
	// A store with transactions holds the batch's rows, and nobody sees them yet.
	CommitPrepared = "commit.prepared"
)

// The crash points of an operator's state beyond its version in one file (package
// state's doc.go).
const (
	StatePart    = "state.part"
	StateSettled = "state.settled"
)

// The crash points of ingestion.
const (
	IngestReceived  = "ingest.received"  // an event was read from the stream
	IngestProduced  = "ingest.produced"  // it was handed to the producer
	IngestAcked     = "ingest.acked"     // Kafka has acknowledged everything up to a position
	IngestTxnBegin  = "ingest.txn-begin" // exactly-once: transaction begun
	IngestTxnCommit = "ingest.txn-commit"
	IngestSaveTemp  = "ingest.save-temp" // position written to its temporary file
	IngestSaved     = "ingest.saved"     // position file renamed and its directory synced
)

// The crash points of a gold run (package gold's doc.go).
const (
	GoldPinned    = "gold.pinned"
	GoldBuilt     = "gold.built"
	GoldStaged    = "gold.staged"
	GoldPublished = "gold.published"
	GoldKept      = "gold.kept"
)

// The crash points of a scheduled job (package schedule's doc.go).
const (
	JobBegun    = "job.begun"
	JobDone     = "job.done"
	JobRecorded = "job.recorded"
)

// The crash points of table care (package maintain's doc.go).
const (
	CareExpired   = "care.expired"
	CareStaged    = "care.staged"
	CareCompacted = "care.compacted"
	CareManifests = "care.manifests"
	CareRemoved   = "care.removed"
)

// The crash points of an erasure (package erase's doc.go). Its commits reach
// CommitMetadata as well, under the scope "erase".
const (
	ErasePlanned   = "erase.planned"
	EraseStaged    = "erase.staged"
	EraseCommitted = "erase.committed"
	EraseRecorded  = "erase.recorded"
	EraseDone      = "erase.done"
)

// The crash points of a rebuild (package app's rebuild.go). The commits of its
// exchange reach CommitMetadata as well, under the scope "rebuild".
const (
	RebuildBegun    = "rebuild.begun"
	RebuildBuilt    = "rebuild.built"
	RebuildSwapping = "rebuild.swapping"
	RebuildKept     = "rebuild.kept"
	RebuildSide     = "rebuild.side"
	RebuildSwapped  = "rebuild.swapped"
	RebuildAdopted  = "rebuild.adopted"
	RebuildDone     = "rebuild.done"
)

// Point describes one crash point.
type Point struct {
	Name string
	Step string // the protocol step that it belongs to
	Text string // what is durable when it is reached
}

// Points lists every crash point in protocol order.
func Points() []Point {
	return []Point{
		{ClaimBefore, "claim", "decided; nothing written"},
		{ClaimDone, "claim", "every sink holds our epoch"},
		{PlanWritten, "plan", "offsets/N is durable"},
		{ReadDone, "read", "the batch's records are in memory"},
		{TransformDone, "transform", "rows are transformed"},
		{StageFile, "stage", "one data file is durable, unreferenced"},
		{StageState, "stage", "the operator state's version N is durable"},
		{StageDone, "stage", "everything the commit will reference is durable; sums checked"},
		{CommitBefore, "commit", "the commit is about to be built"},
		{CommitSide, "commit", "side tables hold N, the main table does not"},
		{CommitMetadata, "commit", "the new table metadata is written, the catalog not yet swapped"},
		{CommitSwapped, "commit", "the main table holds N"},
		{DoneWritten, "done", "commits/N is durable"},
		{ReportDone, "report", "progress is queued or written"},
		{CommitPrepared, "deliver", "a store outside holds the batch's rows in an open transaction"},
		{DeliverChunk, "deliver", "the receiver has acknowledged a part of the batch"},
		{PublishFile, "deliver", "the batch is committed, one of its files is visible, its manifest is not"},
		{StatePart, "state", "one part of a snapshot is durable, nothing names it"},
		{StateSettled, "state", "the working folder has taken in the version before, and says so"},
		{IngestReceived, "ingest", "an event was read from the stream"},
		{IngestProduced, "ingest", "the event was handed to the producer"},
		{IngestAcked, "ingest", "Kafka has acknowledged everything before the position"},
		{IngestTxnBegin, "ingest", "exactly-once: a transaction is open"},
		{IngestTxnCommit, "ingest", "exactly-once: the transaction is committed"},
		{IngestSaveTemp, "ingest", "the position's temporary file is durable"},
		{IngestSaved, "ingest", "the position is durable"},
		{GoldPinned, "gold", "the snapshots of all inputs are chosen; nothing written"},
		{GoldBuilt, "gold", "every model is built, in memory only"},
		{GoldStaged, "gold", "one model's data files are durable, unreferenced"},
		{GoldPublished, "gold", "one model's table holds its new rows"},
		{GoldKept, "gold", "the DuckDB file is in place"},
		{JobBegun, "job", "the run is open in the runs table's record"},
		{JobDone, "job", "the work is done, the run still open"},
		{JobRecorded, "job", "the run's row is in the table"},
		{CareExpired, "care", "old snapshots are out of a table's metadata, their files are there"},
		{CareStaged, "care", "small files are put together in new ones, durable, unreferenced"},
		{CareCompacted, "care", "the new files are in the table, the small ones are not"},
		{CareManifests, "care", "small manifests are merged"},
		{CareRemoved, "care", "one file that nothing refers to is removed"},
		{ErasePlanned, "erase", "what is to be erased is written down; no table has lost a row"},
		{EraseStaged, "erase", "one table's files without the rows are durable, unreferenced"},
		{EraseCommitted, "erase", "one table is without the rows, and says so"},
		{EraseRecorded, "erase", "the erasure stands in ops.erasures"},
		{EraseDone, "erase", "what was written down at the beginning is removed"},
		{RebuildBegun, "rebuild", "that a query is rebuilt is written down"},
		{RebuildBuilt, "rebuild", "the tables beside the live ones have caught up"},
		{RebuildSwapping, "rebuild", "batch id and epoch of the exchange are written down"},
		{RebuildKept, "rebuild", "one table's rows from before are under a tag"},
		{RebuildSide, "rebuild", "the dead-letter table holds the new rows, the main table the old ones"},
		{RebuildSwapped, "rebuild", "the main table holds the new rows"},
		{RebuildAdopted, "rebuild", "the query's checkpoint goes on from the exchange"},
		{RebuildDone, "rebuild", "what stood beside is removed"},
	}
}

// armed is the parsed WEIR_CRASH_AT.
type armed struct {
	scope string
	point string
	n     int
	hold  bool
	stop  bool
}

var (
	once  sync.Once
	plan  *armed
	mu    sync.Mutex
	count int
)

// Parse checks a WEIR_CRASH_AT value without arming it.
func Parse(v string) error {
	_, err := parse(v)
	return err
}

func parse(v string) (*armed, error) {
	parts := strings.Split(v, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return nil, fmt.Errorf("WEIR_CRASH_AT=%q: want [scope/]point:n, [scope/]point:n:hold or [scope/]point:n:stop", v)
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil || n < 1 {
		return nil, fmt.Errorf("WEIR_CRASH_AT=%q: %q is not a count of 1 or more", v, parts[1])
	}
	a := &armed{point: parts[0], n: n}
	if i := strings.LastIndex(a.point, "/"); i >= 0 {
		a.scope, a.point = a.point[:i], a.point[i+1:]
	}
	known := false
	for _, p := range Points() {
		known = known || p.Name == a.point
	}
	if !known {
		return nil, fmt.Errorf("WEIR_CRASH_AT=%q: no crash point %q (weir prove --list-crash-points)", v, a.point)
	}
	if len(parts) == 3 {
		a.hold, a.stop = parts[2] == "hold", parts[2] == "stop"
		if !a.hold && !a.stop {
			return nil, fmt.Errorf("WEIR_CRASH_AT=%q: the third part can only be \"hold\" or \"stop\"", v)
		}
	}
	return a, nil
}

// Reach says that the scope (a query name, or "ingest") has reached the point.
// It returns at once unless the environment armed this very point.
func Reach(scope, point string) {
	once.Do(func() {
		if v := os.Getenv("WEIR_CRASH_AT"); v != "" {
			a, err := parse(v)
			if err != nil {
				fmt.Fprintln(os.Stderr, "weir:", err)
				os.Exit(2)
			}
			plan = a
		}
	})
	if plan == nil || plan.point != point || (plan.scope != "" && plan.scope != scope) {
		return
	}
	mu.Lock()
	count++
	n := count
	mu.Unlock()
	if n != plan.n {
		return
	}
	line := fmt.Sprintf("weir: crash point %s/%s reached (%d)\n", scope, point, n)
	fmt.Fprint(os.Stderr, line)
	if f := os.Getenv("WEIR_CRASH_REPORT"); f != "" {
		// Best effort: the parent also reads standard error.
		_ = os.WriteFile(f+".tmp", []byte(line), 0o644)
		_ = os.Rename(f+".tmp", f)
	}
	if plan.hold {
		select {}
	}
	if plan.stop {
		suspend()
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
