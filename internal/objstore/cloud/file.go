package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/objstore/ranged"
)

// put sends the object in one request, or in parts where it is large.
func (c *Client) put(ctx context.Context, w write) error {
	if len(w.data) <= c.cfg.PartBytes {
		return c.api.put(ctx, w)
	}
	data, size := w.data, int64(len(w.data))
	w.data = nil
	u := c.api.begin(ctx, w)
	parts := slices.Collect(slices.Chunk(data, c.cfg.PartBytes))
	for i, p := range parts {
		if err := u.part(p, i == len(parts)-1); err != nil {
			return c.settle(ctx, u, w, size, err)
		}
	}
	return c.settle(ctx, u, w, size, u.complete())
}

// settle says what an upload came to that reported err: where the answer was
// lost, the object says whether it was ours, and whole.
func (c *Client) settle(ctx context.Context, u upload, w write, size int64, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		if i, herr := c.api.head(ctx, w.at); herr == nil && i.nonce == w.nonce && i.Size == size {
			return nil
		}
	}
	u.abort()
	return err
}

// Read reads an object whole. The error wraps objstore.ErrNotExist and
// fs.ErrNotExist where there is none.
func (c *Client) Read(ctx context.Context, l Location) ([]byte, error) {
	o, err := c.api.get(ctx, l, nil, "")
	return o.data, named(err, "read", l)
}

// Write replaces an object as a whole; it is durable when Write returns.
func (c *Client) Write(ctx context.Context, l Location, data []byte) error {
	return named(c.put(ctx, write{at: l, data: data, nonce: clock.Nonce()}), "write", l)
}

// Stat says how large and how old an object is, or that there is none.
func (c *Client) Stat(ctx context.Context, l Location) (Info, error) {
	i, err := c.api.head(ctx, l)
	return i, named(err, "look at", l)
}

// Remove deletes an object; a missing one is no error.
func (c *Client) Remove(ctx context.Context, l Location) error {
	err := c.api.remove(ctx, l)
	if isNoObject(err) {
		return nil
	}
	return named(err, "delete", l)
}

// List calls visit with every object below a prefix ("a/b" is not below "a/bc"),
// in the store's order.
func (c *Client) List(ctx context.Context, below Location, visit func(Location, Info) error) error {
	prefix := below.Key
	if prefix != "" {
		prefix += "/"
	}
	var stopped error
	err := c.api.list(ctx, below, prefix, func(key string, i Info) error {
		stopped = visit(Location{below.Kind, below.Bucket, key}, i)
		return stopped
	})
	if stopped != nil {
		return stopped
	}
	return named(err, "list", below)
}

// OpenReader opens an object for reading by ranges, and brings its end. The
// error wraps fs.ErrNotExist where there is none.
func (c *Client) OpenReader(ctx context.Context, at Location) (*ranged.Reader, error) {
	o, err := c.api.get(ctx, at, &span{from: -ranged.TailBytes}, "")
	if err != nil {
		return nil, named(err, "open", at)
	}
	return ranged.New(ranged.Object{
		Name: at.String(), Size: o.size, Data: o.data, First: o.first, Info: FileInfo(at, Info{Size: o.size}),
		Fetch: func(from, end int64) ([]byte, error) {
			p, err := c.api.get(ctx, at, &span{from, end}, o.version)
			if err != nil {
				return nil, err
			}
			if p.first != from || int64(len(p.data)) != end-from {
				return nil, fmt.Errorf("the store answered bytes %d to %d with %d bytes from %d", from, end, len(p.data), p.first)
			}
			return p.data, nil
		},
		Classify: func(err error) error { return named(err, "read", at) },
	}), nil
}

// Writer writes one file of a table: nothing is there before Close has
// succeeded. It holds at most one part, and what is being sent. It is used by
// one goroutine.
type Writer struct {
	c      *Client
	w      write
	ctx    context.Context
	buf    []byte
	size   int64 // of all that was written
	up     upload
	failed error
	closed bool
}

// NewWriter begins a file. Nothing is sent yet.
func (c *Client) NewWriter(ctx context.Context, at Location) *Writer {
	return &Writer{c: c, ctx: ctx, w: write{at: at, nonce: clock.Nonce()}}
}

// Write implements io.Writer. After a failed write the file can only be given
// up.
func (w *Writer) Write(b []byte) (int, error) {
	if w.closed {
		return 0, fs.ErrClosed
	}
	if w.failed != nil {
		return 0, w.failed
	}
	written, size := 0, w.c.cfg.PartBytes
	for len(b) > 0 {
		if len(w.buf) == size {
			if err := w.flush(false); err != nil {
				w.failed = named(err, "write", w.w.at)
				return written, w.failed
			}
		}
		n := min(len(b), size-len(w.buf))
		w.buf = append(w.buf, b[:n]...)
		written += n
		w.size += int64(n)
		b = b[n:]
	}
	return written, nil
}

// ReadFrom implements io.ReaderFrom.
func (w *Writer) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{w}, r) }

// flush sends what is held back as a part.
func (w *Writer) flush(last bool) error {
	if w.up == nil {
		w.up = w.c.api.begin(w.ctx, w.w)
	}
	part := w.buf
	w.buf = nil
	if !last {
		w.buf = make([]byte, 0, w.c.cfg.PartBytes)
	}
	return w.up.part(part, last)
}

// Close makes the file durable under its name, or leaves nothing.
func (w *Writer) Close() error {
	if w.closed {
		return fs.ErrClosed
	}
	if w.failed != nil {
		w.Abort()
		return w.failed
	}
	w.closed = true
	if w.up == nil {
		w.w.data, w.buf = w.buf, nil
		return named(w.c.api.put(w.ctx, w.w), "write", w.w.at)
	}
	err := w.flush(true)
	if err == nil {
		err = w.up.complete()
	}
	err = w.c.settle(w.ctx, w.up, w.w, w.size, err)
	if isNoObject(err) {
		err = errors.Join(errors.New("the upload is gone"), err) // the upload, not the file
	}
	return classify(err, "write", w.w.at)
}

// Abort gives the file up. It is harmless after Close.
func (w *Writer) Abort() {
	if w.closed {
		return
	}
	w.closed, w.buf = true, nil
	if w.up != nil {
		w.up.abort()
	}
}

// FileInfo dresses what a store says of an object as the file system's.
func FileInfo(at Location, i Info) fs.FileInfo { return fileInfo{path.Base(at.Key), i} }

type fileInfo struct {
	name string
	i    Info
}

func (f fileInfo) Name() string       { return f.name }
func (f fileInfo) Size() int64        { return f.i.Size }
func (f fileInfo) Mode() fs.FileMode  { return 0o644 }
func (f fileInfo) ModTime() time.Time { return f.i.Modified }
func (f fileInfo) IsDir() bool        { return false }
func (f fileInfo) Sys() any           { return nil }
