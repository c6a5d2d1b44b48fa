package operator

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/zeebo/xxh3"
)

// shelf keeps a value of bytes and a due time for each key in memory.
//
// Open addressing over 1,024 segments, as in table. A slot holds no pointer: it
// refers to the key and the value in its segment's data, so that an open session
// costs about its encoded size, and the garbage collector looks at two slices
// a segment however many sessions there are.
//
// Invariants:
//   - every key stands in the queue (or in popped) under its slot's queued time,
//     which is not after the least due time that was set for it; entries under
//     any other time are stale and passed over;
//   - stale entries are at most about as many as keys, dead bytes of a segment
//     at most about a quarter: beyond, queue and data are made anew.
//
// Rejected: map[string]*keyed with the accumulators in it (some 600 bytes and
// a dozen pointers a session), map[string][]byte (two pointers a session, and it
// doubles in one step).
type shelf struct {
	segments [segments]shelfSegment
	n        int
	queue    dueQueue
	// popped are the entries that Due has taken out since Settle or Undo, all of
	// them at or before poppedTo.
	popped   []dueEntry
	poppedTo int64
}

type shelfSegment struct {
	slots []shelfSlot
	// data holds records: length and bytes of the key, length and bytes of the
	// value.
	data []byte
	n    int
	dead int // bytes of data that no slot refers to
}

// shelfSlot is 16 bytes. place is where its record begins in data, plus one:
// 0 is a vacant slot.
type shelfSlot struct {
	queued int64
	hash   uint32
	place  uint32
}

// deadPercent is the share of dead bytes at which data is made anew, and
// sparePercent how much room it gets beyond what it holds.
const (
	deadPercent  = 25
	sparePercent = 12
	// staleSpare is how many stale entries a small queue may have.
	staleSpare = 1024
)

func newShelf() *shelf { return &shelf{poppedTo: math.MinInt64} }

// segmentOf splits a key's hash: its low bits choose the segment, its high ones
// the slot.
func (s *shelf) segmentOf(h uint64) (*shelfSegment, uint32) {
	return &s.segments[h%segments], uint32(h >> 32)
}

func (g *shelfSegment) home(hash uint32) int { return int(uint64(hash) * uint64(len(g.slots)) >> 32) }

func (g *shelfSegment) next(i int) int {
	if i++; i < len(g.slots) {
		return i
	}
	return 0
}

// record gives the key and the value of slot i, and the size of both with their
// lengths.
func (g *shelfSegment) record(i int) (key, value []byte, size int) {
	b := g.data[g.slots[i].place-1:]
	n, at := binary.Uvarint(b)
	key = b[at : at+int(n)]
	at += int(n)
	n, m := binary.Uvarint(b[at:])
	at += m
	return key, b[at : at+int(n)], at + int(n)
}

// find gives the slot of a key, or where it would go. There is always a vacant
// slot unless there is none at all.
func (g *shelfSegment) find(key []byte, hash uint32) (i int, found bool) {
	if len(g.slots) == 0 {
		return 0, false
	}
	for i = g.home(hash); g.slots[i].place != 0; i = g.next(i) {
		if g.slots[i].hash != hash {
			continue
		}
		if k, _, _ := g.record(i); bytes.Equal(k, key) {
			return i, true
		}
	}
	return i, false
}

// get implements KeyStore.
func (s *shelf) Get(key []byte) ([]byte, error) {
	g, hash := s.segmentOf(xxh3.Hash(key))
	i, found := g.find(key, hash)
	if !found {
		return nil, nil
	}
	_, value, _ := g.record(i)
	return value, nil
}

// set implements KeyStore.
func (s *shelf) Set(key, value []byte, due int64) error {
	h := xxh3.Hash(key)
	g, hash := s.segmentOf(h)
	i, found := g.find(key, hash)
	switch {
	case len(value) == 0:
		if found {
			g.remove(i)
			s.n--
		}
		return nil
	case !found:
		if (g.n+1)*100 > len(g.slots)*fullPercent {
			g.resize(max(firstSlots, len(g.slots)+len(g.slots)*growPercent/100+1))
			i, _ = g.find(key, hash)
		}
		g.slots[i] = shelfSlot{hash: hash, place: g.append(key, value), queued: due}
		g.n++
		s.n++
		s.queue.push(dueEntry{due, h})
		return nil
	}
	g.replace(i, key, value)
	if slot := &g.slots[i]; due < slot.queued || slot.queued <= s.poppedTo {
		slot.queued = due
		s.queue.push(dueEntry{due, h})
	}
	return nil
}

// replace gives slot i another value.
func (g *shelfSegment) replace(i int, key, value []byte) {
	_, old, size := g.record(i)
	if len(old) == len(value) {
		copy(old, value)
		return
	}
	g.dead += size
	// Vacant while data may be made anew: the old record is not to be moved.
	slot := g.slots[i]
	g.slots[i].place = 0
	slot.place = g.append(key, value)
	g.slots[i] = slot
}

// append adds a record to data, which is cleared of dead bytes or grows where it
// is full.
func (g *shelfSegment) append(key, value []byte) (place uint32) {
	need := len(key) + len(value) + 2*binary.MaxVarintLen32
	if cap(g.data)-len(g.data) < need || g.dead*100 > len(g.data)*deadPercent {
		g.repack(need)
	}
	place = uint32(len(g.data)) + 1
	g.data = appendEntry(g.data, key, value)
	return place
}

