package operator

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// idSet is where dedup keeps its keys: UUIDs, or hashes with their ids. The first
// error of its store stays, and is given by fault and settle.
type idSet interface {
	// insert sets the event time of a key unless the key is alive; before is the time
	// that it had, vacant for none.
	insert(uuid bool, k key, id []byte, at int64, b *bounds) (before int64, ok bool)
	// touch says that a key is about to be looked for. What it gives means nothing.
	touch(uuid bool, k key) byte
	// get is the event time of a key, vacant if it is not there.
	get(uuid bool, k key, id []byte) int64
	// remove takes a key out that was inserted since settle.
	remove(uuid bool, k key, id []byte)
	// settle makes what was inserted final and removes keys below the bound, where
	// expired says that there are any: about as many as the budget.
	settle(b *bounds, budget int, expired int64, meta func() ([]byte, error)) error
	// each gives every key, also those that are removable.
	each(f func(isID bool, k key, id []byte, at int64) error) error
	// sizes are about the numbers of UUIDs and of ids; expect says that so many, with
	// times from first to last, are about to be loaded, and none that they were.
	sizes() (uuids, ids int)
	expect(uuids, ids int, first, last int64)
	bytes() int64
	reset()
	fault() error
}

// memoryIDs are two tables.
type memoryIDs struct {
	uuids *table // keys are UUIDs
	ids   *table // keys are hashes, ids kept
	next  int    // the segment that is swept next
}

func newMemoryIDs(seed uint64) *memoryIDs {
	return &memoryIDs{uuids: newTable(false, seed), ids: newTable(true, seed)}
}

func (m *memoryIDs) table(uuid bool) *table {
	if uuid {
		return m.uuids
	}
	return m.ids
}

func (m *memoryIDs) insert(uuid bool, k key, id []byte, at int64, b *bounds) (before int64, ok bool) {
	return m.table(uuid).insert(k, id, at, b)
}

func (m *memoryIDs) touch(uuid bool, k key) byte { return m.table(uuid).touch(k) }

func (m *memoryIDs) get(uuid bool, k key, id []byte) int64 { return m.table(uuid).get(k, id) }

func (m *memoryIDs) remove(uuid bool, k key, id []byte) { m.table(uuid).remove(k, id) }

// settle sweeps segment by segment; the budget is in slots that are looked at.
func (m *memoryIDs) settle(b *bounds, budget int, expired int64, _ func() ([]byte, error)) error {
	swept := *b
	swept.removed = func(at int64) {
		expired--
		b.removed(at)
	}
	for i := 0; i < segments && budget > 0 && expired > 0; i++ {
		budget -= m.uuids.sweep(m.next, &swept)
		budget -= m.ids.sweep(m.next, &swept)
		m.next = (m.next + 1) % segments
	}
	return nil
}

func (m *memoryIDs) each(f func(isID bool, k key, id []byte, at int64) error) error {
	for _, t := range []*table{m.uuids, m.ids} {
		if err := t.each(func(k key, id []byte, at int64) error { return f(t.withIDs, k, id, at) }); err != nil {
			return err
		}
	}
	return nil
}

func (m *memoryIDs) sizes() (uuids, ids int) { return m.uuids.size(), m.ids.size() }

func (m *memoryIDs) expect(uuids, ids int, first, last int64) {
	m.uuids.expect(uuids, first, last)
	m.ids.expect(ids, first, last)
}

func (m *memoryIDs) bytes() int64 { return m.uuids.bytes() + m.ids.bytes() }

func (m *memoryIDs) reset() {
	m.uuids.release()
	m.ids.release()
	m.next = 0
}

func (m *memoryIDs) fault() error { return nil }

const (
	// freshMax bounds the keys in memory of a load or a rebuild, which is not one
	// batch.
	freshMax = 1 << 16
	// expiredMax bounds the keys that are removed in one go.
	expiredMax = 1 << 16

	tagUUID = 'u'
	tagID   = 'i'
)

