package delta

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/upsert"
)

// Role says which crash point follows the commit.
type Role int

// The roles of a sink in its query.
const (
	Main Role = iota
	Side
)

// Limits bound a commit.
type Limits struct {
	// CommitDeadline is the time after which a commit whose outcome is still
	// unknown gives up.
	CommitDeadline time.Duration
	// Errors is how often a commit may fail for another reason than a conflict.
	Errors int
	// Conflicts is how often the head may move under a commit.
	Conflicts int
	// OrphanAge is the age from which a vacuum may delete a file that no version
	// refers to: delta.deletedFileRetentionDuration, of which 7 days is the
	// default. Staged files older than half of it are staged again.
	OrphanAge time.Duration
}

// DefaultLimits are the limits of a zero Limits.
func DefaultLimits() Limits {
	return Limits{CommitDeadline: 2 * time.Minute, Errors: 20, Conflicts: 500, OrphanAge: 7 * 24 * time.Hour}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.CommitDeadline <= 0 {
		l.CommitDeadline = d.CommitDeadline
	}
	if l.Errors <= 0 {
		l.Errors = d.Errors
	}
	if l.Conflicts <= 0 {
		l.Conflicts = d.Conflicts
	}
	if l.OrphanAge <= 0 {
		l.OrphanAge = d.OrphanAge
	}
	return l
}

// cacheMax bounds how many markers a sink keeps by their hash.
const cacheMax = 64

// Options make a Sink.
type Options struct {
	// Storage is the table's folder: delta.OpenLocal, or delta.FromStore.
	Storage delta.Storage
	// Table is the name of the sink in logs and checkpoints; the location where
	// empty.
	Table string
	// Query is the name of the query that writes.
	Query string
	Role  Role
	// Arrow is the shape of the records that Stage.Write gets, and of the table
	// where this sink makes it.
	Arrow            *arrow.Schema
	PartitionColumns []string
	// Properties are table properties of a table that this sink makes.
	Properties map[string]string
	// Upsert, where set, merges the rows by key in place of appending them. The
	// records of a stage then have its DeleteColumn after the columns of Arrow.
	Upsert *upsert.Spec
	// AddColumns lets a claim add columns of Arrow also to a table that the query
	// has not written to; they must be allowed to be null.
	AddColumns bool
	// Evolution is what the user declares of the columns' past; nil where the
	// program itself has the columns. Delta columns have no ids: none is renamed.
	Evolution *column.Evolution
	// AppID, if set, is a transaction app id of the user's own, kept at the batch
	// id as other Delta writers do. It is bound to the query id; OnReusedAppID
	// says what happens where it belongs to another lineage.
	AppID         string
	OnReusedAppID delta.ReusedPolicy
	Clock         clock.Clock
	Limits        Limits
	// Parallel and TargetBytes go to the data file writer; 0 means its default.
	Parallel    int
	TargetBytes int64
	// Engine stands in engineInfo; Warn hears of log maintenance that failed
	// without harm. Both may be left out.
	Engine string
	Warn   func(error)
}

// Sink writes one query's rows into one Delta table.
type Sink struct {
	opts  Options
	table *delta.Table

	mu      sync.Mutex
	last    *delta.Snapshot          // as claimed, then as of our last commit; nil before
	markers map[int64]*marker.Marker // by hash
	sidecar string                   // the key written last
}

var _ sink.Sink = (*Sink)(nil)

// New makes a sink; nothing is read or written before Facts or Claim.
func New(o Options) (*Sink, error) {
	if o.Storage == nil || o.Clock == nil || o.Arrow == nil {
		return nil, errors.New("a Delta sink needs a storage, a clock and a schema")
	}
	if o.Table == "" {
		o.Table = o.Storage.Location()
	}
	if o.Query == "" {
		return nil, failure.New(failure.Config, "the query that writes to %s has no name", o.Table)
	}
	if o.Upsert != nil && len(o.Upsert.Keys) == 0 {
		return nil, failure.New(failure.Config, "table %s: rows can only be merged by key columns", o.Table)
	}
	if strings.HasPrefix(o.AppID, txnPrefix) {
		return nil, failure.New(failure.Config, "table %s: transaction app id %q: ids that begin with %s are the engine's own", o.Table, o.AppID, txnPrefix)
	}
	o.Limits = o.Limits.withDefaults()
	return &Sink{opts: o, markers: map[int64]*marker.Marker{},
		table: delta.Open(o.Storage, delta.Options{Clock: o.Clock, Engine: o.Engine, Warn: o.Warn})}, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Table }

// Close implements sink.Sink; there is nothing to close.
func (s *Sink) Close() error { return nil }

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	snap, err := s.table.Snapshot(ctx)
	if errors.Is(err, delta.ErrNoTable) {
		return sink.Facts{}, nil
	}
	if err != nil {
		return sink.Facts{}, s.readError(err)
	}
	return s.factsOf(ctx, snap, queryName)
}

