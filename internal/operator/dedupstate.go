package operator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"math/bits"
)

// The encoding of dedup's state. Integers are little endian.
//
//	header: "WEIRDDUP", format (2 bytes), kind (1: 1 snapshot, 2 delta), 0 (1),
//	        watermark (8), UUIDs (8) and ids (8) about, in format 2 about the
//	        first and last event time (8 each), CRC-32C of the bytes before (4)
//	chunk:  kind (1: 1 UUIDs, 2 ids, 3 packed UUIDs, 0 end), rows (4), payload bytes (4),
//	        CRC-32C of kind, rows, bytes and payload (4), payload
//
// A chunk of UUIDs is 16 bytes a row, then the event times as zigzag varints,
// each less the one before. A chunk of packed UUIDs is the first event time (8) and
// how many bytes a time takes (1), then a row: what its time is past the first, the
// UUID in two halves (8 each). A chunk of ids is length, bytes, event time a row.
// The end's payload is the number of rows of all chunks (8), so that a state
// that was cut between two chunks is seen.
//
// Deltas have format 1. Snapshots have format 2 since they are packed: a start reads
// all of one, and a row is taken in as it lies there.
const (
	stateMagic   = "WEIRDDUP"
	formatPlain  = 1
	formatPacked = 2
	kindSnapshot = 1
	kindDelta    = 2
	chunkEnd     = 0
	chunkUUIDs   = 1
	chunkIDs     = 2
	chunkPacked  = 3
	headerBytes  = 40
	// timesBytes are the two times of format 2, packedBytes what is before its rows.
	timesBytes  = 16
	packedBytes = 9
	frameBytes  = 13
	// chunkRows and chunkBytes end a chunk.
	chunkRows  = 8192
	chunkBytes = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot implements Stateful.
func (d *dedup) Snapshot() ([]byte, error) {
	var b bytes.Buffer
	err := d.WriteSnapshot(&b)
	return b.Bytes(), err
}

// WriteSnapshot implements SnapshotWriter.
func (d *dedup) WriteSnapshot(w io.Writer) error {
	e := stateEncoder{w: w, packed: true}
	uuids, ids := d.ids.sizes()
	first, last := d.times()
	e.header(kindSnapshot, d.watermark, uuids, ids, first, last)
	bound := d.bounds.removable
	err := d.ids.each(func(isID bool, k key, id []byte, at int64) error {
		if at >= bound {
			e.add(isID, k, id, at)
		}
		return e.err
	})
	return errors.Join(err, e.end())
}

// Delta implements Stateful.
func (d *dedup) Delta() ([]byte, error) {
	var b bytes.Buffer
	e := stateEncoder{w: &b}
	e.header(kindDelta, d.watermark, len(d.added), len(d.addedIDs), 0, 0)
	for i := range d.added {
		e.add(false, d.added[i].key, nil, d.added[i].at)
	}
	for i := range d.addedIDs {
		c := &d.addedIDs[i]
		e.add(true, c.key, d.arena[c.start:c.end], c.at)
	}
	err := e.end()
	return b.Bytes(), err
}

// LoadSnapshot implements Stateful.
func (d *dedup) LoadSnapshot(b []byte) error {
	return d.ReadSnapshot(bytes.NewReader(b), int64(len(b)), 0)
}

// ReadSnapshot implements SnapshotReader.
func (d *dedup) ReadSnapshot(r io.Reader, sizeBytes, keys int64) error {
	d.Reset()
	return d.apply(newStateReader(r, sizeBytes), kindSnapshot, keys)
}

// SnapshotVersion implements SnapshotVersioner.
func (d *dedup) SnapshotVersion() int { return formatPacked }

// times are about the first and the last event time that is remembered; the first is
// after the last where there is none.
func (d *dedup) times() (first, last int64) {
	d.flush()
	first, last = math.MaxInt64, math.MinInt64
	for b := range d.counts {
		if b*d.width >= d.bounds.removable {
			first, last = min(first, b*d.width), max(last, (b+1)*d.width-1)
		}
	}
	return first, last
}

// ApplyDelta implements Stateful.
func (d *dedup) ApplyDelta(b []byte) error {
	return d.apply(newStateReader(bytes.NewReader(b), int64(len(b))), kindDelta, 0)
}

// stateEncoder writes chunks; the first error sticks.
type stateEncoder struct {
	w       io.Writer
	packed  bool // UUIDs, and the header is of format 2
	err     error
	kind    byte
	rows    uint32
	total   uint64
	payload []byte
	times   []byte
	last    int64
	pack    []keyTime // the chunk of packed UUIDs
}

// keyTime is a key with its event time.
type keyTime struct {
	key
	at int64
}

func (e *stateEncoder) write(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
	}
}