// storedIDs keeps keys in a store. Those that were inserted since settle are in
// memory: an insert reads the store and does not write it.
//
// A key stands in the store under its event time, so that expired ones are found
// without looking at the others.
type storedIDs struct {
	store KeyStore
	fresh *memoryIDs
	// loading says that there is nothing to roll back, so that fresh may be moved
	// into the store at any time.
	loading    bool
	uuids, ids int64 // in store and fresh
	scratch    []byte
	err        error
}

func newStoredIDs(store KeyStore, seed uint64) *storedIDs {
	return &storedIDs{store: store, fresh: newMemoryIDs(seed), loading: true}
}

func (s *storedIDs) storeKey(uuid bool, k key, id []byte) []byte {
	if uuid {
		s.scratch = binary.BigEndian.AppendUint64(append(s.scratch[:0], tagUUID), k.hi)
		s.scratch = binary.BigEndian.AppendUint64(s.scratch, k.lo)
	} else {
		s.scratch = append(append(s.scratch[:0], tagID), id...)
	}
	return s.scratch
}

// stored is the event time of a key in the store.
func (s *storedIDs) stored(uuid bool, k key, id []byte) int64 {
	value, err := s.store.Get(s.storeKey(uuid, k, id))
	s.fail(err)
	if len(value) != 8 {
		return vacant
	}
	return int64(binary.LittleEndian.Uint64(value))
}

func (s *storedIDs) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *storedIDs) get(uuid bool, k key, id []byte) int64 {
	if at := s.fresh.get(uuid, k, id); at != vacant {
		return at
	}
	return s.stored(uuid, k, id)
}

func (s *storedIDs) insert(uuid bool, k key, id []byte, at int64, b *bounds) (before int64, ok bool) {
	if before = s.get(uuid, k, id); before != vacant && before >= b.alive {
		return before, false
	}
	if before == vacant {
		s.counted(uuid, 1)
	}
	// Nothing is removed from memory on the way: it is in the store soon.
	s.fresh.insert(uuid, k, id, at, &bounds{alive: b.alive, removable: vacant, removed: b.removed})
	if u, i := s.fresh.sizes(); s.loading && (u+i) >= freshMax {
		s.fail(s.move())
	}
	return before, true
}

func (s *storedIDs) counted(uuid bool, n int64) {
	if uuid {
		s.uuids += n
	} else {
		s.ids += n
	}
}

func (s *storedIDs) remove(uuid bool, k key, id []byte) {
	s.fresh.remove(uuid, k, id)
	s.counted(uuid, -1)
}

// move puts what is fresh into the store.
func (s *storedIDs) move() error {
	err := s.fresh.each(func(isID bool, k key, id []byte, at int64) error {
		var value [8]byte
		binary.LittleEndian.PutUint64(value[:], uint64(at))
		return s.store.Set(s.storeKey(!isID, k, id), value[:], at)
	})
	s.fresh.reset()
	return err
}

// settle implements idSet; the budget is in keys.
func (s *storedIDs) settle(b *bounds, budget int, expired int64, meta func() ([]byte, error)) error {
	s.fail(s.move())
	for {
		if s.err == nil {
			s.err = s.settleStore(meta)
		}
		if s.err != nil || budget <= 0 || expired <= 0 {
			return s.err
		}
		n := 0
		if n, s.err = s.removeExpired(b, min(budget, expiredMax)); n == 0 {
			return s.err
		}
		budget -= n
		expired -= int64(n)
	}
}

func (s *storedIDs) settleStore(meta func() ([]byte, error)) error {
	s.loading = false
	m, err := meta()
	if err != nil {
		return err
	}
	return s.store.Settle(m)
}

