package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

const (
	// connectTimeout bounds one attempt to connect.
	connectTimeout = 10 * time.Second
	// idleInTransaction ends, by the server's hand, the session of a process that
	// stands still within a transaction; it is longer than any side table's commit.
	idleInTransaction = 5 * time.Minute
	// closeTimeout bounds the good-bye to a server that may be gone.
	closeTimeout = time.Second
)

// errLost stands for an answer that did not come.
var errLost = errors.New("the connection was lost")

// application is the name that our sessions have in pg_stat_activity: the same
// for every process of the query, so that a claim finds a predecessor's.
func (s *Sink) application() string {
	return "weir/" + marker.Hash([]byte(s.opts.Query + "\x00" + s.schema + "." + s.table))[:16]
}

// connection gives the open connection or makes one. The caller holds mu.
func (s *Sink) connection(ctx context.Context) (*pgx.Conn, error) {
	if s.conn != nil && !s.conn.IsClosed() {
		return s.conn, nil
	}
	cfg, err := pgx.ParseConfig(s.opts.URL)
	if err != nil {
		return nil, failure.New(failure.Config, "%s: its URL cannot be read", s.who())
	}
	cfg.ConnectTimeout = connectTimeout
	cfg.RuntimeParams["application_name"] = s.application()
	cfg.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(idleInTransaction.Milliseconds())
	cfg.RuntimeParams["timezone"] = "UTC"
	if s.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		s.conn = nil
		return nil, s.redact(err)
	}
	return s.conn, nil
}

// redact keeps the password out of the driver's text, whatever that says.
func (s *Sink) redact(err error) error {
	cfg, perr := pgx.ParseConfig(s.opts.URL)
	if perr != nil || cfg.Password == "" || !strings.Contains(err.Error(), cfg.Password) {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), cfg.Password, "[redacted]"))
}

// drop gives the connection up, and with it whatever transaction is open.
func (s *Sink) drop() {
	s.open = nil
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = s.conn.Close(ctx)
	s.conn = nil
}

// retry calls f with a connection until it succeeds, fails for good, or the time
// is up. After a failure the connection is made anew.
func (s *Sink) retry(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.opts.Limits.CommitDeadline)
		defer cancel()
	}
	var err error
	for n := 1; n <= s.opts.Limits.Tries; n++ {
		var conn *pgx.Conn
		if conn, err = s.connection(ctx); err == nil {
			if err = f(ctx, conn); err == nil {
				return nil
			}
			s.drop()
		}
		if !passing(err) {
			return err
		}
		if ctx.Err() != nil || (n < s.opts.Limits.Tries && s.opts.Clock.Sleep(ctx, s.pause(n)) != nil) {
			return err
		}
	}
	return err
}

// pause is the time to wait after the n-th failure.
func (s *Sink) pause(n int) time.Duration {
	d := s.opts.Limits.BackoffMin
	for ; n > 1 && d < s.opts.Limits.BackoffMax; n-- {
		d *= 2
	}
	return min(d, s.opts.Limits.BackoffMax)
}

// passing reports whether an error may be gone at the next try: the connection's,
// a server that stops or starts, another transaction in the way.
func passing(err error) bool {
	var classified *failure.Error
	if errors.As(err, &classified) {
		return false
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true // not the server's answer
	}
	switch {
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "57"), strings.HasPrefix(pg.Code, "53"),
		strings.HasPrefix(pg.Code, "58"), strings.HasPrefix(pg.Code, "40"), pg.Code == codeLockTimeout,
		pg.Code == "25P03", pg.Code == "25P04": // its own time-outs of idle and long transactions
		return true
	}
	return false
}

// SQLSTATEs that are asked for by name.
const (
	codeLockTimeout = "55P03"
)

func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// refuses reports whether the server's answer is about the rows: a value that it
// cannot hold (class 22), or a constraint (class 23).
func refuses(err error) bool {
	c := codeOf(err)
	return strings.HasPrefix(c, "22") || strings.HasPrefix(c, "23")
}

// explain classes the error of an operation.
func (s *Sink) explain(err error, what string) error {
	var classified *failure.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	err = s.redact(err)
	switch c := codeOf(err); {
	case c == "28P01" || c == "28000" || c == "3D000" || c == "42501" || c == "3F000":
		return failure.Wrap(failure.Config, err, "%s: %s", s.who(), what).
			WithHint("check user, password, database, schema and what the user is granted")
	case strings.HasPrefix(c, "42"), refuses(err):
		return failure.Wrap(failure.SchemaConflict, err, "%s: %s", s.who(), what).
			WithHint("compare the table's columns with the query's")
	}
	return failure.Wrap(failure.Unreachable, err, "%s: %s", s.who(), what).
		WithHint("start again when the database answers")
}