// header's counts may be more than what follows: expired keys are left out.
func (e *stateEncoder) header(kind byte, watermark int64, uuids, ids int, first, last int64) {
	format := uint16(formatPlain)
	if e.packed {
		format = formatPacked
	}
	b := append(make([]byte, 0, headerBytes+timesBytes), stateMagic...)
	b = binary.LittleEndian.AppendUint16(b, format)
	b = append(b, kind, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(watermark))
	b = binary.LittleEndian.AppendUint64(b, uint64(uuids))
	b = binary.LittleEndian.AppendUint64(b, uint64(ids))
	if e.packed {
		b = binary.LittleEndian.AppendUint64(b, uint64(first))
		b = binary.LittleEndian.AppendUint64(b, uint64(last))
	}
	e.write(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

func (e *stateEncoder) add(isID bool, k key, id []byte, at int64) {
	kind := byte(chunkUUIDs)
	switch {
	case isID:
		kind = chunkIDs
	case e.packed:
		kind = chunkPacked
	}
	if kind != e.kind || e.rows == chunkRows || len(e.payload) >= chunkBytes {
		e.flush()
		e.kind = kind
	}
	switch kind {
	case chunkPacked:
		e.pack = append(e.pack, keyTime{k, at})
	case chunkIDs:
		e.payload = binary.AppendUvarint(e.payload, uint64(len(id)))
		e.payload = append(e.payload, id...)
		e.payload = binary.AppendVarint(e.payload, at-e.last)
	default:
		e.payload = binary.BigEndian.AppendUint64(e.payload, k.hi)
		e.payload = binary.BigEndian.AppendUint64(e.payload, k.lo)
		e.times = binary.AppendVarint(e.times, at-e.last)
	}
	e.last = at
	e.rows++
}

func (e *stateEncoder) flush() {
	if e.rows == 0 {
		return
	}
	e.payload = append(e.payload, e.times...)
	e.payload = appendPacked(e.payload, e.pack)
	e.frame(e.kind, e.rows, e.payload)
	e.total += uint64(e.rows)
	e.rows, e.last = 0, 0
	e.payload, e.times, e.pack = e.payload[:0], e.times[:0], e.pack[:0]
}

// appendPacked appends a chunk of packed UUIDs, nothing for none.
func appendPacked(b []byte, rows []keyTime) []byte {
	if len(rows) == 0 {
		return b
	}
	first, last := rows[0].at, rows[0].at
	for i := range rows {
		first, last = min(first, rows[i].at), max(last, rows[i].at)
	}
	timeBytes := max(1, (bits.Len64(uint64(last)-uint64(first))+7)/8)
	b = append(binary.LittleEndian.AppendUint64(b, uint64(first)), byte(timeBytes))
	for i := range rows {
		// The key overwrites what of the time is too much.
		at := len(b)
		b = binary.LittleEndian.AppendUint64(b, uint64(rows[i].at)-uint64(first))[:at+timeBytes]
		b = binary.LittleEndian.AppendUint64(b, rows[i].hi)
		b = binary.LittleEndian.AppendUint64(b, rows[i].lo)
	}
	return b
}

func (e *stateEncoder) frame(kind byte, rows uint32, payload []byte) {
	f := append(make([]byte, 0, frameBytes), kind)
	f = binary.LittleEndian.AppendUint32(f, rows)
	f = binary.LittleEndian.AppendUint32(f, uint32(len(payload)))
	sum := crc32.Update(crc32.Checksum(f, castagnoli), castagnoli, payload)
	e.write(binary.LittleEndian.AppendUint32(f, sum))
	e.write(payload)
}

func (e *stateEncoder) end() error {
	e.flush()
	e.frame(chunkEnd, 0, binary.LittleEndian.AppendUint64(nil, e.total))
	return e.err
}

// apply reads a whole encoded state. What it has read before a fault stays;
// the caller resets. keys is how many there will be after the deltas that follow a
// snapshot, 0 where that is not known.
func (d *dedup) apply(r *stateReader, kind byte, keys int64) error {
	size := uint64(r.left)
	h, err := readStateHeader(r)
	if err != nil {
		return err
	}
	if h.kind != kind {
		return corrupt("kind %d where %d was expected", h.kind, kind)
	}
	d.settle()
	d.advance(max(d.watermark, h.watermark))
	if kind == kindSnapshot {
		// Bounded by what the bytes can hold: a UUID takes 16, an id at least 2.
		uuids, ids := min(h.uuids, size/16), min(h.ids, size/2)
		if all := uuids + ids; all > 0 {
			more := min(max(float64(keys)/float64(all), 1), 2)
			d.ids.expect(int(float64(uuids)*more), int(float64(ids)*more), h.first, h.last)
			defer d.ids.expect(0, 0, 0, 0)
		}
	}
	var load chunkLoader
	for total := uint64(0); ; {
		frame, err := r.bytes(frameBytes)
		if err != nil {
			return err
		}
		chunk, rows, want := frame[0], binary.LittleEndian.Uint32(frame[1:]), binary.LittleEndian.Uint32(frame[9:])
		sum := crc32.Checksum(frame[:9], castagnoli)
		payload, err := r.bytes(uint64(binary.LittleEndian.Uint32(frame[5:])))
		if err != nil {
			return err
		}
		if crc32.Update(sum, castagnoli, payload) != want {
			return corrupt("a chunk's checksum is wrong")
		}
		if chunk == chunkEnd {
			if len(payload) != 8 || binary.LittleEndian.Uint64(payload) != total || r.left != 0 {
				return corrupt("it does not hold as many keys as it says")
			}
			d.version = versions{}
			return d.sweep(0, Version{})
		}
		if err := load.chunk(d, chunk, int(rows), payload); err != nil {
			return err
		}
		total += uint64(rows)
	}
}

// stateHeader is what an encoded state says of itself.
type stateHeader struct {
	kind        byte
	watermark   int64
	uuids, ids  uint64
	first, last int64
}

func readStateHeader(r *stateReader) (h stateHeader, err error) {
	b, err := r.bytes(headerBytes)
	if err != nil {
		return h, err
	}
	b = bytes.Clone(b)
	if string(b[:8]) != stateMagic {
		return h, corrupt("it does not begin as a state of dedup")
	}
	format := binary.LittleEndian.Uint16(b[8:])
	if format == formatPacked {
		more, err := r.bytes(timesBytes)
		if err != nil {
			return h, err
		}
		b = append(b, more...)
	}
	sum := len(b) - 4
	if crc32.Checksum(b[:sum], castagnoli) != binary.LittleEndian.Uint32(b[sum:]) {
		return h, corrupt("the header's checksum is wrong")
	}
	h = stateHeader{
		kind: b[10], watermark: int64(binary.LittleEndian.Uint64(b[12:])),
		uuids: binary.LittleEndian.Uint64(b[20:]), ids: binary.LittleEndian.Uint64(b[28:]),
		first: math.MaxInt64, last: math.MinInt64,
	}
	switch format {
	case formatPlain:
	case formatPacked:
		h.first, h.last = int64(binary.LittleEndian.Uint64(b[36:])), int64(binary.LittleEndian.Uint64(b[44:]))
	default:
		return h, corrupt("format %d, this version knows %d", format, formatPacked)
	}
	return h, nil
}

// chunkLoader puts chunks into dedup.
type chunkLoader struct{ rows []keyTime }

func (l *chunkLoader) chunk(d *dedup, kind byte, rows int, p []byte) (err error) {
	switch kind {
	case chunkUUIDs:
		err = l.plain(rows, p)
	case chunkPacked:
		err = l.packed(rows, p)
	case chunkIDs:
		err = applyIDs(d, rows, p)
	default:
		err = corrupt("chunk of kind %d", kind)
	}
	if err != nil {
		return err
	}
	for i := range l.rows {
		if i%aheadRows == 0 && kind == chunkUUIDs { // packed ones lie in the order of slots
			for _, next := range l.rows[i:min(i+aheadRows, len(l.rows))] {
				d.touched ^= d.ids.touch(true, next.key)
			}
		}
		d.put(true, l.rows[i].key, nil, l.rows[i].at)
	}
	l.rows = l.rows[:0]
	return d.ids.fault()
}

// timeAfter reads an event time that is stored as what it is past the last.
func timeAfter(last int64, p []byte) (at int64, rest []byte, err error) {
	v, n := binary.Varint(p)
	if at = last + v; n <= 0 || at == vacant {
		return 0, nil, corrupt("an event time is unreadable")
	}
	return at, p[n:], nil
}

var (
	errChunkShort = corrupt("a chunk is shorter than its rows")
	errChunkLong  = corrupt("a chunk is longer than its rows")
)

// plain reads a chunk of UUIDs.
func (l *chunkLoader) plain(rows int, p []byte) (err error) {
	if rows > len(p)/16 {
		return errChunkShort
	}
	keys, p := p[:16*rows], p[16*rows:]
	at := int64(0)
	for ; len(keys) > 0; keys = keys[16:] {
		if at, p, err = timeAfter(at, p); err != nil {
			return err
		}
		l.rows = append(l.rows, keyTime{key{binary.BigEndian.Uint64(keys), binary.BigEndian.Uint64(keys[8:])}, at})
	}
	if len(p) != 0 {
		return errChunkLong
	}
	return nil
}

// packed reads a chunk of packed UUIDs.
func (l *chunkLoader) packed(rows int, p []byte) error {
	if len(p) < packedBytes {
		return errChunkShort
	}
	times := timeSpan{base: int64(binary.LittleEndian.Uint64(p)), timeBytes: int(p[8])}
	if times.timeBytes < 1 || times.timeBytes > 8 {
		return corrupt("event times of %d bytes", times.timeBytes)
	}
	size := times.slotBytes()
	switch p = p[packedBytes:]; {
	case rows > len(p)/size:
		return errChunkShort
	case rows*size != len(p):
		return errChunkLong
	}
	for ; len(p) > 0; p = p[size:] {
		at := int64(uint64(times.base) + binary.LittleEndian.Uint64(p)&times.mask())
		if at == vacant {
			return corrupt("an event time is unreadable")
		}
		k := p[times.timeBytes:]
		l.rows = append(l.rows, keyTime{key{binary.LittleEndian.Uint64(k), binary.LittleEndian.Uint64(k[8:])}, at})
	}
	return nil
}

// applyIDs reads a chunk of ids.
func applyIDs(d *dedup, rows int, p []byte) (err error) {
	at := int64(0)
	for range rows {
		n, size := binary.Uvarint(p)
		if size <= 0 || n > uint64(len(p)-size) {
			return corrupt("an id is cut")
		}
		id := p[size : size+int(n)]
		if at, p, err = timeAfter(at, p[size+int(n):]); err != nil {
			return err
		}
		d.put(false, hashID(id), id, at)
	}
	if len(p) != 0 {
		return errChunkLong
	}
	return nil
}
