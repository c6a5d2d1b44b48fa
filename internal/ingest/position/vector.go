// Package position knows where in an event stream ingestion is: what the
// server's event ids mean, what may be saved, and where a resume must begin so
// that nothing is skipped.
//
// EventStreams names a position per (topic, partition), one topic for each data
// centre, as an offset or as a time. The rules, each against a way to lose or
// double an event:
//
//   - A position is kept per (topic, partition) and never taken from the last
//     id as a whole: the id of one data centre's event says "offset -1" or
//     nothing about the other, and taking it would skip what the slower one has
//     yet to send.
//   - "offset -1" means the end of a partition at the time of the connection.
//     On a resume it would skip what came meanwhile, so a partition of which
//     nothing else is known is resumed at the earliest time known of the others.
//   - The time in an id is the event's own plus one millisecond. The server
//     looks for the first record at or after a time and goes on in log order.
//     Records in a log are not in order of time: asking for t+1 skips a later
//     record with a time of t or less. Asking for the event's own time t, or
//     less, finds that event or an earlier one, and the log's order does the
//     rest: nothing is skipped however far times go backwards.
//   - A server that selects by time instead of by log order would need more. So
//     a resume begins earlier by the overlap that is configured, or by the
//     greatest step backwards that was seen in the stream if that is greater
//     (up to MaxOverlap). What is sent again is dropped by the ids that are
//     remembered, and behind that by the deduplication of the tables.
//   - The position is that of the last acknowledged event in order of receipt,
//     not the greatest: one event with a time in the far future would otherwise
//     take the position with it for ever.
//   - An id that is not such an array belongs to another server. It is opaque:
//     the last acknowledged one is sent back verbatim. An empty id resets
//     nothing, because starting at the end of a stream loses what lies between.
package position

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultOverlap covers the greatest step backwards seen in recorded
	// frames (7 s) on a server that selects by time.
	DefaultOverlap = 10 * time.Second
	// MaxOverlap bounds the overlap that is learned from the stream.
	MaxOverlap = 10 * time.Minute
	// Unknown is the value of a partition of which no position is known.
	Unknown int64 = -1

	maxParts = 256 // of one id; a longer array is opaque
)

// Key is one partition of one of the server's topics.
type Key struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
}

// Part is the next position in one partition, as the server named it.
type Part struct {
	Key
	// Timed says that Value is a time in milliseconds and not an offset.
	Timed bool
	Value int64
}

// Own is the position of the event itself that an id with this part came with.
func (p Part) Own() int64 { return p.Value - 1 }

// known reports whether the part names a position.
func (p Part) known() bool { return p.Timed || p.Value >= 0 }

type wirePart struct {
	Topic     *string `json:"topic"`
	Partition *int32  `json:"partition"`
	Offset    *int64  `json:"offset,omitempty"`
	Timestamp *int64  `json:"timestamp,omitempty"`
}

