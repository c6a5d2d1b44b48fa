package operator

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"
)

// key is 16 bytes: a UUID, or the 128-bit hash of an id that is none.
type key struct{ hi, lo uint64 }

// vacant is the event time of no key; years end far before it.
const vacant = math.MinInt64

const (
	// segmentBits split a table into 1,024 small ones that grow and are swept
	// one at a time: the longest pause at ten million keys is one segment's,
	// about 11,000 slots. No table is ever there twice for growing.
	segmentBits = 10
	segments    = 1 << segmentBits
	firstSlots  = 8
	// A segment is full at 85 % and grows by 12 %, so that a key costs 24 to
	// 26 bytes. Doubling would cost up to 47.
	fullPercent = 85
	growPercent = 12
	// worthPercent is the share of a full segment that must have expired for
	// clearing it out instead of growing it.
	worthPercent = 12
	// keyBytes of a slot follow its time.
	keyBytes = 16
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
	expected expected
	scratch  []byte
	refs     []uint32
	idBytes  []byte
}

// expected is what a segment is made for that has no slots yet; first is after last
// where the times are not known.
type expected struct {
	size        int
	first, last int64
}

// segment is a run of slots: an event time in as few bytes as the times of the
// segment allow, then the key; little endian. A time is stored as what it is past
// base, at least 1; 0 is a vacant slot.
type segment struct {
	timeSpan
	slots []byte
	size  int // slots that there are
	// in is where the slots lie, nil for the heap.
	in *region
	// refs[i] is where the id of slot i begins in ids: a length, the bytes.
	refs []uint32
	ids  []byte
	n    int
}

// timeSpan is the event times that a segment can hold: those past base that fit into
// timeBytes.
type timeSpan struct {
	base      int64
	timeBytes int
}

// allTimes holds every time but vacant.
var allTimes = timeSpan{base: vacant, timeBytes: 8}

// timesOf is the narrowest span for times from first to last that leaves room on
// both sides: streams go on, and are out of order. The place of a segment moves the
// room, so that they do not all run out of it in the same batch.
func timesOf(first, last int64, place int) timeSpan {
	for n := 4; n < 8; n++ {
		room := int64(1) << (8 * n)
		base := first - room/16 - room/(8*segments)*int64(place)
		if base < first && last >= first && uint64(last)-uint64(base) < uint64(room)/8*5 {
			return timeSpan{base, n}
		}
	}
	return allTimes
}

// holds says whether a time fits.
func (s *timeSpan) holds(at int64) bool {
	return at > s.base && uint64(at)-uint64(s.base) <= s.mask()
}

func (s *timeSpan) mask() uint64 { return math.MaxUint64 >> (64 - 8*s.timeBytes) }

func (s *timeSpan) slotBytes() int { return s.timeBytes + keyBytes }

// at is the event time of slot i.
func (s *segment) at(i int) int64 {
	past := binary.LittleEndian.Uint64(s.slots[i*s.slotBytes():]) & s.mask()
	if past == 0 {
		return vacant
	}
	return int64(uint64(s.base) + past)
}

// key is the key of slot i.
func (s *segment) key(i int) key {
	b := s.slots[i*s.slotBytes()+s.timeBytes:]
	return key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
}

// setAt sets the time of slot i, which may become vacant.
func (s *segment) setAt(i int, at int64) {
	b := s.slots[i*s.slotBytes():]
	past := uint64(at) - uint64(s.base)
	if at == vacant {
		past = 0
	}
	binary.LittleEndian.PutUint64(b, binary.LittleEndian.Uint64(b)&^s.mask()|past)
}

// set fills slot i.
func (s *segment) set(i int, k key, at int64) {
	b := s.slots[i*s.slotBytes():]
	binary.LittleEndian.PutUint64(b, uint64(at)-uint64(s.base))
	b = b[s.timeBytes:] // over what of the time is too much
	binary.LittleEndian.PutUint64(b, k.hi)
	binary.LittleEndian.PutUint64(b[8:], k.lo)
}

func newTable(withIDs bool, seed uint64) *table {
	t := &table{withIDs: withIDs, seed: seed}
	t.release()
	return t
}

// place mixes a key; UUIDs of version 1 and 7 are far from random.
func (t *table) place(k key) (segment int, h uint64) {
	hi, lo := bits.Mul64(k.hi^t.seed^0x9e3779b97f4a7c15, k.lo^0xd1b54a32d192ed03)
	h = hi ^ lo
	h *= 0xff51afd7ed558ccd
	h ^= h >> 32
	return int(h & (segments - 1)), h
}

