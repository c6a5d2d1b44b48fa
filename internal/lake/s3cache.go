package lake

import (
	"bytes"
	"container/list"
	"context"
	"io"
	"io/fs"
	"strings"
	"sync"

	icebergio "github.com/apache/iceberg-go/io"

	"github.com/weirlake/weir/internal/objstore/s3"
)

const (
	// keptFileBytesMax is the largest manifest or manifest list that is kept in
	// memory, keptBytesMax what is kept altogether.
	keptFileBytesMax = 1 << 20
	keptBytesMax     = 32 << 20
)

// keptFiles are the manifests and manifest lists that this process wrote or read
// last. Each commit reads the list that the commit before wrote, and a query over
// a table reads both again: a round trip each. They never change (their names
// hold a UUID), so what is kept is what is there; whether it still is there is
// asked with Stat, which is never answered from here.
type keptFiles struct {
	mu    sync.Mutex
	bytes int
	order *list.List // of *keptFile, the last used first
	byKey map[keptKey]*list.Element
}

// keptKey tells files of one name in two stores apart.
type keptKey struct {
	client any // its pointer
	at     string
}

type keptFile struct {
	key  keptKey
	data []byte
}

var processKept = &keptFiles{order: list.New(), byKey: map[keptKey]*list.Element{}}

// keeps reports whether a file is of the kind that is kept.
func keeps(location string) bool { return strings.HasSuffix(location, ".avro") }

func (k *keptFiles) get(key keptKey) ([]byte, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.byKey[key]
	if !ok {
		return nil, false
	}
	k.order.MoveToFront(e)
	return e.Value.(*keptFile).data, true
}

func (k *keptFiles) put(key keptKey, data []byte) {
	if len(data) > keptFileBytesMax {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.byKey[key]; ok {
		return
	}
	k.byKey[key] = k.order.PushFront(&keptFile{key, data})
	k.bytes += len(data)
	for k.bytes > keptBytesMax {
		k.drop(k.order.Back())
	}
}

func (k *keptFiles) remove(key keptKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, ok := k.byKey[key]; ok {
		k.drop(e)
	}
}

func (k *keptFiles) drop(e *list.Element) {
	f := k.order.Remove(e).(*keptFile)
	delete(k.byKey, f.key)
	k.bytes -= len(f.data)
}

// openKept opens a manifest, from memory where it is kept.
func openKept(ctx context.Context, o object) (icebergio.File, error) {
	key := o.kept()
	data, ok := processKept.get(key)
	if !ok {
		r, err := o.open(ctx)
		if err != nil {
			return nil, err
		}
		if r.Size() > keptFileBytesMax {
			return r, nil
		}
		if data, err = io.ReadAll(r); err != nil {
			return nil, err
		}
		processKept.put(key, data)
	}
	return &memoryFile{Reader: bytes.NewReader(data), at: key.at}, nil
}

// memoryFile is a file whose bytes are there.
type memoryFile struct {
	*bytes.Reader
	at string
}

func (f *memoryFile) Close() error { return nil }
func (f *memoryFile) Stat() (fs.FileInfo, error) {
	return s3.FileInfo(s3.Location{Key: f.at}, s3.Info{Size: f.Size()}), nil
}

// keepingWriter keeps what it writes once that is durable.
type keepingWriter struct {
	objectWriter
	key  keptKey
	data []byte
	over bool
}

// Write implements io.Writer.
func (w *keepingWriter) Write(b []byte) (int, error) {
	n, err := w.objectWriter.Write(b)
	if w.over = w.over || len(w.data)+n > keptFileBytesMax; w.over {
		w.data = nil
	} else {
		w.data = append(w.data, b[:n]...)
	}
	return n, err
}

// ReadFrom implements io.ReaderFrom.
func (w *keepingWriter) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// Close implements io.Closer.
func (w *keepingWriter) Close() error {
	err := w.objectWriter.Close()
	if err == nil && !w.over {
		processKept.put(w.key, w.data)
	}
	return err
}