func (s *Sink) readError(err error) error {
	var classified *failure.Error
	if errors.As(err, &classified) {
		return err
	}
	return failure.Wrap(failure.Unreachable, err, "read table %s", s.Name())
}

func (s *Sink) factsOf(ctx context.Context, snap *delta.Snapshot, queryName string) (sink.Facts, error) {
	markers, err := s.markersOf(ctx, snap)
	if err != nil {
		return sink.Facts{}, err
	}
	f := sink.Facts{
		Exists:   true,
		Identity: snap.Metadata.ID,
		Marker:   markers[queryName],
		Others:   map[string]*marker.Marker{},
		HeadID:   snap.Version,
		// The number of the version after the head: a marker's BaseSequence is the
		// version of its own commit, always below it.
		HeadSequence: snap.Version + 1,
		Handle:       snap,
	}
	for name, m := range markers {
		if name != queryName && m.Kind == marker.KindStream {
			f.Others[name] = m
		}
	}
	if f.Marker != nil {
		if f.Rewound, err = s.rewound(ctx, snap, f.Marker); err != nil {
			return sink.Facts{}, err
		}
		return f, nil
	}
	return f, s.forgotten(ctx, snap, queryName)
}

// rewound says how the head contradicts the marker, empty where it does not.
// Only RESTORE parts the two: it takes rows back and keeps txn actions. One that
// goes back to the marker's commit or to a later, whole state takes nothing of
// the query's.
func (s *Sink) rewound(ctx context.Context, snap *delta.Snapshot, m *marker.Marker) (string, error) {
	ours := m.BaseSequence
	if snap.Version < ours {
		return fmt.Sprintf("the head is version %d, batch %d was committed as version %d", snap.Version, m.BatchID, ours), nil
	}
	lost := map[int64]bool{} // the versions at which our rows are gone
	gone := int64(-1)        // the restore that took them
	for v := ours; v <= snap.Version; v++ {
		actions, err := s.table.CommitAt(ctx, v)
		if err != nil && !errors.Is(err, delta.ErrNoVersion) { // cleaned up: ordinary expiry
			return "", s.readError(err)
		}
		for _, a := range actions {
			switch i := a.CommitInfo; {
			case i == nil:
			case v == ours && i.Weir[marker.KeyAttempt] != m.Attempt:
				return fmt.Sprintf("version %d is not the commit of batch %d (attempt %s)", ours, m.BatchID, m.Attempt), nil
			case i.Operation == "RESTORE":
				gone = v
				if to, known := restoredTo(i); known && to >= ours && !lost[to] {
					gone = -1
				}
			}
		}
		lost[v] = gone >= 0
	}
	if gone >= 0 {
		return fmt.Sprintf("version %d restored the table to a state before version %d, which is the commit of batch %d (attempt %s)", gone, ours, m.BatchID, m.Attempt), nil
	}
	return "", nil
}

// restoredTo is the version that a RESTORE went back to; engines write it as a
// number or as text, and not at all where a time was asked for.
func restoredTo(i *delta.CommitInfo) (int64, bool) {
	switch v := i.OperationParameters["version"].(type) {
	case float64:
		return int64(v), true
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

// forgotten refuses a table that has let go of a query's txn actions, where it
// is set to: without them the query would start over and double its rows. What
// is left of it is the marker of a batch, which is only written after a claim.
func (s *Sink) forgotten(ctx context.Context, snap *delta.Snapshot, queryName string) error {
	if _, set := snap.Metadata.Configuration[delta.PropTxnRetention]; !set {
		return nil
	}
	list, err := s.opts.Storage.List(ctx, folder)
	if err != nil {
		return s.readError(err)
	}
	for _, i := range list {
		data, err := s.opts.Storage.Get(ctx, i.Key)
		if err != nil {
			continue
		}
		if m, err := marker.Decode(string(data)); err == nil && m.QueryName == queryName && !m.Claim {
			return failure.New(failure.Checkpoint, "table %s has forgotten query %s: its txn actions outlived %s, but %s says that it had reached batch %d",
				s.Name(), queryName, delta.PropTxnRetention, i.Key, m.BatchID).
				WithHint("unset the property; then write under a new query name from a known position, or remove %s to start over", i.Key)
		}
	}
	return nil
}

func (s *Sink) remember(snap *delta.Snapshot) {
	s.mu.Lock()
	s.last = snap
	s.mu.Unlock()
}

func (s *Sink) remembered() *delta.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *Sink) cached(hash int64) *marker.Marker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.markers[hash]
}

func (s *Sink) cache(hash int64, m *marker.Marker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.markers) >= cacheMax {
		clear(s.markers)
	}
	s.markers[hash] = m
}
