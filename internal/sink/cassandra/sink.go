package cassandra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"gopkg.in/inf.v0"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/external"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// Limits bound a commit.
type Limits struct {
	CommitDeadline         time.Duration
	Tries                  int
	BackoffMin, BackoffMax time.Duration
	BatchBytes             int64
	// Concurrency is how many rows are written at once, RequestTimeout what one
	// request may take.
	Concurrency    int
	RequestTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.CommitDeadline <= 0 {
		l.CommitDeadline = 2 * time.Minute
	}
	if l.Tries <= 0 {
		l.Tries = 60
	}
	if l.BackoffMin <= 0 {
		l.BackoffMin = 100 * time.Millisecond
	}
	if l.BackoffMax <= 0 {
		l.BackoffMax = 5 * time.Second
	}
	if l.BatchBytes <= 0 {
		l.BatchBytes = external.DefaultBatchBytes
	}
	if l.Concurrency <= 0 {
		l.Concurrency = 64
	}
	if l.RequestTimeout <= 0 {
		l.RequestTimeout = 15 * time.Second
	}
	return l
}

// Options make a Sink.
type Options struct {
	// Hosts are host or host:port.
	Hosts              []string
	Username, Password string
	Keyspace, Table    string
	// Name is the sink's name in logs and checkpoints.
	Name  string
	Query string
	Arrow *arrow.Schema
	// Keys are the columns of the primary key: the first is the partition key of a
	// table that this sink makes, the rest its clustering columns.
	Keys []string
	// DeleteColumn is a boolean column of the rows, and not of the table, that says
	// of a row that it deletes its key. Empty for none.
	DeleteColumn string
	OnRejected   sink.OnRejected
	Clock        clock.Clock
	Limits       Limits
}

// Sink writes one query's rows into one table.
type Sink struct {
	opts Options
	// columns are the rows', without DeleteColumn; insert writes one, remove deletes
	// its key.
	columns        []arrow.Field
	insert, remove string
	hooks          hooks

	mu       sync.Mutex
	session  *gocql.Session
	claimed  bool
	identity string
	// prepared is the attempt whose rows were written, and calls how often rows were.
	prepared string
	calls    int
}

// hooks are for tests: before is called ahead of the next lightweight transaction,
// after when it was applied.
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
		return nil, errors.New("a Cassandra sink needs a clock and a schema")
	}
	if o.Query == "" || o.Keyspace == "" || o.Table == "" || len(o.Hosts) == 0 || len(o.Keys) == 0 {
		return nil, failure.New(failure.Config, "query %s: a Cassandra sink needs hosts, a keyspace, a table and keys", o.Query)
	}
	var names, marks []string
	s := &Sink{}
	for _, f := range o.Arrow.Fields() {
		if o.DeleteColumn == f.Name && f.Type.ID() == arrow.BOOL {
			continue
		}
		s.columns = append(s.columns, f)
		if cqlType(f.Type) == "" {
			return nil, failure.New(failure.Config, "query %s: column %s: no type of Cassandra for %s", o.Query, f.Name, f.Type)
		}
		names, marks = append(names, quote(f.Name)), append(marks, "?")
	}
	if o.DeleteColumn != "" && len(s.columns) != o.Arrow.NumFields()-1 {
		return nil, failure.New(failure.Config, "query %s: the rows have no boolean column %q that says what is deleted", o.Query, o.DeleteColumn)
	}
	var where []string
	for _, k := range o.Keys {
		where = append(where, quote(k)+" = ?")
		if len(o.Arrow.FieldIndices(k)) != 1 {
			return nil, failure.New(failure.Config, "query %s: keys: the rows have no column %q", o.Query, k)
		}
	}
	if o.Name == "" {
		o.Name = "cassandra:" + o.Keyspace + "." + o.Table
	}
	if o.OnRejected == "" {
		o.OnRejected = sink.RejectFail
	}
	o.Limits = o.Limits.withDefaults()
	s.opts = o
	s.insert = "INSERT INTO " + s.target() + " (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(marks, ", ") + ") USING TIMESTAMP ?"
	s.remove = "DELETE FROM " + s.target() + " USING TIMESTAMP ? WHERE " + strings.Join(where, " AND ")
	return s, nil
}

