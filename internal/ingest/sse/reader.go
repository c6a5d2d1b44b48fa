// Package sse reads server-sent events as the WHATWG standard frames them, and
// keeps a connection to a server that cuts, stalls and refuses.
//
// It differs from a browser in what a pipeline must be able to rely on: bytes
// are kept as they came (no decoding), an event past the size limit is reported
// with its size and its beginning instead of ending the connection, and the
// Last-Event-ID of a reconnect is the caller's to choose, because only the
// caller knows what is durable.
package sse

import (
	"bytes"
	"io"
	"strconv"
	"time"
)

const (
	// DefaultMaxEventBytes bounds the data of one event.
	DefaultMaxEventBytes = 32 << 20
	// EvidenceBytes is how much of an oversize event's data is kept.
	EvidenceBytes = 64 << 10

	maxIDBytes     = 16 << 10  // a longer id does not fit into a request header
	maxTypeBytes   = 256       // of an event's type
	slabBytes      = 512 << 10 // one allocation holds the events of one slab
	minReadBytes   = 16 << 10  // less room than this begins a new slab
	lineSlackBytes = 16        // field name, colon and space in front of a value
	maxRetryDigits = 9         // eleven days in milliseconds
)

// Event is one event, or one step of the position without an event.
//
// Type, ID and Data share memory with other events of the same reader and must
// not be written to; they stay valid for as long as they are referenced.
type Event struct {
	// Type is the event's type, "message" where the stream named none.
	Type string
	// ID is the last event id as of this event: its own, or the one before it.
	ID []byte
	// Data is the value of the data lines, joined by newlines.
	Data []byte
	// HasData is false for a block of lines that set an id and carried no data.
	HasData bool
	// Size is the length of the data as sent. It is greater than len(Data)
	// exactly where the event was longer than the limit; Data is its beginning.
	Size int64
}

// Oversize reports whether the event was longer than the limit.
func (e *Event) Oversize() bool { return e.Size > int64(len(e.Data)) }

// Counts is what a reader met besides events.
type Counts struct {
	Comments int64 // comment lines, the server's life signs
	BadIDs   int64 // ids with NUL, control characters or of absurd length: ignored
	Oversize int64 // events longer than the limit
}

// Reader splits a stream of bytes into events. It reads into slabs that the
// events share, so that an event's bytes are copied only where it straddles
// two slabs.
//
// Invariants: buf[r:w] is what was read and not yet consumed and begins at the
// start of a line (or inside a line that is being discarded); no LF is in
// buf[r:noLF], no CR in buf[r:noCR].
type Reader struct {
	src   io.Reader
	limit int

	buf        []byte
	r, w       int
	noLF, noCR int

	bomDone bool
	skipLF  bool // a CR ended the last line: an LF right after it belongs to it

	// A line longer than the limit is dropped as it comes.
	discarding bool
	head       []byte
	lineLen    int64

	// The event under construction.
	typ       string
	data      []byte
	owned     bool // data is memory of its own, not a part of a slab
	dataLines int
	size      int64
	oversize  bool
	idSet     bool

	lastID []byte
	retry  time.Duration
	counts Counts
}

// NewReader reads events from src. An event with more than maxEventBytes of
// data is cut; 0 means DefaultMaxEventBytes.
func NewReader(src io.Reader, maxEventBytes int) *Reader {
	if maxEventBytes <= 0 {
		maxEventBytes = DefaultMaxEventBytes
	}
	return &Reader{src: src, limit: maxEventBytes, retry: -1}
}

// Retry is the reconnection time that the server asked for last, negative
// where it asked for none.
func (r *Reader) Retry() time.Duration { return r.retry }

// Counts is what was met so far.
func (r *Reader) Counts() Counts { return r.counts }

