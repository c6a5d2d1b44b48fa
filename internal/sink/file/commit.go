package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

// Commit implements sink.Sink: the log's next entry, then the files.
func (s *Sink) Commit(ctx context.Context, p sink.Permit, prev *marker.Marker, staged sink.Staged, m *marker.Marker) (sink.Committed, error) {
	if err := sink.CheckCommit(s, s.claimed, s.who(), s.opts.Query, p, prev, m); err != nil {
		return sink.Committed{}, err
	}
	fault.Reach(s.opts.Query, fault.CommitBefore)
	files, err := s.filesOf(ctx, staged)
	if err != nil {
		return sink.Committed{}, err
	}
	files = named(files, m)
	mine := newEntry(kindBatch, nil) // one nonce for all tries: whichever landed is ours
	for conflicts := range movesMax {
		head, err := s.headOf(ctx, m)
		if err != nil {
			return sink.Committed{}, err
		}
		found, err := external.Judge(s.who(), head.Marker, prev, m, p)
		if err != nil {
			return sink.Committed{}, err
		}
		if found {
			if err := s.publish(ctx, head, files); err != nil {
				return sink.Committed{}, err
			}
			return sink.Committed{Marker: head.Marker, SnapshotID: head.Seq, Found: true, Conflicts: conflicts}, nil
		}
		fault.Reach(s.opts.Query, fault.CommitMetadata)
		written := *m
		written.BaseSequence = head.Seq
		mine.Marker, mine.Files = &written, files
		there, err := s.append(ctx, head.Seq, mine)
		if errors.Is(err, errMoved) {
			continue
		}
		if err != nil {
			return sink.Committed{}, failure.Wrap(unknownClass(err), err, "query %s, batch %d: write it into the log of %s", m.QueryName, m.BatchID, s.who())
		}
		fault.Reach(s.opts.Query, fault.CommitSwapped)
		if err := s.publish(ctx, mine, files); err != nil {
			return sink.Committed{}, err
		}
		return sink.Committed{Marker: &written, SnapshotID: mine.Seq, Found: there, Conflicts: conflicts}, nil
	}
	return sink.Committed{}, failure.New(failure.Fenced, "query %s, batch %d: the log in %s was written to by others %d times", m.QueryName, m.BatchID, s.who(), movesMax).
		WithHint("another instance runs the query; stop one of them")
}

// unknownClass: an entry whose writing was answered by errors only may be there.
func unknownClass(err error) failure.Class {
	if failure.Is(err, failure.Unreachable) {
		return failure.CommitUnknown
	}
	return failure.ClassOf(err)
}

func (s *Sink) headOf(ctx context.Context, m *marker.Marker) (*entry, error) {
	var head *entry
	err := s.again(ctx, func() (err error) { head, err = s.log.head(ctx); return err })
	if err == nil && head == nil {
		err = failure.New(failure.Checkpoint, "query %s: its log in %s has vanished while it was running", m.QueryName, s.who()).
			WithHint("restore the folder %s/%s", metaFolder, s.opts.Query)
	}
	return head, err
}

// base is what every file of a batch is called: the name says whose it is and
// which, and is given once.
func base(m *marker.Marker) string {
	lineage := marker.Hash([]byte(m.QueryID))[:8]
	return fmt.Sprintf("%s-%s-%s", m.QueryName, number(m.BatchID), lineage)
}

// named gives staged files the names under which they become visible.
func named(files []File, m *marker.Marker) []File {
	out := make([]File, len(files))
	for i, f := range files {
		out[i] = f
		if !strings.HasPrefix(f.Name, base(m)) {
			out[i].Name = base(m) + "-" + f.Name
		}
	}
	return out
}

// Manifest says that a batch is complete, and of what.
type Manifest struct {
	Format    int       `json:"format"`
	QueryName string    `json:"query_name"`
	QueryID   string    `json:"query_id"`
	BatchID   int64     `json:"batch_id"`
	BatchTime time.Time `json:"batch_time"`
	Rows      int64     `json:"rows"`
	// Position is where the batch ends: everything before it is in this batch or
	// an earlier one.
	Position batch.Position `json:"position"`
	Files    []File         `json:"files"`
}

// ManifestSuffix ends a manifest's name.
const ManifestSuffix = ".manifest.json"

// publish makes a committed batch visible. mine are the files that this process
// staged for it, whose bytes need not be checked again; nil on recovery.
func (s *Sink) publish(ctx context.Context, e *entry, mine []File) error {
	if e.Kind != kindBatch || len(e.Files) == 0 {
		return nil
	}
	key := base(e.Marker) + ManifestSuffix
	if _, err := s.opts.Store.Get(ctx, key); err == nil {
		return s.unstage(ctx, e, mine)
	} else if !errors.Is(err, objstore.ErrNotExist) {
		return s.log.unreachable(err)
	}
	man := Manifest{Format: 1, QueryName: e.Marker.QueryName, QueryID: e.Marker.QueryID, BatchID: e.Marker.BatchID,
		BatchTime: e.Marker.BatchTime, Position: e.Marker.Position}
	for _, f := range e.Files {
		if err := s.publishFile(ctx, f); err != nil {
			return err
		}
		fault.Reach(s.opts.Query, fault.PublishFile)
		man.Rows += f.Rows
		f.Staged = ""
		man.Files = append(man.Files, f)
	}
	data, err := json.MarshalIndent(man, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the manifest of batch %d: %w", e.Marker.BatchID, err)
	}
	if err := s.createOnce(ctx, key, append(data, '\n')); err != nil {
		return err
	}
	return s.unstage(ctx, e, mine)
}

// publishFile creates a file under its name from its staged bytes.
func (s *Sink) publishFile(ctx context.Context, f File) error {
	var data []byte
	err := s.again(ctx, func() (err error) {
		if data, err = s.opts.Store.Get(ctx, f.Staged); errors.Is(err, objstore.ErrNotExist) {
			// Published by another run, which removed what was staged.
			if data, err = s.opts.Store.Get(ctx, f.Name); errors.Is(err, objstore.ErrNotExist) {
				return failure.New(failure.Checkpoint, "%s: file %s of a committed batch is neither published nor staged: it was removed", s.who(), f.Name).
					WithHint("consumers leave the newest manifest where it is. If they have read the batch, create an empty file %s", manifestOf(f.Name))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	if marker.Hash(data) != f.SHA256 {
		return failure.New(failure.Checkpoint, "%s: the bytes of file %s are not those that were committed", s.who(), f.Name)
	}
	return s.createOnce(ctx, f.Name, data)
}

func manifestOf(name string) string {
	name, _, _ = strings.Cut(name, ".")
	return name[:strings.LastIndex(name, "-")] + ManifestSuffix
}

// createOnce makes a file, or finds the same; it never replaces another.
func (s *Sink) createOnce(ctx context.Context, key string, data []byte) error {
	return s.again(ctx, func() error {
		created, existing, err := s.opts.Store.CreateOnce(ctx, key, data)
		if err == nil && !created && !bytes.Equal(existing, data) {
			return failure.New(failure.Checkpoint, "%s: a file %s with other contents is there already; it is not overwritten", s.who(), key).
				WithHint("who wrote it? Move it to another folder, and start again")
		}
		return err
	})
}

// unstage removes staged bytes of a batch that is visible.
func (s *Sink) unstage(ctx context.Context, e *entry, mine []File) error {
	for _, files := range [][]File{e.Files, mine} {
		for _, f := range files {
			_ = s.opts.Store.Delete(ctx, f.Staged) // swept another time
		}
	}
	return nil
}