// repack moves the live records into data of their size and some room.
func (g *shelfSegment) repack(need int) {
	live := len(g.data) - g.dead
	data := make([]byte, 0, live+live*sparePercent/100+need)
	for i := range g.slots {
		if g.slots[i].place == 0 {
			continue
		}
		from := int(g.slots[i].place) - 1
		_, _, size := g.record(i)
		g.slots[i].place = uint32(len(data)) + 1
		data = append(data, g.data[from:from+size]...)
	}
	g.data, g.dead = data, 0
}

func (g *shelfSegment) resize(n int) {
	old := g.slots
	g.slots = make([]shelfSlot, n)
	for _, slot := range old {
		if slot.place == 0 {
			continue
		}
		i := g.home(slot.hash)
		for g.slots[i].place != 0 {
			i = g.next(i)
		}
		g.slots[i] = slot
	}
}

// remove takes slot i out; later slots of the probe run move up.
func (g *shelfSegment) remove(i int) {
	_, _, size := g.record(i)
	g.dead += size
	g.n--
	n := len(g.slots)
	for j := g.next(i); g.slots[j].place != 0; j = g.next(j) {
		// The slot at j may move to the hole at i unless its home lies
		// (cyclically) after i.
		if want := g.home(g.slots[j].hash); (j-want+n)%n >= (j-i+n)%n {
			g.slots[i] = g.slots[j]
			i = j
		}
	}
	g.slots[i] = shelfSlot{}
	switch {
	case g.n == 0:
		*g = shelfSegment{}
	case n > firstSlots && g.n*100 < n*fullPercent/4:
		g.resize(max(firstSlots, n/2))
		g.repack(0)
	case g.dead*2 > len(g.data):
		g.repack(0)
	}
}

// due implements KeyStore.
func (s *shelf) Due(watermark int64, f DueFunc) error {
	s.poppedTo = max(s.poppedTo, watermark)
	for len(s.queue) > 0 && s.queue[0].due <= watermark {
		e := s.queue.pop()
		g, _ := s.segmentOf(e.hash)
		if g.n == 0 {
			continue
		}
		left, more, err := s.dueSlots(g, e, watermark, f)
		if left {
			s.popped = append(s.popped, e)
		}
		if !more || err != nil {
			return err
		}
	}
	return nil
}

// dueSlots offers the keys of an entry to f; mostly it is one. left says that one
// of them still stands under the entry.
func (s *shelf) dueSlots(g *shelfSegment, e dueEntry, watermark int64, f DueFunc) (left, more bool, err error) {
	hash := uint32(e.hash >> 32)
	for i := g.home(hash); g.slots[i].place != 0; i = g.next(i) {
		slot := &g.slots[i]
		if slot.hash != hash || slot.queued != e.due {
			continue
		}
		key, value, _ := g.record(i)
		next, more, err := f(key, value)
		if next > watermark {
			slot.queued = next
			s.queue.push(dueEntry{next, e.hash})
		} else {
			left = true
		}
		if !more || err != nil {
			return true, more, err
		}
	}
	return left, true, nil
}

// undo implements KeyStore.
func (s *shelf) Undo() {
	for _, e := range s.popped {
		s.queue.push(e)
	}
	s.forgetPopped()
}

func (s *shelf) forgetPopped() { s.popped, s.poppedTo = emptied(s.popped), math.MinInt64 }

// Settle implements KeyStore. Memory does not outlast the process: meta is not kept.
func (s *shelf) Settle([]byte) error {
	s.forgetPopped()
	if len(s.queue) <= 2*s.n+staleSpare {
		return nil
	}
	s.queue = make(dueQueue, 0, s.n)
	for at := range s.segments {
		for _, slot := range s.segments[at].slots {
			if slot.place != 0 {
				s.queue.push(dueEntry{slot.queued, uint64(slot.hash)<<32 | uint64(at)})
			}
		}
	}
	return nil
}

// each implements KeyStore.
func (s *shelf) Each(f func(key, value []byte) error) error {
	for at := range s.segments {
		g := &s.segments[at]
		for i := range g.slots {
			if g.slots[i].place == 0 {
				continue
			}
			key, value, _ := g.record(i)
			if err := f(key, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// bytes implements KeyStore.
func (s *shelf) Bytes() int64 {
	n := int64(segments*64) + int64(cap(s.queue)+cap(s.popped))*16
	for i := range s.segments {
		n += int64(cap(s.segments[i].slots))*16 + int64(cap(s.segments[i].data))
	}
	return n
}

// Reset implements KeyStore.
func (s *shelf) Reset() { *s = *newShelf() }

// Resume implements KeyStore.
func (s *shelf) Resume() ([]byte, error) { return nil, nil }

// Close implements KeyStore.
func (s *shelf) Close() error { return nil }

// dueEntry says that a key of this hash is looked at when the watermark reaches
// a time. Keys with the same hash are told apart by their slots.
type dueEntry struct {
	due  int64
	hash uint64
}

// dueQueue is a heap by due time.
type dueQueue []dueEntry

func (q *dueQueue) push(e dueEntry) {
	h := append(*q, e)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if h[up].due <= h[i].due {
			break
		}
		h[up], h[i] = h[i], h[up]
		i = up
	}
	*q = h
}

func (q *dueQueue) pop() dueEntry {
	h := *q
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if h[c].due < h[least].due {
				least = c
			}
		}
		if least == i {
			break
		}
		h[least], h[i] = h[i], h[least]
		i = least
	}
	if cap(h) > 4*len(h)+staleSpare {
		h = append(make(dueQueue, 0, 2*len(h)), h...)
	}
	*q = h
	return top
}
