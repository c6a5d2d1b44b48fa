package lake

import (
	"context"
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

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
)

// tempPrefix and tempSuffix frame the name of a file that is being written. A
// crash may leave such files behind; orphan removal knows them by these.
const (
	tempPrefix = ".weir-"
	tempSuffix = ".tmp"
)

// FileIO reads and writes local files for iceberg-go and for data files. A
// file that it creates is whole and durable under its name when Close returns,
// or not there at all: temporary name, fsync, rename, fsync of the folder and of
// every parent folder that this process has not synced yet.
//
// The rename may overwrite. That is safe because every name below a table
// holds a UUID or a nonce; create-once names belong to package objstore.
type FileIO struct {
	icebergio.LocalFS // reading: Open, ReadFile, Stat, ReadDir
	synced            *folders
	trace             func(op, path string) // tests pin the order of operations
}

// folders remembers the folders whose entry in their parent is known to be
// durable, so that only the first file in a folder pays for it.
type folders struct {
	mu   sync.Mutex
	done map[string]bool
}

var (
	processFolders = &folders{done: map[string]bool{}}
	registerOnce   sync.Once
)

// registerIO puts FileIO in the place of the library's LocalFS for local paths,
// and ObjectIO at those on an object store.
// It is called before the first catalog is opened.
func registerIO() {
	registerOnce.Do(func() {
		factory := func(context.Context, *url.URL, map[string]string) (icebergio.IO, error) {
			return NewFileIO(), nil
		}
		for _, scheme := range []string{"file", ""} {
			icebergio.Unregister(scheme)
			icebergio.Register(scheme, factory)
		}
		registerObjectStores()
	})
}

// NewFileIO gives local file access.
func NewFileIO() *FileIO { return &FileIO{synced: processFolders} }

// DataFS creates data files in the table's own storage, with the signature that
// package datafile asks for.
type DataFS struct{ fs icebergio.WriteFileIO }

// DataFSOf gives the storage of a loaded table.
func DataFSOf(ctx context.Context, t *table.Table) (DataFS, error) {
	f, err := t.FS(ctx)
	if err != nil {
		return DataFS{}, fmt.Errorf("storage of %s: %w", Name(t.Identifier()), err)
	}
	wfs, ok := f.(icebergio.WriteFileIO)
	if !ok {
		return DataFS{}, table.ErrWriteIORequired
	}
	return DataFS{fs: wfs}, nil
}

// Create implements datafile.FS. On the local disk the writer has an Abort.
func (d DataFS) Create(path string) (io.WriteCloser, error) {
	if f, ok := d.fs.(*FileIO); ok {
		return f.create(path)
	}
	return d.fs.Create(path)
}

