package lake

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/apache/iceberg-go"
	icebergsql "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

const (
	// busyTimeoutMillis is how long SQLite itself waits for the write lock.
	busyTimeoutMillis = 10_000
	// maxBusyAttempts bounds how often a transaction that could not begin is
	// begun again.
	maxBusyAttempts = 4
	// busyPause is the first pause between such attempts.
	busyPause = 50 * time.Millisecond
	// maxConnections bounds the pool: loads and commits of all queries of a
	// process share one file.
	maxConnections = 4
)

// sqlitePointer holds the table locations in the tables that PyIceberg and
// Java's JDBC catalog use, so that Spark and PyIceberg read the same file.
type sqlitePointer struct {
	db   *sql.DB
	name string
}

// dialectMu: the library's SQL dialects are shared and set up on first use.
var dialectMu sync.Mutex

func openSQLite(ctx context.Context, cfg Config, props iceberg.Properties) (*Catalog, error) {
	file, err := sqlitePath(cfg.URI)
	if err != nil {
		return nil, err
	}
	if cfg.ReadOnly {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return nil, failure.Wrap(failure.Config, ErrNoCatalog, "there is no catalog %s yet", file).WithHint("run the pipeline first, or correct catalog.uri")
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		class := failure.Unreachable
		if unwritable(err) {
			class = failure.Config
		}
		return nil, failure.Wrap(class, err, "make the folder of the catalog %s", file).
			WithHint("correct catalog.uri, or let this user make the folder")
	}
	dsn := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath()}).String() + "?" + url.Values{
		"_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTimeoutMillis), "journal_mode(WAL)", "synchronous(FULL)"},
		"_txlock": {"immediate"},
	}.Encode()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "open the catalog %s", file)
	}
	db.SetMaxOpenConns(maxConnections)
	inner, err := newInner(ctx, cfg.Name, db, props)
	if err != nil {
		db.Close()
		return nil, cannotOpen(err, file)
	}
	names, err := catalogNames(ctx, db)
	if err == nil {
		err = cfg.checkName("the catalog "+file, names)
	}
	if err != nil {
		db.Close()
		return nil, err
	}
	// The file may be new: its name must survive a power cut as its contents do.
	if err := syncFolder(filepath.Dir(file)); err != nil {
		db.Close()
		return nil, failure.Wrap(failure.Unreachable, err, "sync the folder of the catalog %s", file)
	}
	return &Catalog{
		inner:   inner,
		pointer: &sqlitePointer{db: db, name: cfg.Name},
		props:   props,
		parsed:  &parsed{byTable: map[string]parsedMetadata{}},
		closers: []io.Closer{inner, db},
	}, nil
}

// newInner makes the library's catalog. Two processes that make the same new
// file at once can meet SQLITE_BUSY in spite of busy_timeout, while one of them
// switches it to WAL.
func newInner(ctx context.Context, name string, db *sql.DB, props iceberg.Properties) (*icebergsql.Catalog, error) {
	dialectMu.Lock()
	defer dialectMu.Unlock()
	for attempt := 1; ; attempt++ {
		c, err := icebergsql.NewCatalog(name, db, icebergsql.SQLite, props)
		if err == nil || !isBusy(err) || attempt == maxBusyAttempts || ctx.Err() != nil {
			return c, err
		}
		if serr := (clock.System{}).Sleep(ctx, time.Duration(attempt)*busyPause); serr != nil {
			return nil, err
		}
	}
}

// sqlitePath is the file of a catalog address.
func sqlitePath(uri string) (string, error) {
	p := uri
	for _, prefix := range []string{"sqlite://", "sqlite:", "file://", "file:"} {
		if rest, ok := strings.CutPrefix(p, prefix); ok {
			p = rest
			if prefix == "sqlite://" {
				// SQLAlchemy: sqlite:///relative, sqlite:////absolute.
				p = strings.TrimPrefix(p, "/")
			}
			break
		}
	}
	if p == "" || strings.Contains(p, "://") {
		return "", failure.New(failure.Config, "catalog address %q is not a SQLite file", uri).
			WithHint("write a file path, for example catalog.db")
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "catalog address %q", uri)
	}
	return abs, nil
}

// cannotOpen says what is wrong with a file that is not a catalog: what another
// start cannot change is the configuration's fault.
func cannotOpen(err error, file string) error {
	switch primaryCode(err) {
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return failure.Wrap(failure.Config, err, "the catalog %s is not a SQLite database", file).
			WithHint("correct catalog.uri, or restore the file: nothing was changed in it")
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return failure.Wrap(failure.Config, err, "the catalog %s cannot be opened for writing", file).
			WithHint("catalog.uri must name a file, and this user must be able to write to it and to its folder")
	}
	return failure.Wrap(failure.Unreachable, err, "open the catalog %s", file)
}

// primaryCode is SQLite's result code, 0 where err is none of its.
func primaryCode(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

func isBusy(err error) bool {
	code := primaryCode(err)
	return code == sqlite3.SQLITE_BUSY || code == sqlite3.SQLITE_LOCKED
}

func (p *sqlitePointer) key(ident table.Identifier) (namespace, name string) {
	return strings.Join(ident[:len(ident)-1], "."), ident[len(ident)-1]
}

func (p *sqlitePointer) location(ctx context.Context, ident table.Identifier) (string, error) {
	if len(ident) < 2 {
		return "", fmt.Errorf("table %q has no namespace", Name(ident))
	}
	ns, name := p.key(ident)
	var loc sql.NullString
	err := p.db.QueryRowContext(ctx,
		`SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?`,
		p.name, ns, name).Scan(&loc)
	switch {
	case errors.Is(err, sql.ErrNoRows) || (err == nil && !loc.Valid):
		return "", fmt.Errorf("%w: %s", ErrNoTable, Name(ident))
	case err != nil:
		return "", fmt.Errorf("look up %s in the catalog: %w", Name(ident), err)
	}
	return loc.String, nil
}

func (p *sqlitePointer) swap(ctx context.Context, ident table.Identifier, from, to string) error {
	for attempt := 1; ; attempt++ {
		tx, err := p.db.BeginTx(ctx, nil) // BEGIN IMMEDIATE: the write lock is taken here or not at all
		if err == nil {
			return p.swapIn(ctx, tx, ident, from, to)
		}
		if !isBusy(err) || attempt == maxBusyAttempts || ctx.Err() != nil {
			return fmt.Errorf("begin a catalog transaction for %s: %w", Name(ident), err)
		}
	}
}

func (p *sqlitePointer) swapIn(ctx context.Context, tx *sql.Tx, ident table.Identifier, from, to string) error {
	defer tx.Rollback() //nolint:errcheck // harmless after the commit
	ns, name := p.key(ident)
	res, err := tx.ExecContext(ctx,
		`UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?
		 WHERE catalog_name = ? AND table_namespace = ? AND table_name = ? AND metadata_location = ?`,
		to, from, p.name, ns, name, from)
	if err != nil {
		return fmt.Errorf("update %s in the catalog: %w", Name(ident), err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update %s in the catalog: %w", Name(ident), err)
	}
	if n == 0 {
		return fmt.Errorf("%w: another commit to %s came first", ErrConflict, Name(ident))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: commit of %s in the catalog: %w", ErrUnknown, Name(ident), err)
	}
	return nil
}
