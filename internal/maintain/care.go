package maintain

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
)

// Care looks after one table. It remembers what it has read of the table, so
// one belongs to a table for as long as the process runs.
type Care struct {
	catalog *lake.Catalog
	ident   table.Identifier
	s       Settings

	mu        sync.Mutex
	reach     *reach
	waiting   map[string]waiting
	listAgain time.Time
	health    Health
	// first is the part that the next step begins with: the one that the last had
	// no time left for. On a slow machine the first part would else use up the time
	// of all others, step after step.
	first int
	// job is the rewrite that is written beside the batches, nil where none is.
	job *job

	// seen is the health as of the last step: who asks for it never waits for a
	// step that is under way.
	seen atomic.Pointer[Health]
}

// Health is how a table stands, as of the last step. Counts of what was done are
// since the process began.
type Health struct {
	At         time.Time `json:"at"`
	Steps      int       `json:"steps"`
	Snapshots  int       `json:"snapshots"`
	Manifests  int       `json:"manifests"`
	DataFiles  int64     `json:"data_files"`
	SmallFiles int       `json:"small_files"`
	// SmallFilesMax is the most small files of one partition.
	SmallFilesMax int       `json:"small_files_per_partition_max"`
	WaitingFiles  int       `json:"waiting_files"`
	Compacted     Compacted `json:"compacted"`
	Expired       int       `json:"expired_snapshots"`
	Merged        int       `json:"merged_manifests"`
	Removed       int       `json:"removed_files"`
	ManifestBytes int64     `json:"manifest_bytes"`
	// Failures counts steps that ended with an error; Error is the last step's.
	Failures int    `json:"failures"`
	Error    string `json:"error,omitempty"`
}

// New makes the care of a table. Nothing is read before Step.
func New(catalog *lake.Catalog, ident table.Identifier, s Settings) *Care {
	return &Care{catalog: catalog, ident: ident, s: s.withDefaults(), reach: newReach(), waiting: map[string]waiting{}}
}

// Health is that of the last step; the zero value before the first.
func (c *Care) Health() Health {
	if h := c.seen.Load(); h != nil {
		return *h
	}
	return Health{}
}

// Step does what is due, within its limits. A race that it loses is no error.
func (c *Care) Step(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.step(ctx)
	c.health.Steps++
	c.health.At, c.health.Error = c.s.Clock.Now(), ""
	c.show(ctx, err)
	return err
}

// show makes the health, and a failure, visible to who asks for it.
func (c *Care) show(ctx context.Context, err error) {
	if err != nil && !errors.Is(err, lake.ErrNoTable) && ctx.Err() == nil {
		c.health.Failures++
		c.health.Error = err.Error()
	}
	now := c.health
	c.seen.Store(&now)
}

func (c *Care) step(ctx context.Context) error {
	p := c.s.pace(c.s.Limits.StepTime)
	parts := []func(context.Context, *pace) error{c.expire, c.compactStep, c.manifestStep, c.orphanStep}
	first := c.first
	c.first = 0
	for i := range parts {
		n := (first + i) % len(parts)
		if p.over() {
			c.first = n
			break
		}
		if err := parts[n](ctx, p); err != nil && !errors.Is(err, lake.ErrConflict) {
			return err
		}
	}
	return nil
}

// load gives the table as it is now.
func (c *Care) load(ctx context.Context) (*table.Table, error) {
	t, err := c.catalog.LoadTable(ctx, c.ident)
	if err == nil {
		c.health.Snapshots = len(t.Metadata().Snapshots())
	}
	return t, err
}

func (c *Care) expire(ctx context.Context, _ *pace) error {
	if c.s.NoExpiry {
		return nil
	}
	t, err := c.load(ctx)
	if err != nil {
		return err
	}
	r, err := c.s.retention(ctx)
	if err != nil || !r.Due(t) {
		return err
	}
	done, err := c.catalog.Expire(ctx, t, r)
	if err != nil {
		return err
	}
	c.health.Expired += len(done.Snapshots)
	fault.Reach(c.s.Scope, fault.CareExpired)
	return nil
}

// retention is what stays now, with what readers need.
func (s Settings) retention(ctx context.Context) (lake.Retention, error) {
	r := s.Retention
	if s.OldestReader == nil {
		return r, nil
	}
	oldest, err := s.OldestReader(ctx)
	if err != nil {
		return r, err
	}
	if oldest > 0 && (r.OldestReader == 0 || oldest < r.OldestReader) {
		r.OldestReader = oldest
	}
	return r, nil
}

// Expire takes the snapshots that need not stay out of the table's metadata,
// also where there are too few for the care between batches to bother.
func Expire(ctx context.Context, catalog *lake.Catalog, ident table.Identifier, s Settings) (expired, left int, err error) {
	s = s.withDefaults()
	r, err := s.retention(ctx)
	if err != nil {
		return 0, 0, err
	}
	for n := 0; ; n++ {
		t, err := catalog.LoadTable(ctx, ident)
		if err != nil {
			return 0, 0, err
		}
		done, err := catalog.Expire(ctx, t, r)
		if err == nil {
			fault.Reach(s.Scope, fault.CareExpired)
			return len(done.Snapshots), len(t.Metadata().Snapshots()) - len(done.Snapshots), nil
		}
		if !lake.IsConflict(err) || n >= touchesMax {
			return 0, 0, err
		}
		if err := s.Clock.Sleep(ctx, min(time.Duration(n)*5*time.Millisecond, time.Second)); err != nil {
			return 0, 0, err
		}
	}
}

