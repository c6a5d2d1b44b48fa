package state

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
)

const queryID = "6b0f8c1e-0000-4000-8000-000000000001"

var ctx = context.Background()

// stream runs a dedup chain over random batches.
type stream struct {
	t    testing.TB
	tr   operator.Transform
	rng  *rand.Rand
	id   int64
	when int64
	mark marker.Watermark
}

func newStream(t testing.TB, seed uint64) *stream {
	t.Helper()
	return &stream{t: t, tr: newTransform(t), rng: rand.New(rand.NewPCG(seed, 1)), when: 1_777_000_000_000_000,
		mark: marker.Watermark{Micros: marker.MinTime}}
}

func newTransform(t testing.TB) operator.Transform {
	t.Helper()
	tr, err := operator.New(operator.Config{
		Columns: []operator.Column{
			{Name: "id", Path: "$.id", Type: "string", Required: true},
			{Name: "at", Path: "$.at", Type: "timestamptz", Required: true},
		},
		Watermark: &operator.Watermark{Column: "at", Delay: 10 * time.Minute, MaxFutureSkew: time.Hour},
		Dedup:     []string{"id"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func (s *stream) op() operator.Stateful { return s.tr.State()[0] }

// batch runs one batch of about n rows; the watermark moves on.
func (s *stream) batch(n int) {
	s.t.Helper()
	s.when += int64(s.rng.IntN(180)) * 1_000_000
	s.run(s.docs(n))
}

func (s *stream) docs(n int) []string {
	var docs []string
	for range n {
		id := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", s.rng.Uint32(), s.rng.IntN(1<<16), s.rng.IntN(1<<12), s.rng.IntN(1<<12), s.rng.Int64N(1<<48))
		if s.rng.IntN(3) == 0 {
			id = fmt.Sprintf("id %d", s.rng.IntN(5000))
		}
		at := time.UnixMicro(s.when - s.rng.Int64N(300_000_000)).UTC().Format(time.RFC3339Nano)
		docs = append(docs, fmt.Sprintf(`{"id":%q,"at":%q}`, id, at))
	}
	return docs
}

func (s *stream) run(docs []string) {
	s.t.Helper()
	drop := func(_ string, rec arrow.RecordBatch) error { rec.Release(); return nil }
	s.id++
	if err := s.tr.Begin(operator.Env{BatchID: s.id, BatchTimeMicros: s.when, Watermark: s.mark}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.tr.Process(kafkaRecord(docs), drop); err != nil {
		s.t.Fatal(err)
	}
	res, err := s.tr.Finish(drop)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mark = res.Watermark
}

// kafkaRecord are documents as they come from Kafka.
func kafkaRecord(docs []string) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, batch.KafkaSchema)
	defer b.Release()
	for i, d := range docs {
		b.Field(batch.ColTopic).(*array.StringBuilder).Append("t")
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(0)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(int64(i))
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(0)
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		b.Field(batch.ColKey).AppendNull()
		b.Field(batch.ColValue).(*array.BinaryBuilder).Append([]byte(d))
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(0)
		b.Field(batch.ColTopicID).AppendNull()
	}
	return b.NewRecordBatch()
}

// save saves the batch that was run last.
func (s *stream) save(st *Store, parent *marker.StateFile) *marker.StateFile {
	s.t.Helper()
	f, err := st.Save(ctx, queryID, s.op(), s.id, "a", parent)
	if err != nil {
		s.t.Fatal(err)
	}
	return &f
}

// keys are an operator's keys in an order that does not depend on its history.
func keys(t testing.TB, op operator.Stateful) []string {
	t.Helper()
	b, err := op.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return rowsOf(t, b)
}

func TestDeltaChainEqualsSnapshotAndLiveState(t *testing.T) {
	t.Run("whole", func(t *testing.T) { deltaChain(t, Options{}) })
	t.Run("in parts", func(t *testing.T) { deltaChain(t, Options{PartBytes: 5_000}) })
}

func deltaChain(t *testing.T, opts Options) {
	const seed = 31
	t.Logf("seed %d", seed)
	objects := objstore.NewMemory(clock.System{})
	st := NewStore(objects, opts)
	s := newStream(t, seed)
	var tip *marker.StateFile
	deltas, snapshots := 0, 0
	for i := range 150 {
		s.batch(s.rng.IntN(300))
		if s.rng.IntN(5) == 0 {
			// An attempt that came to nothing: saved, then undone and run again.
			if _, err := st.Save(ctx, queryID, s.op(), s.id, "lost", tip); err != nil {
				t.Fatal(err)
			}
			s.tr.Rollback()
			s.id--
			s.batch(s.rng.IntN(300))
		}
		tip = s.save(st, tip)
		if strings.HasSuffix(tip.Path, kindDelta) {
			deltas++
		} else {
			snapshots++
		}
		if tip.Keys != s.op().Keys() || tip.Operator != "dedup" || tip.Bytes == 0 {
			t.Fatalf("%+v", tip)
		}
		if i%10 == 9 {
			other := NewStore(objects, opts)
			op := newTransform(t).State()[0]
			if err := other.Load(ctx, queryID, op, *tip); err != nil {
				t.Fatal(err)
			}
			if got, want := keys(t, op), keys(t, s.op()); !slices.Equal(got, want) {
				t.Fatalf("version %d: loaded %d keys, live %d", s.id, len(got), len(want))
			}
			if op.Keys() != s.op().Keys() {
				t.Fatalf("version %d: %d keys are counted, live %d", s.id, op.Keys(), s.op().Keys())
			}
		}
		if i == 70 {
			// A restart in the middle: loaded state goes on as a delta.
			st = NewStore(objects, opts)
			mark, id, when := s.mark, s.id, s.when
			s.tr = newTransform(t)
			if err := st.Load(ctx, queryID, s.op(), *tip); err != nil {
				t.Fatal(err)
			}
			s.mark, s.id, s.when = mark, id, when
		}
		if i%25 == 24 {
			if err := st.Purge(ctx, *tip); err != nil {
				t.Fatal(err)
			}
		}
	}
	if deltas < 100 || snapshots < 3 {
		t.Errorf("%d deltas, %d snapshots: the test does not see both", deltas, snapshots)
	}
}

// build saves n versions with one parent each and gives them, oldest first.
func build(t *testing.T, objects objstore.Store, n int) (*stream, []marker.StateFile) {
	t.Helper()
	st, s := NewStore(objects, Options{}), newStream(t, 3)
	var files []marker.StateFile
	var tip *marker.StateFile
	for range n {
		s.batch(40)
		tip = s.save(st, tip)
		files = append(files, *tip)
	}
	return s, files
}

func TestABrokenChainIsToldApartFromAMissingOne(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	_, files := build(t, objects, 6)
	if !strings.HasSuffix(files[0].Path, kindSnapshot) || !strings.HasSuffix(files[5].Path, kindDelta) {
		t.Fatalf("%+v", files)
	}
	load := func(f marker.StateFile) error {
		op := newTransform(t).State()[0]
		err := NewStore(objects, Options{}).Load(ctx, queryID, op, f)
		if err != nil && op.Keys() != 0 {
			t.Errorf("%v left %d keys behind", err, op.Keys())
		}
		return err
	}
	if err := load(files[5]); err != nil {
		t.Fatal(err)
	}
	for i, f := range files {
		whole, err := objects.Get(ctx, f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if err := objects.Delete(ctx, f.Path); err != nil {
			t.Fatal(err)
		}
		if err := load(files[5]); !errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt) || !failure.Is(err, failure.Checkpoint) {
			t.Errorf("file %d missing: %v", i, err)
		}
		for name, data := range map[string][]byte{
			"empty": {}, "torn": whole[:len(whole)/2], "without its last byte": whole[:len(whole)-1], "longer": append(bytes.Clone(whole), 0),
			"flipped": flip(whole, len(whole)-3), "other header": flip(whole, 20), "zeros": make([]byte, len(whole)), "another version": mustGet(t, objects, files[(i+1)%6].Path),
		} {
			if err := objects.Put(ctx, f.Path, data); err != nil {
				t.Fatal(err)
			}
			if err := load(files[5]); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrMissing) {
				t.Errorf("file %d %s: %v", i, name, err)
			}
		}
		if err := objects.Put(ctx, f.Path, whole); err != nil {
			t.Fatal(err)
		}
	}
	if err := load(files[5]); err != nil {
		t.Fatal(err)
	}
	wrong := files[5]
	wrong.SHA256 = files[4].SHA256
	if err := load(wrong); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a marker with another checksum: %v", err)
	}
}

func flip(b []byte, at int) []byte {
	out := bytes.Clone(b)
	out[at] ^= 1
	return out
}

func mustGet(t *testing.T, s objstore.Store, key string) []byte {
	t.Helper()
	b, err := s.Get(ctx, key)
	if errors.Is(err, objstore.ErrNotExist) {
		return []byte("gone")
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// forge writes a file whose checksum is right and whose header was changed.
func forge(t *testing.T, objects objstore.Store, f marker.StateFile, change func(*header)) marker.StateFile {
	t.Helper()
	data := mustGet(t, objects, f.Path)
	line, payload, _ := bytes.Cut(data, []byte("\n"))
	h := &header{}
	if err := json.Unmarshal(line, h); err != nil {
		t.Fatal(err)
	}
	change(h)
	line, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	data = append(append(line, '\n'), payload...)
	if err := objects.Put(ctx, f.Path, data); err != nil {
		t.Fatal(err)
	}
	f.SHA256 = marker.Hash(data)
	return f
}

func TestStateOfAnotherQueryOrVersionStopsAndIsNotRebuilt(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	_, files := build(t, objects, 2)
	op := newTransform(t).State()[0]
	if err := NewStore(objects, Options{}).Load(ctx, "another-query", op, files[1]); !errors.Is(err, ErrForeign) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrMissing) {
		t.Errorf("another query: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*header)
		want   error
	}{
		"newer format":           {func(h *header) { h.Format = formatPacked + 1 }, ErrForeign},
		"a delta of format 2":    {func(h *header) { h.Format = formatParts }, ErrCorrupt},
		"a delta of format 3":    {func(h *header) { h.Format = formatPacked }, ErrCorrupt},
		"another operator":       {func(h *header) { h.Operator = "sessions" }, ErrCorrupt},
		"another version":        {func(h *header) { h.Version = 7 }, ErrCorrupt},
		"another kind":           {func(h *header) { h.Kind = kindSnapshot }, ErrCorrupt},
		"no parent":              {func(h *header) { h.Parent = "" }, ErrCorrupt},
		"itself as parent":       {func(h *header) { h.Parent = files[1].Path }, ErrCorrupt},
		"wrong number of deltas": {func(h *header) { h.Deltas = 9 }, ErrCorrupt},
		"wrong size unpacked":    {func(h *header) { h.RawBytes++ }, ErrCorrupt},
		"negative size unpacked": {func(h *header) { h.RawBytes = -1 }, ErrCorrupt},
		"huge size unpacked":     {func(h *header) { h.RawBytes = 1 << 60 }, ErrCorrupt},
		"wrong size packed":      {func(h *header) { h.PayloadBytes-- }, ErrCorrupt},
	} {
		objects := objstore.NewMemory(clock.System{})
		_, files := build(t, objects, 2)
		f := forge(t, objects, files[1], c.change)
		if err := NewStore(objects, Options{}).Load(ctx, queryID, op, f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADeltaNeverGoesOnAParentThatThisProcessDoesNotKnow(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	s, files := build(t, objects, 3)
	fresh := NewStore(objects, Options{}) // after a restart whose load failed and whose state was rebuilt
	s.batch(10)
	f := s.save(fresh, &files[2])
	if !strings.HasSuffix(f.Path, kindSnapshot) {
		t.Errorf("%s", f.Path)
	}
	s.batch(10)
	if f = s.save(fresh, f); !strings.HasSuffix(f.Path, kindDelta) {
		t.Errorf("%s", f.Path)
	}
	if _, err := fresh.Save(ctx, queryID, s.op(), 1, "b", f); !failure.Is(err, failure.Runtime) {
		t.Errorf("a version that goes back: %v", err)
	}
}

func TestSavingTheSameAttemptAgainIsNoError(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	st, s := NewStore(objects, Options{}), newStream(t, 4)
	s.batch(50)
	a, err := st.Save(ctx, queryID, s.op(), 1, "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := st.Save(ctx, queryID, s.op(), 1, "x", nil)
	if err != nil || a != b {
		t.Errorf("%+v %+v %v", a, b, err)
	}
	s.run(s.docs(5))
	if _, err := st.Save(ctx, queryID, s.op(), 1, "x", nil); !failure.Is(err, failure.Runtime) {
		t.Errorf("other contents under the same attempt: %v", err)
	}
}

func TestPurgeKeepsWhatTheLastVersionsNeedAndPendingAttempts(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	st, s := NewStore(objects, Options{}), newStream(t, 9)
	var tip *marker.StateFile
	var all []marker.StateFile
	for range 90 {
		s.batch(60)
		if _, err := st.Save(ctx, queryID, s.op(), s.id, "lost", tip); err != nil {
			t.Fatal(err)
		}
		tip = s.save(st, tip)
		all = append(all, *tip)
	}
	pending := all[len(all)-1] // its commit is not known yet
	tip = &all[len(all)-2]
	for _, other := range []string{"state/dedup/notes.txt", "state/sessions/1-a.snapshot", "state/dedup/1-a.delta.bak", "offsets/1"} {
		if err := objects.Put(ctx, other, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	purge := func(st *Store) []string {
		if err := st.Purge(ctx, *tip); err != nil {
			t.Fatal(err)
		}
		infos, err := objects.List(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, i := range infos {
			out = append(out, i.Key)
		}
		return out
	}
	left := purge(st)
	for _, must := range []string{"state/dedup/notes.txt", "state/sessions/1-a.snapshot", "state/dedup/1-a.delta.bak", "offsets/1", pending.Path, "state/dedup/90-lost.delta"} {
		if !slices.Contains(left, must) && !slices.Contains(left, strings.Replace(must, "delta", "snapshot", 1)) {
			t.Errorf("%s was removed", must)
		}
	}
	if len(left) > KeepVersions+DeltasMax+8 || len(left) > 120 {
		t.Errorf("%d files are left", len(left))
	}
	for _, f := range left {
		if strings.HasPrefix(f, "state/dedup/8") && strings.Contains(f, "-lost") {
			t.Errorf("%s was of no use", f)
		}
	}
	// Every one of the last versions is loadable by a fresh process, and a
	// fresh process purges to the same files.
	for _, f := range all[len(all)-1-KeepVersions:] {
		if err := NewStore(objects, Options{}).Load(ctx, queryID, newTransform(t).State()[0], f); err != nil {
			t.Errorf("%s: %v", f.Path, err)
		}
	}
	if again := purge(NewStore(objects, Options{})); !slices.Equal(again, left) {
		t.Errorf("a fresh process leaves %d files, not %d", len(again), len(left))
	}
	// A needed file that is gone: nothing more is removed.
	h, err := NewStore(objects, Options{}).header(ctx, "dedup", tip.Path)
	if err != nil {
		t.Fatal(err)
	}
	if h.Kind == kindDelta {
		if err := objects.Delete(ctx, h.Parent); err != nil {
			t.Fatal(err)
		}
		if err := NewStore(objects, Options{}).Purge(ctx, *tip); !errors.Is(err, ErrMissing) {
			t.Errorf("%v", err)
		}
	}
}

func TestAStoreThatFailsIsNotTakenForAMissingFile(t *testing.T) {
	objects := objstore.NewMemory(clock.System{})
	_, files := build(t, objects, 3)
	down := errors.New("connection refused")
	err := NewStore(failing{objects, down}, Options{}).Load(ctx, queryID, newTransform(t).State()[0], files[2])
	if !errors.Is(err, down) || errors.Is(err, ErrMissing) || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	if err := NewStore(failing{objects, down}, Options{}).Purge(ctx, files[2]); !errors.Is(err, down) {
		t.Errorf("%v", err)
	}
}

type failing struct {
	objstore.Store
	err error
}

func (f failing) Get(context.Context, string) ([]byte, error) { return nil, f.err }

func TestKeysAndTheirParsingAgree(t *testing.T) {
	k := key("dedup", 42, "9f-ab", kindDelta)
	if op, v, kind, ok := parseKey(k); !ok || op != "dedup" || v != 42 || kind != kindDelta {
		t.Errorf("%s: %s %d %s %t", k, op, v, kind, ok)
	}
	for _, bad := range []string{"", "state/", "state/dedup/1.delta", "state/dedup/-a.delta", "state/dedup/x-a.delta", "state/dedup/1-.delta", "state/dedup/1-a.txt", "state/1-a.delta",
		"offsets/1-a.delta", "state/dedup/01-a.delta", "state/dedup/+1-a.delta"} {
		if _, _, _, ok := parseKey(bad); ok {
			t.Errorf("%q is taken for a state file", bad)
		}
	}
}

func BenchmarkSaveAndLoad(b *testing.B) {
	objects := objstore.NewMemory(clock.System{})
	st, s := NewStore(objects, Options{}), newStream(b, 1)
	s.run(s.docs(200_000))
	for b.Loop() {
		s.id++
		f, err := st.Save(ctx, queryID, s.op(), s.id, "a", nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := st.Load(ctx, queryID, newTransform(b).State()[0], f); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(f.Bytes)/float64(f.Keys), "bytes/key")
	}
}
