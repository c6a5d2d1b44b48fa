package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/lake/datafile"
)

const (
	// conflictsMax bounds the commits of one rewrite; after that its files are
	// orphans, and a later step begins again.
	conflictsMax = 5
	// classBits make the classes of size, each eight times the one below: a file
	// is written again once for each class that it grows through.
	classBits     = 3
	smallestClass = 13 // bits: 8 KiB
)

// Compacted is what became of small files.
type Compacted struct {
	FilesRemoved int   `json:"files_removed"`
	FilesAdded   int   `json:"files_added"`
	Rows         int64 `json:"rows"`
	Bytes        int64 `json:"bytes"`
	Commits      int   `json:"commits"`
	Conflicts    int   `json:"conflicts"`
	// Skipped says why a table was left as it is.
	Skipped string `json:"skipped,omitempty"`
}

func (c *Compacted) add(o Compacted) {
	c.FilesRemoved += o.FilesRemoved
	c.FilesAdded += o.FilesAdded
	c.Rows += o.Rows
	c.Bytes += o.Bytes
	c.Commits += o.Commits
	c.Conflicts += o.Conflicts
	c.Skipped = cmp.Or(c.Skipped, o.Skipped)
}

// group are files of one partition that become one.
type group []smallFile

func (g group) bytes() (n int64) {
	for _, f := range g {
		n += f.file.FileSizeBytes()
	}
	return n
}

// Of the records that files are read in again.
const (
	recordBytes = 2 << 20
	// unpacked is about how many times as large as in the file rows are in memory.
	unpacked      = 8
	recordRowsMax = 8192
)

// recordRows is how many rows make a record of about recordBytes.
func (g group) recordRows() int {
	var rows int64
	for _, f := range g {
		rows += f.file.Count()
	}
	each := g.bytes() * unpacked / max(rows, 1)
	return int(max(1, min(recordRowsMax, recordBytes/max(each, 1))))
}

// classOf is the class of a file by its size.
func classOf(bytes int64) int {
	return max(0, bits.Len64(uint64(bytes))-smallestClass) / classBits
}

// partitionOf names a file's partition, alike for all files of it.
func partitionOf(f iceberg.DataFile) string {
	values := f.Partition()
	out := ""
	for _, id := range slices.Sorted(maps.Keys(values)) {
		out += fmt.Sprintf("%d=%T:%v/", id, values[id], values[id])
	}
	return out
}

// untouchable says why a table's files are not put together, "" where they may.
func untouchable(t *table.Table, head *snapshotFiles) string {
	if t.Metadata().Version() > 2 {
		return "the table's format numbers its rows, which a rewrite would change"
	}
	for _, m := range head.manifests {
		if m.file.ManifestContent() != iceberg.ManifestContentData && m.file.AddedDataFiles()+m.file.ExistingDataFiles() > 0 {
			return "deletes apply to its files"
		}
	}
	return ""
}

// groups picks what one commit puts together: of each partition the files of one
// class of size, where there are enough of them, oldest first. Where whole is set
// the classes do not count.
func (s Settings) groups(t *table.Table, head *snapshotFiles, whole bool) []group {
	type bin struct {
		partition string
		class     int
	}
	current := t.Spec()
	spec := int32(current.ID())
	byBin := map[bin]group{}
	for _, m := range head.manifests {
		if m.file.PartitionSpecID() != spec {
			continue // written under another partitioning
		}
		for _, f := range m.small {
			b := bin{partition: partitionOf(f.file)}
			if !whole {
				b.class = classOf(f.file.FileSizeBytes())
			}
			byBin[b] = append(byBin[b], f)
		}
	}
	var out []group
	bytes, files := s.Limits.StepBytes, s.Limits.StepFiles
	for _, b := range slices.SortedFunc(maps.Keys(byBin), func(x, y bin) int {
		return cmp.Or(len(byBin[y])-len(byBin[x]), cmp.Compare(x.partition, y.partition), x.class-y.class)
	}) {
		all := byBin[b]
		slices.SortFunc(all, func(x, y smallFile) int {
			return cmp.Or(cmp.Compare(x.sequence, y.sequence), cmp.Compare(x.file.FilePath(), y.file.FilePath()))
		})
		for len(all) >= s.MinFiles {
			n, size := 0, int64(0)
			for n < len(all) && n < files && size+all[n].file.FileSizeBytes() <= min(bytes, s.TargetBytes) {
				size += all[n].file.FileSizeBytes()
				n++
			}
			if n < min(s.MinFiles, len(all)) {
				break // what is left of the step is too small for them
			}
			out = append(out, group(all[:n]))
			all, bytes, files = all[n:], bytes-size, files-n
		}
	}
	return out
}

