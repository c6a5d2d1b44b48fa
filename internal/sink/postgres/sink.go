package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
)

// Limits bound a commit.
type Limits struct {
	// CommitDeadline is the time after which a claim or a commit gives up, where
	// the context has no earlier end.
	CommitDeadline time.Duration
	// Tries is how often a transaction is begun for one commit.
	Tries int
	// BackoffMin is the pause after the first failure; it doubles up to BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// LockWait is how long a claim waits for the marker's row before it ends the
	// session of a predecessor that holds it.
	LockWait time.Duration
	// BatchBytes is how large a batch may be in memory.
	BatchBytes int64
}

// DefaultLimits are the limits of a zero Limits.
func DefaultLimits() Limits {
	return Limits{CommitDeadline: 2 * time.Minute, Tries: 60, BackoffMin: 100 * time.Millisecond, BackoffMax: 5 * time.Second,
		LockWait: 5 * time.Second, BatchBytes: external.DefaultBatchBytes}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	if l.CommitDeadline <= 0 {
		l.CommitDeadline = d.CommitDeadline
	}
	if l.Tries <= 0 {
		l.Tries = d.Tries
	}
	if l.BackoffMin <= 0 {
		l.BackoffMin = d.BackoffMin
	}
	if l.BackoffMax <= 0 {
		l.BackoffMax = d.BackoffMax
	}
	if l.LockWait <= 0 {
		l.LockWait = d.LockWait
	}
	if l.BatchBytes <= 0 {
		l.BatchBytes = d.BatchBytes
	}
	return l
}

// Options make a Sink.
type Options struct {
	// URL is postgres://user:password@host:port/database. It is never shown.
	URL string
	// Name is the sink's name in logs and checkpoints; Table where empty.
	Name string
	// Table is the target, table or schema.table.
	Table string
	Query string
	// Arrow is the shape of the rows.
	Arrow *arrow.Schema
	// Upsert keeps one row per Keys: of several the last by OrderBy, or the last
	// one that was read.
	Upsert        bool
	Keys, OrderBy []string
	// DeleteColumn is a boolean column of the rows, and not of the table, that says
	// of a row of an upsert that it deletes its key. Empty for none.
	DeleteColumn string
	// JSONB are text columns that are stored as jsonb.
	JSONB      []string
	OnRejected sink.OnRejected
	Clock      clock.Clock
	Limits     Limits
}

// Sink writes one query's rows into one table.
type Sink struct {
	opts   Options
	schema string // of the target
	table  string
	cols   []column
	// deleteAt is where DeleteColumn is in the rows, -1 where there is none.
	deleteAt int
	hooks    hooks

	mu       sync.Mutex
	conn     *pgx.Conn // nil until it is needed, and after a failure
	claimed  bool
	identity string // of the target as claimed
	plan     loadPlan
	open     *prepared // a transaction that holds a batch, nil if there is none
	copies   int       // COPYs that were begun
}

// hooks are for tests: before is called within the next transaction ahead of any
// lock, after when the next COMMIT has succeeded. Their errors stand for those
// of the connection.
type hooks struct{ before, after func() error }

func (h *hooks) take(f *func() error) error {
	g := *f
	*f = nil
	if g == nil {
		return nil
	}
	return g()
}

var (
	_ sink.Sink     = (*Sink)(nil)
	_ sink.Preparer = (*Sink)(nil)
)

// New makes a sink; nothing is connected before Facts or Claim.
func New(o Options) (*Sink, error) {
	if o.Clock == nil || o.Arrow == nil {
		return nil, errors.New("a Postgres sink needs a clock and a schema")
	}
	if o.Query == "" {
		return nil, failure.New(failure.Config, "the query that writes to table %s of a Postgres has no name", o.Table)
	}
	if _, err := pgx.ParseConfig(o.URL); err != nil || o.URL == "" {
		// The driver's text repeats the URL, and with it the password.
		return nil, failure.New(failure.Config, "query %s: the URL of the Postgres is not of the form postgres://user:password@host:port/database", o.Query)
	}
	s := &Sink{opts: o, schema: "public", table: o.Table, deleteAt: -1}
	if a, b, two := strings.Cut(o.Table, "."); two {
		s.schema, s.table = a, b
	}
	if s.schema == "" || s.table == "" || strings.Contains(s.table, ".") {
		return nil, failure.New(failure.Config, "query %s: the Postgres table %q is not of the form table or schema.table", o.Query, o.Table)
	}
	if s.opts.Name == "" {
		s.opts.Name = s.schema + "." + s.table
	}
	if o.OnRejected == "" {
		s.opts.OnRejected = sink.RejectFail
	}
	s.opts.Limits = o.Limits.withDefaults()
	var err error
	if s.cols, err = columnsOf(o); err != nil {
		return nil, failure.Wrap(failure.Config, err, "query %s: table %s of a Postgres", o.Query, o.Table)
	}
	if o.DeleteColumn != "" {
		s.deleteAt = o.Arrow.FieldIndices(o.DeleteColumn)[0]
	}
	return s, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Name }

