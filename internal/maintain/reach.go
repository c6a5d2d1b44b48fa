package maintain

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/apache/iceberg-go"
	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/lake"
)

const (
	readsInFlight = 8
	// smallMax bounds the small files that are remembered with their statistics.
	smallMax = 20_000
)

// key stands for a location: a million of them are 16 MB.
type key [16]byte

func keyOf(location string) key {
	sum := sha256.Sum256([]byte(location))
	return key(sum[:16])
}

// reach is what the snapshots of a table lead to. Manifests and manifest lists
// never change, so each is read once, however many snapshots share it.
type reach struct {
	snapshots map[int64]*snapshotFiles
	manifests map[string]*manifest
}

type snapshotFiles struct {
	list      string
	manifests []*manifest
}

type manifest struct {
	file  iceberg.ManifestFile
	read  bool
	files []key
	// removed are the files that the manifest records as taken out of the table:
	// they were in it, so they are no attempt's orphans.
	removed []string
	small   []smallFile
}

// smallFile is a data file that may be put together with others.
type smallFile struct {
	file     iceberg.DataFile
	sequence int64
}

func newReach() *reach {
	return &reach{snapshots: map[int64]*snapshotFiles{}, manifests: map[string]*manifest{}}
}

// pace says when to leave the rest to another time.
type pace struct {
	left  int
	over  func() bool
	small int64 // files below this size are remembered
}

// gone is what fell out of reach: metadata files, and data files that a commit
// took out (those may be reached by older snapshots still).
type gone struct {
	metadata []string
	data     []string
}

// follow reads what the metadata documents lead to and is not known yet, and
// forgets what they do not lead to any more. It reports whether all is known.
// What only a document after the first leads to may be gone already.
func (r *reach) follow(ctx context.Context, storage icebergio.IO, p *pace, docs ...table.Metadata) (out gone, complete bool, err error) {
	var missing []table.Snapshot
	current, whole := map[int64]bool{}, map[int64]bool{}
	for i, d := range docs {
		for _, s := range d.Snapshots() {
			whole[s.SnapshotID] = whole[s.SnapshotID] || i == 0
			if current[s.SnapshotID] || s.ManifestList == "" {
				continue
			}
			current[s.SnapshotID] = true
			if r.snapshots[s.SnapshotID] == nil {
				missing = append(missing, s)
			}
		}
	}
	if complete, err = r.readLists(ctx, storage, p, missing, whole); err != nil {
		return out, false, err
	}
	if complete {
		if complete, err = r.readManifests(ctx, storage, p, current, whole); err != nil {
			return out, false, err
		}
	}
	// Forgotten only after everything else is read: what a new snapshot shares
	// with an old one is then known to be shared.
	if complete {
		out = r.forget(current)
	}
	return out, complete, nil
}

