package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/weirlake/weir/internal/marker"
)

// payloadReader unpacks the payload of one file, or of its parts one after the
// other; a part is read when the one before has been unpacked. Its first error
// stays in err, classified.
type payloadReader struct {
	path string
	left int64 // bytes that are to come, as the header says
	dec  *zstd.Decoder
	err  error
}

// open begins to read the payload of a link.
func (s *Store) open(ctx context.Context, l *link) (*payloadReader, error) {
	if l.header.RawBytes < 0 || l.header.RawBytes > RawBytesMax {
		return nil, damaged(l.path, "it says that it unpacks to %d bytes", l.header.RawBytes)
	}
	var in io.Reader = bytes.NewReader(l.payload)
	if len(l.header.Parts) > 0 {
		in = &partReader{ctx: ctx, s: s, snapshot: l.path, parts: l.header.Parts}
	}
	// Unpacking runs beside the operator that takes the bytes in.
	dec, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMax))
	if err != nil {
		return nil, fmt.Errorf("prepare zstd: %w", err)
	}
	return &payloadReader{path: l.path, left: l.header.RawBytes, dec: dec}, nil
}

// Read implements io.Reader.
func (r *payloadReader) Read(b []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.dec.Read(b)
	r.left -= int64(n)
	var failed *partError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		if r.left < 0 || err != nil && r.left > 0 {
			r.err = damaged(r.path, "it does not unpack to as many bytes as were recorded")
			return n, r.err
		}
		return n, err
	case errors.As(err, &failed):
		r.err = failed.error
	default:
		r.err = damaged(r.path, "it does not unpack: %v", err)
	}
	return n, r.err
}

// all reads everything.
func (r *payloadReader) all() ([]byte, error) {
	raw := bytes.NewBuffer(make([]byte, 0, min(r.left, allHint)+bytes.MinRead))
	_, err := raw.ReadFrom(r)
	return raw.Bytes(), err
}

// end checks that nothing is left to be read.
func (r *payloadReader) end() error {
	n, err := r.Read(make([]byte, 1))
	if n > 0 && r.err == nil {
		r.err = damaged(r.path, "it is longer than the state in it")
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return r.err
}

func (r *payloadReader) close() { r.dec.Close() }

const (
	// windowMax bounds how far back a file may look: the window of earlier versions.
	windowMax = 8 << 20
	// allHint bounds the memory that is taken on the word of a header.
	allHint = 64 << 20
)

// partReader reads the parts of a snapshot one after the other, each checked
// against the snapshot's header before a byte of it is used.
type partReader struct {
	ctx      context.Context
	s        *Store
	snapshot string
	parts    []part
	next     int
	data     []byte
}

// partError keeps the class of an error across zstd.
type partError struct{ error }

func (e *partError) Unwrap() error { return e.error }

// Read implements io.Reader.
func (r *partReader) Read(b []byte) (int, error) {
	for len(r.data) == 0 {
		if r.next == len(r.parts) {
			return 0, io.EOF
		}
		path, want := partKey(r.snapshot, r.next), r.parts[r.next]
		data, err := r.s.get(r.ctx, path)
		if err != nil {
			return 0, &partError{err}
		}
		if got := marker.Hash(data); got != want.SHA256 {
			return 0, &partError{damaged(path, "its checksum is %.12s…, %.12s… was recorded", got, want.SHA256)}
		}
		r.data = data
		r.next++
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}
