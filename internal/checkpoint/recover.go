package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/objstore"
)

// Gather reads the folder into facts. What is unreadable, missing within a log
// or contradictory is reported in Facts.Corrupt, for Decide to stop at; an
// error means that the store could not be read. What a start will build on is
// made durable first: a killed process may have left it visible only.
//
// The rules for the two logs:
//
//   - each log is without gaps, except below an adopted entry and at its lower
//     end, where Purge removed entries;
//   - each commits/N has its offsets/N;
//   - at most one plan is newer than the newest commit (the batch that was
//     under way, or whose commits/N was removed), unless the newest is adopted;
//   - all belong to the query id of metadata, or of one another without it.
//
// The two logs cannot be listed in one step. Where another instance writes to
// them meanwhile, they seem to contradict each other: only what is found a
// second time, with nothing new beside it, is a contradiction.
func (l *Log) Gather(ctx context.Context) (Facts, error) {
	var before *gathering
	for try := 1; ; try++ {
		g, err := l.gatherOnce(ctx)
		if err != nil {
			return Facts{}, err
		}
		if g.f.Corrupt == "" || try == gatherTries || g.same(before) {
			if g.f.Metadata != nil {
				l.adopted(g.f.Metadata.QueryID)
			}
			return g.f, nil
		}
		before = g
	}
}

// gatherTries bounds how often contradicting logs are read again.
const gatherTries = 5

// same reports that another reading found the same logs and said the same.
func (g *gathering) same(o *gathering) bool {
	return o != nil && g.f.Corrupt == o.f.Corrupt && slices.Equal(g.offsets, o.offsets) && slices.Equal(g.commits, o.commits)
}

func (l *Log) gatherOnce(ctx context.Context) (*gathering, error) {
	g := &gathering{log: l}
	g.metadata(ctx)
	g.logs(ctx)
	g.newestPlan(ctx)
	g.newestCommit(ctx)
	g.staged(ctx)
	g.remains(ctx)
	if g.err != nil {
		return nil, fmt.Errorf("read checkpoint of query %s: %w", l.queryName, g.err)
	}
	g.checkLineage()
	if g.f.Leftovers {
		g.f.Plan, g.f.Commit, g.f.PlanHash, g.f.Staged = nil, nil, "", nil
	} else {
		g.checkGaps(ctx, "offsets", g.offsets)
		g.checkGaps(ctx, "commits", g.commits)
		g.checkPairs(ctx)
	}
	if g.err != nil {
		return nil, fmt.Errorf("read checkpoint of query %s: %w", l.queryName, g.err)
	}
	return g, nil
}

// gathering collects facts; the first error of the store ends it.
type gathering struct {
	log              *Log
	f                Facts
	offsets, commits []int64
	err              error
}

// corrupt keeps the first contradiction.
func (g *gathering) corrupt(format string, args ...any) {
	if g.f.Corrupt == "" {
		g.f.Corrupt = fmt.Sprintf(format, args...)
	}
}

// sort puts an error where it belongs: nothing there (true), unreadable
// contents (corrupt), or the store itself.
func (g *gathering) sort(err error) (missing bool) {
	switch {
	case err == nil:
	case errors.Is(err, objstore.ErrNotExist):
		return true
	case failure.Is(err, failure.Checkpoint):
		var e *failure.Error
		errors.As(err, &e)
		g.corrupt("%s", (&failure.Error{Message: e.Message, Cause: e.Cause}).Error())
	case g.err == nil:
		g.err = err
	}
	return false
}

func (g *gathering) metadata(ctx context.Context) {
	m, err := g.log.Metadata(ctx)
	g.sort(err)
	if m == nil {
		return
	}
	g.f.Metadata, g.f.Exists = m, true
	switch {
	case m.QueryID == "":
		g.corrupt("metadata has no query id")
	case m.QueryName != g.log.queryName:
		g.corrupt("the folder belongs to query %q, not to %q: a renamed query does not inherit a checkpoint", m.QueryName, g.log.queryName)
	}
}

func (g *gathering) logs(ctx context.Context) {
	if g.err != nil {
		return
	}
	if g.offsets, g.err = g.log.ids(ctx, offsetsPrefix); g.err != nil {
		return
	}
	if g.commits, g.err = g.log.ids(ctx, commitsPrefix); g.err != nil {
		return
	}
	g.f.Exists = g.f.Exists || len(g.offsets)+len(g.commits) > 0
}

func (g *gathering) newestPlan(ctx context.Context) {
	if g.err != nil || len(g.offsets) == 0 {
		return
	}
	n := g.offsets[len(g.offsets)-1]
	if g.sort(objstore.Settle(ctx, g.log.store, OffsetsKey(n))) {
		return
	}
	p, err := g.log.ReadPlan(ctx, n)
	g.sort(err)
	if p != nil {
		g.f.Plan, g.f.PlanHash = p, PlanHash(*p)
	}
}