// Name implements sink.Sink.
func (s *Sink) Name() string { return s.opts.Name }

func (s *Sink) who() string { return "Cassandra table " + s.opts.Keyspace + "." + s.opts.Table }

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (s *Sink) target() string { return quote(s.opts.Keyspace) + "." + quote(s.opts.Table) }

func (s *Sink) markers() string { return quote(s.opts.Keyspace) + ".weir_markers" }

// Close implements sink.Sink.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.session.Close()
		s.session = nil
	}
	return nil
}

// Discard implements sink.Preparer. What was written stays: it is the batch's, and
// is written again.
func (s *Sink) Discard() {}

// Stage implements sink.Sink.
func (s *Sink) Stage(_ context.Context, batchID int64, attempt string) (sink.Stage, error) {
	return external.NewStage(s.opts.Query, batchID, attempt, s.opts.Limits.BatchBytes), nil
}

// RebuildScan implements sink.Sink.
func (s *Sink) RebuildScan(context.Context, *marker.Marker, []string, string, int64, func(arrow.RecordBatch) error) error {
	return failure.New(failure.Checkpoint, "query %s: the state of its operators is lost, or was made by another transform, and is not rebuilt from %s", s.opts.Query, s.who()).
		WithHint("restore the checkpoint folder and the transform; or let a table of the lakehouse be the sink of the query that has state")
}

// cqlType is the type of a column, empty where there is none.
func cqlType(t arrow.DataType) string {
	switch t.ID() {
	case arrow.STRING, arrow.LIST, arrow.STRUCT:
		return "text"
	case arrow.INT32:
		return "int"
	case arrow.INT64:
		return "bigint"
	case arrow.FLOAT32:
		return "float"
	case arrow.FLOAT64:
		return "double"
	case arrow.DECIMAL128:
		return "decimal"
	case arrow.DATE32:
		return "date"
	case arrow.BOOL:
		return "boolean"
	case arrow.TIMESTAMP:
		if t.(*arrow.TimestampType).TimeZone == "" {
			return "" // it has only points in time
		}
		return "timestamp"
	case arrow.BINARY:
		return "blob"
	}
	return ""
}

// valueOf is a value as the driver takes it.
func valueOf(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch c := a.(type) {
	case *array.String:
		return c.Value(i)
	case *array.Binary:
		return c.Value(i)
	case *array.Int32:
		return c.Value(i)
	case *array.Int64:
		return c.Value(i)
	case *array.Float32:
		return c.Value(i)
	case *array.Date32:
		return c.Value(i).ToTime()
	case *array.Decimal128:
		return inf.NewDecBig(c.Value(i).BigInt(), inf.Scale(c.DataType().(*arrow.Decimal128Type).Scale))
	case *array.Float64:
		return c.Value(i)
	case *array.Boolean:
		return c.Value(i)
	case *array.Timestamp:
		return c.Value(i).ToTime(c.DataType().(*arrow.TimestampType).Unit)
	}
	return string(rowjson.AppendValue(nil, a, i))
}

func (s *Sink) connect() (*gocql.Session, error) {
	if s.session != nil {
		return s.session, nil
	}
	c := gocql.NewCluster(s.opts.Hosts...)
	c.Consistency, c.SerialConsistency = gocql.Quorum, gocql.Serial
	c.Timeout, c.ConnectTimeout = s.opts.Limits.RequestTimeout, s.opts.Limits.RequestTimeout
	if s.opts.Username != "" {
		c.Authenticator = gocql.PasswordAuthenticator{Username: s.opts.Username, Password: s.opts.Password}
	}
	session, err := c.CreateSession()
	if err != nil {
		return nil, err
	}
	s.session = session
	return session, nil
}

