package delta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// compactTargetBytes is the size that compaction aims at.
	compactTargetBytes = 256 << 20
	// compactCommitBytes bounds what one commit of a compaction replaces, so that
	// a conflict costs little.
	compactCommitBytes = 1 << 30
)

// OptimizeOptions of Optimize.
type OptimizeOptions struct {
	// TargetBytes is the size of the new files; 256 MiB by default. Files of at
	// least three quarters of it are left alone.
	TargetBytes int64
	Limits      Limits
}

// OptimizeResult says what a compaction did.
type OptimizeResult struct {
	Commits      int
	FilesRemoved int
	FilesAdded   int
	Rows         int64
	// Conflicts counts groups that were left alone because somebody else removed
	// one of their files meanwhile.
	Conflicts int
}

// Optimize puts small files of one partition together. No row changes
// (dataChange is false), no transaction marker moves, and appends that are
// committed meanwhile do not disturb it.
func Optimize(ctx context.Context, t *Table, o OptimizeOptions) (OptimizeResult, error) {
	if o.TargetBytes <= 0 {
		o.TargetBytes = compactTargetBytes
	}
	s, err := t.Snapshot(ctx)
	if err != nil {
		return OptimizeResult{}, err
	}
	var out OptimizeResult
	for _, group := range groups(bins(s, o.TargetBytes)) {
		err := compact(ctx, t, s, group, o, &out)
		if errors.Is(err, ErrConflict) {
			out.Conflicts++
			continue
		}
		if err != nil {
			return out, fmt.Errorf("optimize Delta table %s: %w", t.Location(), err)
		}
	}
	return out, nil
}

// bins gathers the small files of each partition into sets that make one file.
func bins(s *Snapshot, target int64) [][]*Add {
	byPartition := map[string][]*Add{}
	var order []string
	for _, a := range s.Files() {
		if a.Size >= target*3/4 {
			continue
		}
		p := partitionName(a, s.Metadata.PartitionColumns)
		if byPartition[p] == nil {
			order = append(order, p)
		}
		byPartition[p] = append(byPartition[p], a)
	}
	var out [][]*Add
	for _, p := range order {
		files := byPartition[p]
		// In the order in which they came, so that rows stay together in time.
		slices.SortStableFunc(files, func(a, b *Add) int { return int(a.ModificationTime - b.ModificationTime) })
		var bin []*Add
		var size int64
		flush := func() {
			if len(bin) > 1 {
				out = append(out, bin)
			}
			bin, size = nil, 0
		}
		for _, a := range files {
			if size+a.Size > target {
				flush()
			}
			bin, size = append(bin, a), size+a.Size
		}
		flush()
	}
	return out
}

func partitionName(a *Add, columns []string) string {
	var b strings.Builder
	for _, c := range columns {
		if v := a.PartitionValues[c]; v != nil {
			b.WriteString(strconv.Quote(*v))
		}
		b.WriteByte('/')
	}
	return b.String()
}

// groups puts bins together that are committed together.
func groups(bins [][]*Add) [][][]*Add {
	var out [][][]*Add
	var size int64
	for _, b := range bins {
		var bytes int64
		for _, a := range b {
			bytes += a.Size
		}
		if len(out) == 0 || size+bytes > compactCommitBytes {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], b)
		size += bytes
	}
	return out
}

func compact(ctx context.Context, t *Table, s *Snapshot, group [][]*Add, o OptimizeOptions, out *OptimizeResult) error {
	var actions []Action
	paths := map[string]bool{}
	added, rows := 0, int64(0)
	for _, bin := range group {
		adds, n, err := t.rewriteFiles(ctx, s, bin, o.TargetBytes)
		if err != nil {
			return err
		}
		for _, a := range bin {
			paths[a.Path] = true
			actions = append(actions, removeOf(a, t.nowMillis(), false))
		}
		for _, a := range adds {
			a.DataChange = false
			actions = append(actions, Action{Add: a})
		}
		added += len(adds)
		rows += n
	}
	_, err := Commit(ctx, t, func(context.Context, *Snapshot) ([]Action, error) { return actions, nil },
		CommitOptions{Operation: "OPTIMIZE", Parameters: map[string]any{"predicate": "[]"}, Limits: o.Limits,
			Metrics: map[string]any{"numRemovedFiles": strconv.Itoa(len(paths)), "numAddedFiles": strconv.Itoa(added)},
			Reads:   Reads{Base: s.Version, Files: paths, Shape: true}})
	if err != nil {
		return err
	}
	out.Commits++
	out.FilesRemoved += len(paths)
	out.FilesAdded += added
	out.Rows += rows
	return nil
}

