// Package ranged reads a file that lies in an object store, piece by piece.
package ranged

import (
	"fmt"
	"io"
	"io/fs"
	"sync"
)

const (
	// TailBytes is what is read of the end of a data file when it is opened: a
	// Parquet footer, and more than one small file whole.
	TailBytes = 256 << 10
	// blockBytes is what a small read fetches around itself; one of at least so
	// many bytes is fetched as it is.
	blockBytes = 1 << 20
	// blocksMax bounds the blocks that an open file keeps.
	blocksMax = 8
)

// Object is what was learnt when an object was opened.
type Object struct {
	Name string // for messages
	Size int64
	// Data has the object from First to its end; all of it where it was small.
	Data  []byte
	First int64
	// Fetch reads [from, end) of the very object that was opened.
	Fetch func(from, end int64) ([]byte, error)
	// Classify, if set, turns what Fetch says into the store's own error.
	Classify func(error) error
	Info     fs.FileInfo
}

// Reader is an open object: read, seek, and read at a place, by ranges. ReadAt
// is safe for use by several goroutines.
type Reader struct {
	o Object

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

// New gives an open object.
func New(o Object) *Reader { return &Reader{o: o, blocks: map[int64]*block{}} }

// Size is the object's size.
func (r *Reader) Size() int64 { return r.o.Size }

// Close implements io.Closer.
func (r *Reader) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s: negative offset", r.o.Name)
	}
	if off >= r.o.Size {
		if len(p) == 0 {
			return 0, nil
		}
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), r.o.Size)
	n := 0
	for from := off; from < end; {
		piece, at, err := r.piece(from, end)
		if err != nil {
			if r.o.Classify != nil {
				err = r.o.Classify(err)
			}
			return n, err
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
	if from >= r.o.First && from < r.o.First+int64(len(r.o.Data)) {
		return r.o.Data, r.o.First, nil
	}
	end = min(end, r.o.First) // the rest is there
	if end-from >= blockBytes {
		b, err := r.o.Fetch(from, end)
		return b, from, err
	}
	start := from / blockBytes * blockBytes
	b := r.block(start)
	b.once.Do(func() { b.data, b.err = r.o.Fetch(start, min(start+blockBytes, r.o.First)) })
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

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.pos >= r.o.Size {
		return 0, io.EOF
	}
	n, err := r.ReadAt(p[:min(int64(len(p)), r.o.Size-r.pos)], r.pos)
	r.pos += int64(n)
	return n, err
}

// Seek implements io.Seeker.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.pos
	case io.SeekEnd:
		offset += r.o.Size
	}
	if offset < 0 {
		return 0, fmt.Errorf("seek in %s: negative offset", r.o.Name)
	}
	r.pos = offset
	return offset, nil
}

// Stat implements fs.File. The time of change is not known to an open object.
func (r *Reader) Stat() (fs.FileInfo, error) { return r.o.Info, nil }
