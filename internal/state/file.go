package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// Format is the version of the files' first line and layout.
const Format = 1

const (
	kindSnapshot = "snapshot"
	kindDelta    = "delta"
	prefix       = "state/"
)

// header is a file's first line.
type header struct {
	Format   int    `json:"format"`
	QueryID  string `json:"query_id"`
	Operator string `json:"operator"`
	Version  int64  `json:"version"`
	Attempt  string `json:"attempt"`
	Kind     string `json:"kind"`
	// Parent is the version before. A delta needs it; a snapshot only says
	// where the one before is, for Purge.
	Parent       string `json:"parent,omitempty"`
	ParentSHA256 string `json:"parent_sha256,omitempty"`
	// Deltas and DeltaBytes count the chain's deltas, this one included;
	// SnapshotBytes is the size of the snapshot that it stands on.
	Deltas        int   `json:"deltas"`
	DeltaBytes    int64 `json:"delta_bytes"`
	SnapshotBytes int64 `json:"snapshot_bytes"`
	Keys          int64 `json:"keys"`
	// PayloadBytes follow the line, zstd; RawBytes is what they unpack to.
	PayloadBytes int64 `json:"payload_bytes"`
	RawBytes     int64 `json:"raw_bytes"`
}

// key is the one place that builds the path of a state file.
func key(operator string, version int64, attempt, kind string) string {
	return fmt.Sprintf("%s%s/%d-%s.%s", prefix, operator, version, attempt, kind)
}

// folder is the prefix of an operator's files.
func folder(operator string) string { return prefix + operator + "/" }

// parseKey is key's inverse; not ok for a file that is none of ours.
func parseKey(k string) (operator string, version int64, kind string, ok bool) {
	rest, found := strings.CutPrefix(k, prefix)
	if !found {
		return "", 0, "", false
	}
	dir, name := path.Split(rest)
	operator = strings.TrimSuffix(dir, "/")
	name, kind, found = cutLast(name, ".")
	if !found || (kind != kindSnapshot && kind != kindDelta) {
		return "", 0, "", false
	}
	number, attempt, found := strings.Cut(name, "-")
	version, err := strconv.ParseInt(number, 10, 64)
	if !found || attempt == "" || err != nil || operator == "" || key(operator, version, attempt, kind) != k {
		return "", 0, "", false
	}
	return operator, version, kind, true
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// lineRoom is the room before a payload that its file's first line is put into, so
// that the payload is not copied. A longer line costs the copy.
const lineRoom = 1 << 10

// encode is the whole file. payload has lineRoom bytes before it.
func (h header) encode(roomAndPayload []byte) ([]byte, error) {
	payload := roomAndPayload[lineRoom:]
	h.Format, h.PayloadBytes = Format, int64(len(payload))
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the header of a state file: %w", err)
	}
	line = append(line, '\n')
	if len(line) > lineRoom {
		return append(line, payload...), nil
	}
	out := roomAndPayload[lineRoom-len(line):]
	copy(out, line)
	return out, nil
}

// decode checks a file against the name that a marker or a child gave it, and
// gives its header and its compressed payload.
func decode(f reference, queryID, operator string, data []byte) (*header, []byte, error) {
	if got := marker.Hash(data); got != f.sha256 {
		return nil, nil, damaged(f.path, "its checksum is %.12s…, %.12s… was recorded", got, f.sha256)
	}
	h, err := peek(f.path, operator, data)
	if err != nil {
		return nil, nil, err
	}
	if h.QueryID != queryID {
		return nil, nil, failure.Wrap(failure.Checkpoint, ErrForeign, "%s belongs to query id %s, not %s", f.path, h.QueryID, queryID).
			WithHint("two queries must not share a checkpoint location")
	}
	return h, data[len(data)-int(h.PayloadBytes):], nil
}

// peek reads the header of a file and checks it against the file's own name
// and size.
func peek(path, operator string, data []byte) (*header, error) {
	end := bytes.IndexByte(data[:min(len(data), headerBytesMax)], '\n')
	if end < 0 {
		return nil, damaged(path, "it has no header")
	}
	h := &header{}
	if err := json.Unmarshal(data[:end], h); err != nil {
		return nil, damaged(path, "its header is unreadable: %v", err)
	}
	if h.Format != Format {
		return nil, failure.Wrap(failure.Checkpoint, ErrForeign, "%s has format %d, this version knows %d", path, h.Format, Format).
			WithHint("run the version of Weir that wrote it, or remove the folder state/ of the checkpoint: it is rebuilt from the table")
	}
	op, version, kind, ok := parseKey(path)
	if !ok || h.Operator != operator || op != operator || version != h.Version || kind != h.Kind || h.PayloadBytes != int64(len(data)-end-1) {
		return nil, damaged(path, "its header speaks of another file: %.300q", data[:end])
	}
	return h, nil
}

// reference names a file with its checksum.
type reference struct{ path, sha256 string }

func damaged(path, format string, args ...any) error {
	return failure.Wrap(failure.Checkpoint, ErrCorrupt, "%s: %s", path, fmt.Sprintf(format, args...))
}

// windowBytes is how far back zstd looks: memory of every encoder and of whoever
// unpacks.
const windowBytes = 1 << 20

// encoders are shared by all queries; what nobody uses goes with a collection.
var encoders = sync.Pool{New: func() any {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return enc
}}

func newDecoder() (*zstd.Decoder, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(RawBytesMax), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("prepare zstd: %w", err)
	}
	return dec, nil
}

// pack compresses what write writes, behind lineRoom bytes. sizeBytes is about how
// much it will be. It gives also the number of bytes before compression.
func pack(sizeBytes int64, write func(io.Writer) error) (roomAndPayload []byte, rawBytes int64, err error) {
	var out bytes.Buffer
	out.Grow(int(sizeBytes) + lineRoom)
	out.Write(make([]byte, lineRoom))
	enc := encoders.Get().(*zstd.Encoder)
	defer func() {
		enc.Reset(nil)
		encoders.Put(enc)
	}()
	enc.Reset(&out)
	counted := &counter{w: enc}
	if err = write(counted); err == nil {
		err = enc.Close()
	}
	return out.Bytes(), counted.n, err
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// unpack gives the operator's bytes.
func unpack(dec *zstd.Decoder, path string, h *header, payload []byte) ([]byte, error) {
	if h.RawBytes < 0 || h.RawBytes > RawBytesMax {
		return nil, damaged(path, "it says that it unpacks to %d bytes", h.RawBytes)
	}
	raw, err := dec.DecodeAll(payload, make([]byte, 0, h.RawBytes))
	if err != nil {
		return nil, damaged(path, "it does not unpack: %v", err)
	}
	if int64(len(raw)) != h.RawBytes {
		return nil, damaged(path, "it unpacks to %d bytes, %d were recorded", len(raw), h.RawBytes)
	}
	return raw, nil
}
