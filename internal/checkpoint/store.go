package checkpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

// KeepMin is how many of the newest batches Purge always leaves in the logs.
const KeepMin = 100

// purgeMax bounds how many batches one Purge removes.
const purgeMax = 256

// Log is one query's checkpoint. Its writes are durable when they return; an
// error leaves the outcome unknown, and asking again is safe. Used by one
// goroutine at a time for writing; reading is free.
type Log struct {
	store     objstore.Store
	queryName string

	mu sync.Mutex
	// queryID is the lineage that this run writes for; known once metadata was
	// created or gathered. From then on metadata must stay where it is.
	queryID string
	// epoch is what this run has claimed; zero before.
	epoch marker.Epoch
}

// Open names a checkpoint. Nothing is read or written yet.
func Open(store objstore.Store, queryName string) *Log {
	return &Log{store: store, queryName: queryName}
}

// Location is the checkpoint's address for messages.
func (l *Log) Location() string { return l.store.Location() }

func (l *Log) adopted(queryID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queryID = queryID
}

func (l *Log) claimed() marker.Epoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

func (l *Log) lineage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queryID
}

// read decodes a file. Missing: objstore.ErrNotExist. Unreadable contents:
// class Checkpoint. Unreachable store: as the store says.
func (l *Log) read(ctx context.Context, key string, v any) error {
	b, err := l.store.Get(ctx, key)
	if err != nil {
		return err
	}
	return l.decode(key, b, v)
}

func (l *Log) decode(key string, b []byte, v any) error {
	err := decode(b, v)
	if err == nil {
		return nil
	}
	e := failure.Wrap(failure.Checkpoint, err, "checkpoint file %s of query %s in %s", key, l.queryName, l.Location())
	if errors.Is(err, errVersion) {
		return e.WithHint("run the version of weir that wrote it, or a newer one")
	}
	return e.WithHint("%s", hintMoveAway)
}

// hintMoveAway is the way out of a checkpoint that contradicts itself: the
// markers know better.
const hintMoveAway = "move the checkpoint folder away and start again: position, watermark and batch id are then adopted from the marker in the sink"

// CreateMetadata makes the checkpoint this run's. Metadata of the same query id
// that is there already is returned as it stands; of another query id it is an
// error, because another run was faster.
func (l *Log) CreateMetadata(ctx context.Context, m Metadata) (Metadata, error) {
	m.QueryName = l.queryName
	b, err := encode(m)
	if err != nil {
		return Metadata{}, err
	}
	created, existing, err := l.store.CreateOnce(ctx, metadataKey, b)
	if err != nil {
		return Metadata{}, fmt.Errorf("create checkpoint of query %s: %w", l.queryName, err)
	}
	if !created {
		var there Metadata
		if err := l.decode(metadataKey, existing, &there); err != nil {
			return Metadata{}, err
		}
		if there.QueryID != m.QueryID {
			return there, failure.New(failure.Fenced, "the checkpoint %s was just made by another run of query %s (query id %s, ours would be %s)",
				l.Location(), l.queryName, there.QueryID, m.QueryID).WithHint("stop the other instance, or give this one its own query name and checkpoint location")
		}
		m = there
	}
	l.adopted(m.QueryID)
	return m, nil
}

