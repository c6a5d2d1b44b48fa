package operator

import (
	"errors"
	"fmt"
	"math"

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
	ids       idSet
	// bounds follow from the watermark; always are those of a key that is set
	// whatever it was.
	bounds, always bounds
	// counts are the keys in memory by bucket, but for recent, which belong
	// to the bucket that was counted last and are not in counts yet.
	counts               map[int64]int64
	recent               int64
	recentFrom, recentTo int64 // that bucket's event times

	// added and addedIDs are what the batch changed, for Delta and rollback.
	added    []change
	addedIDs []idChange
	arena    []byte // ids of addedIDs

	touched byte // keeps the reads of ahead from being left out

	version versions
	// broken is why the memory is of no use, until it is reset.
	broken error
}

// change is a key that a batch remembered; before is the event time of the
// expired key that it replaced, vacant if there was none.
type change struct {
	keyTime
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
	d.ids = newMemoryIDs(seed)
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
func (d *dedup) begin(watermark int64) error {
	v := d.version.begin()
	d.settle()
	d.advance(max(d.watermark, watermark))
	return d.sweep(sweepSlots, v)
}

// advance sets the watermark and what follows from it.
func (d *dedup) advance(watermark int64) {
	d.watermark = watermark
	d.bounds.alive = watermark - d.delay
	d.bounds.removable = d.removable(watermark)
	d.always = d.bounds
	d.always.alive = math.MaxInt64
}

// settle makes a batch's changes final.
func (d *dedup) settle() {
	d.added, d.addedIDs, d.arena = emptied(d.added), emptied(d.addedIDs), emptied(d.arena)
}

// emptied keeps the memory of a slice unless most of it is no longer used.
func emptied[T any](s []T) []T {
	if cap(s) > 4096 && len(s) < cap(s)/8 {
		return nil
	}
	return s[:0]
}

// sweep removes expired keys, where there are any, and makes what is remembered
// final: it is then a version, or none. Where that fails the memory is of no use
// until it is reset.
func (d *dedup) sweep(budget int, v Version) error {
	if d.broken == nil {
		b := d.bounds
		b.removed = func(at int64) { d.count(at, -1) }
		d.broken = d.ids.settle(&b, budget, d.expired(), func() ([]byte, error) { return d.meta(v) })
	}
	return d.broken
}

// expired is the number of keys that are in memory for nothing.
func (d *dedup) expired() (n int64) {
	d.flush()
	for b, c := range d.counts {
		if b*d.width < d.bounds.removable {
			n += c
		}
	}
	return n
}

// count counts n keys of an event time in (or out). Neighbours mostly share a
// bucket, so the map is only touched when the bucket changes.
func (d *dedup) count(at, n int64) {
	if at < d.recentFrom || at >= d.recentTo {
		d.flush()
		d.recentFrom = d.bucket(at) * d.width
		d.recentTo = d.recentFrom + d.width
	}
	d.recent += n
}

func (d *dedup) flush() {
	if d.recent == 0 {
		return
	}
	b := d.bucket(d.recentFrom)
	if d.counts[b] += d.recent; d.counts[b] == 0 {
		delete(d.counts, b)
	}
	d.recent = 0
}

// aheadRows is how many rows' keys are touched before the first of them is added.
const aheadRows = 16

// ahead says which keys are added next.
func (d *dedup) ahead(keys []rowKey) {
	for i := range keys {
		d.touched ^= d.ids.touch(keys[i].uuid, keys[i].key)
	}
}

// add remembers a row's key; false if it is remembered already.
func (d *dedup) add(k *rowKey, ids []byte, at int64) bool {
	var id []byte
	if !k.uuid {
		id = ids[k.start:k.end]
	}
	// An expired key that is still in memory is replaced, as if it were gone.
	before, ok := d.ids.insert(k.uuid, k.key, id, at, &d.bounds)
	if !ok {
		return false
	}
	if before != vacant {
		d.count(before, -1)
	}
	d.count(at, 1)
	c := change{keyTime{k.key, at}, before}
	if k.uuid {
		d.added = append(d.added, c)
		return true
	}
	start := len(d.arena)
	d.arena = append(d.arena, id...)
	d.addedIDs = append(d.addedIDs, idChange{c, start, len(d.arena)})
	return true
}

// put sets a key whatever it was.
func (d *dedup) put(uuid bool, k key, id []byte, at int64) {
	before, _ := d.ids.insert(uuid, k, id, at, &d.always)
	if before != vacant {
		d.count(before, -1)
	}
	d.count(at, 1)
}

// rollback forgets the batch's keys. None of them can be gone: within a batch
// only expired keys are removed, and a row that is not late cannot be one.
func (d *dedup) rollback() {
	for i := range d.added {
		d.undo(true, &d.added[i], nil)
	}
	for i := range d.addedIDs {
		c := &d.addedIDs[i]
		d.undo(false, &c.change, d.arena[c.start:c.end])
	}
	d.version.rollback()
	d.settle()
}

func (d *dedup) undo(uuid bool, c *change, id []byte) {
	if c.before != vacant {
		d.put(uuid, c.key, id, c.before)
		return
	}
	d.ids.remove(uuid, c.key, id)
	d.count(c.at, -1)
}

// Keys implements Stateful.
func (d *dedup) Keys() int64 {
	d.flush()
	n := int64(0)
	for b, c := range d.counts {
		if b*d.width >= d.bounds.removable {
			n += c
		}
	}
	return n
}

// Bytes implements Stateful.
func (d *dedup) Bytes() int64 {
	return d.ids.bytes() + int64(cap(d.added))*32 + int64(cap(d.addedIDs))*48 + int64(cap(d.arena)) + int64(len(d.counts))*48
}

// Reset implements Stateful.
func (d *dedup) Reset() {
	d.bounds.removed = func(at int64) { d.count(at, -1) }
	d.advance(marker.MinTime)
	d.ids.reset()
	d.counts = map[int64]int64{}
	d.recent, d.recentFrom, d.recentTo = 0, 0, 0
	d.version, d.broken = versions{}, nil
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
	return d.ids.fault()
}

// restore remembers the later of two times: where a key was emitted again, its
// first time had expired.
func (d *dedup) restore(id []byte, at int64) {
	k, isUUID := key{}, false
	if d.single {
		k, isUUID = parseUUID(id)
	}
	if isUUID {
		id = nil
	} else {
		k = hashID(id)
	}
	if before := d.ids.get(isUUID, k, id); before == vacant || before < at {
		d.put(isUUID, k, id, at)
	}
}

// FinishRebuild implements Stateful.
func (d *dedup) FinishRebuild(w marker.Watermark) {
	d.settle()
	d.advance(w.Micros)
	_ = d.sweep(math.MaxInt, Version{}) // the first batch reports what is broken
}

// ErrStateCorrupt says that the bytes of a state are damaged, cut or of an
// unknown version.
var ErrStateCorrupt = errors.New("operator state is corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrStateCorrupt, fmt.Sprintf(format, args...))
}
