// Package state keeps the versions of the operators' memory in a checkpoint:
//
//	state/<operator>/<version>-<attempt>.{snapshot,delta}
//	state/<operator>/<version>-<attempt>.<number>.part
//
// A version belongs to a batch: version N is the state after batch N. It is
// written, durable, before the commit whose marker names it (path and
// checksum); until then it is referenced by nothing. A snapshot is whole, a
// delta is what one batch changed and names its parent with the parent's
// checksum, so the tip that a marker names vouches for its whole chain.
//
// A file is one line of JSON (the header: format, query id, operator, version,
// kind, parent, sizes), then the operator's own encoding compressed with zstd.
// A file is written once and never changed. A snapshot that does not fit into one
// file of bounded size is cut into parts, each a zstd frame; its own file has
// format 2, no payload, and names the parts by their checksums. The parts are
// durable before the file that names them, so a file that is there is whole, or
// somebody has removed or damaged a part of it: the same as a damaged file. A
// snapshot that its operator encodes as earlier versions cannot read it, as dedup
// does, has format 3, whole or in parts.
//
// Rules:
//   - a delta is only put on a parent that this process has itself saved or
//     loaded whole. Anything else begins with a snapshot: a chain that was found
//     broken cannot grow.
//   - a file that is missing (ErrMissing) or damaged (ErrCorrupt) costs a
//     rebuild from the table; one of another query or of a newer version
//     (ErrForeign) stops the query, since it says that the folder is not ours.
//   - Purge never removes a version above the tip: it may be one of a batch
//     whose commit is under way or unknown.
package state

import "errors"

// Sentinels; they stand in the chain of the errors of Load and Purge.
var (
	// ErrMissing says that a file of the chain is not there.
	ErrMissing = errors.New("state file is missing")
	// ErrCorrupt says that a file of the chain is not what its name in the
	// marker or in its child says, or cannot be read.
	ErrCorrupt = errors.New("state file is corrupt")
	// ErrForeign says that a file belongs to another query id, or was written
	// by a newer version.
	ErrForeign = errors.New("state file is of another query or version")
)

// Bounds of a chain.
const (
	// SnapshotEvery is how many deltas a chain has at least before a snapshot
	// is due for its length alone. The first version after a start is not one of
	// those.
	SnapshotEvery = 20
	// snapshotShare: a snapshot for length alone waits until the chain's deltas
	// are 1/8 of the last snapshot, so that a large state with small batches is
	// not written whole every few seconds ….
	snapshotShare = 8
	// DeltasMax … but no chain is longer, since a start reads all of it.
	DeltasMax = 100
	// smallChainBytes is how many bytes of deltas never make a snapshot due.
	smallChainBytes = 64 << 10
	// KeepVersions is how many versions back from the tip Purge keeps loadable.
	KeepVersions = 10
	// DefaultPartBytes is the size at which a snapshot is cut into parts.
	DefaultPartBytes = 16 << 20
	// RawBytesMax bounds what a file may unpack to.
	RawBytesMax = 1 << 40
	// headerBytesMax bounds the first line.
	headerBytesMax = 4 << 20
	// rememberedFiles bounds the headers that are kept in memory.
	rememberedFiles = 1024
)
