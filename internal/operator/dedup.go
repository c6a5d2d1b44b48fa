package operator

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

const (
	// bucketsPerDelay and the two bounds set the width of the time buckets
	// that keys are counted and removed by.
	bucketsPerDelay = 64
	bucketMin       = int64(1_000_000)
	bucketMax       = int64(3_600_000_000)
	// sweepSlots bounds the slots that one batch looks at to remove expired
	// keys: a few milliseconds.
	sweepSlots = 1 << 18
)

// dedup is dropDuplicatesWithinWatermark: a key is remembered until the
// watermark passes its event time + delay; a duplicate does not prolong that.
//
// Invariants:
//   - whether a key is remembered depends only on its event time and the
//     plan's watermark, never on whether an expired slot is still there;
//   - keys are removed by whole buckets, a bucket only when the watermark has
//     passed all of it. "The state" (Keys, Snapshot, what a rebuild restores)
//     is the keys of the other buckets, so it is the same for a live, a loaded
//     and a rebuilt operator;
//   - memory is removed lazily: a full segment is cleared before it grows, and
//     each batch sweeps a bounded number of slots.
type dedup struct {
	delay, width int64
	timeName     string
	keyNames     []string
	single       bool // one string column: UUIDs are told apart

	// watermark is the plan's. It never moves back, except by Reset.
	watermark int64
	uuids     *table // keys are UUIDs
	ids       *table // keys are hashes, ids kept
	// counts are the keys in memory, by bucket.
	counts map[int64]int64
	next   int // the segment that is swept next

	// added and addedIDs are what the batch changed, for Delta and rollback.
	added    []change
	addedIDs []idChange
	arena    []byte // ids of addedIDs
}

// change is a key that a batch remembered; before is the event time of the
// expired key that it replaced, vacant if there was none.
type change struct {
	slot
	before int64
}

// idChange is a change of a key that is a hash; its id lies in the arena.
type idChange struct {
	change
	start, end int
}

func newDedup(k *compiled, seed uint64) *dedup {
	d := &dedup{delay: k.delay, timeName: k.columns[k.timeCol].Name}
	d.width = min(max(d.delay/bucketsPerDelay, bucketMin), bucketMax)
	for _, i := range k.keys {
		d.keyNames = append(d.keyNames, k.columns[i].Name)
	}
	d.single = len(k.keys) == 1 && k.columns[k.keys[0]].typ == typeString
	d.uuids, d.ids = newTable(false, seed), newTable(true, seed)
	d.Reset()
	return d
}

// Name implements Stateful.
func (d *dedup) Name() string { return "dedup" }

func (d *dedup) bucket(at int64) int64 {
	b := at / d.width
	if at%d.width < 0 {
		b--
	}
	return b
}

// removable is the event time below which every key's bucket has expired.
func (d *dedup) removable(watermark int64) int64 {
	return d.bucket(watermark-d.delay) * d.width
}

// begin starts a batch: earlier changes are final, and expired keys are swept.
func (d *dedup) begin(watermark int64) {
	d.settle()
	d.watermark = max(d.watermark, watermark)
	d.sweep(sweepSlots)
}

func (d *dedup) settle() {
	d.added, d.addedIDs, d.arena = d.added[:0], d.addedIDs[:0], d.arena[:0]
}

// sweep removes expired keys, segment by segment, where there are any.
func (d *dedup) sweep(budget int) {
	bound := d.removable(d.watermark)
	expired := int64(0)
	for b, n := range d.counts {
		if b*d.width < bound {
			expired += n
		}
	}
	removed := func(at int64) {
		d.count(at, -1)
		expired--
	}
	for i := 0; i < segments && expired > 0 && budget > 0; i++ {
		budget -= d.uuids.sweep(d.next, bound, removed)
		budget -= d.ids.sweep(d.next, bound, removed)
		d.next = (d.next + 1) % segments
	}
}

func (d *dedup) count(at, n int64) {
	b := d.bucket(at)
	if d.counts[b] += n; d.counts[b] == 0 {
		delete(d.counts, b)
	}
}

// add remembers a row's key; false if it is remembered already.
func (d *dedup) add(k *rowKey, ids []byte, at int64) bool {
	t, id := d.uuids, []byte(nil)
	if !k.uuid {
		t, id = d.ids, ids[k.start:k.end]
	}
	// An expired key that is still in memory is replaced, as if it were gone.
	before := t.get(k.key, id)
	if before != vacant && before >= d.watermark-d.delay {
		return false
	}
	d.put(t, k.key, id, at)
	c := change{slot: slot{k.key, at}, before: before}
	if k.uuid {
		d.added = append(d.added, c)
		return true
	}
	start := len(d.arena)
	d.arena = append(d.arena, id...)
	d.addedIDs = append(d.addedIDs, idChange{c, start, len(d.arena)})
	return true
}

