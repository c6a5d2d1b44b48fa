// Package operator turns rows into rows: parse and project, filter, watermark,
// dedup. An operator chain does no I/O of its own: state comes in as bytes and goes
// out as bytes, the only clock is the plan's batch time. (A Decoder may look up the
// schema that a value names, whose content its id fixes for ever; and what is
// remembered between batches may lie in a KeyStore that is not memory.)
package operator

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/marker"
)

// Outputs of a transform. Main goes to the main sink; DeadLetter, where the
// transform has one, to the side sink of that name. No transform emits to
// Rejected: it is where the engine puts the rows that a main sink's store refuses.
const (
	Main       = "main"
	DeadLetter = "deadLetter"
	Rejected   = "rejected"
)

// Env is what the plan fixes for a batch.
type Env struct {
	BatchID         int64
	BatchTimeMicros int64
	// Watermark is the plan's: rows with an earlier event time are late. Rows
	// of the same batch never make each other late.
	Watermark marker.Watermark
	// Upstream is the watermark of the source table at the batch's end, in
	// microseconds; nil where the source has none.
	Upstream *int64
	// Partitions are those that the batch's source is assigned, topic-partition.
	Partitions []string
	// Context ends when the batch is given up; nil never does. Only a decoder that
	// asks a schema registry looks at it.
	Context context.Context
}

// Emit takes over a record for one of the outputs.
type Emit func(output string, rec arrow.RecordBatch) error

// Transform is one query's chain of operators. It is used by one goroutine at
// a time: Begin, Process…, Finish, then Stateful's methods, then the next
// Begin. A batch that fails is undone by Rollback.
type Transform interface {
	// Outputs are the schemas of what is emitted, by output name.
	Outputs() map[string]*arrow.Schema
	// Fingerprint is a hash of everything that decides the rows: columns,
	// filter, watermark, contract, version of the code.
	Fingerprint() string
	// Begin starts a batch.
	Begin(env Env) error
	// Process consumes rec (and releases it). Rows are given in the source's
	// order.
	Process(rec arrow.RecordBatch, emit Emit) error
	// Finish flushes the last rows and gives the batch's counts, the watermark
	// that the next batch uses, and the event times for freshness.
	Finish(emit Emit) (Result, error)
	// Rollback forgets everything since Begin.
	Rollback()
	// State gives the stateful operators of the chain, none for a plain parse.
	State() []Stateful
}

// Result is what a batch came to.
type Result struct {
	Counters  marker.Counters
	Watermark marker.Watermark
	// EventMicros are the event times of emitted rows (a bounded, seeded sample
	// of at most 4,096), for freshness.
	EventMicros []int64
	// SetAside are the first late and duplicate rows of the batch, at most
	// setAsideMax of each: for people, nothing is decided by them.
	SetAside []SetAside
}

// SetAside is a row that was counted and not emitted.
type SetAside struct {
	Duplicate   bool // else late
	Topic       string
	Partition   int32
	Offset      int64
	EventMicros int64
	// Value is the beginning of the record's value.
	Value []byte
}

// Stateful is an operator with memory between batches, versioned by batch id.
type Stateful interface {
	// Name is the operator's name in the checkpoint: "dedup".
	Name() string
	// Delta encodes what the finished batch changed (keys added, keys expired
	// implicitly by watermark). Snapshot encodes everything.
	Delta() ([]byte, error)
	Snapshot() ([]byte, error)
	// Keys is the number of remembered keys; Bytes an estimate of memory.
	Keys() int64
	Bytes() int64
	// Reset forgets everything; Load applies a snapshot or a delta in order.
	Reset()
	LoadSnapshot(b []byte) error
	ApplyDelta(b []byte) error
	// RebuildColumns are the columns of the main sink that the state can be
	// rebuilt from; the first is the timestamp column. RebuildFrom is the
	// earliest event time that still matters under the watermark.
	RebuildColumns() []string
	RebuildFrom(w marker.Watermark) int64
	Rebuild(rec arrow.RecordBatch) error
	// FinishRebuild drops what the watermark has already passed.
	FinishRebuild(w marker.Watermark)
}

// Releaser is what a Transform also is that keeps rows back until the watermark
// has passed them: it says whether a watermark would release any.
type Releaser interface {
	Releases(watermarkMicros int64) bool
}

// InheritsWatermark is what a Transform also is that takes its watermark from
// the source table: it says what the next one is.
type InheritsWatermark interface {
	NextWatermark(w marker.Watermark, upstream *int64) marker.Watermark
}

// InputRebuilder is what a Transform also is whose memory cannot be read from
// its main table, because that holds only what was released, but from the rows
// of its source.
//
// The caller reads, from the source, the rows before the marker's position with
// an event time from RebuildBegin's on, gives them to RebuildAdd, and asks
// RebuildEnd. Where that wants more, it begins again from the earlier time.
type InputRebuilder interface {
	// CanRebuild is false where the source's rows do not say which of them were
	// taken in, late and duplicate ones among them.
	CanRebuild() bool
	RebuildInput() (columns []string, timeColumn string)
	RebuildBegin(w marker.Watermark, from *int64) int64
	RebuildAdd(rec arrow.RecordBatch) error
	RebuildEnd(w marker.Watermark, from int64) (further int64, again bool, err error)
}

// Definition is what a stateful operator is, for people to read and for
// a start to compare with what the state was made by.
type Definition struct {
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	TimeColumn string            `json:"time_column,omitempty"`
	Keys       []string          `json:"keys,omitempty"`
	Aggregates []string          `json:"aggregates,omitempty"`
	Settings   map[string]string `json:"settings,omitempty"`
}

// Definer is what a Transform also is that has stateful operators.
type Definer interface {
	// Definitions are those of State, in its order.
	Definitions() []Definition
}
