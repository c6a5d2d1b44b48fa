package pebblestate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/operator"
)

// loadBatchBytes cuts what is written while there is no meta yet.
const loadBatchBytes = 4 << 20

const (
	tagKey  = 'k'
	tagDue  = 'd'
	tagMeta = 'm'
	dueSize = 8
)

// store is an operator's range of the folder's database.
type store struct {
	f      *Folder
	prefix []byte
	db     *pebble.DB // nil until the range is the operator's
	batch  *pebble.Batch
	// whole says that the range has a meta, so that what is set until Settle has to
	// become visible at once.
	whole bool
	// from is a due time before which nothing stands in the index: without it each
	// Due would walk over what Pebble has not yet removed. seen is how far Due has
	// come since Settle, and least the least due time that was set.
	from, seen, least int64

	key, value []byte
}

func newStore(f *Folder, name string) *store {
	s := &store{f: f, prefix: append([]byte(name), 0)}
	s.forget()
	return s
}

// forget makes the store as it was before its first use.
func (s *store) forget() {
	if s.batch != nil {
		_ = s.batch.Close()
	}
	s.db, s.batch, s.whole = nil, nil, false
	s.from, s.seen, s.least = math.MinInt64, math.MinInt64, math.MaxInt64
}

// appendDue keeps the order of signed times.
func appendDue(b []byte, due int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(due)^1<<63)
}

func readDue(b []byte) int64 { return int64(binary.BigEndian.Uint64(b) ^ 1<<63) }

func (s *store) tagged(tag byte) []byte { return append(bytes.Clone(s.prefix), tag) }

func (s *store) recordKey(key []byte) []byte {
	s.key = append(append(append(s.key[:0], s.prefix...), tagKey), key...)
	return s.key
}

func (s *store) dueKey(due int64, key []byte) []byte {
	b := append(append(make([]byte, 0, len(s.prefix)+1+dueSize+len(key)), s.prefix...), tagDue)
	return append(appendDue(b, due), key...)
}

// take makes the range the operator's, emptied.
func (s *store) take() error {
	if s.db != nil {
		return nil
	}
	db, err := s.f.open()
	if err != nil {
		return err
	}
	end := append(bytes.Clone(s.prefix[:len(s.prefix)-1]), 1)
	if err := db.DeleteRange(s.prefix, end, pebble.NoSync); err != nil {
		return s.f.failed(err)
	}
	s.db, s.batch = db, db.NewBatch()
	return nil
}

// Resume implements operator.KeyStore.
func (s *store) Resume() ([]byte, error) {
	db, err := s.f.open()
	if err != nil {
		return nil, err
	}
	meta, closer, err := db.Get(s.tagged(tagMeta))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		// It is emptied with the first write.
		_ = s.f.failed(err)
		return nil, nil
	}
	meta = bytes.Clone(meta)
	if err := closer.Close(); err != nil {
		return nil, s.f.failed(err)
	}
	s.db, s.batch, s.whole = db, db.NewBatch(), true
	return meta, nil
}