func (g *gathering) newestCommit(ctx context.Context) {
	if g.err != nil || len(g.commits) == 0 {
		return
	}
	n := g.commits[len(g.commits)-1]
	if g.sort(objstore.Settle(ctx, g.log.store, CommitsKey(n))) {
		return
	}
	e, err := g.log.ReadCommit(ctx, n)
	g.sort(err)
	g.f.Commit = e
}

// staged takes the newest manifest. An unreadable one is no corruption of the
// checkpoint: it counts as absent, and Decide stops only if it is needed.
func (g *gathering) staged(ctx context.Context) {
	if g.err != nil {
		return
	}
	ids, err := g.log.ids(ctx, stagedPrefix)
	if err != nil {
		g.err = err
		return
	}
	if len(ids) == 0 {
		return
	}
	g.f.Exists = true
	m, err := g.log.ReadStaged(ctx, ids[len(ids)-1])
	if err != nil && !failure.Is(err, failure.Checkpoint) {
		g.sort(err)
		return
	}
	g.f.Staged = m
}

// remains looks for anything else of ours, where nothing was found so far.
func (g *gathering) remains(ctx context.Context) {
	for _, prefix := range []string{statePrefix, supersededPrefix} {
		if g.err != nil || g.f.Exists {
			return
		}
		var infos []objstore.Info
		infos, g.err = g.log.store.List(ctx, prefix)
		g.f.Exists = len(infos) > 0
	}
}

// checkLineage compares query ids. Where all that is there belongs to the
// predecessor that metadata names, a restart was interrupted.
func (g *gathering) checkLineage() {
	ids := map[string]string{}
	if g.f.Plan != nil {
		ids[g.f.Plan.QueryID] = OffsetsKey(g.f.Plan.BatchID)
	}
	if g.f.Commit != nil {
		ids[g.f.Commit.QueryID] = CommitsKey(g.f.Commit.BatchID)
	}
	m := g.f.Metadata
	if m != nil && m.Predecessor != "" && len(ids) == 1 && ids[m.Predecessor] != "" {
		g.f.Leftovers = true
		return
	}
	if m != nil {
		ids[m.QueryID] = metadataKey
	}
	if len(ids) > 1 {
		var said []string
		for id, key := range ids {
			said = append(said, fmt.Sprintf("%s says %s", key, id))
		}
		slices.Sort(said)
		g.corrupt("files of several query ids: %s", said)
	}
	if g.f.Staged != nil && len(ids) == 1 && ids[g.f.Staged.QueryID] == "" {
		g.f.Staged = nil // another lineage's: of no use
	}
}

// checkGaps refuses a log with a hole, unless the entry above it is adopted.
func (g *gathering) checkGaps(ctx context.Context, log string, ids []int64) {
	for i := 1; i < len(ids) && g.err == nil && g.f.Corrupt == ""; i++ {
		if ids[i] == ids[i-1]+1 {
			continue
		}
		// The plan's flag counts for both logs: an adoption that was killed
		// half-way is finished as a commit of the adopted plan.
		p, err := g.log.ReadPlan(ctx, ids[i])
		g.sort(err)
		if p == nil || !p.Adopted {
			g.corrupt("a gap: %s/%d and %s/%d are there, nothing in between", log, ids[i-1], log, ids[i])
		}
	}
}

// checkPairs compares the two logs with each other.
func (g *gathering) checkPairs(ctx context.Context) {
	if g.err != nil || g.f.Corrupt != "" {
		return
	}
	for _, n := range g.commits {
		if _, ok := slices.BinarySearch(g.offsets, n); !ok {
			g.corrupt("commits/%d is there, offsets/%d is not", n, n)
			return
		}
	}
	newest := int64(-1)
	if len(g.commits) > 0 {
		newest = g.commits[len(g.commits)-1]
	}
	var open []int64
	for _, n := range g.offsets {
		if n > newest {
			open = append(open, n)
		}
	}
	if len(open) > 1 && (g.f.Plan == nil || !g.f.Plan.Adopted) {
		g.corrupt("plans %d to %d have no commit (newest commits/%d): at most one batch is ever under way", open[0], open[len(open)-1], newest)
		return
	}
	if g.f.Commit == nil || g.f.Plan == nil || g.f.Commit.Adopted {
		return
	}
	p := g.f.Plan
	if p.BatchID != newest {
		var err error
		if p, err = g.log.ReadPlan(ctx, newest); err != nil {
			g.sort(err)
			return
		}
	}
	if said := g.f.Commit.Marker.PlanHash; !p.Adopted && said != "" && said != PlanHash(*p) {
		g.corrupt("commits/%d is the commit of another plan than offsets/%d", newest, newest)
	}
}