// follow brings what is known of the table up to its head.
func (c *Care) follow(ctx context.Context, p *pace) (_ *table.Table, complete bool, err error) {
	t, err := c.load(ctx)
	if err != nil {
		return nil, false, err
	}
	storage, err := t.FS(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("storage of %s: %w", lake.Name(c.ident), err)
	}
	gone, complete, err := c.reach.follow(ctx, storage, p, t.Metadata())
	if err != nil || !complete {
		return t, complete, err
	}
	if !c.s.NoOrphans {
		c.wait(t, gone.metadata)
		c.wait(t, gone.data)
	}
	c.health.WaitingFiles = len(c.waiting)
	return t, true, nil
}

// head is what the table's head reaches, nil where that is not known yet.
func (c *Care) head(t *table.Table) *snapshotFiles {
	s := t.CurrentSnapshot()
	if s == nil {
		return nil
	}
	h := c.reach.snapshots[s.SnapshotID]
	if h == nil {
		return nil
	}
	c.health.Manifests, c.health.SmallFiles, c.health.SmallFilesMax, c.health.DataFiles, c.health.ManifestBytes = len(h.manifests), 0, 0, 0, 0
	perPartition := map[string]int{}
	for _, m := range h.manifests {
		for _, f := range m.small {
			at := partitionOf(f.file)
			perPartition[at]++
			c.health.SmallFilesMax = max(c.health.SmallFilesMax, perPartition[at])
		}
		c.health.SmallFiles += len(m.small)
		c.health.DataFiles += int64(m.file.AddedDataFiles()) + int64(m.file.ExistingDataFiles())
		c.health.ManifestBytes += m.file.Length()
	}
	return h
}

func (c *Care) compactStep(ctx context.Context, p *pace) error {
	if c.s.NoCompaction || c.job != nil {
		return nil
	}
	did, err := c.compactAt(ctx, p, false)
	c.health.Compacted.add(did)
	c.health.Compacted.Skipped = did.Skipped
	return err
}

// compact is one round by hand.
func (c *Care) compact(ctx context.Context, whole bool) (Compacted, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.compactAt(ctx, c.s.pace(c.s.Limits.StepTime), whole)
}

func (c *Care) compactAt(ctx context.Context, p *pace, whole bool) (Compacted, error) {
	t, complete, err := c.follow(ctx, p)
	if err != nil || !complete {
		return Compacted{}, err
	}
	h := c.head(t)
	if h == nil {
		return Compacted{}, nil
	}
	if why := untouchable(t, h); why != "" {
		return Compacted{Skipped: why}, nil
	}
	if c.health.ManifestBytes > c.s.Limits.ManifestBytes {
		return Compacted{Skipped: "its manifests are too large for the time between two batches; weir compact does it"}, nil
	}
	groups := c.s.groups(t, h, whole)
	if len(groups) == 0 {
		return Compacted{}, nil
	}
	if c.s.Beside && !whole {
		c.job = c.begin(ctx, t, groups, besideRest)
		return Compacted{}, nil
	}
	return c.rewrite(ctx, t, groups)
}

func (c *Care) manifestStep(ctx context.Context, _ *pace) error {
	if c.s.NoManifests {
		return nil
	}
	n, err := c.mergeManifests(ctx)
	c.health.Merged += n
	return err
}

// mergeManifests merges the manifests of the smallest class of size in which
// there are many.
func (c *Care) mergeManifests(ctx context.Context) (int, error) {
	t, err := c.load(ctx)
	if err != nil || t.CurrentSnapshot() == nil {
		return 0, err
	}
	storage, err := t.FS(ctx)
	if err != nil {
		return 0, fmt.Errorf("storage of %s: %w", lake.Name(c.ident), err)
	}
	list, err := t.CurrentSnapshot().Manifests(storage)
	if err != nil {
		return 0, fmt.Errorf("read the manifest list of %s: %w", lake.Name(c.ident), err)
	}
	type bin struct {
		spec  int32
		class int
	}
	// Classes as of data files; a manifest of one file has some 4 to 8 KiB.
	binOf := func(m iceberg.ManifestFile) (bin, bool) {
		b := bin{m.PartitionSpecID(), classOf(m.Length())}
		return b, m.ManifestContent() == iceberg.ManifestContentData && m.Length() < manifestBytesMax
	}
	count := map[bin]int{}
	for _, m := range list {
		if b, ok := binOf(m); ok {
			count[b]++
		}
	}
	best := bin{class: -1}
	for b, n := range count {
		if n >= smallManifests && (best.class < 0 || b.class < best.class || b.class == best.class && b.spec < best.spec) {
			best = b
		}
	}
	if best.class < 0 {
		return 0, nil
	}
	_, merged, err := c.catalog.RewriteManifests(ctx, t, func(m iceberg.ManifestFile) bool {
		b, ok := binOf(m)
		return ok && b == best
	})
	if err == nil && merged > 0 {
		fault.Reach(c.s.Scope, fault.CareManifests)
	}
	return merged, err
}

// manifestBytesMax is from when on a manifest is not merged any more.
const manifestBytesMax = 4 << 20

func (c *Care) orphanStep(ctx context.Context, p *pace) error {
	if c.s.NoOrphans {
		return nil
	}
	t, complete, err := c.follow(ctx, p)
	if err != nil || !complete {
		return err
	}
	c.head(t)
	n, err := c.orphans(ctx, t, p)
	c.health.Removed += n
	c.health.WaitingFiles = len(c.waiting)
	return err
}
