package operator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/uuid"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

func TestARowIsNotLateBecauseOfAnotherOfItsBatch(t *testing.T) {
	r := newRun(t, small())
	res := r.batchOf(values(ev("a", 0), ev("b", -60)))
	equalCounts(t, res.Counters, marker.Counters{Read: 2, Emitted: 2})
	if want := now - minutes(10); res.Watermark.Micros != want || res.Watermark.MaxEventMicros[""] != now {
		t.Errorf("watermark %+v", res.Watermark)
	}
	res = r.batchOf(values(ev("c", -60), ev("d", -10), ev("e", -10.1)))
	equalCounts(t, res.Counters, marker.Counters{Read: 3, Emitted: 1, Late: 2})
	equalStrings(t, "ids", column1(r.main, "id"), "d")
}

func TestTheWatermarkNeverMovesBack(t *testing.T) {
	r := newRun(t, small())
	r.batchOf(values(ev("a", 0)))
	before := r.mark
	res := r.batchOf(values(ev("b", -9)))
	if res.Watermark.Micros != before.Micros || res.Watermark.MaxEventMicros[""] != now {
		t.Errorf("%+v after %+v", res.Watermark, before)
	}
	if res = r.batchOf(); res.Watermark.Micros != before.Micros || res.Counters.Read != 0 {
		t.Errorf("an empty batch: %+v", res)
	}
	res = r.batchOf(values("x", `{"id":"z","at":"9999-01-01T00:00:00Z"}`, ev("b", 1)))
	equalCounts(t, res.Counters, marker.Counters{Read: 3, Duplicate: 1, DeadLettered: 2})
	if want := now + minutes(1) - minutes(10); res.Watermark.Micros != want {
		t.Errorf("a duplicate moves the watermark, a future event does not: %s", at(res.Watermark.Micros))
	}
}

func TestAKeyIsRememberedUntilTheWatermarkPassesItsTimePlusDelay(t *testing.T) {
	r := newRun(t, small())
	r.batchOf(values(ev("a", -100), ev("x", -100)))
	r.mark.Micros = now - minutes(90) // exactly a's event time + delay: not passed yet
	res := r.batchOf(values(ev("a", -80)))
	equalCounts(t, res.Counters, marker.Counters{Read: 1, Duplicate: 1})
	r.mark.Micros = now - minutes(90) + 1
	res = r.batchOf(values(ev("a", -70), ev("a", -60), ev("x", -95)))
	equalCounts(t, res.Counters, marker.Counters{Read: 3, Emitted: 1, Duplicate: 1, Late: 1})
	// A duplicate does not prolong: the time that counts is the emitted row's.
	r.mark.Micros = now - minutes(60) + 1
	res = r.batchOf(values(ev("a", -50)))
	equalCounts(t, res.Counters, marker.Counters{Read: 1, Emitted: 1})
}

func TestDuplicatesWithinOneBatchAndRecordAreFound(t *testing.T) {
	r := newRun(t, small())
	var recs []record
	for i := range 3000 {
		recs = append(recs, values(ev(fmt.Sprintf("id-%d", i%1000), -1))...)
	}
	res := r.batchOf(recs[:10], recs[10:])
	equalCounts(t, res.Counters, marker.Counters{Read: 3000, Emitted: 1000, Duplicate: 2000})
	for i, row := range r.main {
		if row["id"] != fmt.Sprintf("id-%d", i) {
			t.Fatalf("row %d is %v: the order was not kept", i, row["id"])
		}
	}
}

func TestSomeLateAndDuplicateRowsOfABatchAreShown(t *testing.T) {
	r := newRun(t, small())
	r.batchOf(values(ev("a", 0)))
	var docs []string
	for i := range 2 * setAsideMax {
		docs = append(docs, ev("a", -1), ev(fmt.Sprintf("late-%d", i), -60))
	}
	res := r.batchOf(values(docs...))
	equalCounts(t, res.Counters, marker.Counters{Read: 4 * setAsideMax, Duplicate: 2 * setAsideMax, Late: 2 * setAsideMax})
	if len(res.SetAside) != 2*setAsideMax {
		t.Fatalf("%d rows are shown", len(res.SetAside))
	}
	for i, s := range res.SetAside {
		if s.Duplicate != (i%2 == 0) || string(s.Value) != docs[i] || s.EventMicros == 0 || s.Topic == "" {
			t.Errorf("row %d: %+v, %s", i, s, s.Value)
		}
	}
	if res = r.batchOf(values(ev("b", 0))); len(res.SetAside) != 0 {
		t.Errorf("the next batch shows %+v", res.SetAside)
	}
}