// Next returns the next event, reading as needed. At the end of the stream it
// returns io.EOF; an event that no empty line ended is dropped, as the
// standard says: the server sends it again.
func (r *Reader) Next() (Event, error) {
	for {
		if ev, ok := r.TryNext(); ok {
			return ev, nil
		}
		if err := r.Fill(); err != nil {
			return Event{}, err
		}
	}
}

// TryNext returns the next event that is complete in memory. It never reads.
func (r *Reader) TryNext() (Event, bool) {
	for {
		if r.skipLF {
			if r.r == r.w {
				return Event{}, false
			}
			if r.buf[r.r] == '\n' {
				r.advance(r.r + 1)
			}
			r.skipLF = false
		}
		if !r.bomDone && !r.skipBOM() {
			return Event{}, false
		}
		line, long, ok := r.line()
		if !ok {
			return Event{}, false
		}
		if long {
			r.longField(line)
			continue
		}
		if len(line) > 0 {
			r.field(line)
			continue
		}
		if ev, ok := r.dispatch(); ok {
			return ev, true
		}
	}
}

// Fill reads once from the source. It may return with nothing new and no
// error, as io.Reader may.
func (r *Reader) Fill() error {
	if len(r.buf)-r.w < minReadBytes {
		pending := r.w - r.r
		fresh := make([]byte, max(slabBytes, 2*pending))
		copy(fresh, r.buf[r.r:r.w])
		r.noLF = max(r.noLF-r.r, 0)
		r.noCR = max(r.noCR-r.r, 0)
		r.buf, r.r, r.w = fresh, 0, pending
	}
	n, err := r.src.Read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		return nil // an error that came with bytes comes again without
	}
	return err
}

func (r *Reader) advance(to int) {
	r.r = to
	r.noLF = max(r.noLF, to)
	r.noCR = max(r.noCR, to)
}

// skipBOM consumes one byte order mark at the very beginning; false means that
// the bytes so far could still become one.
func (r *Reader) skipBOM() bool {
	const bom = "\xEF\xBB\xBF"
	have := r.buf[r.r:r.w]
	if len(have) < len(bom) && bytes.HasPrefix([]byte(bom), have) {
		return false
	}
	if bytes.HasPrefix(have, []byte(bom)) {
		r.advance(r.r + len(bom))
	}
	r.bomDone = true
	return true
}

// line returns the next line without its end. long means that it was over the
// limit and only its beginning is left.
func (r *Reader) line() (line []byte, long, ok bool) {
	end := r.lineEnd()
	if end < 0 {
		have := r.w - r.r
		switch {
		case r.discarding:
			r.lineLen += int64(have)
			r.advance(r.w)
		case have > max(r.limit, maxIDBytes)+lineSlackBytes:
			r.discarding = true
			r.head = bytes.Clone(r.buf[r.r : r.r+min(have, EvidenceBytes+lineSlackBytes)])
			r.lineLen = int64(have)
			r.advance(r.w)
		}
		return nil, false, false
	}
	line = r.buf[r.r:end:end]
	next := end + 1
	if r.buf[end] == '\r' {
		if next < r.w {
			if r.buf[next] == '\n' {
				next++
			}
		} else {
			// Do not wait for an LF that may never come: the event is complete.
			r.skipLF = true
		}
	}
	r.advance(next)
	if r.discarding {
		r.discarding = false
		r.lineLen += int64(len(line))
		return r.head, true, true
	}
	return line, false, true
}

// lineEnd is the index of the first CR or LF, or -1. Each byte is searched
// once for either, whichever of the two the server uses.
func (r *Reader) lineEnd() int {
	lf := -1
	if i := bytes.IndexByte(r.buf[r.noLF:r.w], '\n'); i >= 0 {
		lf = r.noLF + i
		r.noLF = lf
	} else {
		r.noLF = r.w
	}
	limit := r.w
	if lf >= 0 {
		limit = lf
	}
	if r.noCR < limit {
		if i := bytes.IndexByte(r.buf[r.noCR:limit], '\r'); i >= 0 {
			r.noCR += i
			return r.noCR
		}
		r.noCR = limit
	}
	return lf
}

