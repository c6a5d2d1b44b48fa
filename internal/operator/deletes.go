package operator

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/upsert"
)

const (
	// rememberedMax bounds the deletes that are remembered at the same time.
	rememberedMax = 2_000_000
	// rememberedBytes is about what one takes beside its key.
	rememberedBytes = 96

	deletesMagic = "WEIRDELS"
)

// deleted is what is remembered of a deleted key: the order of the delete, and the
// batch time at which it came. gone takes an entry back.
type deleted struct {
	order upsert.Order
	at    int64
	gone  bool
}

// deletes is a chain of changes that remembers deletes. A change of a deleted key
// that comes before the delete by the declared order is late: without the memory
// it would bring the row back, because the table has no row to compare it with.
//
// The memory cannot be read from a table: deleted rows are in none. Where it is
// lost with its checkpoint it begins empty, and late changes of keys that were
// deleted before bring these back until their deletes come again.
type deletes struct {
	*chain
	spec Changes
	// all is the memory as of the last batch, fresh what the present one changes.
	all, fresh map[string]deleted
	now        int64
	swept      int64
	late       int64
}

var _ Stateful = (*deletes)(nil)

func newDeletes(c *chain, spec Changes) *deletes {
	return &deletes{chain: c, spec: spec, all: map[string]deleted{}, fresh: map[string]deleted{}}
}

// State implements Transform.
func (d *deletes) State() []Stateful { return append(d.chain.State(), d) }

// Definitions implements Definer.
func (d *deletes) Definitions() []Definition {
	return append(d.chain.Definitions(), Definition{Name: d.Name(), Kind: d.Name(), Keys: d.spec.Keys,
		Settings: map[string]string{"rememberDeletes": d.spec.RememberDeletes.String()}})
}

// settle makes what the last batch changed part of the memory.
func (d *deletes) settle() {
	for k, v := range d.fresh {
		if v.gone {
			delete(d.all, k)
		} else {
			d.all[k] = v
		}
	}
	clear(d.fresh)
}

func (d *deletes) horizon() int64 { return d.spec.RememberDeletes.Microseconds() }

// Begin implements Transform.
func (d *deletes) Begin(env Env) error {
	d.settle()
	d.now, d.late = env.BatchTimeMicros, 0
	if d.now-d.swept > d.horizon()/16 {
		maps.DeleteFunc(d.all, func(_ string, v deleted) bool { return d.expired(v) })
		d.swept = d.now
	}
	return d.chain.Begin(env)
}

func (d *deletes) expired(v deleted) bool { return v.at+d.horizon() < d.now }

// Rollback implements Transform.
func (d *deletes) Rollback() {
	clear(d.fresh)
	d.late = 0
	d.chain.Rollback()
}

// Process implements Transform.
func (d *deletes) Process(rec arrow.RecordBatch, emit Emit) error {
	return d.chain.Process(rec, func(output string, rec arrow.RecordBatch) error {
		if output != Main {
			return emit(output, rec)
		}
		return d.screen(rec, emit)
	})
}

// screen drops late changes of deleted keys and notes deletes.
func (d *deletes) screen(rec arrow.RecordBatch, emit Emit) error {
	keys, orders := upsert.KeyColumns{Names: d.spec.Keys}, upsert.OrderColumns{Names: d.spec.OrderBy}
	if err := keys.Bind(rec); err != nil {
		rec.Release()
		return err
	}
	if err := orders.Bind(rec); err != nil {
		rec.Release()
		return err
	}
	gone, ok := rec.Column(int(rec.NumCols()) - 1).(*array.Boolean)
	if !ok {
		rec.Release()
		return errShape(DeletedColumn, "boolean", rec.Column(int(rec.NumCols())-1).DataType())
	}
	from, n := 0, int(rec.NumRows())
	flush := func(to int) error {
		if from == to {
			return nil
		}
		if from == 0 && to == n {
			rec.Retain()
			return emit(Main, rec)
		}
		return emit(Main, rec.NewSlice(int64(from), int64(to)))
	}
	defer rec.Release()
	for i := range n {
		k, _ := keys.Key(i) // keys are required
		if !d.note(k, orders.At(i), gone.Value(i)) {
			continue
		}
		d.late++
		if err := flush(i); err != nil {
			return err
		}
		from = i + 1
	}
	if len(d.all)+len(d.fresh) > rememberedMax {
		return failure.New(failure.Config, "more than %d deleted keys would have to be remembered", rememberedMax).
			WithHint("shorten rememberDeletes (%s)", d.spec.RememberDeletes)
	}
	return flush(n)
}

// note takes one change in; late is set where it comes before the key's delete.
func (d *deletes) note(k []byte, order upsert.Order, gone bool) (late bool) {
	had, ok := d.fresh[string(k)]
	if !ok {
		had, ok = d.all[string(k)]
	}
	ok = ok && !had.gone && !d.expired(had)
	if ok && order.Compare(had.order) < 0 {
		return true
	}
	switch {
	case gone:
		d.fresh[string(k)] = deleted{order: order, at: d.now}
	case ok:
		d.fresh[string(k)] = deleted{gone: true}
	}
	return false
}