// Close implements sink.Sink.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	return nil
}

// Stage implements sink.Sink.
func (s *Sink) Stage(_ context.Context, batchID int64, attempt string) (sink.Stage, error) {
	return external.NewStage(s.opts.Query, batchID, attempt, s.opts.Limits.BatchBytes), nil
}

func (s *Sink) who() string { return "Postgres table " + s.schema + "." + s.table }

// target is the quoted name of the target.
func (s *Sink) target() string { return pgx.Identifier{s.schema, s.table}.Sanitize() }

// own is the quoted name of a table of ours beside the target.
func (s *Sink) own(table string) string { return pgx.Identifier{s.schema, table}.Sanitize() }

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	if queryName != s.opts.Query {
		return sink.Facts{}, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, queryName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out sink.Facts
	err := s.retry(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		st, err := s.readState(ctx, conn, "")
		if err != nil {
			return err
		}
		out, err = st.facts(queryName)
		return err
	})
	if err != nil {
		return sink.Facts{}, s.explain(err, "read the marker of query "+queryName)
	}
	return out, nil
}

// stored is what the database remembers of the target.
type stored struct {
	// live: the target exists and is the table that the identity was given to.
	live, exists bool
	identity     string
	oid          uint32
	version      map[string]int64
	markers      map[string]*marker.Marker
}

func (st *stored) facts(query string) (sink.Facts, error) {
	if !st.live {
		return sink.Facts{}, nil
	}
	f := sink.Facts{Exists: true, Identity: st.identity, Marker: st.markers[query], Others: map[string]*marker.Marker{},
		HeadID: st.version[query], HeadSequence: st.version[query], Handle: st}
	for name, m := range st.markers {
		if name != query && m.Kind == marker.KindStream {
			f.Others[name] = m
		}
	}
	return f, nil
}

// readState reads all that is remembered. lock is FOR UPDATE to keep our own
// marker's row, empty for a mere look.
func (s *Sink) readState(ctx context.Context, conn *pgx.Conn, lock string) (*stored, error) {
	st := &stored{version: map[string]int64{}, markers: map[string]*marker.Marker{}}
	var target, tables *uint32
	if err := conn.QueryRow(ctx, "SELECT to_regclass($1)::oid, to_regclass($2)::oid", s.target(), s.own("weir_tables")).Scan(&target, &tables); err != nil {
		return nil, err
	}
	if target != nil {
		st.exists, st.oid = true, *target
	}
	if tables == nil {
		return st, nil
	}
	if lock != "" {
		// Our own row first: what is read after it cannot move any more.
		if _, err := conn.Exec(ctx, "SELECT 1 FROM "+s.own("weir_markers")+" WHERE table_name = $1 AND query_name = $2 "+lock, s.table, s.opts.Query); err != nil {
			return nil, err
		}
	}
	var oid uint32
	err := conn.QueryRow(ctx, "SELECT identity, table_oid FROM "+s.own("weir_tables")+" WHERE table_name = $1", s.table).Scan(&st.identity, &oid)
	if errors.Is(err, pgx.ErrNoRows) {
		return st, nil
	}
	if err != nil {
		return nil, err
	}
	st.live = st.exists && oid == st.oid
	rows, err := conn.Query(ctx, "SELECT query_name, version, marker FROM "+s.own("weir_markers")+" WHERE table_name = $1", s.table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, text string
		var version int64
		if err := rows.Scan(&name, &version, &text); err != nil {
			return nil, err
		}
		m, err := marker.Decode(text)
		if err != nil || m.QueryName != name {
			return nil, failure.New(failure.Checkpoint, "%s: the marker of query %s cannot be read (%v)", s.who(), name, err).
				WithHint("run the version of weir that wrote it, or a newer one")
		}
		st.version[name], st.markers[name] = version, m
	}
	return st, rows.Err()
}

// writeMarker puts our marker into its row, as the version after the one given.
func (s *Sink) writeMarker(ctx context.Context, conn *pgx.Conn, m *marker.Marker, version int64) error {
	m.BaseSequence = version
	text, err := m.Encode()
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "INSERT INTO "+s.own("weir_markers")+` AS w
		(table_name, query_name, query_id, epoch, batch_id, position, marker, version, written_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now())
		ON CONFLICT (table_name, query_name) DO UPDATE SET query_id = excluded.query_id, epoch = excluded.epoch, batch_id = excluded.batch_id,
		position = excluded.position, marker = excluded.marker, version = excluded.version, written_at = excluded.written_at`,
		s.table, m.QueryName, m.QueryID, m.Epoch.Number, m.BatchID, m.Position.String(), text, version+1)
	if err != nil {
		return fmt.Errorf("write the marker: %w", err)
	}
	return nil
}
