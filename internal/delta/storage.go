package delta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/objstore"
)

// Storage is the folder of one table. objstore.Store is the same without Open,
// Create and Stat; FromStore adds them to any store.
type Storage interface {
	Get(ctx context.Context, key string) ([]byte, error)
	List(ctx context.Context, prefix string) ([]objstore.Info, error)
	CreateOnce(ctx context.Context, key string, data []byte) (created bool, existing []byte, err error)
	Put(ctx context.Context, key string, data []byte) error
	Delete(ctx context.Context, key string) error
	Location() string

	// Create writes a file that becomes visible, whole and durable, when the
	// writer is closed; Abort discards it.
	Create(ctx context.Context, key string) (Writer, error)
	// Open reads a file in pieces, or objstore.ErrNotExist.
	Open(ctx context.Context, key string) (File, error)
	// Stat tells size and age of a file, or objstore.ErrNotExist.
	Stat(ctx context.Context, key string) (objstore.Info, error)
	// Settle makes a visible file durable that another process wrote.
	Settle(ctx context.Context, key string) error
}

// Writer is a file that is being written.
type Writer interface {
	io.WriteCloser
	Abort()
}

// File is an open data file.
type File interface {
	io.ReaderAt
	io.ReadSeeker
	io.Closer
}

// FromStore makes a Storage of any object store. Data files are held in memory
// while they are written and read; OpenLocal streams.
func FromStore(s objstore.Store) Storage { return &buffered{s} }

type buffered struct{ objstore.Store }

func (b *buffered) Create(ctx context.Context, key string) (Writer, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	return &bufferedWriter{ctx: ctx, store: b.Store, key: key}, nil
}

type bufferedWriter struct {
	bytes.Buffer
	ctx   context.Context
	store objstore.Store
	key   string
}

func (w *bufferedWriter) Close() error { return w.store.Put(w.ctx, w.key, w.Bytes()) }
func (w *bufferedWriter) Abort()       { w.Reset() }

func (b *buffered) Open(ctx context.Context, key string) (File, error) {
	data, err := b.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return memoryFile{bytes.NewReader(data)}, nil
}

type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

func (b *buffered) Stat(ctx context.Context, key string) (objstore.Info, error) {
	list, err := b.List(ctx, key)
	if err != nil {
		return objstore.Info{}, err
	}
	for _, i := range list {
		if i.Key == key {
			return i, nil
		}
	}
	return objstore.Info{}, fmt.Errorf("%s in %s: %w", key, b.Location(), objstore.ErrNotExist)
}

func (b *buffered) Settle(ctx context.Context, key string) error {
	return objstore.Settle(ctx, b.Store, key)
}

// OpenLocal gives a table folder on the local disk. It need not exist yet.
func OpenLocal(dir string, o objstore.LocalOptions) (Storage, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("table folder %q: %w", dir, err)
	}
	s, err := objstore.OpenLocal(abs, o)
	if err != nil {
		return nil, err
	}
	return &local{Local: s, dir: abs, io: lake.NewFileIO()}, nil
}

type local struct {
	*objstore.Local
	dir string
	io  *lake.FileIO
}

func (l *local) path(key string) string { return filepath.Join(l.dir, filepath.FromSlash(key)) }

func (l *local) Create(_ context.Context, key string) (Writer, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	w, err := l.io.Create(l.path(key))
	if err != nil {
		return nil, fmt.Errorf("create %s in %s: %w", key, l.dir, err)
	}
	out, ok := w.(Writer)
	if !ok {
		return nil, errors.New("delta: the local writer cannot abort")
	}
	return out, nil
}

func (l *local) Open(_ context.Context, key string) (File, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	f, err := os.Open(l.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s in %s: %w", key, l.dir, objstore.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (l *local) Stat(_ context.Context, key string) (objstore.Info, error) {
	if err := objstore.CheckKey(key); err != nil {
		return objstore.Info{}, err
	}
	fi, err := os.Stat(l.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s in %s: %w", key, l.dir, objstore.ErrNotExist)
	}
	if err != nil {
		return objstore.Info{}, err
	}
	return objstore.Info{Key: key, Size: fi.Size(), Modified: fi.ModTime()}, nil
}

// dataFS gives the table's folder to the data file writer, which names files
// "/<name>" because it was given no location.
type dataFS struct {
	ctx     context.Context
	storage Storage
}

func (d dataFS) Create(path string) (io.WriteCloser, error) {
	return d.storage.Create(d.ctx, strings.TrimPrefix(path, "/"))
}
