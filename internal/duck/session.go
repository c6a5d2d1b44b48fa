package duck

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// driverName is what package link registers.
const driverName = "duckdb"

// Linked says whether this build has DuckDB; the error says what to do if not.
func Linked() error {
	if slices.Contains(sql.Drivers(), driverName) {
		return nil
	}
	return failure.New(failure.Config, "this build of weir has no DuckDB, which gold and weir sql need").
		WithHint("build it with cgo (CGO_ENABLED=1 and a C compiler) and without the tag noduckdb")
}

// Options make a Session.
type Options struct {
	// Path is the database file; empty is a database of its own, in the
	// session's folder, that goes with it.
	Path string
	// Threads and MemoryLimit ("2GB") bound DuckDB; 0 and empty leave it its own
	// choice.
	Threads     int
	MemoryLimit string
	// Folder is where the session makes its folder; empty is the system's.
	Folder string
}

// Session is one DuckDB database with the tables that were mounted in it.
type Session struct {
	DB     *sql.DB
	folder string
	files  int
}

// Open makes a database. Times with a zone are in UTC, whatever the machine's.
func Open(ctx context.Context, o Options) (_ *Session, err error) {
	if err := Linked(); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(o.Folder, "weir-duckdb-")
	if err != nil {
		return nil, failure.Wrap(failure.Runtime, err, "make a folder for DuckDB")
	}
	s := &Session{folder: folder}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	if s.DB, err = sql.Open(driverName, o.Path); err != nil {
		return nil, classified(err, "open DuckDB")
	}
	settings := []string{
		"SET GLOBAL TimeZone = 'UTC'",
		"SET GLOBAL autoinstall_known_extensions = false", "SET GLOBAL autoload_known_extensions = false",
		"SET GLOBAL temp_directory = " + Quote(folder),
	}
	if o.Threads > 0 {
		settings = append(settings, fmt.Sprintf("SET GLOBAL threads = %d", o.Threads))
	}
	if o.MemoryLimit != "" {
		settings = append(settings, "SET GLOBAL memory_limit = "+Quote(o.MemoryLimit))
	}
	for _, set := range settings {
		if err := s.Exec(ctx, set); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// LockDown leaves the session no way to other files than those below the given
// folders, and no way to change its settings.
func (s *Session) LockDown(ctx context.Context, folders []string) error {
	all := make([]string, 0, len(folders)+1)
	for _, f := range append(slices.Clone(folders), s.folder) {
		all = append(all, Quote(strings.TrimSuffix(f, "/")+"/"))
	}
	for _, set := range []string{
		"SET GLOBAL allowed_directories = [" + strings.Join(all, ", ") + "]",
		"SET GLOBAL enable_external_access = false",
		"SET GLOBAL lock_configuration = true",
	} {
		if err := s.Exec(ctx, set); err != nil {
			return err
		}
	}
	return nil
}

// Folder is the session's own folder: what is put there goes with the session.
func (s *Session) Folder() string { return s.folder }

// Exec runs a statement.
func (s *Session) Exec(ctx context.Context, statement string) error {
	_, err := s.DB.ExecContext(ctx, statement)
	return Classified(ctx, err)
}

// Count is the first column of the first row of a query, as a number.
func (s *Session) Count(ctx context.Context, query string) (int64, error) {
	var n int64
	err := s.DB.QueryRowContext(ctx, query).Scan(&n)
	return n, Classified(ctx, err)
}

// Close ends the database and removes the session's folder.
func (s *Session) Close() error {
	var errs []error
	if s.DB != nil {
		errs = append(errs, s.DB.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.folder))...)
}

// userErrors are the kinds of errors that the statement is to blame for, as
// DuckDB's messages begin.
var userErrors = []string{
	"Parser Error", "Binder Error", "Catalog Error", "Conversion Error", "Invalid Input Error", "Out of Range Error",
	"Constraint Error", "Not implemented Error", "Permission Error", "Syntax Error", "Invalid type Error", "Mismatch Type Error",
	"Invalid Configuration Error", "Dependency Error", "Expression Error", "Parameter Not Resolved Error",
}

// Classified tells the statement's faults (configuration) from the machine's.
func Classified(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return classified(err, "DuckDB")
}

func classified(err error, doing string) error {
	var f *failure.Error
	if errors.As(err, &f) {
		return err
	}
	text := err.Error()
	for _, kind := range userErrors {
		if strings.HasPrefix(text, kind) {
			return failure.New(failure.Config, "%s", text)
		}
	}
	return failure.Wrap(failure.Runtime, err, "%s", doing)
}

// Quote is a SQL string.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// Ident is a quoted name.
func Ident(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// Relation is a quoted schema and table.
func Relation(schema, name string) string { return Ident(schema) + "." + Ident(name) }
