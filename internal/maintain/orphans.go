package maintain

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"
	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/lake"
)

const (
	removesInFlight = 8
	// waitingMax bounds the files that are remembered until they may go. One that
	// is forgotten is found again when the folders are listed.
	waitingMax = 200_000
	// touchesMax bounds how often the head may move under the commit that comes
	// before a removal by hand.
	touchesMax = 50
)

// summaryCare says in a snapshot's summary which care made it.
const summaryCare = lake.SummaryPrefix + "care"

// place is where in a table's folder a file lies.
type place int

const (
	elsewhere place = iota
	inMetadata
	inData
)

// placeOf tells what a file is by where it lies and by its name; one that no
// writer of ours or of other engines would have put there is elsewhere, as is
// whatever lies outside of the table's own folder.
func placeOf(t *table.Table, location string) place {
	within := func(folder string) bool {
		own := strings.TrimSuffix(t.Location(), "/") + "/"
		folder = strings.TrimSuffix(folder, "/") + "/"
		return strings.HasPrefix(folder, own) && strings.HasPrefix(location, folder) && !strings.Contains(location, "/../")
	}
	has := func(suffixes ...string) bool {
		return lake.IsTemporary(location) || slices.Contains(suffixes, path.Ext(location))
	}
	switch {
	case within(lake.MetadataFolder(t)) && (has(".avro", ".puffin", ".stats") || strings.HasSuffix(location, ".metadata.json")):
		return inMetadata
	case within(lake.DataLocation(t)) && has(".parquet", ".avro", ".orc", ".puffin", ".arrow"):
		return inData
	}
	return elsewhere
}

// waiting is a file that nothing reaches, until it may go.
type waiting struct {
	since time.Time
	head  int64 // the head's sequence number then
}

// wait remembers files that fell out of reach.
func (c *Care) wait(t *table.Table, files []string) {
	now, head := c.s.Clock.Now(), lake.HeadOf(t).Sequence
	for _, f := range files {
		if _, known := c.waiting[f]; known || len(c.waiting) >= waitingMax || placeOf(t, f) == elsewhere {
			continue
		}
		c.waiting[f] = waiting{since: now, head: head}
	}
}

// orphans removes what may go, as far as the pace allows.
func (c *Care) orphans(ctx context.Context, t *table.Table, p *pace) (removed int, err error) {
	now := c.s.Clock.Now()
	if !now.Before(c.listAgain) {
		if err := c.list(ctx, t); err != nil {
			return 0, err
		}
		c.listAgain = now.Add(c.s.ListEvery)
	}
	head := lake.HeadOf(t).Sequence
	var due []string
	for f, w := range c.waiting {
		if now.Sub(w.since) >= c.s.Grace && w.head < head {
			due = append(due, f)
		}
	}
	if len(due) == 0 {
		return 0, nil
	}
	// The oldest first: what is reached again waits anew, behind the others.
	slices.SortFunc(due, func(a, b string) int { return c.waiting[a].since.Compare(c.waiting[b].since) })
	due = due[:min(len(due), c.s.Limits.Removes)]
	free, err := c.free(ctx, t, due)
	if err != nil {
		return 0, err
	}
	isFree := map[string]bool{}
	for _, f := range free {
		isFree[f] = true
	}
	for _, f := range due {
		if !isFree[f] {
			c.waiting[f] = waiting{since: now, head: head} // a snapshot has it still
		}
	}
	for len(free) > 0 && !p.over() {
		n := min(removesInFlight, len(free))
		if err := remove(ctx, t, free[:n], c.s.Scope); err != nil {
			return removed, err
		}
		for _, f := range free[:n] {
			delete(c.waiting, f)
		}
		removed += n
		free = free[n:]
	}
	return removed, nil
}

// free are those of the files that nothing reaches and no batch has staged.
func (c *Care) free(ctx context.Context, t *table.Table, files []string) ([]string, error) {
	staged, err := c.s.staged(ctx)
	if err != nil {
		return nil, err
	}
	return c.reach.unreached(files, append(staged, t.MetadataLocation()), t.Metadata()), nil
}

