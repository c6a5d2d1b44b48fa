package ingest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/ingest/contract"
	"github.com/weirlake/weir/internal/ingest/position"
	"github.com/weirlake/weir/internal/ingest/sse"
)

// Reasons of dead letters that the contract does not know.
const (
	ReasonTooLarge  contract.Reason = "too_large"  // longer than an event or a record may be
	ReasonEventType contract.Reason = "event_type" // not of a type that carries data, as "error"
)

// Headers of dead letters.
const (
	HeaderReason     = "weir-reason"
	HeaderDetail     = "weir-detail"
	HeaderSSEID      = "weir-sse-id"
	HeaderReceivedAt = "weir-received-at"
	// HeaderTruncated is the size as sent, where the value is only its beginning.
	HeaderTruncated = "weir-truncated"
)

type kind uint8

const (
	kindStep    kind = iota // a position without an event
	kindCanary              // artificial: counted, gone
	kindEvent               // to the topic
	kindDead                // to the dead-letter topic
	kindDropped             // sent again by a resume: counted, gone
)

// outcome is what becomes of one event.
type outcome struct {
	kind   kind
	reason contract.Reason
	detail string
	key    []byte
	ident  position.Ident
}

// batch is a group of events that were received together.
type batch struct {
	in      *Ingester
	conn    *connection
	events  []sse.Event
	at      time.Time
	weight  int64
	out     []outcome
	checked chan struct{}

	end     place // after its last event
	nEvents int64
	nDead   int64
	moved   atomic.Int64 // events that the broker found too large

	errMu sync.Mutex
	err   error // exactly-once: the first of its records

	pending atomic.Int64
	done    bool // under Ingester.mu
}

func newBatch(in *Ingester, events []sse.Event, at time.Time) *batch {
	b := &batch{in: in, conn: in.conn, events: events, at: at, checked: make(chan struct{})}
	for i := range events {
		b.weight += int64(len(events[i].Data)) + eventOverhead
	}
	b.weight = min(b.weight, in.cfg.MaxInFlightBytes)
	return b
}

// check is one worker.
func (in *Ingester) check() {
	k := in.contract.NewChecker()
	for b := range in.work {
		b.out = make([]outcome, len(b.events))
		for i := range b.events {
			b.out[i] = in.judge(k, &b.events[i])
		}
		close(b.checked)
	}
}

// judge decides what becomes of an event. Canaries come first: whatever else
// is wrong with one, it is not a violation.
func (in *Ingester) judge(k *contract.Checker, ev *sse.Event) outcome {
	switch {
	case !ev.HasData:
		return outcome{kind: kindStep}
	case ev.Oversize():
		return dead(ev, nil, ReasonTooLarge, describeBytes(ev.Size, in.cfg.MaxEventBytes))
	}
	v := k.Check(ev.Data)
	limit := int(in.eventMax.Load())
	switch {
	case v.Canary:
		return outcome{kind: kindCanary}
	case !in.types[ev.Type]:
		return dead(ev, v.Key, ReasonEventType, "event type "+ev.Type)
	case v.Reason != "":
		return dead(ev, v.Key, v.Reason, v.Detail)
	case recordSize(v.Key, ev.Data) > limit:
		return dead(ev, v.Key, ReasonTooLarge, describeBytes(ev.Size, limit))
	}
	return outcome{kind: kindEvent, key: v.Key, ident: position.IdentOf(v.Key, ev.Data)}
}

func dead(ev *sse.Event, key []byte, r contract.Reason, detail string) outcome {
	if len(key) > maxKeyBytes {
		key = nil
	}
	return outcome{kind: kindDead, reason: r, detail: detail, key: key, ident: position.IdentOf(key, ev.Data)}
}

// maxKeyBytes bounds the key of a dead letter; an event's own is bounded by the record.
const maxKeyBytes = 4 << 10

// prepare gives every event its place, drops what a resume sent again, and
// remembers the rest. Batches come in the order of receipt.
func (in *Ingester) prepare(b *batch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if b.conn != in.filterConn {
		in.filterConn = b.conn
		in.disorder.Reset()
		in.prevParts = nil
		in.filter = position.NewFilter(in.window.Since(b.conn.from, b.conn.receipt))
	}
	for i := range b.events {
		in.place(&b.events[i], &b.out[i], b)
	}
	in.current.disorder = in.disorder.Most
	b.end = in.current
	b.end.vec = in.current.vec.Clone()
	in.c.overflow.Store(in.window.Overflow)
}