// MarshalJSON writes the server's own form.
func (p Part) MarshalJSON() ([]byte, error) {
	w := wirePart{Topic: &p.Topic, Partition: &p.Partition}
	if p.Timed {
		w.Timestamp = &p.Value
	} else {
		w.Offset = &p.Value
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads the server's own form.
func (p *Part) UnmarshalJSON(b []byte) error {
	var w wirePart
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	q, ok := w.part()
	if !ok {
		return &json.UnmarshalTypeError{Value: string(b[:min(len(b), 80)])}
	}
	*p = q
	return nil
}

func (w wirePart) part() (Part, bool) {
	if w.Topic == nil || *w.Topic == "" || w.Partition == nil || *w.Partition < 0 {
		return Part{}, false
	}
	p := Part{Key: Key{*w.Topic, *w.Partition}}
	switch {
	case w.Timestamp != nil:
		p.Timed, p.Value = true, *w.Timestamp
	case w.Offset != nil:
		p.Value = max(*w.Offset, Unknown)
	default:
		return Part{}, false
	}
	return p, true
}

// Vector is a position in the whole stream. The zero value is "nothing known".
type Vector struct {
	// Parts are sorted by topic and partition.
	Parts []Part `json:"parts,omitempty"`
	// Opaque is the id of a server that does not use such arrays.
	Opaque string `json:"opaque,omitempty"`
}

// Empty reports whether nothing is known.
func (v Vector) Empty() bool { return len(v.Parts) == 0 && v.Opaque == "" }

// Clone is a copy that shares nothing.
func (v Vector) Clone() Vector {
	return Vector{Parts: slices.Clone(v.Parts), Opaque: v.Opaque}
}

// Part gives the part of a partition.
func (v Vector) Part(k Key) (Part, bool) {
	i, ok := v.find(k)
	if !ok {
		return Part{}, false
	}
	return v.Parts[i], true
}

func (v Vector) find(k Key) (int, bool) {
	return slices.BinarySearchFunc(v.Parts, k, func(p Part, k Key) int {
		if c := strings.Compare(p.Topic, k.Topic); c != 0 {
			return c
		}
		return int(p.Partition) - int(k.Partition)
	})
}

// Merge takes over what an id says about its partitions. A partition that the
// id does not mention, or of which it knows no position, keeps what it had.
func (v *Vector) Merge(parts []Part) {
	v.Opaque = ""
	for _, p := range parts {
		i, ok := v.find(p.Key)
		switch {
		case !ok:
			v.Parts = slices.Insert(v.Parts, i, p)
		case p.known():
			v.Parts[i] = p
		}
	}
}

// SetOpaque takes over an id that is not an array of positions.
func (v *Vector) SetOpaque(id string) {
	v.Parts, v.Opaque = nil, id
}

// Resume is where a connection is to begin so that everything after v is sent:
// times are the last event's own less the overlap; low, where it has a
// partition, is the least position whose events are all remembered, and raises
// a time up to the last event's own, never above. Nothing known of any
// partition gives an empty vector.
func (v Vector) Resume(overlap time.Duration, low map[Key]int64) Vector {
	if v.Opaque != "" {
		return Vector{Opaque: v.Opaque}
	}
	back := max(overlap, 0).Milliseconds()
	out := Vector{Parts: slices.Clone(v.Parts)}
	earliest := int64(-1)
	for i := range out.Parts {
		p := &out.Parts[i]
		if !p.Timed {
			continue
		}
		last := p.Own()
		p.Value = last - back
		if l, ok := low[p.Key]; ok {
			p.Value = min(max(p.Value, l), last)
		}
		p.Value = max(p.Value, 0)
		if earliest < 0 || p.Value < earliest {
			earliest = p.Value
		}
	}
	anything := false
	for i := range out.Parts {
		p := &out.Parts[i]
		if !p.known() && earliest >= 0 {
			p.Timed, p.Value = true, earliest
		}
		anything = anything || p.known()
	}
	if !anything {
		return Vector{}
	}
	return out
}

// LastEventID is the value of the request header; empty for an empty vector.
func (v Vector) LastEventID() string {
	if v.Opaque != "" || len(v.Parts) == 0 {
		return v.Opaque
	}
	b, err := json.Marshal(v.Parts)
	if err != nil {
		return "" // cannot happen: strings and integers
	}
	return string(b)
}

// Parser reads ids. It remembers the last one, because servers repeat them.
type Parser struct {
	raw    []byte
	parts  []Part
	ok     bool
	topics map[string]string
}

// Parse reads one id. The parts are shared and must not be written to. False
// means that the id is opaque.
func (p *Parser) Parse(id []byte) ([]Part, bool) {
	if p.raw != nil && string(p.raw) == string(id) {
		return p.parts, p.ok
	}
	p.raw = append(p.raw[:0], id...)
	if parts, ok := p.fast(); ok {
		p.parts, p.ok = parts, true
	} else {
		p.parts, p.ok = parse(id)
	}
	return p.parts, p.ok
}

// parse reads any spelling of the array.
func parse(id []byte) ([]Part, bool) {
	var ws []wirePart
	if err := json.Unmarshal(id, &ws); err != nil || len(ws) == 0 || len(ws) > maxParts {
		return nil, false
	}
	out := make([]Part, 0, len(ws))
	for _, w := range ws {
		q, ok := w.part()
		if !ok || slices.ContainsFunc(out, func(o Part) bool { return o.Key == q.Key }) {
			return nil, false
		}
		out = append(out, q)
	}
	return out, true
}

// fast reads the spelling that EventStreams uses:
// [{"topic":"…","partition":0,"timestamp":1},…].
func (p *Parser) fast() ([]Part, bool) {
	rest := string(p.raw)
	var ok bool
	if rest, ok = strings.CutPrefix(rest, "["); !ok {
		return nil, false
	}
	out := make([]Part, 0, 2)
	for {
		var q Part
		if rest, ok = strings.CutPrefix(rest, `{"topic":"`); !ok {
			return nil, false
		}
		end := strings.IndexByte(rest, '"')
		if end <= 0 || strings.IndexByte(rest[:end], '\\') >= 0 || len(out) >= 4 {
			return nil, false
		}
		q.Topic, rest = p.intern(rest[:end]), rest[end+1:]
		var n int64
		if n, rest, ok = number(rest, `,"partition":`); !ok || n < 0 || n > 1<<31-1 {
			return nil, false
		}
		q.Partition = int32(n)
		if q.Value, rest, ok = number(rest, `,"timestamp":`); ok {
			q.Timed = true
		} else if q.Value, rest, ok = number(rest, `,"offset":`); !ok {
			return nil, false
		} else {
			q.Value = max(q.Value, Unknown)
		}
		for _, o := range out {
			if o.Key == q.Key {
				return nil, false
			}
		}
		out = append(out, q)
		if rest == "}]" {
			return out, true
		}
		if rest, ok = strings.CutPrefix(rest, "},"); !ok {
			return nil, false
		}
	}
}

func (p *Parser) intern(s string) string {
	if t, ok := p.topics[s]; ok {
		return t
	}
	if p.topics == nil || len(p.topics) > maxParts {
		p.topics = map[string]string{}
	}
	s = strings.Clone(s)
	p.topics[s] = s
	return s
}

// number reads prefix and the integer after it.
func number(s, prefix string) (int64, string, bool) {
	rest, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return 0, s, false
	}
	end := 0
	for end < len(rest) && (rest[end] == '-' && end == 0 || rest[end] >= '0' && rest[end] <= '9') {
		end++
	}
	digits := strings.TrimPrefix(rest[:end], "-")
	n, err := strconv.ParseInt(rest[:end], 10, 64)
	if err != nil || (len(digits) > 1 && digits[0] == '0') {
		return 0, s, false
	}
	return n, rest[end:], true
}
