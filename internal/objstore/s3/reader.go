package s3

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"time"
)

const (
	// tailBytes is what is read of the end of a data file when it is opened: a
	// Parquet footer, and more than one small file whole.
	tailBytes = 256 << 10
	// blockBytes is what a small read fetches around itself; one of at least so
	// many bytes is fetched as it is.
	blockBytes = 1 << 20
	// blocksMax bounds the blocks that an open file keeps.
	blocksMax = 8
)

// Reader is an open object: read, seek, and read at a place, by ranges. ReadAt
// is safe for use by several goroutines.
type Reader struct {
	c    *Client
	at   Location
	ctx  context.Context
	size int64
	etag string
	// whole has the object from first on; all of it where it was small.
	whole []byte
	first int64

	mu     sync.Mutex
	blocks map[int64]*block
	order  []int64 // of blocks, the oldest first

	pos int64
}

// block is one aligned piece, fetched by whoever needs it first.
type block struct {
	once sync.Once
	data []byte
	err  error
}

// OpenReader opens an object for reading by ranges: with one request, that
// brings its end. The error wraps fs.ErrNotExist where there is none.
func (c *Client) OpenReader(ctx context.Context, at Location) (*Reader, error) {
	o, err := c.get(ctx, at.Bucket, at.Key, fmt.Sprintf("bytes=-%d", tailBytes), "")
	if codeOf(err) == "InvalidRange" { // an empty object has no last byte
		o, err = c.get(ctx, at.Bucket, at.Key, "", "")
	}
	if err != nil {
		return nil, named(err, "open", at)
	}
	return &Reader{c: c, at: at, ctx: ctx, size: o.size, etag: o.etag, whole: o.data, first: o.first, blocks: map[int64]*block{}}, nil
}

// Size is the object's size.
func (r *Reader) Size() int64 { return r.size }

// Close implements io.Closer.
func (r *Reader) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s: negative offset", r.at)
	}
	if off >= r.size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), r.size)
	n := 0
	for from := off; from < end; {
		piece, at, err := r.piece(from, end)
		if err != nil {
			return n, named(err, "read", r.at)
		}
		m := copy(p[n:end-off], piece[from-at:])
		n += m
		from += int64(m)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// piece gives bytes that begin at or before from, and where they begin.
func (r *Reader) piece(from, end int64) ([]byte, int64, error) {
	if from >= r.first && from < r.first+int64(len(r.whole)) {
		return r.whole, r.first, nil
	}
	end = min(end, r.first) // the rest is there
	if end-from >= blockBytes {
		b, err := r.fetch(from, end)
		return b, from, err
	}
	start := from / blockBytes * blockBytes
	b := r.block(start)
	b.once.Do(func() { b.data, b.err = r.fetch(start, min(start+blockBytes, r.first)) })
	if b.err != nil {
		r.forget(start, b)
		return nil, 0, b.err
	}
	return b.data, start, nil
}

func (r *Reader) block(start int64) *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.blocks[start]; ok {
		return b
	}
	if len(r.order) == blocksMax {
		delete(r.blocks, r.order[0])
		r.order = r.order[1:]
	}
	b := &block{}
	r.blocks[start] = b
	r.order = append(r.order, start)
	return b
}

// forget drops a block that could not be fetched, so that the next read tries
// again.
func (r *Reader) forget(start int64, b *block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocks[start] != b {
		return
	}
	delete(r.blocks, start)
	for i, s := range r.order {
		if s == start {
			r.order = append(r.order[:i:i], r.order[i+1:]...)
			return
		}
	}
}

// fetch reads [from, end) of the very object that was opened.
func (r *Reader) fetch(from, end int64) ([]byte, error) {
	o, err := r.c.get(r.ctx, r.at.Bucket, r.at.Key, fmt.Sprintf("bytes=%d-%d", from, end-1), r.etag)
	if err != nil {
		return nil, err
	}
	if o.first != from || int64(len(o.data)) != end-from {
		return nil, fmt.Errorf("the store answered bytes %d to %d with %d bytes from %d", from, end, len(o.data), o.first)
	}
	return o.data, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.pos >= r.size {
		return 0, io.EOF
	}
	n, err := r.ReadAt(p[:min(int64(len(p)), r.size-r.pos)], r.pos)
	r.pos += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek in %s: negative offset", r.at)
	}
	r.pos = offset
	return offset, nil
}

// Stat implements fs.File. The time of change is not known to an open object.
func (r *Reader) Stat() (fs.FileInfo, error) { return FileInfo(r.at, Info{Size: r.size}), nil }

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