func TestIDsThatOnlyResembleAUUIDAreOtherIDs(t *testing.T) {
	u := "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8f9"
	parsed, err := uuid.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	k, ok := parseUUID([]byte(u))
	if !ok || k.hi != binary.BigEndian.Uint64(parsed[:8]) || k.lo != binary.BigEndian.Uint64(parsed[8:]) {
		t.Errorf("%x is not %s", k, u)
	}
	r := newRun(t, small())
	ids := []string{u, "0B1C2D3E-4F50-4617-8293-A4B5C6D7E8F9", "{" + u + "}", "0b1c2d3e4f5046178293a4b5c6d7e8f9", u[:35], u + " ", "0b1c2d3e-4f50-4617-8293-a4b5c6d7e8fg",
		"0b1c2d3e-4f50-4617-8293_a4b5c6d7e8f9", "", "x"}
	var docs []string
	for range 2 {
		for _, id := range ids {
			docs = append(docs, fmt.Sprintf(`{"id":%q,"at":%q}`, bytes.ToValidUTF8([]byte(id), []byte("?")), at(now)))
		}
	}
	// The same UUID in an escaped spelling is the same id.
	docs = append(docs, fmt.Sprintf(`{"id":"\u0030%s","at":%q}`, u[1:], at(now)))
	res := r.batchOf(values(docs...))
	equalCounts(t, res.Counters, marker.Counters{Read: int64(len(docs)), Emitted: int64(len(ids)), Duplicate: int64(len(ids)) + 1})
}

func TestIDsWithTheSameHashAreTwoKeys(t *testing.T) {
	tab := newTable(true, 1)
	k := key{1, 2}
	for i, id := range []string{"one", "two"} {
		if before, ok := tab.insert(k, []byte(id), 10*int64(i+1), &bounds{}); !ok || before != vacant {
			t.Fatal("a new id was there already")
		}
	}
	if tab.get(k, []byte("one")) != 10 || tab.get(k, []byte("two")) != 20 || tab.get(k, []byte("three")) != vacant {
		t.Error("ids were taken for each other")
	}
	tab.remove(k, []byte("one"))
	if tab.get(k, []byte("one")) != vacant || tab.get(k, []byte("two")) != 20 {
		t.Error("the wrong id was removed")
	}
}

func TestKeysOfSeveralColumnsAreNotGlued(t *testing.T) {
	cfg := small()
	cfg.Columns[2].Required = true
	cfg.Columns = append(cfg.Columns, Column{Name: "s", Path: "$.s", Type: "string", Required: true}, Column{Name: "x", Path: "$.x", Type: "binary", Required: true})
	cfg.Dedup = []string{"id", "s", "n", "x"}
	r := newRun(t, cfg)
	doc := func(id, s string, n int, x string) string {
		return fmt.Sprintf(`{"id":%q,"at":%q,"s":%q,"n":%d,"x":"%s"}`, id, at(now), s, n, x)
	}
	docs := values(doc("ab", "c", 1, "AA=="), doc("a", "bc", 1, "AA=="), doc("ab", "c", 2, "AA=="), doc("ab", "c", 1, "AQ=="), doc("ab", "c", 1, "AA=="), doc("ab", "c", 1, `AE\/\/`), doc("ab", "c", 1, "AE//"))
	res := r.batchOf(docs)
	equalCounts(t, res.Counters, marker.Counters{Read: 7, Emitted: 5, Duplicate: 2})
	// The table's rows give the same keys.
	rebuiltTheSame(t, r, docs)
}

// rebuiltTheSame makes the ids anew from the rows that the docs become in the
// table, and demands those that are there.
func rebuiltTheSame(t testing.TB, r *run, docs []record) {
	t.Helper()
	d := r.tr.State()[0]
	want := contents(t, d)
	rec := mainRecord(t, r.tr, docs)
	defer rec.Release()
	d.Reset()
	if err := d.Rebuild(rec); err != nil {
		t.Fatal(err)
	}
	d.FinishRebuild(r.mark)
	if got := contents(t, d); !slices.Equal(got, want) {
		t.Errorf("rebuilt %d keys, live %d", len(got), len(want))
	}
}

