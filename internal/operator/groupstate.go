package operator

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"
)

// The state of an aggregation as bytes:
//
//	magic, kind, hash of the layout, watermark, number of entries,
//	entries: key, state of its groups (empty: the key is gone),
//	checksum of all that
//
// Whole keys are replaced, so that a delta may be applied twice.
const (
	groupMagic       = "WEIRGRP1"
	groupHeaderBytes = 8 + 1 + 8 + 8 + 8
	groupSumBytes    = 4
)

// appendGroups encodes the groups of a key.
func (s *groups) appendGroups(b []byte, list []group) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		g := &list[i]
		b = binary.AppendVarint(b, g.start)
		b = binary.AppendVarint(b, g.last-g.start)
		b = binary.AppendVarint(b, g.rows)
		for _, a := range g.accs {
			b = a.encode(b)
		}
	}
	return b
}

// readGroups is appendGroups' inverse.
func (s *groups) readGroups(b []byte) (list []group, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)) {
		return nil, nil, false
	}
	b = b[size:]
	for range n {
		g := group{accs: make([]accumulator, len(s.g.specs))}
		for _, to := range []*int64{&g.start, &g.last, &g.rows} {
			v, size := binary.Varint(b)
			if size <= 0 {
				return nil, nil, false
			}
			*to, b = v, b[size:]
		}
		g.last += g.start
		for i := range s.g.specs {
			g.accs[i] = s.g.specs[i].newAccumulator()
			if b, ok = g.accs[i].decode(b); !ok {
				return nil, nil, false
			}
		}
		list = append(list, g)
	}
	return list, b, true
}

func (s *groups) header(kind byte, entries int64) []byte {
	b := append(make([]byte, 0, groupHeaderBytes), groupMagic...)
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint64(b, xxh3.HashString(s.g.layout()))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.watermark))
	return binary.LittleEndian.AppendUint64(b, uint64(entries))
}

func appendEntry(b, key, state []byte) []byte {
	b = append(binary.AppendUvarint(b, uint64(len(key))), key...)
	return append(binary.AppendUvarint(b, uint64(len(state))), state...)
}

func seal(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// eachKey calls f with every key and its groups, packed.
func (s *groups) eachKey(f func(key, packed []byte) error) error {
	s.pack()
	for _, key := range slices.Sorted(maps.Keys(s.changed)) {
		if packed := s.changed[key].packed; len(packed) > 0 {
			if err := f([]byte(key), packed); err != nil {
				return err
			}
		}
	}
	return s.rest.Each(func(key, packed []byte) error {
		if s.changed[string(key)] != nil {
			return nil
		}
		return f(key, packed)
	})
}

// Delta implements Stateful: the keys that the batch changed, as they are now.
func (s *groups) Delta() ([]byte, error) {
	s.pack()
	b := s.header(kindDelta, int64(len(s.changed)))
	for _, key := range slices.Sorted(maps.Keys(s.changed)) {
		b = appendEntry(b, []byte(key), s.changed[key].packed)
	}
	return seal(b), nil
}

// Snapshot implements Stateful.
func (s *groups) Snapshot() ([]byte, error) {
	var b bytes.Buffer
	err := s.WriteSnapshot(&b)
	return b.Bytes(), err
}

// WriteSnapshot implements SnapshotWriter.
func (s *groups) WriteSnapshot(w io.Writer) error {
	sum := crc32.New(castagnoli)
	out := io.MultiWriter(w, sum)
	b := s.header(kindSnapshot, s.sizes.Keys)
	err := s.eachKey(func(key, packed []byte) error {
		if b = appendEntry(b, key, packed); len(b) > chunkBytes {
			if _, err := out.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
		return nil
	})
	if err != nil {
		return err
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	_, err = w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// LoadSnapshot implements Stateful.
func (s *groups) LoadSnapshot(b []byte) error {
	return s.ReadSnapshot(bytes.NewReader(b), int64(len(b)), 0)
}

// ReadSnapshot implements SnapshotReader.
func (s *groups) ReadSnapshot(r io.Reader, sizeBytes, _ int64) error {
	s.Reset()
	return s.apply(newStateReader(r, sizeBytes), kindSnapshot)
}

// ApplyDelta implements Stateful.
func (s *groups) ApplyDelta(b []byte) error {
	return s.apply(newStateReader(bytes.NewReader(b), int64(len(b))), kindDelta)
}

func (s *groups) apply(r *stateReader, kind byte) error {
	b, err := r.bytes(groupHeaderBytes)
	switch {
	case err != nil:
		return err
	case string(b[:8]) != groupMagic:
		return corrupt("it does not begin as a state of %s", s.g.name)
	case b[8] != kind:
		return corrupt("kind %d where %d was expected", b[8], kind)
	case binary.LittleEndian.Uint64(b[9:]) != xxh3.HashString(s.g.layout()):
		return corrupt("it is of another definition of %s", s.g.name)
	}
	watermark, entries := int64(binary.LittleEndian.Uint64(b[17:])), binary.LittleEndian.Uint64(b[25:])
	var key []byte
	for range entries {
		text, err := r.text()
		if err != nil {
			return err
		}
		key = append(key[:0], text...)
		state, err := r.text()
		if err != nil {
			return err
		}
		if err := s.applyEntry(key, state); err != nil {
			return err
		}
	}
	want := r.sum
	if b, err = r.bytes(groupSumBytes); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b) != want {
		return corrupt("its checksum is wrong")
	}
	if r.left > 0 {
		return corrupt("it is longer than its entries")
	}
	s.watermark = max(s.watermark, watermark)
	return s.settleUnnamed()
}

// applyEntry makes a state the key's; an empty one removes the key.
func (s *groups) applyEntry(key, state []byte) error {
	var list []group
	if len(state) > 0 {
		var left []byte
		var ok bool
		if list, left, ok = s.readGroups(state); !ok || len(left) > 0 || len(list) == 0 {
			return corrupt("the state of a key is unreadable")
		}
	}
	old, err := s.rest.Get(key)
	if err != nil {
		return err
	}
	if len(old) > 0 {
		was, err := s.unpack(old)
		if err != nil {
			return err
		}
		s.sizes.add(string(key), was, -1)
	}
	s.sizes.add(string(key), list, 1)
	due := int64(0)
	if len(list) > 0 {
		due = s.g.due(list[0].start, list[0].last)
	}
	return s.rest.Set(key, state, due)
}