func (t *Table) rewriteFiles(ctx context.Context, s *Snapshot, files []*Add, target int64) ([]*Add, int64, error) {
	w, err := t.NewFiles(ctx, s, FileOptions{Prefix: "optimize-" + clock.Nonce() + "-", TargetBytes: target})
	if err != nil {
		return nil, 0, err
	}
	rows := int64(0)
	for _, a := range files {
		before := rows
		if err := t.readFile(ctx, s, a, nil, func(rec arrow.RecordBatch) error {
			rows += rec.NumRows()
			return w.Write(rec)
		}); err != nil {
			w.Abort()
			return nil, 0, err
		}
		if want := a.Rows(); want >= 0 && rows-before != want {
			w.Abort()
			return nil, 0, failure.New(failure.Mismatch, "data file %s has %d rows, its statistics say %d", a.Path, rows-before, want)
		}
	}
	adds, err := w.Close(ctx)
	return adds, rows, err
}

// VacuumOptions of Vacuum.
type VacuumOptions struct {
	// Retention is how old a file must be; the table's
	// delta.deletedFileRetentionDuration (7 days) where 0.
	Retention time.Duration
	// DryRun only lists.
	DryRun bool
	// Force allows a retention under the table's, which breaks readers of older
	// versions and writers that have staged files.
	Force bool
}

// VacuumResult lists what was removed, or would be.
type VacuumResult struct {
	Files []string
	Bytes int64
}

// Vacuum removes data files that no version within the retention refers to.
// The log and everything else whose name begins with "_" or "." stays, the
// table's memory of its writers among it.
//
// Before the first removal it commits a version without changes: a writer that
// checked its staged files before that has read an older version, so its commit
// fails and it checks them again.
func Vacuum(ctx context.Context, t *Table, o VacuumOptions) (VacuumResult, error) {
	s, err := t.Snapshot(ctx)
	if err != nil {
		return VacuumResult{}, err
	}
	least := s.Metadata.interval(PropFileRetention, defaultFileRetention)
	if o.Retention <= 0 {
		o.Retention = least
	}
	if o.Retention < least && !o.Force {
		return VacuumResult{}, failure.New(failure.Config, "vacuum of Delta table %s: a retention of %s is shorter than the table's %s", t.Location(), o.Retention, least).
			WithHint("readers of older versions and writers with staged files would fail; force it only if there are none")
	}
	cutoff := t.opts.Clock.Now().Add(-o.Retention)
	if !o.DryRun {
		r, err := Commit(ctx, t, func(context.Context, *Snapshot) ([]Action, error) { return nil, nil },
			CommitOptions{Operation: "VACUUM START", Parameters: map[string]any{"retentionCheckEnabled": !o.Force,
				"specifiedRetentionMillis": o.Retention.Milliseconds()}})
		if err != nil {
			return VacuumResult{}, fmt.Errorf("vacuum Delta table %s: %w", t.Location(), err)
		}
		s = r.Snapshot
	}
	keep, err := t.referenced(s, cutoff)
	if err != nil {
		return VacuumResult{}, err
	}
	return t.sweep(ctx, keep, cutoff, o.DryRun)
}

// referenced are the keys of files that the snapshot or a young tombstone names.
func (t *Table) referenced(s *Snapshot, cutoff time.Time) (map[string]bool, error) {
	keep := map[string]bool{}
	note := func(path string) error {
		key, err := keyOf(path)
		if err != nil {
			return failure.Wrap(failure.SchemaConflict, err, "vacuum of Delta table %s", t.Location())
		}
		keep[key] = true
		return nil
	}
	for _, p := range s.files.keys() {
		if err := note(p); err != nil {
			return nil, err
		}
	}
	for _, p := range s.removed.keys() {
		if r, _ := s.removed.get(p); r.DeletionTimestamp >= millis(cutoff) {
			if err := note(p); err != nil {
				return nil, err
			}
		}
	}
	return keep, nil
}

func (t *Table) sweep(ctx context.Context, keep map[string]bool, cutoff time.Time, dry bool) (VacuumResult, error) {
	list, err := t.storage.List(ctx, "")
	if err != nil {
		return VacuumResult{}, fmt.Errorf("vacuum Delta table %s: %w", t.Location(), err)
	}
	var out VacuumResult
	for _, i := range list {
		if keep[i.Key] || hidden(i.Key) || !strings.HasSuffix(i.Key, ".parquet") || !i.Modified.Before(cutoff) {
			continue
		}
		if !dry {
			if err := t.storage.Delete(ctx, i.Key); err != nil {
				return out, fmt.Errorf("vacuum Delta table %s: %w", t.Location(), err)
			}
		}
		out.Files = append(out.Files, i.Key)
		out.Bytes += i.Size
	}
	return out, nil
}

// hidden are the folders and files that are no data: names with a leading "_"
// or ".", except folders of a partition column whose name begins so.
func hidden(key string) bool {
	for _, part := range strings.Split(key, "/") {
		if (strings.HasPrefix(part, "_") || strings.HasPrefix(part, ".")) && !strings.Contains(part, "=") {
			return true
		}
	}
	return false
}