// Modified is when the file at a location was last written; the error wraps
// fs.ErrNotExist where there is none.
func (d DataFS) Modified(path string) (time.Time, error) {
	st, ok := d.fs.(icebergio.StatIO)
	if !ok {
		return time.Time{}, fmt.Errorf("storage of %s cannot tell the age of a file", path)
	}
	info, err := st.Stat(path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// LocalPath is the path of a location that is local ("file:///a" or "/a").
func LocalPath(location string) (string, error) {
	if !strings.Contains(location, "://") && !strings.HasPrefix(location, "file:") {
		return location, nil
	}
	u, err := url.Parse(location)
	if err != nil {
		return "", fmt.Errorf("location %q: %w", location, err)
	}
	if u.Scheme != "file" || (u.Host != "" && u.Host != "localhost") {
		return "", fmt.Errorf("location %q is not on the local disk", location)
	}
	return filepath.FromSlash(u.Path), nil
}

// Create implements icebergio.WriteFileIO.
func (f *FileIO) Create(name string) (icebergio.FileWriter, error) { return f.create(name) }

// WriteFile implements icebergio.WriteFileIO.
func (f *FileIO) WriteFile(name string, content []byte) error {
	w, err := f.create(name)
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}

func (f *FileIO) create(name string) (*fileWriter, error) {
	path, err := LocalPath(name)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	temp := filepath.Join(dir, tempPrefix+clock.Nonce()+"-"+filepath.Base(path)+tempSuffix)
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &fileWriter{io: f, file: file, temp: temp, path: path}, nil
}

func (f *FileIO) traced(op, path string) {
	if f.trace != nil {
		f.trace(op, path)
	}
}

// fileWriter is a file on its way to its name.
type fileWriter struct {
	io     *FileIO
	file   *os.File
	temp   string
	path   string
	failed error
	closed bool
}

// Write implements io.Writer. After a failed write the file can only be
// aborted: Close does not publish half a file.
func (w *fileWriter) Write(b []byte) (int, error) {
	n, err := w.file.Write(b)
	if err != nil {
		w.failed = err
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (w *fileWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := w.file.ReadFrom(r)
	if err != nil {
		w.failed = err
	}
	return n, err
}

// Abort discards the file. It is harmless after Close.
func (w *fileWriter) Abort() {
	if w.closed {
		return
	}
	w.closed = true
	_ = w.file.Close()
	_ = os.Remove(w.temp)
}

// Close makes the file durable under its name, or leaves nothing.
func (w *fileWriter) Close() error {
	if w.closed {
		return fs.ErrClosed
	}
	if w.failed != nil {
		w.Abort()
		return fmt.Errorf("write %s: %w", w.path, w.failed)
	}
	if err := w.publish(); err != nil {
		w.Abort()
		return fmt.Errorf("write %s: %w", w.path, err)
	}
	return nil
}

func (w *fileWriter) publish() error {
	w.io.traced("sync", w.path)
	if err := w.file.Sync(); err != nil {
		return err
	}
	if err := w.file.Close(); err != nil {
		return err
	}
	w.io.traced("rename", w.path)
	if err := os.Rename(w.temp, w.path); err != nil {
		return err
	}
	// From here on there is nothing to remove under the temporary name.
	w.closed = true
	dir := filepath.Dir(w.path)
	w.io.traced("syncdir", dir)
	if err := syncFolder(dir); err != nil {
		return err
	}
	return w.io.syncParents(dir)
}

// syncParents makes the entry of dir in its parents durable, once per process.
// It also covers a folder that another process made and died before syncing.
func (f *FileIO) syncParents(dir string) error {
	for {
		parent := filepath.Dir(dir)
		f.synced.mu.Lock()
		done := f.synced.done[dir]
		f.synced.mu.Unlock()
		if done || parent == dir {
			return nil
		}
		f.traced("syncdir", parent)
		// A parent that may not be read is not one that this program made.
		if err := syncFolder(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
		f.synced.mu.Lock()
		f.synced.done[dir] = true
		f.synced.mu.Unlock()
		dir = parent
	}
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Remove implements icebergio.IO. A folder is forgotten as synced, because it
// may be made again.
func (f *FileIO) Remove(name string) error {
	path, err := LocalPath(name)
	if err != nil {
		return err
	}
	f.forget(path)
	return os.Remove(path)
}

// RemoveAll removes a folder and everything below it.
func (f *FileIO) RemoveAll(name string) error {
	path, err := LocalPath(name)
	if err != nil {
		return err
	}
	f.forget(path)
	return os.RemoveAll(path)
}

func (f *FileIO) forget(path string) {
	f.synced.mu.Lock()
	defer f.synced.mu.Unlock()
	for dir := range f.synced.done {
		if dir == path || strings.HasPrefix(dir, path+string(filepath.Separator)) {
			delete(f.synced.done, dir)
		}
	}
}

// DeleteFiles implements icebergio.BulkRemovableIO; missing files are no error.
func (f *FileIO) DeleteFiles(ctx context.Context, paths []string) ([]string, error) {
	var (
		deleted []string
		errs    []error
	)
	for _, p := range paths {
		if err := ctx.Err(); err != nil {
			return deleted, errors.Join(append(errs, err)...)
		}
		if err := f.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		deleted = append(deleted, p)
	}
	return deleted, errors.Join(errs...)
}

// WalkDir implements icebergio.ListableIO. Paths are given in the root's own
// form: full URIs below a file:// root (the library's LocalFS drops the scheme,
// so that orphan removal would take every file for an unknown one).
func (f *FileIO) WalkDir(root string, fn fs.WalkDirFunc) error {
	path, err := LocalPath(root)
	if err != nil {
		return err
	}
	path = filepath.Clean(path)
	prefix := strings.TrimSuffix(root, "/")
	return filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		rest := filepath.ToSlash(strings.TrimPrefix(p, path))
		return fn(prefix+rest, d, err)
	})
}

var (
	_ icebergio.WriteFileIO     = (*FileIO)(nil)
	_ icebergio.ListableIO      = (*FileIO)(nil)
	_ icebergio.BulkRemovableIO = (*FileIO)(nil)
	_ icebergio.ReadFileIO      = (*FileIO)(nil)
	_ icebergio.StatIO          = (*FileIO)(nil)
)
