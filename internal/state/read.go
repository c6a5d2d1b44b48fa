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
// other; a part is read and checked while the one before is unpacked. Its first error
// stays in err, classified.
type payloadReader struct {
	path  string
	left  int64 // bytes that are to come, as the header says
	dec   *zstd.Decoder
	parts *partReader // nil for none
	err   error
}

// open begins to read the payload of a link.
func (s *Store) open(ctx context.Context, l *link) (*payloadReader, error) {
	if l.header.RawBytes < 0 || l.header.RawBytes > RawBytesMax {
		return nil, damaged(l.path, "it says that it unpacks to %d bytes", l.header.RawBytes)
	}
	// Unpacking runs beside the operator that takes the bytes in.
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(windowMax))
	if err != nil {
		return nil, fmt.Errorf("prepare zstd: %w", err)
	}
	r := &payloadReader{path: l.path, left: l.header.RawBytes, dec: dec}
	var in io.Reader = bytes.NewReader(l.payload)
	if len(l.header.Parts) > 0 {
		r.parts = s.readParts(ctx, l)
		in = r.parts
	}
	if err := dec.Reset(in); err != nil {
		r.err = damaged(l.path, "it does not unpack: %v", err)
	}
	return r, nil
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

func (r *payloadReader) close() {
	r.dec.Close()
	if r.parts != nil {
		r.parts.close()
	}
}

const (
	// windowMax bounds how far back a file may look: the window of earlier versions.
	windowMax = 8 << 20
	// allHint bounds the memory that is taken on the word of a header.
	allHint = 64 << 20
)

// partReader gives the parts of a snapshot one after the other, each checked against
// the snapshot's header before a byte of it is used. At most two parts are in memory.
type partReader struct {
	ahead <-chan fetched
	stop  context.CancelFunc
	data  []byte
}

// fetched is a part, or why there is none.
type fetched struct {
	data []byte
	err  error
}

// partError keeps the class of an error across zstd.
type partError struct{ error }

func (e *partError) Unwrap() error { return e.error }

// readParts begins to fetch the parts of a snapshot.
func (s *Store) readParts(ctx context.Context, l *link) *partReader {
	ctx, stop := context.WithCancel(ctx)
	ahead := make(chan fetched)
	go func() {
		defer close(ahead)
		for i, want := range l.header.Parts {
			data, err := s.part(ctx, partKey(l.path, i), want)
			select {
			case ahead <- fetched{data, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return &partReader{ahead: ahead, stop: stop}
}

// part reads a part and checks it.
func (s *Store) part(ctx context.Context, path string, want part) ([]byte, error) {
	data, err := s.get(ctx, path)
	if err != nil {
		return nil, err
	}
	if got := marker.Hash(data); got != want.SHA256 {
		return nil, damaged(path, "its checksum is %.12s…, %.12s… was recorded", got, want.SHA256)
	}
	return data, nil
}

// Read implements io.Reader.
func (r *partReader) Read(b []byte) (int, error) {
	for len(r.data) == 0 {
		next, more := <-r.ahead
		if !more {
			return 0, io.EOF
		}
		if next.err != nil {
			return 0, &partError{next.err}
		}
		r.data = next.data
	}
	n := copy(b, r.data)
	r.data = r.data[n:]
	return n, nil
}

// close ends the fetching; nobody reads any more.
func (r *partReader) close() {
	r.stop()
	for range r.ahead {
	}
}
