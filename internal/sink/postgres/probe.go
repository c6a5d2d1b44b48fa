package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/sink"
)

var _ sink.Prober = (*Sink)(nil)

// Probe implements sink.Prober: within one transaction that is rolled back it
// makes what a claim would make, and asks for the rights that a commit needs.
// It takes no lock that a running query holds for longer than a claim, and
// ends nobody's session.
func (s *Sink) Probe(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	conn, err := s.connection(ctx)
	if err != nil {
		return s.explain(err, "connect")
	}
	defer s.drop() // and with it the transaction, also where it failed
	return s.explain(s.probe(ctx, conn), "try what a query needs")
}

func (s *Sink) probe(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{"BEGIN", fmt.Sprintf("SET LOCAL lock_timeout = %d", s.opts.Limits.LockWait.Milliseconds())} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := s.lockTarget(ctx, conn); err != nil {
		return err
	}
	st, err := s.readState(ctx, conn, "")
	if err != nil {
		return err
	}
	if err := s.ensure(ctx, conn, st); err != nil {
		return err
	}
	if err := s.granted(ctx, conn); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "ROLLBACK")
	return err
}

// granted names every right that is missing at once.
func (s *Sink) granted(ctx context.Context, conn *pgx.Conn) error {
	rights := "INSERT"
	if s.opts.Upsert {
		rights = "SELECT, INSERT, UPDATE"
	}
	var missing []string
	for table, want := range map[string]string{
		s.target(): rights, s.own("weir_markers"): "SELECT, INSERT, UPDATE, DELETE", s.own("weir_tables"): "SELECT, INSERT, UPDATE",
	} {
		for _, right := range strings.Split(want, ", ") {
			var has bool
			if err := conn.QueryRow(ctx, "SELECT has_table_privilege($1, $2)", table, right).Scan(&has); err != nil {
				return err
			}
			if !has {
				missing = append(missing, right+" on "+table)
			}
		}
	}
	var temporary bool
	if err := conn.QueryRow(ctx, "SELECT has_database_privilege(current_database(), 'TEMPORARY')").Scan(&temporary); err != nil {
		return err
	}
	if !temporary {
		missing = append(missing, "TEMPORARY on the database")
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return failure.New(failure.Config, "%s: the user has not %s", s.who(), strings.Join(missing, ", ")).WithHint("grant it")
	}
	return nil
}
