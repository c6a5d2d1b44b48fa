package delta

import (
	"context"
	"fmt"
	"net/url"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/lake/datafile"
)

// FileOptions of the data file writer.
type FileOptions struct {
	// Prefix begins the names of the files; it must hold a nonce.
	Prefix string
	// OnFile is called after each file has become durable.
	OnFile func()
	// Parallel and TargetBytes go to the data file writer; 0 is its default.
	Parallel    int
	TargetBytes int64
}

// FileWriter writes data files that no version refers to yet.
type FileWriter struct {
	t      *Table
	w      *datafile.PlainWriter
	cols   []string
	stored *arrow.Schema
}

// NewFiles opens a writer of data files for rows of the snapshot's schema; rows
// may lack columns that can be null.
func (t *Table) NewFiles(ctx context.Context, s *Snapshot, o FileOptions) (*FileWriter, error) {
	cols := s.Metadata.PartitionColumns
	w, err := datafile.NewPlainWriter(datafile.PlainSpec{Schema: s.Schema, PartitionColumns: cols,
		FS: dataFS{ctx, t.storage}, Parallel: o.Parallel, TargetBytes: o.TargetBytes}, o.Prefix, o.OnFile)
	if err != nil {
		return nil, err
	}
	return &FileWriter{t: t, w: w, cols: cols, stored: s.Schema}, nil
}

// Write takes rec over and queues it; it may block.
func (f *FileWriter) Write(rec arrow.RecordBatch) error { return f.w.Write(rec) }

// Abort stops background work; files that are finished stay as orphans.
func (f *FileWriter) Abort() { f.w.Abort() }

// Close makes the files durable and describes them as they go into a commit.
func (f *FileWriter) Close(ctx context.Context) ([]*Add, error) {
	files, err := f.w.Close(ctx)
	if err != nil {
		return nil, err
	}
	now := f.t.nowMillis()
	out := make([]*Add, len(files))
	for i, p := range files {
		stats, err := statsOf(p.Meta, f.stored)
		if err != nil {
			return nil, fmt.Errorf("describe data file %s: %w", p.Path, err)
		}
		values := map[string]*string{}
		for j, c := range f.cols {
			values[c] = p.Partition[j]
		}
		out[i] = &Add{Path: url.PathEscape(trimSlash(p.Path)), PartitionValues: values, Size: p.Bytes, ModificationTime: now,
			DataChange: true, Stats: stats}
	}
	return out, nil
}

func trimSlash(p string) string {
	if len(p) > 0 && p[0] == '/' {
		return p[1:]
	}
	return p
}

// Rows is the number of rows of a file as its statistics say, -1 if unknown.
func (a *Add) Rows() int64 {
	s, ok := a.ParseStats()
	if !ok {
		return -1
	}
	return s.NumRecords
}
