package state

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// Formats of the files' first line and layout, each so that a version that does not
// know it refuses the file. A snapshot that its operator encodes in a later way, whole
// or in parts, has the third; another one in parts has the second; every other file
// has the first.
const (
	formatWhole  = 1
	formatParts  = 2
	formatPacked = 3
)

const (
	kindSnapshot = "snapshot"
	kindDelta    = "delta"
	prefix       = "state/"
	partSuffix   = ".part"
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
	// Parts hold the payload of a snapshot that is too large for one file: each
	// a zstd frame of its own, in this order.
	Parts []part `json:"parts,omitempty"`
	// loaded says that a start has read the chain up to here.
	loaded bool
}

// part is a file of a snapshot; partKey names it.
type part struct {
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// partBytes is the size of all parts.
func (h *header) partBytes() (n int64) {
	for _, p := range h.Parts {
		n += p.Bytes
	}
	return n
}

// key is the one place that builds the path of a state file.
func key(operator string, version int64, attempt, kind string) string {
	return fmt.Sprintf("%s%s/%d-%s.%s", prefix, operator, version, attempt, kind)
}

// partKey is the path of part i of a snapshot.
func partKey(snapshot string, i int) string {
	return fmt.Sprintf("%s.%04d%s", strings.TrimSuffix(snapshot, "."+kindSnapshot), i, partSuffix)
}

// snapshotOf is the snapshot that a part belongs to; not ok for another file.
func snapshotOf(k string) (snapshot string, ok bool) {
	rest, found := strings.CutSuffix(k, partSuffix)
	base, number, cut := cutLast(rest, ".")
	i, err := strconv.Atoi(number)
	snapshot = base + "." + kindSnapshot
	if _, _, _, ours := parseKey(snapshot); !found || !cut || err != nil || i < 0 || !ours || partKey(snapshot, i) != k {
		return "", false
	}
	return snapshot, true
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
	h.PayloadBytes = int64(len(payload))
	switch {
	case h.Format == formatPacked:
	case len(h.Parts) > 0:
		h.Format = formatParts
	default:
		h.Format = formatWhole
	}
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
	if h.Format > formatPacked || h.Format < formatWhole {
		return nil, failure.Wrap(failure.Checkpoint, ErrForeign, "%s has format %d, this version knows %d", path, h.Format, formatPacked).
			WithHint("run the version of Weir that wrote it, or remove the folder state/ of the checkpoint: it is rebuilt from the table")
	}
	op, version, kind, ok := parseKey(path)
	if !ok || h.Operator != operator || op != operator || version != h.Version || kind != h.Kind || h.PayloadBytes != int64(len(data)-end-1) {
		return nil, damaged(path, "its header speaks of another file: %.300q", data[:end])
	}
	inParts := len(h.Parts) > 0
	possible := h.Format == formatPacked || inParts == (h.Format == formatParts)
	if !possible || h.Format != formatWhole && kind != kindSnapshot || inParts && h.PayloadBytes > 0 {
		return nil, damaged(path, "its header speaks of parts that it cannot have: %.300q", data[:end])
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

// packer compresses what is written to it into frames of about partBytes, and hands
// on each but the last when it is full. A frame lies behind lineRoom bytes.
type packer struct {
	enc       *zstd.Encoder
	out       bytes.Buffer
	partBytes int
	full      func(frame []byte) error
	rawBytes  int64
	// held are the bytes since the encoder last put something out: at most so much
	// is to come of them.
	held int
}

// sliceBytes is how much is compressed before the size of the frame is looked at.
const sliceBytes = 1 << 18

// newPacker makes one for about sizeBytes of compressed bytes.
func newPacker(sizeBytes int64, partBytes int, full func(frame []byte) error) *packer {
	p := &packer{enc: encoders.Get().(*zstd.Encoder), partBytes: partBytes, full: full}
	p.out.Grow(int(min(sizeBytes, int64(partBytes))) + lineRoom)
	p.begin()
	return p
}

func (p *packer) begin() {
	p.out.Reset()
	p.out.Write(make([]byte, lineRoom))
	p.held = 0
	p.enc.Reset(&p.out)
}

// Write implements io.Writer.
func (p *packer) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if p.out.Len()-lineRoom+p.held >= p.partBytes {
			frame, err := p.last()
			if err == nil {
				err = p.full(frame[lineRoom:])
			}
			if err != nil {
				return n - len(b), err
			}
			p.begin()
		}
		piece := b[:min(len(b), sliceBytes, p.partBytes)]
		before := p.out.Len()
		if _, err := p.enc.Write(piece); err != nil {
			return n - len(b), fmt.Errorf("compress a state: %w", err)
		}
		if p.held += len(piece); p.out.Len() > before {
			p.held = 0
		}
		p.rawBytes += int64(len(piece))
		b = b[len(piece):]
	}
	return n, nil
}

// last ends the frame and gives it, behind lineRoom bytes.
func (p *packer) last() ([]byte, error) {
	if err := p.enc.Close(); err != nil {
		return nil, fmt.Errorf("compress a state: %w", err)
	}
	return p.out.Bytes(), nil
}

// close gives the encoder back.
func (p *packer) close() {
	p.enc.Reset(nil)
	encoders.Put(p.enc)
}