// removeExpired removes up to limit keys.
func (s *storedIDs) removeExpired(b *bounds, limit int) (n int, err error) {
	var keys [][]byte
	err = s.store.Due(b.removable-1, func(k, value []byte) (int64, bool, error) {
		at := int64(binary.LittleEndian.Uint64(value))
		if at < b.removable {
			keys = append(keys, append([]byte(nil), k...))
			b.removed(at)
		}
		return at, len(keys) < limit, nil
	})
	for _, k := range keys {
		if err != nil {
			break
		}
		err = s.store.Set(k, nil, 0)
		s.counted(k[0] == tagUUID, -1)
	}
	return len(keys), err
}

func (s *storedIDs) each(f func(isID bool, k key, id []byte, at int64) error) error {
	if s.err != nil {
		return s.err
	}
	if err := s.fresh.each(f); err != nil {
		return err
	}
	return s.store.Each(func(b, value []byte) error {
		id := b[1:]
		k := hashID(id)
		if b[0] == tagUUID {
			k, id = key{binary.BigEndian.Uint64(b[1:]), binary.BigEndian.Uint64(b[9:])}, nil
		}
		if s.fresh.get(b[0] == tagUUID, k, id) != vacant {
			return nil
		}
		return f(b[0] == tagID, k, id, int64(binary.LittleEndian.Uint64(value)))
	})
}

func (s *storedIDs) sizes() (uuids, ids int) { return int(s.uuids), int(s.ids) }

func (s *storedIDs) expect(int, int, int64, int64) {}

func (s *storedIDs) touch(bool, key) byte { return 0 }

func (s *storedIDs) bytes() int64 { return s.store.Bytes() + s.fresh.bytes() }

func (s *storedIDs) reset() {
	s.store.Reset()
	s.fresh.reset()
	s.loading, s.uuids, s.ids, s.err = true, 0, 0, nil
}

func (s *storedIDs) fault() error { return s.err }

// dedupMeta is what a store keeps of dedup beside its keys.
type dedupMeta struct {
	Version   Version         `json:"version"`
	Watermark int64           `json:"watermark"`
	Width     int64           `json:"width"`
	Counts    map[int64]int64 `json:"counts"`
	UUIDs     int64           `json:"uuids"`
	IDs       int64           `json:"ids"`
}

func (d *dedup) meta(v Version) ([]byte, error) {
	d.flush()
	uuids, ids := d.ids.sizes()
	b, err := json.Marshal(dedupMeta{v, d.watermark, d.width, d.counts, int64(uuids), int64(ids)})
	if err != nil {
		return nil, fmt.Errorf("dedup: encode what its memory is: %w", err)
	}
	return b, nil
}

// Resume implements Resumer.
func (d *dedup) Resume() (Version, error) {
	d.Reset()
	s, ok := d.ids.(*storedIDs)
	if !ok {
		return Version{}, nil
	}
	b, err := s.store.Resume()
	if err != nil || b == nil {
		return Version{}, err
	}
	var m dedupMeta
	if json.Unmarshal(b, &m) != nil || m.Width != d.width || m.Version == (Version{}) {
		d.Reset()
		return Version{}, nil //nolint:nilerr // what cannot be read is not taken up
	}
	d.advance(m.Watermark)
	if m.Counts != nil {
		d.counts = m.Counts
	}
	s.uuids, s.ids, s.loading = m.UUIDs, m.IDs, true
	d.version.settled = m.Version
	return m.Version, nil
}

// Loaded implements Resumer.
func (d *dedup) Loaded(v Version) error {
	d.version = versions{settled: v}
	d.settle()
	return d.sweep(0, v)
}

// Saved implements Resumer.
func (d *dedup) Saved(v Version) { d.version.next = v }

func (d *dedup) keepIn(store KeyStore) {
	m := d.ids.(*memoryIDs)
	d.ids = newStoredIDs(store, m.uuids.seed)
	d.Reset()
}

func (d *dedup) release() error {
	s, ok := d.ids.(*storedIDs)
	if !ok {
		return nil
	}
	d.Reset()
	return s.store.Close()
}