// put sets a key and keeps the counts.
func (d *dedup) put(t *table, k key, id []byte, at int64) {
	before := t.put(k, id, at, d.removable(d.watermark), func(gone int64) { d.count(gone, -1) })
	if before != vacant {
		d.count(before, -1)
	}
	d.count(at, 1)
}

// rollback forgets the batch's keys. None of them can be gone: within a batch
// only expired keys are removed, and a row that is not late cannot be one.
func (d *dedup) rollback() {
	for i := range d.added {
		d.undo(d.uuids, &d.added[i], nil)
	}
	for i := range d.addedIDs {
		c := &d.addedIDs[i]
		d.undo(d.ids, &c.change, d.arena[c.start:c.end])
	}
	d.settle()
}

func (d *dedup) undo(t *table, c *change, id []byte) {
	if c.before != vacant {
		d.put(t, c.key, id, c.before)
		return
	}
	t.remove(c.key, id)
	d.count(c.at, -1)
}

// Keys implements Stateful.
func (d *dedup) Keys() int64 {
	bound, n := d.removable(d.watermark), int64(0)
	for b, c := range d.counts {
		if b*d.width >= bound {
			n += c
		}
	}
	return n
}

// Bytes implements Stateful.
func (d *dedup) Bytes() int64 {
	return d.uuids.bytes() + d.ids.bytes() + int64(cap(d.added))*32 + int64(cap(d.addedIDs))*48 + int64(cap(d.arena)) + int64(len(d.counts))*48
}

// Reset implements Stateful.
func (d *dedup) Reset() {
	d.watermark = marker.MinTime
	d.uuids, d.ids = newTable(false, d.uuids.seed), newTable(true, d.ids.seed)
	d.counts = map[int64]int64{}
	d.next = 0
	d.settle()
}

// RebuildColumns implements Stateful.
func (d *dedup) RebuildColumns() []string { return append([]string{d.timeName}, d.keyNames...) }

// RebuildFrom implements Stateful.
func (d *dedup) RebuildFrom(w marker.Watermark) int64 {
	if w.Micros == marker.MinTime {
		return marker.MinTime
	}
	return d.removable(w.Micros)
}

// Rebuild implements Stateful. The record is the caller's; it may have more
// columns than are needed.
func (d *dedup) Rebuild(rec arrow.RecordBatch) error {
	column := func(name string) (arrow.Array, error) {
		at := rec.Schema().FieldIndices(name)
		if len(at) != 1 {
			return nil, failure.New(failure.Runtime, "rebuild of dedup: the table's rows have %d columns %q", len(at), name)
		}
		return rec.Column(at[0]), nil
	}
	a, err := column(d.timeName)
	if err != nil {
		return err
	}
	times, ok := a.(*array.Timestamp)
	if !ok || !arrow.TypeEqual(a.DataType(), batch.Timestamp) {
		return failure.New(failure.Runtime, "rebuild of dedup: column %s is read as %s, not %s", d.timeName, a.DataType(), batch.Timestamp)
	}
	keys := make([]keyColumn, len(d.keyNames))
	for i, name := range d.keyNames {
		if a, err = column(name); err != nil {
			return err
		}
		keys[i] = keyColumn{name: name, single: d.single, array: a}
	}
	var id []byte
	for row := range int(rec.NumRows()) {
		id = id[:0]
		if times.IsNull(row) {
			return failure.New(failure.Runtime, "rebuild of dedup: column %s is null in a row of the table", d.timeName)
		}
		for _, k := range keys {
			if id, err = k.append(id, row); err != nil {
				return failure.Wrap(failure.Runtime, err, "rebuild of dedup")
			}
		}
		d.restore(id, int64(times.Value(row)))
	}
	return nil
}

// restore remembers the later of two times: where a key was emitted again, its
// first time had expired.
func (d *dedup) restore(id []byte, at int64) {
	t := d.ids
	k, isUUID := key{}, false
	if d.single {
		k, isUUID = parseUUID(id)
	}
	if isUUID {
		t, id = d.uuids, nil
	} else {
		k = hashID(id)
	}
	if before := t.get(k, id); before == vacant || before < at {
		d.put(t, k, id, at)
	}
}

// FinishRebuild implements Stateful.
func (d *dedup) FinishRebuild(w marker.Watermark) {
	d.settle()
	d.watermark = w.Micros
	d.sweep(int(^uint(0) >> 1))
}

// ErrStateCorrupt says that the bytes of a state are damaged, cut or of an
// unknown version.
var ErrStateCorrupt = errors.New("operator state is corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrStateCorrupt, fmt.Sprintf(format, args...))
}