// retry calls f until it succeeds, fails for good, or the time is up.
func (s *Sink) retry(ctx context.Context, f func(ctx context.Context, session *gocql.Session) error) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Limits.CommitDeadline)
		defer cancel()
	}
	var err error
	pause := s.opts.Limits.BackoffMin
	for n := 1; n <= s.opts.Limits.Tries; n++ {
		var session *gocql.Session
		if session, err = s.connect(); err == nil {
			err = f(ctx, session)
		}
		var classified *failure.Error
		if err == nil || errors.As(err, &classified) || !passing(err) || ctx.Err() != nil {
			return err
		}
		if n < s.opts.Limits.Tries && s.opts.Clock.Sleep(ctx, pause) != nil {
			return err
		}
		pause = min(2*pause, s.opts.Limits.BackoffMax)
	}
	return err
}

// passing reports whether an error may be gone at the next try.
func passing(err error) bool {
	var r gocql.RequestError
	if !errors.As(err, &r) {
		return true
	}
	return !slices.Contains([]int{gocql.ErrCodeSyntax, gocql.ErrCodeUnauthorized, gocql.ErrCodeInvalid, gocql.ErrCodeConfig, gocql.ErrCodeCredentials}, r.Code())
}

func (s *Sink) explain(err error, what string) error {
	var classified *failure.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	if !passing(err) {
		return failure.Wrap(failure.Config, err, "%s: %s", s.who(), what).WithHint("check the keyspace (it is not made), the log-in, what it is granted, and the table's columns")
	}
	return failure.Wrap(failure.Unreachable, err, "%s: %s", s.who(), what).WithHint("start again when the cluster answers")
}

// stored is what the store remembers of the target.
type stored struct {
	exists   bool
	identity string // of the table
	live     bool   // it was claimed, as this very table
	version  map[string]int64
	written  map[string]int64 // timestamp of the newest batch
	markers  map[string]*marker.Marker
}

// readState reads the table's id and the markers, at serial consistency, which
// finishes what a lightweight transaction has left open.
func (s *Sink) readState(ctx context.Context, session *gocql.Session) (*stored, error) {
	st := &stored{version: map[string]int64{}, written: map[string]int64{}, markers: map[string]*marker.Marker{}}
	tables := map[string]string{}
	it := session.Query("SELECT table_name, id FROM system_schema.tables WHERE keyspace_name = ?", s.opts.Keyspace).IterContext(ctx)
	var name string
	var id gocql.UUID
	for it.Scan(&name, &id) {
		tables[name] = id.String()
	}
	if err := it.Close(); err != nil {
		return nil, err
	}
	st.identity, st.exists = tables[s.opts.Table], tables[s.opts.Table] != ""
	if tables["weir_markers"] == "" {
		return st, nil
	}
	it = session.Query("SELECT query, table_id, version, written, marker FROM "+s.markers()+" WHERE target = ?", s.opts.Table).Consistency(gocql.Serial).IterContext(ctx)
	var query, tableID, text string
	var version, written int64
	for it.Scan(&query, &tableID, &version, &written, &text) {
		// The version counts on over a table that was dropped and made again.
		st.version[query] = version
		if !st.exists || tableID != st.identity {
			continue
		}
		m, err := marker.Decode(text)
		if err != nil || m.QueryName != query {
			return nil, failure.New(failure.Checkpoint, "%s: the marker of query %s cannot be read (%v)", s.who(), query, err)
		}
		st.live, st.markers[query], st.written[query] = true, m, written
	}
	return st, it.Close()
}

