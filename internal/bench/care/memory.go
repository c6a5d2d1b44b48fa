package care

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	icebergio "github.com/apache/iceberg-go/io"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake"
)

// scheme is that of files which are kept in memory.
const scheme = "weirbench"

// memoryFiles are a catalog's pointers and a table's files, in memory, so that hours of
// commits are bounded by the processor alone.
type memoryFiles struct {
	clock clock.Clock

	mu       sync.Mutex
	files    map[string]file
	pointers map[string]string
}

type file struct {
	data    []byte
	written time.Time
}

func newMemory(c clock.Clock) *memoryFiles {
	m := &memoryFiles{clock: c, files: map[string]file{}, pointers: map[string]string{}}
	icebergio.Unregister(scheme)
	icebergio.Register(scheme, func(context.Context, *url.URL, map[string]string) (icebergio.IO, error) { return m, nil })
	return m
}

// Location implements lake.Pointers.
func (m *memoryFiles) Location(_ context.Context, ident table.Identifier) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l := m.pointers[lake.Name(ident)]; l != "" {
		return l, nil
	}
	return "", lake.ErrNoTable
}

// Swap implements lake.Pointers.
func (m *memoryFiles) Swap(_ context.Context, ident table.Identifier, from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pointers[lake.Name(ident)] != from {
		return lake.ErrConflict
	}
	m.pointers[lake.Name(ident)] = to
	return nil
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (m *memoryFiles) get(op, name string) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[name]
	if !ok {
		return file{}, missing(op, name)
	}
	return f, nil
}

// Open implements icebergio.IO.
func (m *memoryFiles) Open(name string) (icebergio.File, error) {
	f, err := m.get("open", name)
	if err != nil {
		return nil, err
	}
	return &opened{Reader: bytes.NewReader(f.data), info: info{name: name, file: f}}, nil
}

// ReadFile implements icebergio.ReadFileIO.
func (m *memoryFiles) ReadFile(name string) ([]byte, error) {
	f, err := m.get("read", name)
	return slices.Clone(f.data), err
}

// Stat implements icebergio.StatIO.
func (m *memoryFiles) Stat(name string) (fs.FileInfo, error) {
	f, err := m.get("stat", name)
	if err != nil {
		return nil, err
	}
	return info{name: name, file: f}, nil
}

// Remove implements icebergio.IO.
func (m *memoryFiles) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[name]; !ok {
		return missing("remove", name)
	}
	delete(m.files, name)
	return nil
}

// WriteFile implements icebergio.WriteFileIO.
func (m *memoryFiles) WriteFile(name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = file{data: slices.Clone(data), written: m.clock.Now()}
	return nil
}

// Create implements icebergio.WriteFileIO.
func (m *memoryFiles) Create(name string) (icebergio.FileWriter, error) {
	return &created{m: m, name: name}, nil
}

// WalkDir implements icebergio.ListableIO.
func (m *memoryFiles) WalkDir(root string, fn fs.WalkDirFunc) error {
	m.mu.Lock()
	var found []info
	for name, f := range m.files {
		if strings.HasPrefix(name, strings.TrimSuffix(root, "/")+"/") {
			found = append(found, info{name: name, file: f})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(found, func(a, b info) int { return strings.Compare(a.name, b.name) })
	for _, i := range found {
		if err := fn(i.name, fs.FileInfoToDirEntry(i), nil); err != nil {
			return err
		}
	}
	return nil
}

// count is how many files there are, and their bytes.
func (m *memoryFiles) count() (n int, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.files {
		size += int64(len(f.data))
	}
	return len(m.files), size
}

type created struct {
	bytes.Buffer
	m    *memoryFiles
	name string
}

// ReadFrom implements io.ReaderFrom.
func (c *created) ReadFrom(r io.Reader) (int64, error) { return c.Buffer.ReadFrom(r) }

// Close implements io.Closer.
func (c *created) Close() error { return c.m.WriteFile(c.name, c.Bytes()) }

type opened struct {
	*bytes.Reader
	info info
}

// Stat implements fs.File.
func (o *opened) Stat() (fs.FileInfo, error) { return o.info, nil }

// Close implements io.Closer.
func (o *opened) Close() error { return nil }

type info struct {
	name string
	file file
}

func (i info) Name() string       { return path.Base(i.name) }
func (i info) Size() int64        { return int64(len(i.file.data)) }
func (i info) Mode() fs.FileMode  { return 0o644 }
func (i info) ModTime() time.Time { return i.file.written }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
