package operator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
)

// The encoding of dedup's state. Integers are little endian.
//
//	header: "WEIRDDUP", format (2 bytes), kind (1: 1 snapshot, 2 delta), 0 (1),
//	        watermark (8), UUIDs (8) and ids (8) about, CRC-32C of the 36
//	        bytes before (4)
//	chunk:  kind (1: 1 UUIDs, 2 ids, 0 end), rows (4), payload bytes (4),
//	        CRC-32C of kind, rows, bytes and payload (4), payload
//
// A chunk of UUIDs is 16 bytes a row, then the event times as zigzag varints,
// each less the one before. A chunk of ids is length, bytes, event time a row.
// The end's payload is the number of rows of all chunks (8), so that a state
// that was cut between two chunks is seen.
const (
	stateMagic   = "WEIRDDUP"
	stateFormat  = 1
	kindSnapshot = 1
	kindDelta    = 2
	chunkEnd     = 0
	chunkUUIDs   = 1
	chunkIDs     = 2
	headerBytes  = 40
	frameBytes   = 13
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
	e := stateEncoder{w: w}
	uuids, ids := d.ids.sizes()
	e.header(kindSnapshot, d.watermark, uuids, ids)
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
	e.header(kindDelta, d.watermark, len(d.added), len(d.addedIDs))
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
	return d.ReadSnapshot(bytes.NewReader(b), int64(len(b)))
}

// ReadSnapshot implements SnapshotReader.
func (d *dedup) ReadSnapshot(r io.Reader, sizeBytes int64) error {
	d.Reset()
	return d.apply(newStateReader(r, sizeBytes), kindSnapshot)
}

// ApplyDelta implements Stateful.
func (d *dedup) ApplyDelta(b []byte) error {
	return d.apply(newStateReader(bytes.NewReader(b), int64(len(b))), kindDelta)
}

// stateEncoder writes chunks; the first error sticks.
type stateEncoder struct {
	w       io.Writer
	err     error
	kind    byte
	rows    uint32
	total   uint64
	payload []byte
	times   []byte
	last    int64
}

func (e *stateEncoder) write(b []byte) {
	if e.err == nil {
		_, e.err = e.w.Write(b)
	}
}

// header's counts may be more than what follows: expired keys are left out.
func (e *stateEncoder) header(kind byte, watermark int64, uuids, ids int) {
	b := append(make([]byte, 0, headerBytes), stateMagic...)
	b = binary.LittleEndian.AppendUint16(b, stateFormat)
	b = append(b, kind, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(watermark))
	b = binary.LittleEndian.AppendUint64(b, uint64(uuids))
	b = binary.LittleEndian.AppendUint64(b, uint64(ids))
	e.write(binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
}

func (e *stateEncoder) add(isID bool, k key, id []byte, at int64) {
	kind := byte(chunkUUIDs)
	if isID {
		kind = chunkIDs
	}
	if kind != e.kind || e.rows == chunkRows || len(e.payload) >= chunkBytes {
		e.flush()
		e.kind = kind
	}
	if isID {
		e.payload = binary.AppendUvarint(e.payload, uint64(len(id)))
		e.payload = append(e.payload, id...)
		e.payload = binary.AppendVarint(e.payload, at-e.last)
	} else {
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
	e.frame(e.kind, e.rows, e.payload)
	e.total += uint64(e.rows)
	e.rows, e.last = 0, 0
	e.payload, e.times = e.payload[:0], e.times[:0]
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
// the caller resets.
func (d *dedup) apply(r *stateReader, kind byte) error {
	size := uint64(r.left)
	b, err := r.bytes(headerBytes)
	if err != nil {
		return err
	}
	if string(b[:8]) != stateMagic {
		return corrupt("it does not begin as a state of dedup")
	}
	if got := crc32.Checksum(b[:headerBytes-4], castagnoli); got != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return corrupt("the header's checksum is wrong")
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != stateFormat {
		return corrupt("format %d, this version knows %d", v, stateFormat)
	}
	if b[10] != kind {
		return corrupt("kind %d where %d was expected", b[10], kind)
	}
	d.settle()
	d.advance(max(d.watermark, int64(binary.LittleEndian.Uint64(b[12:]))))
	if kind == kindSnapshot {
		// Bounded by what the bytes can hold: a UUID takes 16, an id at least 2.
		d.ids.reserve(int(min(binary.LittleEndian.Uint64(b[20:]), size/16)), int(min(binary.LittleEndian.Uint64(b[28:]), size/2)))
	}
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
		if err := d.applyChunk(chunk, int(rows), payload); err != nil {
			return err
		}
		total += uint64(rows)
	}
}

func (d *dedup) applyChunk(kind byte, rows int, p []byte) error {
	var last int64
	at := func() bool {
		v, n := binary.Varint(p)
		if n <= 0 {
			return false
		}
		p = p[n:]
		last += v
		return last != math.MinInt64
	}
	switch kind {
	case chunkUUIDs:
		if rows > len(p)/16 {
			return corrupt("a chunk is shorter than its rows")
		}
		keys := p[:16*rows]
		p = p[16*rows:]
		for ; len(keys) > 0; keys = keys[16:] {
			if !at() {
				return corrupt("an event time is unreadable")
			}
			d.put(true, key{binary.BigEndian.Uint64(keys), binary.BigEndian.Uint64(keys[8:])}, nil, last)
		}
	case chunkIDs:
		for range rows {
			n, size := binary.Uvarint(p)
			if size <= 0 || n > uint64(len(p)-size) {
				return corrupt("an id is cut")
			}
			id := p[size : size+int(n)]
			p = p[size+int(n):]
			if !at() {
				return corrupt("an event time is unreadable")
			}
			d.put(false, hashID(id), id, last)
		}
	default:
		return corrupt("chunk of kind %d", kind)
	}
	if len(p) != 0 {
		return corrupt("a chunk is longer than its rows")
	}
	return d.ids.fault()
}
