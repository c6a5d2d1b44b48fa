package lake

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// DefaultOpenDeadline is how long Open waits for a catalog that does not
	// answer.
	DefaultOpenDeadline = 30 * time.Second
	// openTryMax bounds one try.
	openTryMax = 15 * time.Second
	// openPauseMin and openPauseMax bound the pauses between tries.
	openPauseMin = 100 * time.Millisecond
	openPauseMax = 2 * time.Second
	// namesMax bounds the names of catalogs that an error lists.
	namesMax = 10
)

// wait tries until the catalog answers: an Unreachable error is tried again
// until the deadline, any other ends it.
func (cfg Config) wait(ctx context.Context, what string, try func(ctx context.Context) error) error {
	deadline := cfg.OpenDeadline
	if deadline <= 0 {
		deadline = DefaultOpenDeadline
	}
	clk := clock.System{}
	began := clk.Now()
	for n := 0; ; n++ {
		tctx, cancel := context.WithTimeout(ctx, openTryMax)
		err := try(tctx)
		cancel()
		if err == nil || !failure.Is(err, failure.Unreachable) {
			return err
		}
		pause := min(openPauseMin<<min(n, 10), openPauseMax)
		waited := clk.Now().Sub(began)
		if ctx.Err() != nil || waited+pause > deadline {
			return failure.Wrap(failure.Unreachable, err, "waited %s for %s", waited.Round(time.Second/10), what)
		}
		if n == 0 && cfg.OnWait != nil {
			cfg.OnWait(fmt.Sprintf("waiting up to %s for %s", deadline, what))
		}
		if clk.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// checkName refuses a name under which the database has no table while it has
// some under others: with a misspelt name every query would begin again in
// tables of its own.
func (cfg Config) checkName(where string, have []string) error {
	if cfg.NewName || len(have) == 0 || slices.Contains(have, cfg.Name) {
		return nil
	}
	return failure.New(failure.Config, "%s holds the tables of catalog %s and none of %q", where, strings.Join(quoted(have), ", "), cfg.Name).
		WithHint("set catalog.name to the name of an existing one, or catalog.newName: true to begin another catalog in the same database")
}

func quoted(names []string) []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, fmt.Sprintf("%q", n))
	}
	return out
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// catalogNames lists the names under which a database has tables or
// namespaces.
func catalogNames(ctx context.Context, db querier) (names []string, err error) {
	rows, err := db.QueryContext(ctx, fmt.Sprintf(
		`SELECT catalog_name FROM iceberg_tables UNION SELECT catalog_name FROM iceberg_namespace_properties ORDER BY 1 LIMIT %d`, namesMax))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		names = append(names, n)
	}
	return names, rows.Err()
}

// splitName gives the namespace and the name as the SQL catalogs store them.
func splitName(ident table.Identifier) (namespace, name string) {
	return strings.Join(ident[:len(ident)-1], "."), ident[len(ident)-1]
}

// redactedError takes secrets out of an error's text. The error stays as it is
// where its text holds none; where it does, only the text and the class are
// left of it.
func redactedError(err error, secrets ...string) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "[redacted]")
		}
	}
	if text == err.Error() {
		return err
	}
	return failure.New(failure.ClassOf(err), "%s", text)
}
