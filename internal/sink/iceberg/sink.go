package iceberg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/maintain"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/upsert"
)

// Role says which crash point follows the swap.
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
	// OrphanAge is the age from which an orphan removal may delete a file that
	// no snapshot refers to. Staged files older than half of it are staged
	// again.
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

// Options make a Sink.
type Options struct {
	Catalog *lake.Catalog
	Table   table.Identifier
	// Query is the name of the query that writes.
	Query string
	Role  Role
	// Arrow is the shape of the records that Stage.Write gets.
	Arrow *arrow.Schema
	// Upsert, where set, merges the rows by key in place of appending them. The
	// records of a stage then have its DeleteColumn after the columns of Arrow.
	Upsert *upsert.Spec
	// Schema and Partition are those of the table, where this sink makes it. An
	// existing table keeps its own partition spec; its columns follow those of
	// Schema where the query has written to it before, see Evolution.
	Schema     *iceberg.Schema
	Partition  iceberg.PartitionSpec
	Properties map[string]string
	// Evolution is what the user declares of the columns' past; nil where the
	// program itself has the columns.
	Evolution *column.Evolution
	Clock     clock.Clock
	Limits    Limits
	// Parallel and TargetBytes go to the data file writer; 0 means its default.
	Parallel    int
	TargetBytes int64
	// Retention is what Maintain leaves of the history; the zero value is the
	// default. OldestReader, if set, gives the sequence number of the oldest
	// snapshot that a reader of the table still needs, 0 for none.
	Retention    lake.Retention
	OldestReader func(ctx context.Context) (int64, error)
	// Care is the rest of what Maintain does; the zero value is the default.
	Care maintain.Settings
	// Verify, if set, is asked of the very table whose head a commit asserts, on
	// every try: an error that is classified or sink.ErrStale ends the commit, and
	// nothing was written.
	Verify func(ctx context.Context, head *table.Table) error
}

// Sink writes one query's rows into one Iceberg table.
type Sink struct {
	opts Options
	key  string // of the marker's property
	care *maintain.Care

	mu  sync.Mutex
	tbl *table.Table // as claimed, then as of our last commit; nil before
}

var _ sink.Sink = (*Sink)(nil)

// New makes a sink; nothing is read or written before Facts or Claim.
func New(o Options) (*Sink, error) {
	switch {
	case o.Catalog == nil || o.Clock == nil || o.Schema == nil:
		return nil, errors.New("an Iceberg sink needs a catalog, a clock and a schema")
	case len(o.Table) < 2:
		return nil, failure.New(failure.Config, "table %q has no namespace", lake.Name(o.Table))
	case o.Upsert != nil && len(o.Upsert.Keys) == 0:
		return nil, failure.New(failure.Config, "table %s: rows can only be merged by key columns", lake.Name(o.Table))
	case o.Query == "":
		return nil, failure.New(failure.Config, "the query that writes to %s has no name", lake.Name(o.Table))
	}
	o.Limits = o.Limits.withDefaults()
	return &Sink{opts: o, key: marker.PropertyKey(o.Query), care: maintain.New(o.Catalog, o.Table, careOf(o))}, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return lake.Name(s.opts.Table) }

// Close implements sink.Sink; the catalog belongs to its opener.
func (s *Sink) Close() error { return nil }

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	t, err := s.opts.Catalog.LoadTablePatiently(ctx, s.opts.Table, s.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) {
		return sink.Facts{}, nil
	}
	if err != nil {
		return sink.Facts{}, failure.Wrap(failure.Unreachable, err, "read table %s", s.Name())
	}
	return factsOf(t, queryName)
}

func factsOf(t *table.Table, queryName string) (sink.Facts, error) {
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return sink.Facts{}, failure.Wrap(failure.Checkpoint, err, "table %s", lake.Name(t.Identifier())).
			WithHint("a newer version of weir may have written it: run that one")
	}
	head := lake.HeadOf(t)
	f := sink.Facts{
		Exists:       true,
		Identity:     t.Metadata().TableUUID().String(),
		Marker:       markers[queryName],
		Others:       map[string]*marker.Marker{},
		HeadID:       head.ID,
		HeadSequence: head.Sequence,
		Handle:       t,
	}
	for name, m := range markers {
		if name != queryName && m.Kind == marker.KindStream {
			f.Others[name] = m
		}
	}
	if f.Marker != nil {
		f.Rewound = rewound(t, f.Marker)
	}
	return f, nil
}

