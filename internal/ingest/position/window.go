package position

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

const (
	// entryBytes is the size of a remembered event in its stored form.
	entryBytes = 16 + 8 + 2
	noSlot     = 0xFFFF
	maxSlots   = maxParts
	// filterSlack is how many events past twice its size a filter is consulted.
	filterSlack = 1000
)

// Ident is what an event is recognised by when the server sends it again: its
// UUID, or a digest of its key or bytes.
type Ident [16]byte

// IdentOf prefers the key: the bytes of an event may differ between two
// servers, which add their own offsets.
func IdentOf(key, raw []byte) Ident {
	if len(key) == 36 {
		if u, err := uuid.ParseBytes(key); err == nil {
			return Ident(u)
		}
	}
	tag := byte('k')
	if key == nil {
		tag, key = 'r', raw
	}
	h := sha256.New()
	h.Write([]byte{tag})
	h.Write(key)
	var id Ident
	copy(id[:], h.Sum(nil))
	return id
}

// Entry is one event that was received.
type Entry struct {
	Ident Ident
	slot  uint16 // index of its partition, or noSlot: Pos is the receipt number
	pos   int64
}

// Window remembers received events in the order of receipt, as far back as a
// resume may go.
//
// Invariant: every event with a position at or after low of its partition, and
// received since the window began, is in it.
type Window struct {
	limit int
	keys  []Key
	slots map[Key]uint16
	low   map[Key]int64

	entries []Entry // entries[head:] are live
	head    int
	// Overflow counts entries that the limit alone pushed out.
	Overflow int64
}

// NewWindow makes a window of at most limit events.
func NewWindow(limit int) *Window {
	return &Window{limit: max(limit, 1), slots: map[Key]uint16{}, low: map[Key]int64{}}
}

// Len is the number of remembered events.
func (w *Window) Len() int { return len(w.entries) - w.head }

// Low is a copy of the least positions from which on everything is remembered.
func (w *Window) Low() map[Key]int64 {
	if len(w.low) == 0 {
		return nil
	}
	out := make(map[Key]int64, len(w.low))
	for k, v := range w.low {
		out[k] = v
	}
	return out
}

// Add remembers an event at part, or, where part is nil, at a receipt number.
func (w *Window) Add(id Ident, part *Part, receipt int64) {
	e := Entry{Ident: id, slot: noSlot, pos: receipt}
	if part != nil {
		if s, ok := w.slot(part.Key); ok {
			e.slot, e.pos = s, part.Own()
		}
	}
	w.push(e)
}

func (w *Window) slot(k Key) (uint16, bool) {
	if s, ok := w.slots[k]; ok {
		return s, true
	}
	if len(w.keys) >= maxSlots {
		return 0, false
	}
	s := uint16(len(w.keys))
	w.keys = append(w.keys, k)
	w.slots[k] = s
	return s, true
}

func (w *Window) push(e Entry) {
	if w.Len() >= w.limit {
		w.pop()
		w.Overflow++
	}
	if w.head > len(w.entries)/2 && w.head > 1024 {
		w.entries = append(w.entries[:0], w.entries[w.head:]...)
		w.head = 0
	}
	w.entries = append(w.entries, e)
}

func (w *Window) pop() {
	e := w.entries[w.head]
	w.head++
	if e.slot != noSlot {
		k := w.keys[e.slot]
		w.low[k] = max(w.low[k], e.pos+1)
	}
}

// Forget forgets the oldest n entries.
func (w *Window) Forget(n int) {
	for range min(n, w.Len()) {
		w.pop()
		w.Overflow++
	}
}

// SetLow takes over the positions that an earlier window had forgotten up to.
func (w *Window) SetLow(parts []Part) {
	for _, p := range parts {
		w.low[p.Key] = p.Value
	}
}

// LowParts is Low in its stored form.
func (w *Window) LowParts() []Part {
	var v Vector
	for k, n := range w.low {
		v.Merge([]Part{{Key: k, Timed: true, Value: n}})
	}
	return v.Parts
}

// Trim forgets from the front what no resume at or after from can bring again,
// with room for positions that go backwards.
func (w *Window) Trim(from Vector, receipt int64) {
	for w.head < len(w.entries) {
		e := w.entries[w.head]
		if e.slot == noSlot {
			if e.pos >= receipt {
				return
			}
		} else {
			p, ok := from.Part(w.keys[e.slot])
			if !ok || !p.known() {
				return
			}
			room := int64(0)
			if p.Timed {
				room = MaxOverlap.Milliseconds()
			}
			if e.pos >= p.Value-room {
				return
			}
		}
		w.pop()
	}
}

// Since lists what a connection that begins at from (a result of Resume) will
// send again: everything from the first event on that is not before it.
func (w *Window) Since(from Vector, receipt int64) []Entry {
	for i := w.head; i < len(w.entries); i++ {
		e := w.entries[i]
		if e.slot == noSlot {
			if e.pos >= receipt {
				return w.entries[i:]
			}
			continue
		}
		p, ok := from.Part(w.keys[e.slot])
		if !ok || !p.known() || e.pos >= p.Value {
			return w.entries[i:]
		}
	}
	return nil
}

// Filter drops what a resumed connection sends again. It holds a count for
// each event, so that an event that was truly sent twice is dropped as often as
// it was taken and no more.
type Filter struct {
	left   map[Ident]int32
	budget int
}

