package operator

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
)

// key is 16 bytes: a UUID, or the 128-bit hash of an id that is none.
type key struct{ hi, lo uint64 }

// slot is a remembered key with its event time; 24 bytes, no pointer.
type slot struct {
	key
	at int64
}

// vacant is the event time of an empty slot; years end far before it.
const vacant = math.MinInt64

const (
	// segmentBits split a table into 1,024 small ones that grow and are swept
	// one at a time: the longest pause at ten million keys is one segment's,
	// about 13,000 slots.
	segmentBits = 10
	segments    = 1 << segmentBits
	firstSlots  = 8
	// A segment is full at 77 % and grows by 15 %, so that a key costs 31 to
	// 36 bytes. Doubling would cost up to 62.
	fullPercent = 77
	growPercent = 15
	// worthPercent is the share of a full segment that must have expired for
	// clearing it out instead of growing it.
	worthPercent = 12
)

// table is a set of keys with event times. It is a leaf of dedup, which knows
// about watermarks and batches.
//
// Open addressing with linear probing over 1,024 segments. Keys of a table
// withIDs are hashes, and each slot refers to the id's bytes: two ids with one
// hash are two keys.
//
// Rejected: map[[16]byte]int64 (more bytes a key, and it doubles in one step),
// one small table per time bucket (as many look-ups as there are buckets).
type table struct {
	withIDs  bool
	seed     uint64
	segments [segments]segment
	scratch  []slot
	refs     []uint32
	idBytes  []byte
}

type segment struct {
	slots []slot
	// in is where the slots lie, nil for the heap.
	in *region
	// refs[i] is where the id of slots[i] begins in ids: a length, the bytes.
	refs []uint32
	ids  []byte
	n    int
}

func newTable(withIDs bool, seed uint64) *table { return &table{withIDs: withIDs, seed: seed} }

// place mixes a key; UUIDs of version 1 and 7 are far from random.
func (t *table) place(k key) (seg *segment, h uint64) {
	hi, lo := bits.Mul64(k.hi^t.seed^0x9e3779b97f4a7c15, k.lo^0xd1b54a32d192ed03)
	h = hi ^ lo
	h *= 0xff51afd7ed558ccd
	h ^= h >> 32
	return &t.segments[h&(segments-1)], h
}