func (in *Ingester) place(ev *sse.Event, o *outcome, b *batch) {
	in.current.seq++
	if o.kind != kindStep {
		in.c.received.Add(1)
	}
	repeated := in.filter != nil
	switch o.kind {
	case kindCanary:
		in.c.canaries.Add(1)
	case kindEvent, kindDead:
		if in.filter != nil && in.filter.Drop(o.ident) {
			o.kind = kindDropped
			in.c.dropped.Add(1)
		} else {
			repeated = false
		}
	}
	if in.filter != nil && in.filter.Spent() {
		in.filter = nil
	}
	// Within the stretch that a resume repeats, the position stays where the
	// resume began; it would only go back and come again.
	if repeated {
		return
	}
	own := in.move(ev.ID, b)
	switch o.kind {
	case kindEvent:
		b.nEvents++
	case kindDead:
		b.nDead++
		in.c.violation(string(o.reason))
	default:
		return
	}
	in.window.Add(o.ident, own, in.current.seq)
	in.current.added++
}

// move takes an id over into the current position and returns the part that is
// the event's own.
func (in *Ingester) move(id []byte, b *batch) *position.Part {
	if len(id) == 0 {
		return nil
	}
	parts, ok := in.parser.Parse(id)
	if !ok {
		in.current.vec.SetOpaque(string(id))
		return nil
	}
	own := in.own(parts)
	in.prevParts = parts
	in.current.vec.Merge(parts)
	if own == nil {
		return nil
	}
	in.ownKey = own.Key
	in.disorder.See(*own)
	if own.Timed {
		in.c.lag.Store(b.at.UnixMilli() - own.Own())
	}
	return own
}

// own finds the partition that an event came from: the one whose position is
// another than in the id before. Where none changed, times repeat, and it is
// the one of the event before.
func (in *Ingester) own(parts []position.Part) *position.Part {
	var moved, before *position.Part
	for i := range parts {
		p := &parts[i]
		if !p.Timed && p.Value < 0 {
			continue
		}
		switch {
		case !slices.Contains(in.prevParts, *p):
			if moved == nil || p.Value > moved.Value {
				moved = p
			}
		case before == nil || p.Key == in.ownKey:
			before = p
		}
	}
	if moved != nil {
		return moved
	}
	return before
}

// records builds what a batch publishes.
func (b *batch) records() []*kgo.Record {
	n := int(b.nEvents + b.nDead)
	if n == 0 {
		return nil
	}
	slab := make([]kgo.Record, 0, n)
	out := make([]*kgo.Record, 0, n)
	for i := range b.events {
		ev, o := &b.events[i], &b.out[i]
		switch o.kind {
		case kindEvent:
			slab = append(slab, kgo.Record{Topic: b.in.cfg.Topic, Key: o.key, Value: ev.Data, Timestamp: b.at})
		case kindDead:
			slab = append(slab, b.in.deadLetter(o.key, ev.Data, ev.Size, ev.ID, b.at, o.reason, o.detail))
		default:
			continue
		}
		out = append(out, &slab[len(slab)-1])
	}
	return out
}

// deadLetter is the record of an event that may not be published: its bytes as
// they came, or their beginning where no record could hold them.
func (in *Ingester) deadLetter(key, data []byte, size int64, id []byte, at time.Time, r contract.Reason, detail string) kgo.Record {
	rec := kgo.Record{
		Topic: in.cfg.DeadLetterTopic, Key: key, Value: data, Timestamp: at,
		Headers: []kgo.RecordHeader{
			{Key: HeaderReason, Value: []byte(r)},
			{Key: HeaderDetail, Value: []byte(detail)},
			{Key: HeaderSSEID, Value: id[:min(len(id), maxKeyBytes)]},
			{Key: HeaderReceivedAt, Value: []byte(at.Format(time.RFC3339Nano))},
		},
	}
	if limit := int(in.deadMax); recordSize(key, data)+3*maxKeyBytes > limit {
		rec.Value = data[:min(len(data), sse.EvidenceBytes, limit/4)]
	}
	if int64(len(rec.Value)) < size {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: HeaderTruncated, Value: itoa(size)})
	}
	return rec
}