// rewound says how the head contradicts the marker, empty where it does not.
// The marker's own snapshot has a number above its BaseSequence; every chain
// that still has it passes it before it comes down to that number.
//
// A chain that ends above was cut by expiry and proves nothing. It may end in a
// snapshot without a parent that is not the table's first: PyIceberg's expiry
// clears the parent of what it leaves. But Spark's CREATE OR REPLACE TABLE does
// so too, and keeps the marker's property while the rows are gone; there the
// marker's snapshot is still in the table, off the chain.
func rewound(t *table.Table, m *marker.Marker) string {
	head := lake.HeadOf(t)
	if head.Sequence < m.BaseSequence {
		return fmt.Sprintf("the head has sequence number %d, batch %d was built on %d", head.Sequence, m.BatchID, m.BaseSequence)
	}
	var last *table.Snapshot
	passed := false
	end := lake.Walk(t, func(s *table.Snapshot) bool {
		if lake.SummaryValue(s, marker.KeyAttempt) == m.Attempt {
			return false
		}
		last = s
		passed = s.SequenceNumber <= m.BaseSequence
		return !passed
	})
	lacks := fmt.Sprintf("do not hold the commit of batch %d (attempt %s)", m.BatchID, m.Attempt)
	switch {
	case passed:
		return fmt.Sprintf("the snapshots from the head (%d) down to sequence number %d %s", head.ID, last.SequenceNumber, lacks)
	case end == lake.AtFirst:
		return fmt.Sprintf("the snapshots from the head (%d) down to the table's first %s", head.ID, lacks)
	case last != nil && last.ParentSnapshotID == nil && snapshotOf(t, m) != 0:
		return fmt.Sprintf("the table was replaced: the snapshots from the head (%d) down to %d, which has no parent, %s", head.ID, last.SnapshotID, lacks)
	}
	return ""
}

// snapshotOf is the snapshot that wrote m, 0 if it has expired.
func snapshotOf(t *table.Table, m *marker.Marker) int64 {
	for _, s := range t.Metadata().Snapshots() {
		if lake.SummaryValue(&s, marker.KeyAttempt) == m.Attempt {
			return s.SnapshotID
		}
	}
	return 0
}

func (s *Sink) remember(t *table.Table) {
	s.mu.Lock()
	s.tbl = t
	s.mu.Unlock()
}

func (s *Sink) remembered() *table.Table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tbl
}

// change is the commit that writes m on the head of t: the merged offsets of
// all queries in the summary, m with the head's number in both places.
func (s *Sink) change(t *table.Table, m *marker.Marker, files []iceberg.DataFile) (lake.Change, *marker.Marker, error) {
	markers, err := marker.FromProperties(t.Properties())
	if err != nil {
		return lake.Change{}, nil, failure.Wrap(failure.Checkpoint, err, "table %s", s.Name())
	}
	if err := sink.CheckOverlap(s.Name(), markers, m); err != nil {
		return lake.Change{}, nil, err
	}
	written := *m
	written.BaseSequence = lake.HeadOf(t).Sequence
	offsets, err := sink.MergeOffsets(markers, &written)
	if err != nil {
		return lake.Change{}, nil, failure.Wrap(failure.Config, err, "table %s", s.Name()).
			WithHint("queries that feed one table must read the same cluster and topics")
	}
	encoded, err := written.Encode()
	if err != nil {
		return lake.Change{}, nil, err
	}
	summary, err := written.Summary(offsets)
	if err != nil {
		return lake.Change{}, nil, err
	}
	return lake.Change{Files: files, Properties: map[string]string{s.key: encoded}, Summary: summary}, &written, nil
}
