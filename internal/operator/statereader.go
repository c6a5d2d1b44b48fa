package operator

import (
	"bufio"
	"errors"
	"hash/crc32"
	"io"
)

// SnapshotWriter is a Stateful whose snapshot need not be in memory at once.
type SnapshotWriter interface {
	WriteSnapshot(w io.Writer) error
}

// SnapshotReader is one that reads it so: sizeBytes in all, after a Reset. keys is how
// many it will hold when the deltas that follow are applied too, 0 where that is not
// known. An error of the reader is given back as it is.
type SnapshotReader interface {
	ReadSnapshot(r io.Reader, sizeBytes, keys int64) error
}

// SnapshotVersioner is a Stateful whose snapshots earlier versions of Weir cannot
// read. Version 1 is what every version reads.
type SnapshotVersioner interface {
	SnapshotVersion() int
}

// stateReader reads an encoded state piece by piece. Bytes that it gives are valid
// until the next call.
type stateReader struct {
	r    *bufio.Reader
	left int64  // bytes that are to come
	sum  uint32 // CRC-32C of what was read
	buf  []byte
}

func newStateReader(r io.Reader, sizeBytes int64) *stateReader {
	return &stateReader{r: bufio.NewReaderSize(r, 1<<16), left: sizeBytes}
}

// bytes reads n bytes.
func (r *stateReader) bytes(n uint64) ([]byte, error) {
	if n > uint64(r.left) {
		return nil, corrupt("it is cut")
	}
	if uint64(cap(r.buf)) < n {
		r.buf = make([]byte, n+n/2)
	}
	b := r.buf[:n]
	if _, err := io.ReadFull(r.r, b); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, corrupt("it is cut")
		}
		return nil, err
	}
	r.left -= int64(n)
	r.sum = crc32.Update(r.sum, castagnoli, b)
	return b, nil
}

// text reads a length, as a varint, and as many bytes.
func (r *stateReader) text() ([]byte, error) {
	n := uint64(0)
	for shift := 0; ; shift += 7 {
		b, err := r.bytes(1)
		if err != nil {
			return nil, err
		}
		if shift > 56 {
			return nil, corrupt("a length is unreadable")
		}
		n |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			return r.bytes(n)
		}
	}
}