// Facts implements sink.Sink.
func (s *Sink) Facts(ctx context.Context, queryName string) (sink.Facts, error) {
	if queryName != s.opts.Query {
		return sink.Facts{}, failure.New(failure.Config, "sink %s belongs to query %s, not %s", s.Name(), s.opts.Query, queryName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var st *stored
	err := s.retry(ctx, func(ctx context.Context, session *gocql.Session) (err error) {
		st, err = s.readState(ctx, session)
		return err
	})
	if err != nil {
		return sink.Facts{}, s.explain(err, "read the marker of query "+queryName)
	}
	if !st.live {
		return sink.Facts{}, nil
	}
	f := sink.Facts{Exists: true, Identity: st.identity, Marker: st.markers[queryName], Others: map[string]*marker.Marker{},
		HeadID: st.version[queryName], HeadSequence: st.version[queryName], Handle: st}
	for name, m := range st.markers {
		if name != queryName && m.Kind == marker.KindStream {
			f.Others[name] = m
		}
	}
	return f, nil
}

// swap moves our marker from a version to the next; false where it had moved.
func (s *Sink) swap(ctx context.Context, session *gocql.Session, m *marker.Marker, identity string, version, written int64) (bool, error) {
	m.BaseSequence = version
	text, err := m.Encode()
	if err != nil {
		return false, err
	}
	if err := s.hooks.take(&s.hooks.before); err != nil {
		return false, err
	}
	q := session.Query("UPDATE "+s.markers()+" SET table_id = ?, version = ?, written = ?, marker = ? WHERE target = ? AND query = ? IF version = ?",
		identity, version+1, written, text, s.opts.Table, m.QueryName, version)
	if version == 0 {
		q = session.Query("INSERT INTO "+s.markers()+" (target, query, table_id, version, written, marker) VALUES (?, ?, ?, ?, ?, ?) IF NOT EXISTS",
			s.opts.Table, m.QueryName, identity, version+1, written, text)
	}
	applied, err := q.MapScanCASContext(ctx, map[string]any{})
	if err != nil || !applied {
		return false, err
	}
	return true, s.hooks.take(&s.hooks.after)
}

// ensure makes the tables that are missing and gives the target's id.
func (s *Sink) ensure(ctx context.Context, session *gocql.Session) (string, error) {
	var defs []string
	for _, f := range s.columns {
		defs = append(defs, quote(f.Name)+" "+cqlType(f.Type))
	}
	keys := make([]string, len(s.opts.Keys))
	for i, k := range s.opts.Keys {
		keys[i] = quote(k)
	}
	for _, ddl := range []string{
		"CREATE TABLE IF NOT EXISTS " + s.markers() + " (target text, query text, table_id text, version bigint, written bigint, marker text, PRIMARY KEY (target, query))",
		"CREATE TABLE IF NOT EXISTS " + s.target() + " (" + strings.Join(defs, ", ") + ", PRIMARY KEY (" + strings.Join(keys, ", ") + "))",
	} {
		if err := session.Query(ddl).ExecContext(ctx); err != nil {
			return "", fmt.Errorf("make a table: %w", err)
		}
	}
	if err := session.AwaitSchemaAgreement(ctx); err != nil {
		return "", err
	}
	if err := s.checkTable(ctx, session); err != nil {
		return "", err
	}
	var id gocql.UUID
	err := session.Query("SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?", s.opts.Keyspace, s.opts.Table).ScanContext(ctx, &id)
	return id.String(), err
}

// checkTable compares the target's columns and keys with the rows.
func (s *Sink) checkTable(ctx context.Context, session *gocql.Session) error {
	have, kinds := map[string]string{}, map[string]string{}
	it := session.Query("SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?", s.opts.Keyspace, s.opts.Table).IterContext(ctx)
	var name, typ, kind string
	for it.Scan(&name, &typ, &kind) {
		have[name], kinds[name] = typ, kind
	}
	if err := it.Close(); err != nil {
		return err
	}
	var faults []string
	for _, f := range s.columns {
		if got := have[f.Name]; got != cqlType(f.Type) {
			faults = append(faults, fmt.Sprintf("column %q is %q, the rows have %s", f.Name, got, cqlType(f.Type)))
		}
	}
	for c, k := range kinds {
		isKey := k == "partition_key" || k == "clustering"
		if isKey != slices.Contains(s.opts.Keys, c) {
			faults = append(faults, fmt.Sprintf("column %q: in one of the table's primary key and keys, not in the other", c))
		}
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return failure.New(failure.SchemaConflict, "%s does not fit the query: %s", s.who(), strings.Join(faults, "; "))
	}
	return nil
}