// Finish implements Transform.
func (d *deletes) Finish(emit Emit) (Result, error) {
	r, err := d.chain.Finish(emit)
	r.Counters.Emitted -= d.late
	r.Counters.Late += d.late
	return r, err
}

// DeletesName is the name of the memory of deleted keys.
const DeletesName = "deletes"

// Name implements Stateful.
func (d *deletes) Name() string { return DeletesName }

// Keys implements Stateful.
func (d *deletes) Keys() int64 { return int64(len(d.all) + len(d.fresh)) }

// Bytes implements Stateful.
func (d *deletes) Bytes() int64 { return d.Keys() * rememberedBytes }

// Reset implements Stateful.
func (d *deletes) Reset() {
	clear(d.all)
	clear(d.fresh)
	d.swept = 0
}

// RebuildColumns implements Stateful.
func (d *deletes) RebuildColumns() []string { return d.spec.Keys[:1] }

// RebuildFrom implements Stateful.
func (d *deletes) RebuildFrom(marker.Watermark) int64 { return marker.MinTime }

// Rebuild implements Stateful: what is in the table is not deleted.
func (d *deletes) Rebuild(rec arrow.RecordBatch) error { rec.Release(); return nil }

// FinishRebuild implements Stateful.
func (d *deletes) FinishRebuild(marker.Watermark) {}

// Snapshot implements Stateful.
func (d *deletes) Snapshot() ([]byte, error) {
	all := maps.Clone(d.all)
	for k, v := range d.fresh {
		if v.gone {
			delete(all, k)
		} else {
			all[k] = v
		}
	}
	maps.DeleteFunc(all, func(_ string, v deleted) bool { return d.expired(v) })
	return encodeDeletes(kindSnapshot, d.now, all), nil
}

// Delta implements Stateful.
func (d *deletes) Delta() ([]byte, error) { return encodeDeletes(kindDelta, d.now, d.fresh), nil }

// LoadSnapshot implements Stateful.
func (d *deletes) LoadSnapshot(b []byte) error {
	d.Reset()
	return d.apply(kindSnapshot, b)
}

// ApplyDelta implements Stateful.
func (d *deletes) ApplyDelta(b []byte) error { return d.apply(kindDelta, b) }

func (d *deletes) apply(kind byte, b []byte) error {
	d.settle()
	now, err := decodeDeletes(kind, b, func(k []byte, v deleted) { d.fresh[string(k)] = v })
	d.now = max(d.now, now)
	d.settle()
	return err
}

// The encoding: "WEIRDELS", kind, batch time (varint), number (uvarint), then for
// each key its length, bytes, batch time (varint), 0 where it is taken back, else
// 1 + the number of order values, each with a tag (0 null, 1 whole number, 2
// bytes); CRC-32C of all before.
func encodeDeletes(kind byte, now int64, m map[string]deleted) []byte {
	b := append([]byte(deletesMagic), kind)
	b = binary.AppendVarint(b, now)
	b = binary.AppendUvarint(b, uint64(len(m)))
	for k, v := range m {
		b = binary.AppendUvarint(b, uint64(len(k)))
		b = append(b, k...)
		b = binary.AppendVarint(b, v.at)
		if v.gone {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(1+len(v.order)))
		for _, o := range v.order {
			switch x := o.(type) {
			case int64:
				b = binary.AppendVarint(append(b, 1), x)
			case string:
				b = binary.AppendUvarint(append(b, 2), uint64(len(x)))
				b = append(b, x...)
			default:
				b = append(b, 0)
			}
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeDeletes(kind byte, b []byte, put func(k []byte, v deleted)) (now int64, err error) {
	head := len(deletesMagic) + 1
	if len(b) < head+4 || string(b[:head-1]) != deletesMagic || b[head-1] != kind {
		return 0, corrupt("it does not begin as a memory of deletes")
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return 0, corrupt("its checksum is wrong")
	}
	r := bytes.NewReader(body[head:])
	bad := false
	num := func() int64 {
		n, err := binary.ReadVarint(r)
		bad = bad || err != nil
		return n
	}
	count := func() int {
		n, err := binary.ReadUvarint(r)
		bad = bad || err != nil || n > uint64(len(body))
		return int(n)
	}
	text := func() []byte {
		n := count()
		if bad || n > r.Len() {
			bad = true
			return nil
		}
		out := make([]byte, n)
		_, _ = r.Read(out)
		return out
	}
	now = num()
	for n := count(); n > 0 && !bad; n-- {
		k := text()
		v := deleted{at: num()}
		values := count()
		v.gone = values == 0
		for ; values > 1 && !bad; values-- {
			tag, err := r.ReadByte()
			switch {
			case err != nil || tag > 2:
				bad = true
			case tag == 0:
				v.order = append(v.order, nil)
			case tag == 1:
				v.order = append(v.order, num())
			default:
				v.order = append(v.order, string(text()))
			}
		}
		if !bad {
			put(k, v)
		}
	}
	if bad || r.Len() > 0 {
		return now, corrupt("it is cut")
	}
	return now, nil
}

// RememberDefault is how long deletes are remembered where nothing is said.
const RememberDefault = 7 * 24 * time.Hour