// NewFilter makes a filter of a window's entries.
func NewFilter(entries []Entry) *Filter {
	if len(entries) == 0 {
		return nil
	}
	f := &Filter{left: make(map[Ident]int32, len(entries)), budget: 2*len(entries) + filterSlack}
	for _, e := range entries {
		f.left[e.Ident]++
	}
	return f
}

// Drop reports whether the event is one that was taken before the resume.
func (f *Filter) Drop(id Ident) bool {
	n, ok := f.left[id]
	if !ok {
		return false
	}
	if n <= 1 {
		delete(f.left, id)
	} else {
		f.left[id] = n - 1
	}
	return true
}

// Spent counts one event of the connection and reports whether the filter has
// done its work: all it held came again, or so much else that the rest will not.
func (f *Filter) Spent() bool {
	f.budget--
	return len(f.left) == 0 || f.budget <= 0
}

// Recent is a stretch of a window in its stored form.
type Recent struct {
	Keys    []Key  `json:"keys,omitempty"`
	Entries string `json:"entries,omitempty"` // base64 of 26 bytes each
}

// Store gives entries their stored form. Only what is acknowledged may be
// stored: a stored event is dropped when it comes again.
func (w *Window) Store(entries []Entry) Recent {
	if len(entries) == 0 {
		return Recent{}
	}
	b := make([]byte, 0, len(entries)*entryBytes)
	for _, e := range entries {
		b = append(b, e.Ident[:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(e.pos))
		b = binary.BigEndian.AppendUint16(b, e.slot)
	}
	return Recent{Keys: append([]Key(nil), w.keys...), Entries: base64.StdEncoding.EncodeToString(b)}
}

// Tail is the newest n entries, less the newest skip.
func (w *Window) Tail(n, skip int) []Entry {
	end := len(w.entries) - min(skip, w.Len())
	return w.entries[max(w.head, end-n):end]
}

// Load appends a stored stretch.
func (w *Window) Load(r Recent) error {
	b, err := base64.StdEncoding.DecodeString(r.Entries)
	if err != nil {
		return fmt.Errorf("recent events: %w", err)
	}
	if len(b)%entryBytes != 0 || len(r.Keys) > maxSlots {
		return fmt.Errorf("recent events: %d bytes are no whole number of entries", len(b))
	}
	for ; len(b) > 0; b = b[entryBytes:] {
		var e Entry
		copy(e.Ident[:], b)
		e.pos = int64(binary.BigEndian.Uint64(b[16:]))
		e.slot = binary.BigEndian.Uint16(b[24:])
		if e.slot != noSlot {
			if int(e.slot) >= len(r.Keys) {
				return fmt.Errorf("recent events: partition %d is not listed", e.slot)
			}
			s, ok := w.slot(r.Keys[e.slot])
			if !ok {
				return fmt.Errorf("recent events: more than %d partitions", maxSlots)
			}
			e.slot = s
		}
		w.push(e)
	}
	return nil
}

// Disorder learns how far times go backwards in one connection.
type Disorder struct {
	top  map[Key]int64
	Most time.Duration
}

// Reset begins a new connection: that it begins earlier is no disorder.
func (d *Disorder) Reset() { d.top = nil }

// See takes one part of an id.
func (d *Disorder) See(p Part) {
	if !p.Timed {
		return
	}
	if d.top == nil {
		d.top = map[Key]int64{}
	}
	top, ok := d.top[p.Key]
	switch back := time.Duration(top-p.Value) * time.Millisecond; {
	case !ok || p.Value >= top:
		d.top[p.Key] = p.Value
	case top-p.Value > MaxOverlap.Milliseconds():
		// The top was a stray: start again from here.
		d.top[p.Key] = p.Value
	case back > d.Most:
		d.Most = back
	}
}

// State is what is saved: a position and what a resume needs beside it.
type State struct {
	Version int    `json:"version"`
	URL     string `json:"url"`
	Topic   string `json:"topic"`
	SavedAt string `json:"saved_at"`
	// Seq counts the events received up to here.
	Seq int64 `json:"seq"`
	// DisorderMillis is the greatest step backwards seen in the stream.
	DisorderMillis int64  `json:"disorder_millis"`
	Position       Vector `json:"position"`
	// Recent are acknowledged events: complete in exactly-once mode, a help
	// against repetitions in at-least-once mode.
	Recent Recent `json:"recent"`
	// Low are the positions from which on the remembered events are complete.
	Low []Part `json:"low,omitempty"`
}

// StateVersion is the version that this build writes and reads.
const StateVersion = 1

// After reports whether s was saved later than o. A time that cannot be read is
// the earliest.
func (s *State) After(o *State) bool {
	a, err := time.Parse(time.RFC3339Nano, s.SavedAt)
	if err != nil {
		return false
	}
	b, err := time.Parse(time.RFC3339Nano, o.SavedAt)
	return err != nil || a.After(b)
}

// Overlap is how much earlier than the position a resume begins.
func (s *State) Overlap(configured time.Duration) time.Duration {
	return max(configured, min(time.Duration(s.DisorderMillis)*time.Millisecond, MaxOverlap))
}

// Encode is the stored form.
func (s *State) Encode() ([]byte, error) { return json.Marshal(s) }
