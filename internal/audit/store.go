package audit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	_ "modernc.org/sqlite" // the catalog of a local deployment is a SQLite file

	"github.com/weirlake/weir/internal/failure"
)

// maxMetadataBytes bounds what is read as one metadata, manifest list or
// manifest file.
const maxMetadataBytes = 1 << 30

// File is an open file of a table.
type File interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Store opens the files of a table. An error that wraps os.ErrNotExist says
// that the file is not there.
type Store interface {
	Open(ctx context.Context, location string) (File, error)
}

// LocalStore reads files of the local file system, as plain paths or file: URLs.
type LocalStore struct{}

// Open implements Store.
func (LocalStore) Open(_ context.Context, location string) (File, error) {
	p, err := localPath(location)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(p)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &localFile{File: f, size: st.Size()}, nil
}

type localFile struct {
	*os.File
	size int64
}

func (f *localFile) Size() int64 { return f.size }

func localPath(location string) (string, error) {
	if rest, ok := strings.CutPrefix(location, "file:"); ok {
		rest = "/" + strings.TrimLeft(rest, "/")
		// Partition values are percent-encoded in the names themselves by some
		// writers, so a name is tried as it stands before it is decoded.
		if _, err := os.Stat(rest); err == nil {
			return rest, nil
		}
		if dec, err := url.PathUnescape(rest); err == nil {
			if _, err := os.Stat(dec); err == nil {
				return dec, nil
			}
		}
		return rest, nil
	}
	if i := strings.Index(location, "://"); i > 0 {
		return "", fmt.Errorf("location %s: only local files can be read here", location)
	}
	return location, nil
}

func readAll(ctx context.Context, store Store, location string) ([]byte, error) {
	f, err := store.Open(ctx, location)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > maxMetadataBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", location, maxMetadataBytes)
	}
	b := make([]byte, f.Size())
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return b, nil
}

// Locator tells where the newest metadata file of a table is. It must ask the
// catalog itself every time: an answer from a cache makes a stale reader.
type Locator interface {
	MetadataLocation(ctx context.Context, table string) (string, error)
}

// SQLiteCatalog is Iceberg's SQL catalog in a SQLite file, opened read-only.
type SQLiteCatalog struct {
	// Path is the database file.
	Path string
	// Name is the catalog's name in the rows; "weir" where empty.
	Name string
}

// MetadataLocation implements Locator. The database is opened for every
// question, so that nothing is remembered between two of them.
func (c SQLiteCatalog) MetadataLocation(ctx context.Context, table string) (string, error) {
	i := strings.LastIndex(table, ".")
	if i <= 0 {
		return "", failure.New(failure.Config, "table %q: want namespace.table", table)
	}
	if _, err := os.Stat(c.Path); errors.Is(err, os.ErrNotExist) {
		return "", &NoTableError{Table: table, Catalog: c.Path}
	} else if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "catalog %s", c.Path)
	}
	name := c.Name
	if name == "" {
		name = "weir"
	}
	// Read-only in deed as well: query_only refuses every write, whatever is
	// asked. The file itself is opened for writing all the same, because a
	// database in WAL mode whose last writer was killed can only be read by a
	// connection that may recover the log's index.
	source := url.URL{Scheme: "file", Opaque: (&url.URL{Path: c.Path}).EscapedPath(),
		RawQuery: "mode=rw&_pragma=busy_timeout(10000)&_pragma=query_only(true)"}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "catalog %s", c.Path)
	}
	defer db.Close()
	var location string
	err = db.QueryRowContext(ctx,
		`SELECT metadata_location FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?`,
		name, table[:i], table[i+1:]).Scan(&location)
	if errors.Is(err, sql.ErrNoRows) || (err != nil && strings.Contains(err.Error(), "no such table")) {
		return "", &NoTableError{Table: table, Catalog: c.Path}
	}
	if err != nil && strings.Contains(err.Error(), "not a database") {
		return "", failure.Wrap(failure.Config, err, "the catalog %s is not a SQLite database", c.Path)
	}
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "catalog %s, table %s", c.Path, table)
	}
	return location, nil
}

// NoTableError says that the catalog knows no such table.
type NoTableError struct{ Table, Catalog string }

func (e *NoTableError) Error() string {
	return fmt.Sprintf("no table %s in catalog %s", e.Table, e.Catalog)
}

// PathCatalog finds tables by path: the name is a metadata.json file or the
// table's folder. It serves tables whose catalog cannot be asked.
type PathCatalog struct{}

// MetadataLocation implements Locator.
func (PathCatalog) MetadataLocation(_ context.Context, table string) (string, error) {
	p, err := localPath(table)
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "table %s", table)
	}
	st, err := os.Stat(p)
	if err != nil {
		return "", &NoTableError{Table: table, Catalog: "the file system"}
	}
	if !st.IsDir() {
		return p, nil
	}
	if hint, err := os.ReadFile(filepath.Join(p, "metadata", "version-hint.text")); err == nil {
		v := filepath.Join(p, "metadata", "v"+strings.TrimSpace(string(hint))+".metadata.json")
		if _, err := os.Stat(v); err == nil {
			return v, nil
		}
	}
	found, err := filepath.Glob(filepath.Join(p, "metadata", "*.metadata.json"))
	if err != nil || len(found) == 0 {
		return "", &NoTableError{Table: table, Catalog: "the file system"}
	}
	// Catalog tables number their metadata 00012-<uuid>, Hadoop tables v12.
	// Two files of one number are a lost commit race that only the catalog can
	// decide, so that is refused.
	sort.Slice(found, func(i, j int) bool { return metadataVersion(found[i]) < metadataVersion(found[j]) })
	last := found[len(found)-1]
	if n := len(found); n > 1 && metadataVersion(found[n-2]) == metadataVersion(last) {
		return "", failure.New(failure.Config, "table %s: two metadata files of version %d", table, metadataVersion(last)).
			WithHint("name the metadata.json file, or give the catalog")
	}
	return last, nil
}

func metadataVersion(p string) int {
	name := strings.TrimPrefix(filepath.Base(p), "v")
	end := strings.IndexAny(name, "-.")
	if end < 0 {
		return -1
	}
	n, err := strconv.Atoi(name[:end])
	if err != nil {
		return -1
	}
	return n
}