// mainRecord transforms the records in a batch of its own and gives the main
// output as one record; for small inputs.
func mainRecord(t testing.TB, tr Transform, recs []record) arrow.RecordBatch {
	t.Helper()
	for _, s := range tr.State() {
		s.Reset()
	}
	if err := tr.Begin(Env{BatchTimeMicros: now, Watermark: marker.Watermark{Micros: marker.MinTime}}); err != nil {
		t.Fatal(err)
	}
	var out arrow.RecordBatch
	err := tr.Process(rows(memory.DefaultAllocator, 0, recs), func(o string, rec arrow.RecordBatch) error {
		if o == Main {
			out = rec
		} else {
			rec.Release()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// contents are the keys of a dedup operator that the watermark has not passed.
func contents(t testing.TB, s Stateful) []string {
	t.Helper()
	d := s.(*dedup)
	var out []string
	bound := d.removable(d.watermark)
	err := d.ids.each(func(_ bool, k key, id []byte, at int64) error {
		if at >= bound {
			out = append(out, fmt.Sprintf("%016x%016x %q %d", k.hi, k.lo, id, at))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	if int64(len(out)) != d.Keys() {
		t.Fatalf("%d keys are counted, %d are there", d.Keys(), len(out))
	}
	return out
}

// life is a random stream of batches for the property tests.
type life struct {
	rng  *rand.Rand
	ids  []string
	time int64
}

func newLife(seed uint64) *life {
	l := &life{rng: rand.New(rand.NewPCG(seed, 2)), time: now - minutes(300)}
	for i := range 4000 {
		id := fmt.Sprintf("id %d", i)
		if i%3 != 0 {
			var b [16]byte
			binary.BigEndian.PutUint64(b[:], l.rng.Uint64())
			binary.BigEndian.PutUint64(b[8:], l.rng.Uint64())
			id = uuid.UUID(b).String()
		}
		l.ids = append(l.ids, id)
	}
	return l
}

// batch is some events around the stream's time, which goes on.
func (l *life) batch() []record {
	n := l.rng.IntN(600)
	l.time += minutes(float64(l.rng.IntN(12)))
	var docs []string
	for range n {
		when := l.time - minutes(15*l.rng.Float64()*l.rng.Float64())
		docs = append(docs, fmt.Sprintf(`{"id":%q,"at":%q}`, l.ids[l.rng.IntN(len(l.ids))], at(when)))
	}
	return values(docs...)
}

func TestStateLoadedFromSnapshotAndDeltasEqualsTheLiveOne(t *testing.T) {
	const seed = 41
	t.Logf("seed %d", seed)
	l := newLife(seed)
	r := newRun(t, small())
	other, err := New(small())
	if err != nil {
		t.Fatal(err)
	}
	kept(t, other, t.TempDir())
	live, loaded := r.tr.State()[0], other.State()[0]
	type emittedKey struct {
		id string
		at string
	}
	var table []emittedKey
	batches := 120
	if onStore != nil {
		batches = 40
	}
	for i := range batches {
		recs := l.batch()
		if l.rng.IntN(4) == 0 {
			// A batch that fails is undone and run again.
			before := contents(t, live)
			mark := r.mark
			r.batchOf(recs)
			r.tr.Rollback()
			r.mark = mark
			if got := contents(t, live); len(got) > len(before) {
				t.Fatalf("batch %d: %d keys after the rollback, %d before", i, len(got), len(before))
			}
		}
		r.batchOf(recs)
		for _, row := range r.main {
			table = append(table, emittedKey{row["id"].(string), row["at"].(string)})
		}
		if i%17 == 0 {
			b, err := live.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := loaded.LoadSnapshot(b); err != nil {
				t.Fatal(err)
			}
		} else {
			b, err := live.Delta()
			if err != nil {
				t.Fatal(err)
			}
			if err := loaded.ApplyDelta(b); err != nil {
				t.Fatal(err)
			}
		}
		if want, got := contents(t, live), contents(t, loaded); !slices.Equal(got, want) {
			t.Fatalf("batch %d: loaded %d keys, live %d", i, len(got), len(want))
		}
	}
	if live.Keys() == 0 || len(table) < 1000 {
		t.Fatalf("the test is empty: %d keys, %d rows", live.Keys(), len(table))
	}
	// And the state rebuilt from the table equals the live one of the next batch.
	from := live.RebuildFrom(r.mark)
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.BinaryTypes.LargeString}, {Name: "at", Type: batch.Timestamp}}, nil))
	for _, row := range table {
		when, err := time.Parse(time.RFC3339Nano, row.at)
		if err != nil {
			t.Fatal(err)
		}
		if when.UnixMicro() < from {
			continue
		}
		b.Field(0).(*array.LargeStringBuilder).Append(row.id)
		b.Field(1).(*array.TimestampBuilder).Append(arrow.Timestamp(when.UnixMicro()))
	}
	loaded.Reset()
	rec := b.NewRecordBatch()
	defer rec.Release()
	if err := loaded.Rebuild(rec); err != nil {
		t.Fatal(err)
	}
	loaded.FinishRebuild(r.mark)
	r.begin()
	if want, got := contents(t, live), contents(t, loaded); !slices.Equal(got, want) {
		t.Fatalf("rebuilt %d keys, live %d", len(got), len(want))
	}
}

func TestBatchSizesDoNotChangeWhatIsEmittedWithinTheWatermark(t *testing.T) {
	const seed = 97
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	var recs []record
	when := now - minutes(120)
	for i := range 20_000 {
		when += minutes(0.005)
		// At most 8 minutes out of order, well within the delay of 10.
		doc := fmt.Sprintf(`{"id":"id %d","at":%q,"n":%d}`, rng.IntN(i/2+1), at(when-minutes(8*rng.Float64())), i)
		switch rng.IntN(50) {
		case 0:
			doc = doc[:len(doc)-1]
		case 1:
			doc = `{"id":"id 1"}`
		}
		recs = append(recs, values(doc)...)
	}
	run := func(size func() int, parallelism int) (out []string, sum marker.Counters) {
		cfg := small()
		cfg.Parallelism = parallelism
		cfg.Watermark.Delay = 20 * time.Minute
		r := newRun(t, cfg)
		for rest := recs; len(rest) > 0; {
			n := min(size(), len(rest))
			m := rng.IntN(n + 1)
			res := r.batchOf(rest[:m], rest[m:n])
			rest = rest[n:]
			sum.Add(res.Counters)
			for _, row := range r.main {
				out = append(out, row["id"].(string))
			}
		}
		return out, sum
	}
	want, sum := run(func() int { return len(recs) }, 1)
	if sum.Late != 0 || sum.Duplicate == 0 || sum.DeadLettered == 0 || !sum.Balanced() {
		t.Fatalf("%+v", sum)
	}
	for name, size := range map[string]func() int{
		"fixed":  func() int { return 777 },
		"random": func() int { return 1 + rng.IntN(3000) },
		"small":  func() int { return 1 + rng.IntN(40) },
	} {
		got, s := run(size, 3)
		// A key may come again after it has expired, the later the sooner the
		// watermark moves: compare the sets, and the counts that cannot change.
		if s.Read != sum.Read || s.DeadLettered != sum.DeadLettered || s.Late != 0 || !s.Balanced() {
			t.Errorf("%s: %+v, in one batch %+v", name, s, sum)
		}
		a, b := slices.Clone(want), slices.Clone(got)
		slices.Sort(a)
		slices.Sort(b)
		if !slices.Equal(slices.Compact(a), slices.Compact(b)) {
			t.Errorf("%s: %d ids, in one batch %d", name, len(b), len(a))
		}
	}
}

func TestDamagedStateIsRefused(t *testing.T) {
	r := newRun(t, small())
	r.batchOf(newLife(5).batch(), values(ev("x", -200)))
	d := r.tr.State()[0]
	snapshot, err := d.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	delta, err := d.Delta()
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(11, 1))
	for i := range 4000 {
		b := bytes.Clone(snapshot)
		switch i % 3 {
		case 0:
			b = b[:rng.IntN(len(b))]
		case 1:
			b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		default:
			b = append(b, byte(i))
		}
		if err := d.LoadSnapshot(b); !errors.Is(err, ErrStateCorrupt) {
			t.Fatalf("case %d of %d bytes: %v", i, len(b), err)
		}
	}
	if err := d.LoadSnapshot(delta); !errors.Is(err, ErrStateCorrupt) {
		t.Errorf("a delta as a snapshot: %v", err)
	}
	if err := d.ApplyDelta(snapshot); !errors.Is(err, ErrStateCorrupt) {
		t.Errorf("a snapshot as a delta: %v", err)
	}
	if err := d.LoadSnapshot(snapshot); err != nil {
		t.Error(err)
	}
}