// home is the slot that a hash prefers among n.
func home(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// find gives the slot of a key, or where it would go.
func (s *segment) find(k key, id []byte, withIDs bool, h uint64) (i int, found bool) {
	i = home(h, len(s.slots))
	for {
		c := &s.slots[i]
		if c.at == vacant {
			return i, false
		}
		if c.key == k && (!withIDs || bytes.Equal(s.id(i), id)) {
			return i, true
		}
		if i++; i == len(s.slots) {
			i = 0
		}
	}
}

// id is the id of slot i.
func (s *segment) id(i int) []byte {
	b := s.ids[s.refs[i]:]
	n, size := binary.Uvarint(b)
	return b[size : size+int(n)]
}

// get is the event time of a key, vacant if it is not there.
func (t *table) get(k key, id []byte) int64 {
	s, h := t.place(k)
	if len(s.slots) == 0 {
		return vacant
	}
	i, found := s.find(k, id, t.withIDs, h)
	if !found {
		return vacant
	}
	return s.slots[i].at
}

// bounds are the event times that decide what a table may do.
type bounds struct {
	// alive: a key of this time or later is remembered.
	alive int64
	// removable: a key before this time may be removed.
	removable int64
	// removed counts a key out that was removed.
	removed func(at int64)
}

// insert sets the event time of a key unless the key is alive; before is the
// time that it had. A full segment is cleared of removable keys or grows.
func (t *table) insert(k key, id []byte, at int64, b *bounds) (before int64, ok bool) {
	s, h := t.place(k)
	i := 0
	if len(s.slots) > 0 {
		var found bool
		if i, found = s.find(k, id, t.withIDs, h); found {
			if before = s.slots[i].at; before >= b.alive {
				return before, false
			}
			s.slots[i].at = at
			return before, true
		}
	}
	if (s.n+1)*100 > len(s.slots)*fullPercent {
		t.makeRoom(s, b)
		i, _ = s.find(k, id, t.withIDs, h)
	}
	s.slots[i] = slot{k, at}
	if t.withIDs {
		s.refs[i] = uint32(len(s.ids))
		s.ids = append(binary.AppendUvarint(s.ids, uint64(len(id))), id...)
	}
	s.n++
	return vacant, true
}

// reserve makes room for about n keys, so that loading a snapshot does not
// grow: it comes in the order of slots, which would pile up in a small segment.
func (t *table) reserve(n int) {
	per := n / segments
	size := max(firstSlots, (per+per/32)*100/fullPercent+1)
	for i := range t.segments {
		s := &t.segments[i]
		if s.n > 0 || n == 0 {
			continue
		}
		s.slots, s.in = newSlots(size)
		if t.withIDs {
			s.refs = make([]uint32, size)
		}
	}
}

// release forgets every key and gives the memory back.
func (t *table) release() {
	for i := range t.segments {
		t.segments[i].in.free()
	}
	*t = table{withIDs: t.withIDs, seed: t.seed}
}

// size is the number of keys in memory.
func (t *table) size() int {
	n := 0
	for i := range t.segments {
		n += t.segments[i].n
	}
	return n
}

// makeRoom clears a full segment of what may go, or lets it grow.
func (t *table) makeRoom(s *segment, b *bounds) {
	gone := 0
	for i := range s.slots {
		if at := s.slots[i].at; at != vacant && at < b.removable {
			gone++
		}
	}
	size := len(s.slots)
	if gone*100 <= size*worthPercent {
		size = max(firstSlots, size+size*growPercent/100+1)
	}
	t.rebuild(s, size, b)
}

// rebuild moves what may stay into size slots.
func (t *table) rebuild(s *segment, size int, b *bounds) {
	old, oldRefs, oldIDs := s.slots, s.refs, s.ids
	var left *region
	if size == len(old) {
		// Same size: the scratch takes the old slots, nothing is allocated.
		t.scratch = append(t.scratch[:0], old...)
		old = t.scratch
		if t.withIDs {
			t.refs = append(t.refs[:0], oldRefs...)
			t.idBytes = append(t.idBytes[:0], oldIDs...)
			oldRefs, oldIDs, s.ids = t.refs, t.idBytes, s.ids[:0]
		}
		for i := range s.slots {
			s.slots[i].at = vacant
		}
	} else {
		left = s.in
		s.slots, s.in = newSlots(size)
		if t.withIDs {
			s.refs = make([]uint32, size)
			s.ids = make([]byte, 0, len(oldIDs)+len(oldIDs)*growPercent/100)
		}
	}
	s.n = 0
	for i := range old {
		c := old[i]
		if c.at == vacant {
			continue
		}
		if c.at < b.removable {
			b.removed(c.at)
			continue
		}
		_, h := t.place(c.key)
		to := home(h, len(s.slots))
		for s.slots[to].at != vacant {
			if to++; to == len(s.slots) {
				to = 0
			}
		}
		s.slots[to] = c
		if t.withIDs {
			id := oldIDs[oldRefs[i]:]
			n, size := binary.Uvarint(id)
			s.refs[to] = uint32(len(s.ids))
			s.ids = append(s.ids, id[:size+int(n)]...)
		}
		s.n++
	}
	left.free()
}

// remove takes a key out; later keys of the probe run move up.
func (t *table) remove(k key, id []byte) {
	s, h := t.place(k)
	if len(s.slots) == 0 {
		return
	}
	i, found := s.find(k, id, t.withIDs, h)
	if !found {
		return
	}
	s.n--
	n := len(s.slots)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		if s.slots[j].at == vacant {
			break
		}
		_, h := t.place(s.slots[j].key)
		// The key at j may move to the hole at i unless its home lies
		// (cyclically) after i.
		if want := home(h, n); (j-want+n)%n >= (j-i+n)%n {
			s.slots[i] = s.slots[j]
			if t.withIDs {
				s.refs[i] = s.refs[j]
			}
			i = j
		}
	}
	s.slots[i] = slot{at: vacant}
}

// sweep clears segment i of what may go and shrinks one that is mostly empty.
// It gives the number of slots that it looked at.
func (t *table) sweep(i int, b *bounds) int {
	s := &t.segments[i]
	gone := 0
	for j := range s.slots {
		if at := s.slots[j].at; at != vacant && at < b.removable {
			gone++
		}
	}
	looked := len(s.slots)
	if gone == 0 {
		return looked
	}
	size := looked
	if left := s.n - gone; left*100 < looked*fullPercent/2 {
		size = max(firstSlots, left*100/(fullPercent-growPercent/2)+1)
		if left == 0 {
			size = 0
		}
	}
	if size == 0 {
		for j := range s.slots {
			if at := s.slots[j].at; at != vacant {
				b.removed(at)
			}
		}
		s.in.free()
		*s = segment{}
		return looked
	}
	t.rebuild(s, size, b)
	return looked
}

// each calls f with every key.
func (t *table) each(f func(k key, id []byte, at int64) error) error {
	for i := range t.segments {
		s := &t.segments[i]
		for j := range s.slots {
			if s.slots[j].at == vacant {
				continue
			}
			var id []byte
			if t.withIDs {
				id = s.id(j)
			}
			if err := f(s.slots[j].key, id, s.slots[j].at); err != nil {
				return err
			}
		}
	}
	return nil
}

// bytes is the memory of slots and ids.
func (t *table) bytes() int64 {
	var n int64
	for i := range t.segments {
		s := &t.segments[i]
		n += int64(cap(s.slots))*24 + int64(cap(s.refs))*4 + int64(cap(s.ids))
	}
	return n + int64(cap(t.scratch))*24 + int64(cap(t.refs))*4 + int64(cap(t.idBytes)) + segments*80
}