// job is a rewrite whose files are written beside the batches. Until its commit
// nothing refers to them.
type job struct {
	begun time.Time
	from  int64 // the head that was read
	done  chan struct{}

	// Of the files, once done is closed.
	remove, add []iceberg.DataFile
	out         Compacted
	err         error
}

// rewrite puts groups of files of t's head together, in one commit.
func (c *Care) rewrite(ctx context.Context, t *table.Table, groups []group) (Compacted, error) {
	j := c.begin(ctx, t, groups, 0)
	<-j.done
	return c.commit(ctx, t, j)
}

// besideOne holds a rewrite beside the batches that takes much memory, some 30 MB of
// rows and pages: there is one at a time in the process, whatever its table.
var besideOne = make(chan struct{}, 1)

// besideFree is the size of a group up to which its rewrite waits for no other one.
const besideFree = 1 << 20

// turn waits until the group may be written beside the batches.
func (g group) turn(ctx context.Context) (end func(), err error) {
	if g.bytes() <= besideFree {
		return func() {}, nil
	}
	select {
	case besideOne <- struct{}{}:
		return func() { <-besideOne }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin writes the new files of groups of t's head. With a rest it does so on one
// core, and pauses rest times as long as it works.
func (c *Care) begin(ctx context.Context, t *table.Table, groups []group, rest int) *job {
	j := &job{begun: c.s.Clock.Now(), from: lake.HeadOf(t).ID, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		for _, g := range groups {
			files, rows, err := c.write(ctx, t, g, rest)
			if err != nil {
				j.err = err
				return
			}
			for _, f := range g {
				j.remove = append(j.remove, f.file)
			}
			j.add = append(j.add, files...)
			j.out.Rows += rows
			j.out.Bytes += g.bytes()
		}
		fault.Reach(c.s.Scope, fault.CareStaged)
	}()
	return j
}

// commit puts the files of a job that is done into the table, t as far as that is
// still its head.
func (c *Care) commit(ctx context.Context, t *table.Table, j *job) (Compacted, error) {
	if j.err != nil {
		return Compacted{}, j.err
	}
	out := j.out
	for {
		if lake.HeadOf(t).ID != j.from {
			if gone, err := c.changedUnder(ctx, t, j.remove); err != nil || gone {
				return Compacted{Conflicts: out.Conflicts}, err
			}
		}
		_, err := c.catalog.Rewrite(ctx, t, j.remove, j.add, map[string]string{summaryCare: "compaction"})
		if err == nil {
			fault.Reach(c.s.Scope, fault.CareCompacted)
			out.FilesRemoved, out.FilesAdded, out.Commits = len(j.remove), len(j.add), 1
			return out, nil
		}
		if !lake.IsConflict(err) {
			return Compacted{Conflicts: out.Conflicts}, err
		}
		if out.Conflicts++; out.Conflicts >= conflictsMax {
			return Compacted{Conflicts: out.Conflicts}, nil
		}
		if t, err = c.catalog.LoadTable(ctx, c.ident); err != nil {
			return Compacted{Conflicts: out.Conflicts}, err
		}
	}
}

// Settle commits the files that a step has begun to write beside the batches, once
// they are there; with wait it waits for them. It does nothing where none are.
func (c *Care) Settle(ctx context.Context, wait bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.job
	if j == nil {
		return nil
	}
	if !wait {
		select {
		case <-j.done:
		default:
			return nil
		}
	}
	<-j.done
	c.job = nil
	switch age := c.s.Clock.Now().Sub(j.begun); {
	case ctx.Err() != nil || errors.Is(j.err, context.Canceled):
		return nil
	case age > c.s.OrphanAge/2:
		return nil // somebody may take its files for orphans by now
	}
	did, err := c.settle(ctx, j)
	c.health.Compacted.add(did)
	c.show(ctx, err)
	return err
}

func (c *Care) settle(ctx context.Context, j *job) (Compacted, error) {
	if j.err != nil {
		return Compacted{}, j.err
	}
	t, err := c.catalog.LoadTable(ctx, c.ident)
	if err != nil {
		return Compacted{}, err
	}
	return c.commit(ctx, t, j)
}

// besideRest is how many times as long as it works a rewrite beside the batches
// pauses, reading and encoding on one core at a time: it is not urgent.
const besideRest = 3

// changedUnder reports whether the head has lost one of the files, or has got
// deletes: then their rows are not those that were written again.
func (c *Care) changedUnder(ctx context.Context, t *table.Table, files []iceberg.DataFile) (bool, error) {
	data, deletes, err := lake.FilesOf(ctx, t)
	if err != nil {
		return false, err
	}
	live := map[string]bool{}
	for _, f := range data {
		live[f.FilePath()] = true
	}
	for _, f := range files {
		if !live[f.FilePath()] {
			return true, nil
		}
	}
	return len(deletes) > 0, nil
}

// write reads the files of a group and writes their rows again.
func (c *Care) write(ctx context.Context, t *table.Table, g group, rest int) (_ []iceberg.DataFile, rows int64, err error) {
	if rest > 0 {
		end, err := g.turn(ctx)
		if err != nil {
			return nil, 0, err
		}
		defer end()
	}
	storage, err := lake.DataFSOf(ctx, t)
	if err != nil {
		return nil, 0, err
	}
	cores, options := 0, []table.ScanOption{table.WithSnapshotID(lake.HeadOf(t).ID), table.WithArrowBatchSize(g.recordRows())}
	if rest > 0 {
		cores, options = 1, append(options, table.WithMaxConcurrency(1))
	}
	w, err := datafile.NewWriter(datafile.Spec{
		Schema: t.Schema(), PartitionSpec: t.Spec(), FormatVersion: t.Metadata().Version(), Properties: t.Properties(),
		Location: lake.DataLocation(t), FS: storage, TargetBytes: 2 * c.s.TargetBytes, Parallel: cores, InTurn: rest > 0,
	}, "compacted-"+clock.Nonce()+"-", nil)
	if err != nil {
		return nil, 0, fmt.Errorf("write files of %s: %w", lake.Name(c.ident), err)
	}
	defer w.Abort()
	sc := t.Scan(options...)
	defer sc.Close()
	var want int64
	tasks := make([]table.FileScanTask, len(g))
	for i, f := range g {
		tasks[i] = table.FileScanTask{File: f.file, Length: f.file.FileSizeBytes()}
		want += f.file.Count()
	}
	_, records, err := sc.ReadTasks(ctx, tasks)
	if err != nil {
		return nil, 0, fmt.Errorf("read files of %s: %w", lake.Name(c.ident), err)
	}
	take := w.Write
	var order *sorter
	if len(c.s.Sort) > 0 {
		order = &sorter{by: c.s.Sort}
		defer order.release()
		take = order.take
	}
	began := c.s.Clock.Now()
	for rec, err := range records {
		if err != nil {
			return nil, 0, fmt.Errorf("read files of %s: %w", lake.Name(c.ident), err)
		}
		if err := take(rec); err != nil {
			return nil, 0, err
		}
		if rest > 0 {
			if err := c.s.Clock.Sleep(ctx, time.Duration(rest)*c.s.Clock.Now().Sub(began)); err != nil {
				return nil, 0, err
			}
			began = c.s.Clock.Now()
		}
	}
	if order != nil {
		if err := order.drain(ctx, w.Write); err != nil {
			return nil, 0, err
		}
	}
	files, err := w.Close(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("write files of %s: %w", lake.Name(c.ident), err)
	}
	out := make([]iceberg.DataFile, len(files))
	for i, f := range files {
		out[i] = f.DataFile
		rows += f.Rows
	}
	if rows != want {
		return nil, 0, failure.New(failure.Runtime, "table %s: %d rows were read to be written again, the files hold %d; nothing was committed",
			lake.Name(c.ident), rows, want).WithHint("this is a defect: leave the files as they are and report it; compaction: {enabled: false} switches it off")
	}
	return out, rows, nil
}

// Compact puts the small files of a table together until nothing is left to do,
// also while its queries run.
func Compact(ctx context.Context, catalog *lake.Catalog, ident table.Identifier, s Settings) (Compacted, error) {
	s.NoExpiry, s.NoOrphans = true, true
	if s.Limits.StepBytes <= 0 {
		s.Limits.StepBytes = max(4*s.TargetBytes, DefaultTargetBytes)
	}
	s.Limits.Reads, s.Limits.ManifestBytes = 1<<30, 1<<40
	c := New(catalog, ident, s)
	c.s.Limits.StepTime = 1 << 60
	var out Compacted
	for {
		did, err := c.compact(ctx, true)
		out.add(did)
		if err != nil {
			return out, err
		}
		if did.Commits == 0 {
			break
		}
	}
	merged, err := c.mergeManifests(ctx)
	if errors.Is(err, lake.ErrConflict) {
		err = nil
	}
	if merged > 0 {
		out.Commits++
	}
	return out, err
}