// home is the slot that a hash prefers among n.
func home(h uint64, n int) int {
	hi, _ := bits.Mul64(h, uint64(n))
	return int(hi)
}

// find gives the slot of a key and its time, or where the key would go and vacant.
func (s *segment) find(k key, id []byte, withIDs bool, h uint64) (i int, at int64) {
	size, mask, n := s.slotBytes(), s.mask(), s.size
	i = home(h, n)
	for b := s.slots[i*size:]; ; b = b[size:] {
		if len(b) == 0 {
			i, b = 0, s.slots
		}
		past := binary.LittleEndian.Uint64(b) & mask
		if past == 0 {
			return i, vacant
		}
		stored := b[s.timeBytes:size]
		if binary.LittleEndian.Uint64(stored) == k.hi && binary.LittleEndian.Uint64(stored[8:]) == k.lo && (!withIDs || bytes.Equal(s.id(i), id)) {
			return i, int64(uint64(s.base) + past)
		}
		i++
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
	place, h := t.place(k)
	s := &t.segments[place]
	if s.size == 0 {
		return vacant
	}
	_, at := s.find(k, id, t.withIDs, h)
	return at
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
	place, h := t.place(k)
	s := &t.segments[place]
	i, before := 0, int64(vacant)
	if s.size > 0 {
		i, before = s.find(k, id, t.withIDs, h)
		if before != vacant && before >= b.alive {
			return before, false
		}
	}
	if full := before == vacant && (s.n+1)*100 > s.size*fullPercent; full || !s.holds(at) {
		t.makeRoom(place, at, full, b)
		// The key itself may be one of those that were cleared out, and counted.
		i, before = s.find(k, id, t.withIDs, h)
	}
	if before != vacant {
		s.setAt(i, at)
		return before, true
	}
	s.set(i, k, at)
	if t.withIDs {
		s.refs[i] = uint32(len(s.ids))
		s.ids = append(binary.AppendUvarint(s.ids, uint64(len(id))), id...)
	}
	s.n++
	return vacant, true
}

// touch reads the slot that a key prefers: of many look-ups ahead the memory is
// fetched at the same time.
func (t *table) touch(k key) byte {
	place, h := t.place(k)
	s := &t.segments[place]
	if s.size == 0 {
		return 0
	}
	return s.slots[home(h, s.size)*s.slotBytes()]
}

// expect says what a load will bring, so that it does not grow a segment: about n
// keys with times from first to last, where that is known. A snapshot comes in the
// order of slots, which would pile up in a small segment. No key ends it.
func (t *table) expect(n int, first, last int64) {
	t.expected = expected{first: math.MaxInt64, last: math.MinInt64}
	if per := n / segments; per > 0 {
		t.expected = expected{(per+per/32)*100/fullPercent + 1, first, last}
	}
}

// allocate gives a segment at least size vacant slots, and no key.
func (t *table) allocate(s *segment, size int, times timeSpan) {
	s.timeSpan, s.n = times, 0
	s.slots, s.in = newSlots(size, s.slotBytes())
	s.size = len(s.slots) / s.slotBytes()
	if t.withIDs {
		s.refs = make([]uint32, s.size)
	}
}

// release forgets every key and gives the memory back.
func (t *table) release() {
	for i := range t.segments {
		t.segments[i].in.free()
	}
	*t = table{withIDs: t.withIDs, seed: t.seed}
	t.expect(0, 0, 0)
}

// size is the number of keys in memory.
func (t *table) size() int {
	n := 0
	for i := range t.segments {
		n += t.segments[i].n
	}
	return n
}

// census counts the keys of a segment that may go, and gives the first and last
// time of the others, and of at.
func (s *segment) census(at, removable int64) (gone int, first, last int64) {
	first, last = at, at
	for i := range s.size {
		switch got := s.at(i); {
		case got == vacant:
		case got < removable:
			gone++
		default:
			first, last = min(first, got), max(last, got)
		}
	}
	return gone, first, last
}

// makeRoom prepares a segment for a time that it cannot hold or, where it is full,
// for another key: it is cleared of what may go, or grows.
func (t *table) makeRoom(place int, at int64, full bool, b *bounds) {
	s := &t.segments[place]
	if s.size == 0 {
		e := &t.expected
		t.allocate(s, max(firstSlots, e.size), timesOf(min(at, e.first), max(at, e.last), place))
		return
	}
	gone, first, last := s.census(at, b.removable)
	times, size := s.timeSpan, s.size
	if !times.holds(first) || !times.holds(last) {
		times = timesOf(first, last, place)
	}
	if full && gone*100 <= size*worthPercent {
		size = max(firstSlots, size+size*growPercent/100+1)
	}
	t.rebuild(s, size, times, b)
}

// rebuild moves what may stay into size slots.
func (t *table) rebuild(s *segment, size int, times timeSpan, b *bounds) {
	old := *s
	var left *region
	if size == old.size && times.timeBytes == old.timeBytes {
		// The scratch takes the old slots, nothing is allocated.
		t.scratch = append(t.scratch[:0], old.slots...)
		old.slots = t.scratch
		if t.withIDs {
			t.refs = append(t.refs[:0], old.refs...)
			t.idBytes = append(t.idBytes[:0], old.ids...)
			old.refs, old.ids, s.ids = t.refs, t.idBytes, s.ids[:0]
		}
		clear(s.slots)
		s.timeSpan, s.n = times, 0
	} else {
		left = s.in
		t.allocate(s, size, times)
		if t.withIDs {
			s.ids = make([]byte, 0, len(old.ids)+len(old.ids)*growPercent/100)
		}
	}
	from, to, mask := old.slotBytes(), s.slotBytes(), s.mask()
	for i, rest := 0, old.slots; len(rest) > 0; i, rest = i+1, rest[from:] {
		past := binary.LittleEndian.Uint64(rest) & old.mask()
		if past == 0 {
			continue
		}
		at := int64(uint64(old.base) + past)
		if at < b.removable {
			b.removed(at)
			continue
		}
		stored := rest[old.timeBytes:from]
		_, h := t.place(key{binary.LittleEndian.Uint64(stored), binary.LittleEndian.Uint64(stored[8:])})
		free := home(h, s.size) * to
		for binary.LittleEndian.Uint64(s.slots[free:])&mask != 0 {
			if free += to; free == len(s.slots) {
				free = 0
			}
		}
		binary.LittleEndian.PutUint64(s.slots[free:], uint64(at)-uint64(s.base))
		copy(s.slots[free+s.timeBytes:free+to], stored) // over what of the time is too much
		if t.withIDs {
			id := old.ids[old.refs[i]:]
			n, size := binary.Uvarint(id)
			s.refs[free/to] = uint32(len(s.ids))
			s.ids = append(s.ids, id[:size+int(n)]...)
		}
		s.n++
	}
	left.free()
}

// remove takes a key out; later keys of the probe run move up.
func (t *table) remove(k key, id []byte) {
	place, h := t.place(k)
	s := &t.segments[place]
	if s.size == 0 {
		return
	}
	i, at := s.find(k, id, t.withIDs, h)
	if at == vacant {
		return
	}
	s.n--
	n, size := s.size, s.slotBytes()
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		if s.at(j) == vacant {
			break
		}
		_, h := t.place(s.key(j))
		// The key at j may move to the hole at i unless its home lies
		// (cyclically) after i.
		if want := home(h, n); (j-want+n)%n >= (j-i+n)%n {
			copy(s.slots[i*size:(i+1)*size], s.slots[j*size:])
			if t.withIDs {
				s.refs[i] = s.refs[j]
			}
			i = j
		}
	}
	s.setAt(i, vacant)
}

