package datafile

import (
	"io"

	"github.com/apache/iceberg-go"
)

// FS creates files. Create's path is a location as it stands in manifests
// (file:///… or s3://…). Close of the returned writer makes the file durable
// before it returns: contents synced, then renamed into place, then the
// directory synced; for an object store, the store's acknowledgement. A writer
// that is not closed leaves nothing under that name. A writer may also have a
// method Abort(), which discards what was written; it is called instead of
// Close when the file is given up.
type FS interface {
	Create(path string) (io.WriteCloser, error)
}

// Spec is what a file must know of its table.
type Spec struct {
	Schema        *iceberg.Schema
	PartitionSpec iceberg.PartitionSpec
	FormatVersion int
	Properties    iceberg.Properties
	// Location is the table's data folder as a location; files are made below
	// it, in one folder per partition value.
	Location string
	FS       FS
	// Parallel is the number of row groups that are encoded at the same time;
	// 0 means the default.
	Parallel int
	// InTurn makes Write wait until a full row group is encoded, instead of filling
	// the next one meanwhile: half of the memory, at the pace of one core.
	InTurn bool
	// TargetBytes is the size at which a partition's file is closed and the
	// next one begun; 0 means the default.
	TargetBytes int64
}

// File is one durable data file, not referenced by any snapshot yet.
type File struct {
	DataFile iceberg.DataFile
	// Path is the location that stands in the manifest.
	Path  string
	Rows  int64
	Bytes int64
	// Encoded is DataFile serialised: Decode gives it back, so that the file
	// can be committed by another process without being read.
	Encoded []byte

	plain *PlainFile
}