// readLists reads the manifest lists of snapshots, as far as the pace allows.
func (r *reach) readLists(ctx context.Context, storage icebergio.IO, p *pace, missing []table.Snapshot, whole map[int64]bool) (complete bool, err error) {
	for len(missing) > 0 {
		if p.left <= 0 || p.over() {
			return false, nil
		}
		n := min(readsInFlight, len(missing), p.left)
		lists := make([][]iceberg.ManifestFile, n)
		g, gctx := errgroup.WithContext(ctx)
		for i, s := range missing[:n] {
			g.Go(func() (err error) {
				if err := gctx.Err(); err != nil {
					return err
				}
				lists[i], err = s.Manifests(storage)
				if errors.Is(err, fs.ErrNotExist) && !whole[s.SnapshotID] {
					return nil
				}
				if err != nil {
					return fmt.Errorf("read the manifest list of snapshot %d: %w", s.SnapshotID, err)
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return false, err
		}
		for i, s := range missing[:n] {
			f := &snapshotFiles{list: s.ManifestList}
			for _, m := range lists[i] {
				known := r.manifests[m.FilePath()]
				if known == nil {
					known = &manifest{file: m}
					r.manifests[m.FilePath()] = known
				}
				f.manifests = append(f.manifests, known)
			}
			r.snapshots[s.SnapshotID] = f
		}
		missing, p.left = missing[n:], p.left-n
	}
	return true, nil
}

// readManifests reads the manifests of the given snapshots that are not read.
func (r *reach) readManifests(ctx context.Context, storage icebergio.IO, p *pace, current, whole map[int64]bool) (complete bool, err error) {
	var missing []*manifest
	queued, needed := map[*manifest]bool{}, map[*manifest]bool{}
	kept := 0
	for id, s := range r.snapshots {
		for _, m := range s.manifests {
			needed[m] = needed[m] || whole[id]
			if current[id] && !m.read && !queued[m] {
				queued[m] = true
				missing = append(missing, m)
			}
		}
	}
	for _, m := range r.manifests {
		kept += len(m.small)
	}
	for len(missing) > 0 {
		if p.left <= 0 || p.over() {
			return false, nil
		}
		n := min(readsInFlight, len(missing), p.left)
		g, gctx := errgroup.WithContext(ctx)
		room := max(0, (smallMax-kept)/n)
		for _, m := range missing[:n] {
			g.Go(func() error {
				if err := gctx.Err(); err != nil {
					return err
				}
				err := m.load(storage, p.small, room)
				if errors.Is(err, fs.ErrNotExist) && !needed[m] {
					m.read = true
					return nil
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return false, err
		}
		for _, m := range missing[:n] {
			kept += len(m.small)
		}
		missing, p.left = missing[n:], p.left-n
	}
	return true, nil
}

func (m *manifest) load(storage icebergio.IO, smallBytes int64, room int) error {
	var files []key
	var removed []string
	var small []smallFile
	for e, err := range m.file.Entries(storage, false) {
		if err != nil {
			return fmt.Errorf("read manifest %s: %w", m.file.FilePath(), err)
		}
		f := e.DataFile()
		if e.Status() == iceberg.EntryStatusDELETED {
			removed = append(removed, f.FilePath())
			continue
		}
		for _, form := range lake.SameFile(f.FilePath()) {
			files = append(files, keyOf(form))
		}
		if f.ContentType() == iceberg.EntryContentData && f.FileSizeBytes() < smallBytes && len(small) < room {
			small = append(small, smallFile{f, e.SequenceNum()})
		}
	}
	m.files, m.removed, m.small, m.read = files, removed, small, true
	return nil
}

// forget drops the snapshots that are not current and what only they reached.
func (r *reach) forget(current map[int64]bool) (out gone) {
	used := map[*manifest]bool{}
	for id, s := range r.snapshots {
		if !current[id] {
			out.metadata = append(out.metadata, s.list)
			delete(r.snapshots, id)
			continue
		}
		for _, m := range s.manifests {
			used[m] = true
		}
	}
	for path, m := range r.manifests {
		if !used[m] {
			out.metadata = append(out.metadata, path)
			delete(r.manifests, path)
			continue
		}
		out.data = append(out.data, m.removed...)
		m.removed = nil // handed on once
	}
	return out
}

// unreached are the candidates that nothing reaches. It is right only after a
// follow that was complete.
func (r *reach) unreached(candidates, locations []string, docs ...table.Metadata) []string {
	at := map[key][]int{}
	for i, c := range candidates {
		for _, form := range lake.SameFile(c) {
			k := keyOf(form)
			at[k] = append(at[k], i)
		}
	}
	reached := make([]bool, len(candidates))
	mark := func(k key) {
		for _, i := range at[k] {
			reached[i] = true
		}
	}
	add := func(location string) {
		for _, form := range lake.SameFile(location) {
			mark(keyOf(form))
		}
	}
	for _, l := range locations {
		add(l)
	}
	for _, d := range docs {
		for e := range d.PreviousFiles() {
			add(e.MetadataFile)
		}
		for s := range d.Statistics() {
			add(s.StatisticsPath)
		}
		for s := range d.PartitionStatistics() {
			add(s.StatisticsPath)
		}
	}
	for _, s := range r.snapshots {
		add(s.list)
	}
	for path, m := range r.manifests {
		add(path)
		for _, k := range m.files {
			mark(k)
		}
	}
	var out []string
	for i, c := range candidates {
		if !reached[i] {
			out = append(out, c)
		}
	}
	return out
}

// retained are the metadata documents that the current one still names as its
// predecessors: a reader may just have loaded one of them.
func retained(ctx context.Context, c *lake.Catalog, t *table.Table) ([]table.Metadata, []string, error) {
	docs, locations := []table.Metadata{t.Metadata()}, []string{t.MetadataLocation()}
	for e := range t.Metadata().PreviousFiles() {
		locations = append(locations, e.MetadataFile)
		old, err := table.NewFromLocation(ctx, t.Identifier(), e.MetadataFile, t.FS, c)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", e.MetadataFile, err)
		}
		docs = append(docs, old.Metadata())
	}
	return docs, locations, nil
}

// deadline makes a pace that is over after d.
func (s Settings) pace(d time.Duration) *pace {
	end := s.Clock.Now().Add(d)
	return &pace{left: s.Limits.Reads, small: s.TargetBytes / 2, over: func() bool { return s.Clock.Now().After(end) }}
}