// sweep clears segment i of what may go and shrinks one that is mostly empty.
// It gives the number of slots that it looked at.
func (t *table) sweep(i int, b *bounds) int {
	s := &t.segments[i]
	if s.size == 0 {
		return 0
	}
	looked := s.size
	gone, _, _ := s.census(0, b.removable)
	if gone == 0 {
		return looked
	}
	if gone == s.n {
		for j := range looked {
			if at := s.at(j); at != vacant {
				b.removed(at)
			}
		}
		s.in.free()
		*s = segment{}
		return looked
	}
	size := looked
	if left := s.n - gone; left*100 < looked*fullPercent/2 {
		size = max(firstSlots, left*100/(fullPercent-growPercent/2)+1)
	}
	t.rebuild(s, size, s.timeSpan, b)
	return looked
}

// each calls f with every key.
func (t *table) each(f func(k key, id []byte, at int64) error) error {
	for i := range t.segments {
		s := &t.segments[i]
		for j := range s.size {
			at := s.at(j)
			if at == vacant {
				continue
			}
			var id []byte
			if t.withIDs {
				id = s.id(j)
			}
			if err := f(s.key(j), id, at); err != nil {
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
		n += int64(cap(s.slots)) + int64(cap(s.refs))*4 + int64(cap(s.ids))
	}
	return n + int64(cap(t.scratch)) + int64(cap(t.refs))*4 + int64(cap(t.idBytes)) + int64(unsafe.Sizeof(t.segments))
}
