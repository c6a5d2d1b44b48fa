package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	icebergio "github.com/apache/iceberg-go/io"

	"github.com/weirlake/weir/internal/objstore"
)

// store is the checkpoint's folder as one process sees it.
type store struct {
	p    *process
	disk *objstore.Memory
	name string
}

// cutting limits the disk to cut more steps while f runs. Only one operation
// runs at a time, so nobody else meets the limit.
func cutting(disk *objstore.Memory, cut int, f func() error) error {
	disk.CrashAfter(cut)
	defer disk.CrashAfter(-1)
	return f()
}

func (s *store) CreateOnce(ctx context.Context, key string, data []byte) (created bool, existing []byte, err error) {
	err = s.p.do(ctx, s.name+" create "+key, true, func(cut int) error {
		return cutting(s.disk, cut, func() (err error) {
			created, existing, err = s.disk.CreateOnce(context.WithoutCancel(ctx), key, data)
			return err
		})
	})
	if err != nil {
		return false, nil, err
	}
	return created, existing, nil
}

func (s *store) Put(ctx context.Context, key string, data []byte) error {
	return s.p.do(ctx, s.name+" put "+key, true, func(cut int) error {
		return cutting(s.disk, cut, func() error { return s.disk.Put(context.WithoutCancel(ctx), key, data) })
	})
}

func (s *store) Get(ctx context.Context, key string) (data []byte, err error) {
	err = s.p.do(ctx, s.name+" get "+key, false, func(int) (err error) {
		data, err = s.disk.Get(context.WithoutCancel(ctx), key)
		return err
	})
	return data, err
}

func (s *store) List(ctx context.Context, prefix string) (list []objstore.Info, err error) {
	err = s.p.do(ctx, s.name+" list "+prefix, false, func(int) (err error) {
		list, err = s.disk.List(context.WithoutCancel(ctx), prefix)
		return err
	})
	return list, err
}

func (s *store) Delete(ctx context.Context, key string) error {
	return s.p.do(ctx, s.name+" delete "+key, true, func(cut int) error {
		return cutting(s.disk, cut, func() error { return s.disk.Delete(context.WithoutCancel(ctx), key) })
	})
}

// Settle implements objstore.Settler, as the store below it.
func (s *store) Settle(ctx context.Context, key string) error {
	return s.p.do(ctx, s.name+" settle "+key, true, func(cut int) error {
		return cutting(s.disk, cut, func() error { return objstore.Settle(context.WithoutCancel(ctx), s.disk, key) })
	})
}

func (s *store) Location() string { return "sim:" + s.name }

// scheme is that of the simulated warehouse.
const scheme = "sim"

// processProperty carries a process to the file access that the table library
// asks for by scheme.
const processProperty = "sim.process"

// running are the file accesses of the processes, by name.
var running sync.Map

func init() {
	icebergio.Register(scheme, func(_ context.Context, _ *url.URL, props map[string]string) (icebergio.IO, error) {
		f, ok := running.Load(props[processProperty])
		if !ok {
			return nil, fmt.Errorf("no process %q", props[processProperty])
		}
		return f.(*files), nil
	})
}

// files are the tables' files as one process sees them.
type files struct {
	p    *process
	disk *objstore.Memory
}

func key(location string) string { return strings.TrimPrefix(location, scheme+"://lake/") }

func (f *files) read(name string) (data []byte, err error) {
	err = f.p.do(context.Background(), "lake open "+key(name), false, func(int) (err error) {
		data, err = f.disk.Get(context.Background(), key(name))
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return data, nil
}

func (f *files) Open(name string) (icebergio.File, error) {
	data, err := f.read(name)
	if err != nil {
		return nil, err
	}
	return &openFile{Reader: bytes.NewReader(data), info: info{path.Base(name), int64(len(data))}}, nil
}

func (f *files) ReadFile(name string) ([]byte, error) { return f.read(name) }

func (f *files) Remove(name string) error {
	return f.p.do(context.Background(), "lake remove "+key(name), true, func(cut int) error {
		return cutting(f.disk, cut, func() error { return f.disk.Delete(context.Background(), key(name)) })
	})
}

func (f *files) WriteFile(name string, data []byte) error {
	return f.p.do(context.Background(), "lake put "+key(name), true, func(cut int) error {
		return cutting(f.disk, cut, func() error { return f.disk.Put(context.Background(), key(name), data) })
	})
}

func (f *files) Create(name string) (icebergio.FileWriter, error) {
	return &newFile{f: f, name: name}, nil
}

func (f *files) Stat(name string) (fs.FileInfo, error) {
	data, err := f.read(name)
	return info{path.Base(name), int64(len(data))}, err
}

// newFile is written as a whole when it is closed, as FileIO and S3 do it.
type newFile struct {
	bytes.Buffer
	f    *files
	name string
}

func (n *newFile) Close() error { return n.f.WriteFile(n.name, bytes.Clone(n.Bytes())) }

type openFile struct {
	*bytes.Reader
	info info
}

var _ io.ReaderAt = (*openFile)(nil)

func (o *openFile) Close() error               { return nil }
func (o *openFile) Stat() (fs.FileInfo, error) { return o.info, nil }

type info struct {
	name string
	size int64
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return 0o644 }
func (i info) ModTime() time.Time { return time.Now() }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