func (s Settings) staged(ctx context.Context) ([]string, error) {
	if s.Staged == nil {
		return nil, nil
	}
	staged, err := s.Staged(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out what is staged: %w", err)
	}
	return staged, nil
}

// list looks for files that nobody remembers.
func (c *Care) list(ctx context.Context, t *table.Table) error {
	now := c.s.Clock.Now()
	var found []string
	err := walk(ctx, t, func(p place, f lake.StoredFile) {
		age := c.s.Grace
		if p == inData {
			age = c.s.OrphanAge
		}
		if now.Sub(f.Modified) >= age && len(found) < waitingMax {
			found = append(found, f.Path)
		}
	})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	c.wait(t, c.reach.unreached(found, []string{t.MetadataLocation()}, t.Metadata()))
	return nil
}

// walk visits the files of the table's own folders.
func walk(ctx context.Context, t *table.Table, visit func(place, lake.StoredFile)) error {
	for _, folder := range []string{lake.MetadataFolder(t), lake.DataLocation(t)} {
		err := lake.Files(ctx, t, folder, func(f lake.StoredFile) error {
			if p := placeOf(t, f.Path); p != elsewhere {
				visit(p, f)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a few files, several at once.
func remove(ctx context.Context, t *table.Table, files []string, scope string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(removesInFlight)
	for _, f := range files {
		g.Go(func() error {
			err := lake.RemoveFile(gctx, t, f)
			if err == nil {
				fault.Reach(scope, fault.CareRemoved)
			}
			return err
		})
	}
	return g.Wait()
}

// OrphanOptions are those of a removal by hand.
type OrphanOptions struct {
	// OlderThan is how old a file must be; 0 means DefaultOrphanAge. Data files
	// that no snapshot ever had are left where they are younger than that, whatever
	// it says, unless Force is set: a batch may be about to commit them.
	OlderThan time.Duration
	Force     bool
	DryRun    bool
}

// OrphanReport is what a removal by hand has found.
type OrphanReport struct {
	Table  string `json:"table"`
	DryRun bool   `json:"dry_run"`
	// Files are those that were removed, or would be.
	Files []OrphanFile `json:"files"`
	Bytes int64        `json:"bytes"`
	// TooYoung are unreachable too, and stay.
	TooYoung int `json:"too_young"`
	// Staged are kept because a checkpoint names them.
	Staged int `json:"staged"`
}

// OrphanFile is a file that nothing refers to.
type OrphanFile struct {
	Path     string    `json:"path"`
	Bytes    int64     `json:"bytes"`
	Modified time.Time `json:"modified"`
}

// Orphans lists and removes the files of a table that neither its metadata nor
// the metadata documents before it lead to. Writers may go on meanwhile.
func Orphans(ctx context.Context, c *lake.Catalog, ident table.Identifier, o OrphanOptions, s Settings) (OrphanReport, error) {
	s = s.withDefaults()
	out := OrphanReport{Table: lake.Name(ident), DryRun: o.DryRun, Files: []OrphanFile{}}
	if o.OlderThan <= 0 {
		o.OlderThan = s.OrphanAge
	}
	if o.OlderThan < DefaultGrace && !o.Force {
		return out, failure.New(failure.Config, "files younger than %s may be in use by readers and writers", DefaultGrace).
			WithHint("ask for a longer age, or use --force while nothing uses the table")
	}
	r := newReach()
	t, known, err := lookAt(ctx, c, ident, r)
	if err != nil {
		return out, err
	}
	found, young, err := old(ctx, t, o, s, known)
	if err != nil {
		return out, err
	}
	free, err := reallyFree(ctx, c, t, r, s, names(found), &out)
	if err != nil {
		return out, err
	}
	tooYoung, err := reallyFree(ctx, c, t, r, s, young, nil)
	if err != nil {
		return out, err
	}
	out.TooYoung = len(tooYoung)
	if !o.DryRun && len(free) > 0 {
		// Whoever is about to commit has looked at an older head, and fails; what is
		// reachable is found out again after that.
		if err := touch(ctx, c, ident, s); err != nil {
			return out, err
		}
		if t, _, err = lookAt(ctx, c, ident, r); err != nil {
			return out, err
		}
		if free, err = reallyFree(ctx, c, t, r, s, free, nil); err != nil {
			return out, err
		}
		if err := remove(ctx, t, free, s.Scope); err != nil {
			return out, failure.Wrap(failure.Unreachable, err, "table %s: some files may be removed already; start again", out.Table)
		}
	}
	isFree := map[string]bool{}
	for _, f := range free {
		isFree[f] = true
	}
	for _, f := range found {
		if isFree[f.Path] {
			out.Files = append(out.Files, f)
			out.Bytes += f.Bytes
		}
	}
	slices.SortFunc(out.Files, func(a, b OrphanFile) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// lookAt loads the table and follows everything, also from the documents before
// the current one. known are data files that once were in the table.
func lookAt(ctx context.Context, c *lake.Catalog, ident table.Identifier, r *reach) (_ *table.Table, known map[string]bool, err error) {
	t, err := c.LoadTable(ctx, ident)
	if err != nil {
		return nil, nil, err
	}
	docs, _, err := retained(ctx, c, t)
	if err != nil {
		return nil, nil, err
	}
	storage, err := t.FS(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", lake.Name(ident), err)
	}
	all := &pace{left: 1 << 30, over: func() bool { return false }}
	out, _, err := r.follow(ctx, storage, all, docs...)
	if err != nil {
		return nil, nil, err
	}
	known = map[string]bool{}
	for _, f := range out.data {
		known[f] = true
	}
	return t, known, nil
}

// old lists the files that are old enough, and those that are not.
func old(ctx context.Context, t *table.Table, o OrphanOptions, s Settings, known map[string]bool) (found []OrphanFile, young []string, err error) {
	now := s.Clock.Now()
	err = walk(ctx, t, func(p place, f lake.StoredFile) {
		age := o.OlderThan
		if p == inData && !known[f.Path] && !o.Force {
			age = max(age, DefaultOrphanAge)
		}
		if now.Sub(f.Modified) < age {
			young = append(young, f.Path)
			return
		}
		found = append(found, OrphanFile{Path: f.Path, Bytes: f.Bytes, Modified: f.Modified.UTC()})
	})
	return found, young, err
}

func names(files []OrphanFile) []string {
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = f.Path
	}
	return out
}

// reallyFree are the files that nothing reaches and no checkpoint has staged.
func reallyFree(ctx context.Context, c *lake.Catalog, t *table.Table, r *reach, s Settings, files []string, report *OrphanReport) ([]string, error) {
	docs, locations, err := retained(ctx, c, t)
	if err != nil {
		return nil, err
	}
	free := r.unreached(files, locations, docs...)
	staged, err := s.staged(ctx)
	if err != nil {
		return nil, err
	}
	out := newReach().unreached(free, staged)
	if report != nil {
		report.Staged = len(free) - len(out)
	}
	return out, nil
}

// touch moves the head.
func touch(ctx context.Context, c *lake.Catalog, ident table.Identifier, s Settings) error {
	var last error
	for n := range touchesMax {
		if err := s.Clock.Sleep(ctx, min(time.Duration(n)*5*time.Millisecond, time.Second)); err != nil {
			return err
		}
		t, err := c.LoadTable(ctx, ident)
		if err != nil {
			return err
		}
		if lake.HeadOf(t).ID == 0 {
			return nil // nobody has committed anything yet
		}
		if _, last = c.Touch(ctx, t, map[string]string{summaryCare: "orphans"}); last == nil {
			return nil
		}
	}
	return failure.Wrap(failure.Runtime, last, "table %s: the head moved %d times under the removal", lake.Name(ident), touchesMax)
}