// field takes one line that is not empty.
func (r *Reader) field(line []byte) {
	name, value := line, []byte(nil)
	if i := bytes.IndexByte(line, ':'); i >= 0 {
		name, value = line[:i], line[i+1:]
		if len(value) > 0 && value[0] == ' ' {
			value = value[1:]
		}
	}
	switch string(name) {
	case "data":
		r.addData(value, int64(len(value)))
	case "event":
		r.typ = typeName(value)
	case "id":
		r.setID(value)
	case "retry":
		r.setRetry(value)
	case "":
		r.counts.Comments++
	}
}

// longField takes the beginning of a line that was over the limit. Only data
// may be that long; other fields are of no use and are dropped.
func (r *Reader) longField(head []byte) {
	value, ok := bytes.CutPrefix(head, []byte("data:"))
	cut := int64(len("data:"))
	switch {
	case ok:
		if len(value) > 0 && value[0] == ' ' {
			value, cut = value[1:], cut+1
		}
		r.addData(value, r.lineLen-cut)
	case head[0] == ':':
		r.counts.Comments++
	case bytes.HasPrefix(head, []byte("id:")):
		r.counts.BadIDs++
	case bytes.HasPrefix(head, []byte("event:")):
		r.typ = typeName(bytes.TrimPrefix(head[len("event:"):], []byte(" ")))
	}
	r.head = nil
}

// addData appends one data line, of which value is all or the beginning.
func (r *Reader) addData(value []byte, length int64) {
	r.dataLines++
	if r.dataLines > 1 {
		r.size++ // the newline between two lines
	}
	r.size += length
	over := r.size > int64(r.limit)
	if r.dataLines == 1 && !over {
		r.data = value
		return
	}
	if !r.oversize && (over || r.dataLines > 1) && !r.owned {
		r.data = bytes.Clone(r.data)
		r.owned = true
	}
	room := r.limit
	if over {
		r.oversize = true
		room = min(EvidenceBytes, r.limit)
	}
	if r.dataLines > 1 && len(r.data) < room {
		r.data = append(r.data, '\n')
	}
	if len(r.data) < room {
		r.data = append(r.data, value[:min(len(value), room-len(r.data))]...)
	}
	if len(r.data) > room {
		r.data = bytes.Clone(r.data[:room])
	}
}

func (r *Reader) setID(value []byte) {
	if len(value) > maxIDBytes {
		r.counts.BadIDs++
		return
	}
	for _, c := range value {
		if (c < 0x20 && c != '\t') || c == 0x7f {
			// NUL is the standard's rule; the other control characters could
			// not be sent back in a header. The position stays where it was.
			r.counts.BadIDs++
			return
		}
	}
	r.lastID = value
	r.idSet = true
}

func (r *Reader) setRetry(value []byte) {
	if len(value) == 0 || len(value) > maxRetryDigits {
		return
	}
	for _, c := range value {
		if c < '0' || c > '9' {
			return
		}
	}
	ms, err := strconv.Atoi(string(value))
	if err == nil {
		r.retry = time.Duration(ms) * time.Millisecond
	}
}

// dispatch ends the block of lines.
func (r *Reader) dispatch() (Event, bool) {
	ev := Event{Type: r.typ, ID: r.lastID, Data: r.data, HasData: r.dataLines > 0, Size: r.size}
	step := r.idSet
	if r.oversize {
		r.counts.Oversize++
	}
	r.typ, r.data, r.owned, r.dataLines, r.size, r.oversize, r.idSet = "", nil, false, 0, 0, false, false
	if !ev.HasData {
		return ev, step
	}
	if ev.Type == "" {
		ev.Type = "message"
	}
	return ev, true
}

func typeName(value []byte) string {
	switch {
	case string(value) == "message":
		return "message"
	case len(value) > maxTypeBytes:
		return string(value[:maxTypeBytes])
	default:
		return string(value)
	}
}