// Metadata reads the metadata; nil where there is none.
func (l *Log) Metadata(ctx context.Context) (*Metadata, error) {
	m := &Metadata{}
	err := l.read(ctx, metadataKey, m)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// RecordClaim remembers who claimed the sinks, and their identities. Call it
// after every claim and before anything is written to the logs: only a recorded
// sink can be missed, and only a recorded epoch keeps an older run out of logs
// of which its own entries have been purged, where creating once finds nothing
// in its way. A sink that is recorded under another identity is refused, and so
// is a run that another one has overtaken.
func (l *Log) RecordClaim(ctx context.Context, e marker.Epoch, identities map[string]string) error {
	l.mu.Lock()
	l.epoch = e
	l.mu.Unlock()
	m, err := l.own(ctx)
	if err != nil {
		return err
	}
	changed := m.Epoch != e
	m.Epoch = e
	for name, id := range identities {
		old, ok := m.Sinks[name]
		if ok && old != "" && old != id {
			return failure.New(failure.Checkpoint, "sink %s of query %s is table %s, the checkpoint %s knows it as table %s", name, l.queryName, id, l.Location(), old).
				WithHint("restore the table, or start over with: weir checkpoint reset")
		}
		if !ok || old != id {
			if m.Sinks == nil {
				m.Sinks = map[string]string{}
			}
			m.Sinks[name] = id
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return l.put(ctx, metadataKey, m)
}

// RecordDefinitions writes down what the stateful operators are. kept are the
// fingerprints of others that stay: those of the state that is gone on from.
func (l *Log) RecordDefinitions(ctx context.Context, now map[string]json.RawMessage, kept map[string]bool) error {
	m, err := l.own(ctx)
	if err != nil {
		return err
	}
	next := maps.Clone(now)
	for print, d := range m.Definitions {
		if _, ok := next[print]; !ok && kept[print] {
			next[print] = d
		}
	}
	if maps.EqualFunc(next, m.Definitions, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
		return nil
	}
	m.Definitions = next
	return l.put(ctx, metadataKey, m)
}

func (l *Log) put(ctx context.Context, key string, v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	if err := l.store.Put(ctx, key, b); err != nil {
		return fmt.Errorf("checkpoint of query %s: %w", l.queryName, err)
	}
	return nil
}

// CareEntry is the file care: when a query looked after its tables last, as the
// id of the batch that came next. Nothing hangs on it but when it does so again.
type CareEntry struct {
	// Done is that of the last round that came to its end, Begun that of the last
	// one that began.
	Done  int64 `json:"done"`
	Begun int64 `json:"begun"`
}

const careKey = "care"

// Care reads when the tables were looked after last; nil where that is not known.
func (l *Log) Care(ctx context.Context) (*CareEntry, error) {
	e := &CareEntry{}
	err := l.read(ctx, careKey, e)
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// WriteCare records it.
func (l *Log) WriteCare(ctx context.Context, e CareEntry) error {
	if _, err := l.own(ctx); err != nil {
		return err
	}
	b, err := encode(e)
	if err != nil {
		return err
	}
	return l.store.Put(ctx, careKey, b)
}

// own checks that the checkpoint is still there and still this run's, and that
// no newer run has claimed the query with it: a run
// never makes a folder again that was removed under it, because the next start
// would take the remains for the whole.
func (l *Log) own(ctx context.Context) (*Metadata, error) {
	id := l.lineage()
	if id == "" {
		return nil, fmt.Errorf("checkpoint %s: written before its metadata was created or gathered", l.Location())
	}
	m, err := l.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, failure.New(failure.Checkpoint, "the checkpoint %s of query %s has vanished while the query was running", l.Location(), l.queryName).
			WithHint("start again: the run decides from the markers in the sinks (onLostCheckpoint)")
	}
	if m.QueryID != id {
		return nil, failure.New(failure.Fenced, "the checkpoint %s now belongs to query id %s, this run is %s: another run has restarted query %s", l.Location(), m.QueryID, id, l.queryName).
			WithHint("leave the query to the other run")
	}
	if e := l.claimed(); e.Number > 0 && (m.Epoch.Newer(e) || (m.Epoch.Number == e.Number && m.Epoch != e)) {
		return nil, failure.New(failure.Fenced, "the checkpoint %s of query %s was taken over by epoch %s, this run is epoch %s", l.Location(), l.queryName, m.Epoch, e).
			WithHint("another instance runs the query; stop one of them")
	}
	return m, nil
}

// PlanWritten is the answer to WritePlan.
type PlanWritten struct {
	// Plan is the plan that stands in offsets/N. Go on with this one, not with
	// the one that was handed in: a write whose answer got lost may have left
	// an earlier proposal.
	Plan Plan
	Hash string
	// Created is true where this call wrote it; Ours where it carries our own
	// epoch's nonce, whichever call wrote it. A plan that is not ours is for the
	// caller to judge: an older epoch's is rerun, a newer one fences us.
	Created, Ours bool
}

// WritePlan writes offsets/N once.
func (l *Log) WritePlan(ctx context.Context, p Plan) (PlanWritten, error) {
	if _, err := l.own(ctx); err != nil {
		return PlanWritten{}, err
	}
	if p.QueryID != l.lineage() || p.BatchID < 0 {
		return PlanWritten{}, fmt.Errorf("plan of batch %d of query id %s written into the checkpoint of %s", p.BatchID, p.QueryID, l.lineage())
	}
	b, err := encode(p)
	if err != nil {
		return PlanWritten{}, err
	}
	key := OffsetsKey(p.BatchID)
	created, existing, err := l.store.CreateOnce(ctx, key, b)
	if err != nil {
		return PlanWritten{}, fmt.Errorf("plan of batch %d of query %s: %w", p.BatchID, l.queryName, err)
	}
	if created {
		return PlanWritten{Plan: p, Hash: PlanHash(p), Created: true, Ours: true}, nil
	}
	there, err := l.checkPlan(key, p.BatchID, existing)
	if err != nil {
		return PlanWritten{}, err
	}
	return PlanWritten{Plan: *there, Hash: PlanHash(*there), Ours: there.Epoch == p.Epoch && p.Epoch.Nonce != ""}, nil
}

// ReadPlan reads offsets/n (objstore.ErrNotExist where it is missing).
func (l *Log) ReadPlan(ctx context.Context, n int64) (*Plan, error) {
	b, err := l.store.Get(ctx, OffsetsKey(n))
	if err != nil {
		return nil, err
	}
	return l.checkPlan(OffsetsKey(n), n, b)
}

func (l *Log) checkPlan(key string, n int64, b []byte) (*Plan, error) {
	p := &Plan{}
	if err := l.decode(key, b, p); err != nil {
		return nil, err
	}
	if p.QueryID == "" || p.BatchID != n {
		return nil, l.contradiction("%s is the plan of batch %d of query id %q", key, p.BatchID, p.QueryID)
	}
	return p, nil
}

func (l *Log) contradiction(format string, args ...any) error {
	return failure.New(failure.Checkpoint, "checkpoint of query %s in %s: %s", l.queryName, l.Location(), fmt.Sprintf(format, args...)).
		WithHint("%s", hintMoveAway)
}

// WriteCommit writes commits/N once. An entry that is there already and speaks
// of the same commit stays as it is.
func (l *Log) WriteCommit(ctx context.Context, e CommitEntry) error {
	if _, err := l.own(ctx); err != nil {
		return err
	}
	return l.writeCommit(ctx, e)
}

func (l *Log) writeCommit(ctx context.Context, e CommitEntry) error {
	if e.QueryID != l.lineage() || e.Marker == nil || e.Marker.BatchID != e.BatchID || e.BatchID < 0 {
		return fmt.Errorf("commit entry of batch %d of query id %s, without its marker, written into the checkpoint of %s", e.BatchID, e.QueryID, l.lineage())
	}
	b, err := encode(e)
	if err != nil {
		return err
	}
	key := CommitsKey(e.BatchID)
	created, existing, err := l.store.CreateOnce(ctx, key, b)
	if err != nil {
		return fmt.Errorf("commit of batch %d of query %s: %w", e.BatchID, l.queryName, err)
	}
	if created || bytes.Equal(existing, b) {
		return nil
	}
	there, err := l.checkCommit(key, e.BatchID, existing)
	if err != nil {
		return err
	}
	if there.QueryID != e.QueryID || (!samePlace(there.Marker.Position, e.Marker.Position) && !sameCommit(there.Marker, e.Marker)) {
		return l.contradiction("%s says that batch %d ended at %s under query id %s, the sink says %s under %s",
			key, e.BatchID, there.Marker.Position, there.QueryID, e.Marker.Position, e.QueryID)
	}
	return nil
}

// ReadCommit reads commits/n (objstore.ErrNotExist where it is missing).
func (l *Log) ReadCommit(ctx context.Context, n int64) (*CommitEntry, error) {
	b, err := l.store.Get(ctx, CommitsKey(n))
	if err != nil {
		return nil, err
	}
	return l.checkCommit(CommitsKey(n), n, b)
}

func (l *Log) checkCommit(key string, n int64, b []byte) (*CommitEntry, error) {
	e := &CommitEntry{}
	if err := l.decode(key, b, e); err != nil {
		return nil, err
	}
	if e.QueryID == "" || e.BatchID != n || e.Marker == nil || e.Marker.BatchID != n || e.Marker.QueryID != e.QueryID {
		return nil, l.contradiction("%s does not hold batch %d of one query with its marker", key, n)
	}
	return e, nil
}

// Commits reads the commit entries of batch from and newer, in order: those
// whose progress may not be recorded yet.
func (l *Log) Commits(ctx context.Context, from int64) ([]CommitEntry, error) {
	ids, err := l.ids(ctx, commitsPrefix)
	if err != nil {
		return nil, err
	}
	var out []CommitEntry
	for _, n := range ids {
		if n < from {
			continue
		}
		e, err := l.ReadCommit(ctx, n)
		if err != nil {
			return nil, err
		}
		out = append(out, *e)
	}
	return out, nil
}

// WriteStaged writes staged/N, replacing the manifest of an earlier attempt.
// Call it before the first of several sinks commits.
func (l *Log) WriteStaged(ctx context.Context, m StagedManifest) error {
	if m.QueryID != l.lineage() || m.Marker == nil || m.Marker.BatchID != m.BatchID {
		return fmt.Errorf("staged manifest of batch %d of query id %s, without its marker, written into the checkpoint of %s", m.BatchID, m.QueryID, l.lineage())
	}
	return l.put(ctx, StagedKey(m.BatchID), m)
}

// ReadStaged reads staged/n (objstore.ErrNotExist where it is missing).
func (l *Log) ReadStaged(ctx context.Context, n int64) (*StagedManifest, error) {
	m := &StagedManifest{}
	if err := l.read(ctx, StagedKey(n), m); err != nil {
		return nil, err
	}
	if m.QueryID == "" || m.BatchID != n || m.Marker == nil {
		return nil, l.contradiction("%s does not hold the staged files of batch %d", StagedKey(n), n)
	}
	return m, nil
}

// ids lists the batch ids of a log in order.
func (l *Log) ids(ctx context.Context, prefix string) ([]int64, error) {
	infos, err := l.store.List(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, i := range infos {
		if n, ok := batchOf(prefix, i.Key); ok {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Purge removes log entries of batches below keepFrom, the first batch whose
// progress is not recorded yet, but never any of the newest KeepMin. It also
// drops staged manifests that are committed. Of a batch the commit goes before
// the plan, oldest first, so that a crash in between leaves a shorter log and
// no contradiction.
func (l *Log) Purge(ctx context.Context, keepFrom int64) error {
	commits, err := l.ids(ctx, commitsPrefix)
	if err != nil || len(commits) == 0 {
		return err
	}
	newest := commits[len(commits)-1]
	floor := min(keepFrom, newest-KeepMin+1)
	offsets, err := l.ids(ctx, offsetsPrefix)
	if err != nil {
		return err
	}
	if err := l.remove(ctx, stagedPrefix, newest+1); err != nil {
		return err
	}
	removed := 0
	for _, n := range offsets {
		if n >= floor || removed == purgeMax {
			break
		}
		if err := l.store.Delete(ctx, CommitsKey(n)); err != nil {
			return err
		}
		if err := l.store.Delete(ctx, OffsetsKey(n)); err != nil {
			return err
		}
		removed++
	}
	return nil
}

// remove deletes the entries of a log below a batch id, oldest first.
func (l *Log) remove(ctx context.Context, prefix string, below int64) error {
	ids, err := l.ids(ctx, prefix)
	if err != nil {
		return err
	}
	for _, n := range ids {
		if n >= below {
			break
		}
		if err := l.store.Delete(ctx, fmt.Sprintf("%s%d", prefix, n)); err != nil {
			return err
		}
	}
	return nil
}

// StatePresence reads the state files that the markers name and reports which
// of them are there with their checksum, for Facts.HasState.
func (l *Log) StatePresence(ctx context.Context, markers ...*marker.Marker) (func(marker.StateFile) bool, error) {
	present := map[string]bool{}
	for _, m := range markers {
		if m == nil {
			continue
		}
		for _, f := range m.State {
			b, err := l.store.Get(ctx, f.Path)
			if err != nil && !errors.Is(err, objstore.ErrNotExist) && !errors.Is(err, objstore.ErrBadKey) {
				return nil, err
			}
			present[f.Path+"\x00"+f.SHA256] = err == nil && marker.Hash(b) == f.SHA256
		}
	}
	return func(f marker.StateFile) bool { return present[f.Path+"\x00"+f.SHA256] }, nil
}