// lookUp gives the due time and the value of a record.
func (s *store) lookUp(key []byte) (due int64, value []byte, found bool, err error) {
	b, closer, err := s.db.Get(s.recordKey(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil, false, nil
	}
	if err != nil {
		return 0, nil, false, s.f.failed(err)
	}
	due, s.value = readDue(b), append(s.value[:0], b[dueSize:]...)
	if err := closer.Close(); err != nil {
		return 0, nil, false, s.f.failed(err)
	}
	return due, s.value, true, nil
}

// Get implements operator.KeyStore.
func (s *store) Get(key []byte) ([]byte, error) {
	if s.db == nil {
		return nil, nil
	}
	_, value, _, err := s.lookUp(key)
	return value, err
}

// Set implements operator.KeyStore.
func (s *store) Set(key, value []byte, due int64) error {
	if err := s.take(); err != nil {
		return err
	}
	queued, _, found, err := s.lookUp(key)
	if err != nil {
		return err
	}
	switch {
	case len(value) == 0 && !found:
		return nil
	case len(value) == 0:
		err = errors.Join(s.batch.Delete(s.recordKey(key), nil), s.batch.Delete(s.dueKey(queued, key), nil))
	case found && due >= queued && queued > s.seen:
		err = s.put(key, value, queued)
	default:
		if found {
			err = s.batch.Delete(s.dueKey(queued, key), nil)
		}
		err = errors.Join(err, s.put(key, value, due), s.batch.Set(s.dueKey(due, key), nil, nil))
		s.least = min(s.least, due)
	}
	if err != nil {
		return s.f.failed(err)
	}
	if !s.whole && s.batch.Len() > loadBatchBytes {
		return s.commit(pebble.NoSync)
	}
	return nil
}

// put writes a record.
func (s *store) put(key, value []byte, due int64) error {
	op := s.batch.SetDeferred(len(s.prefix)+1+len(key), dueSize+len(value))
	n := copy(op.Key, s.prefix)
	op.Key[n] = tagKey
	copy(op.Key[n+1:], key)
	binary.BigEndian.PutUint64(op.Value, uint64(due)^1<<63)
	copy(op.Value[dueSize:], value)
	return op.Finish()
}

func (s *store) commit(durability *pebble.WriteOptions) error {
	if err := s.batch.Commit(durability); err != nil {
		return s.f.failed(err)
	}
	if err := s.batch.Close(); err != nil {
		return s.f.failed(err)
	}
	s.batch = s.db.NewBatch()
	return nil
}

// Due implements operator.KeyStore. What it puts under a later time is written at
// once: that changes nothing of the version.
func (s *store) Due(watermark int64, f operator.DueFunc) error {
	if s.db == nil {
		return nil
	}
	lower, upper := s.dueKey(s.from, nil), s.tagged(tagDue+1)
	if watermark < math.MaxInt64 {
		upper = s.dueKey(watermark+1, nil)
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return s.f.failed(err)
	}
	moved := s.db.NewBatch()
	err = s.walkDue(it, moved, watermark, f)
	if closeErr := it.Close(); err == nil && closeErr != nil {
		err = s.f.failed(closeErr)
	}
	if err == nil && !moved.Empty() {
		if err = moved.Commit(pebble.NoSync); err != nil {
			err = s.f.failed(err)
		}
	}
	return errors.Join(err, moved.Close())
}

func (s *store) walkDue(it *pebble.Iterator, moved *pebble.Batch, watermark int64, f operator.DueFunc) error {
	at := len(s.prefix) + 1
	for ok := it.First(); ok; ok = it.Next() {
		due, key := readDue(it.Key()[at:]), it.Key()[at+dueSize:]
		s.seen = max(s.seen, due)
		queued, value, found, err := s.lookUp(key)
		if err != nil {
			return err
		}
		if !found || queued != due {
			// Never, by the third invariant; a wrong entry would be offered for ever.
			if err := moved.Delete(it.Key(), nil); err != nil {
				return s.f.failed(err)
			}
			continue
		}
		next, more, err := f(key, value)
		if err != nil {
			return err
		}
		if next > watermark {
			record := append(appendDue(make([]byte, 0, dueSize+len(value)), next), value...)
			if err := errors.Join(moved.Delete(it.Key(), nil), moved.Set(s.recordKey(key), record, nil), moved.Set(s.dueKey(next, key), nil, nil)); err != nil {
				return s.f.failed(err)
			}
		}
		if !more {
			return nil
		}
	}
	if err := it.Error(); err != nil {
		return s.f.failed(err)
	}
	return nil
}

// Undo implements operator.KeyStore.
func (s *store) Undo() {
	s.seen, s.least = math.MinInt64, math.MaxInt64
	if s.batch != nil {
		s.batch.Reset()
	}
}

// Settle implements operator.KeyStore.
func (s *store) Settle(meta []byte) error {
	if err := s.take(); err != nil {
		return err
	}
	if err := s.batch.Set(s.tagged(tagMeta), meta, nil); err != nil {
		return s.f.failed(err)
	}
	if err := s.commit(pebble.Sync); err != nil {
		return err
	}
	s.whole = true
	s.from, s.seen, s.least = min(max(s.from, s.seen), s.least), math.MinInt64, math.MaxInt64
	fault.Reach(s.f.opts.Query, fault.StateSettled)
	return nil
}

// Each implements operator.KeyStore.
func (s *store) Each(f func(key, value []byte) error) error {
	if s.db == nil {
		return nil
	}
	lower := s.tagged(tagKey)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: s.tagged(tagKey + 1)})
	if err != nil {
		return s.f.failed(err)
	}
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		err = f(it.Key()[len(lower):], it.Value()[dueSize:])
	}
	if readErr := it.Error(); err == nil && readErr != nil {
		err = s.f.failed(readErr)
	}
	if closeErr := it.Close(); err == nil && closeErr != nil {
		err = s.f.failed(closeErr)
	}
	return err
}

// Bytes implements operator.KeyStore. The memory is the folder's: one of its stores
// tells it.
func (s *store) Bytes() int64 {
	if s.db == nil || s != s.f.stores[0] {
		return 0
	}
	return s.f.bytes()
}

// Reset implements operator.KeyStore: the range is emptied with the next write.
func (s *store) Reset() { s.forget() }

// Close implements operator.KeyStore.
func (s *store) Close() error { return s.f.Close() }
