package position

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

const (
	eqiad = "eqiad.mediawiki.recentchange"
	codfw = "codfw.mediawiki.recentchange"
)

func id(parts ...string) string { return "[" + strings.Join(parts, ",") + "]" }

func at(topic string, ts int64) string {
	return fmt.Sprintf(`{"topic":%q,"partition":0,"timestamp":%d}`, topic, ts)
}

func off(topic string, o int64) string {
	return fmt.Sprintf(`{"topic":%q,"partition":0,"offset":%d}`, topic, o)
}

// after merges ids one after the other.
func after(t *testing.T, ids ...string) Vector {
	t.Helper()
	var v Vector
	var p Parser
	for _, s := range ids {
		parts, ok := p.Parse([]byte(s))
		if !ok {
			t.Fatalf("not an array of positions: %s", s)
		}
		v.Merge(parts)
	}
	return v
}

func TestTheOtherDataCentresPositionOutlivesAnIDThatDoesNotKnowIt(t *testing.T) {
	v := after(t,
		id(at(eqiad, 1000), off(codfw, -1)),
		id(off(eqiad, -1), at(codfw, 500)), // a slower data centre, and a server that forgot the first
		id(at(codfw, 600)))
	want := id(at(codfw, 600), at(eqiad, 1000))
	if got := v.LastEventID(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAResumeAsksForTheLastEventsOwnTimeOrEarlier(t *testing.T) {
	v := after(t, id(at(eqiad, 1_000_001)))
	if got := v.Resume(0, nil).LastEventID(); got != id(at(eqiad, 1_000_000)) {
		t.Error(got)
	}
	if got := v.Resume(10*time.Second, nil).LastEventID(); got != id(at(eqiad, 990_000)) {
		t.Error(got)
	}
}

func TestAPartitionOfWhichOnlyTheEndIsKnownIsResumedByTime(t *testing.T) {
	// "offset -1" on a resume would skip what codfw sent while we were away.
	v := after(t, id(off(codfw, -1), at(eqiad, 1_000_001)))
	if got := v.Resume(0, nil).LastEventID(); got != id(at(codfw, 1_000_000), at(eqiad, 1_000_000)) {
		t.Error(got)
	}
	// With offsets alone nothing better is known than the end.
	v = after(t, id(off(codfw, -1), off(eqiad, 77)))
	if got := v.Resume(time.Minute, nil).LastEventID(); got != id(off(codfw, -1), off(eqiad, 77)) {
		t.Error(got)
	}
	if !after(t, id(off(codfw, -1))).Resume(0, nil).Empty() {
		t.Error("nothing is known, and yet a position is sent")
	}
}

func TestTheOrderOfTheObjectsDoesNotMatter(t *testing.T) {
	a := after(t, id(at(eqiad, 5), at(codfw, 7)))
	b := after(t, id(at(codfw, 7), at(eqiad, 5)))
	if a.LastEventID() != b.LastEventID() {
		t.Errorf("%s %s", a.LastEventID(), b.LastEventID())
	}
}

func TestAStrayTimeInTheFutureDoesNotTakeThePositionWithIt(t *testing.T) {
	v := after(t, id(at(eqiad, 1000)), id(at(eqiad, 4_000_000_000_000)), id(at(eqiad, 2000)))
	if got := v.LastEventID(); got != id(at(eqiad, 2000)) {
		t.Error(got)
	}
}

func TestAnOpaqueIDIsKeptVerbatim(t *testing.T) {
	var p Parser
	for _, s := range []string{"42", `{"topic":"a"}`, `[]`, `[1]`, `[{"topic":"a","partition":0}]`, `[{"topic":"","partition":0,"offset":1}]`, `[{"partition":0,"offset":1}]`,
		`[{"topic":"a","partition":-1,"offset":1}]`, id(at(eqiad, 1), at(eqiad, 2)), "né\t", `[{"topic":"a","partition":0,"offset":1}`} {
		if _, ok := p.Parse([]byte(s)); ok {
			t.Errorf("%s was understood", s)
			continue
		}
		var v Vector
		v.SetOpaque(s)
		if got := v.Resume(time.Hour, nil).LastEventID(); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}

func TestTheFastSpellingAndAnyOtherAreReadAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 1))
	for range 3000 {
		var parts []string
		for i := range 1 + rng.IntN(6) {
			n := rng.Int64N(1<<40) - 2
			kind := []string{"timestamp", "offset"}[rng.IntN(2)]
			parts = append(parts, fmt.Sprintf(`{"topic":"t%d","partition":%d,"%s":%d}`, i%5, rng.IntN(3), kind, n))
		}
		s := id(parts...)
		if rng.IntN(3) == 0 {
			b := []byte(s)
			b[rng.IntN(len(b))] = `0-"x,}]1`[rng.IntN(8)]
			s = string(b)
		}
		var p Parser
		got, ok := p.Parse([]byte(s))
		want, wantOK := parse([]byte(s))
		if ok != wantOK || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s: %v %v, want %v %v", s, got, ok, want, wantOK)
		}
	}
}

func TestDisorderIsLearnedButAReconnectAndAStrayAreNone(t *testing.T) {
	var d Disorder
	see := func(ts int64) { d.See(Part{Key: Key{eqiad, 0}, Timed: true, Value: ts}) }
	see(100_000)
	see(93_000)
	see(101_000)
	if d.Most != 7*time.Second {
		t.Errorf("%v", d.Most)
	}
	d.Reset()
	see(50_000)
	see(51_000)
	see(9_000_000_000) // a stray
	see(52_000)
	see(48_000)
	if d.Most != 7*time.Second {
		t.Errorf("%v", d.Most)
	}
	s := State{DisorderMillis: 400_000}
	if s.Overlap(10*time.Second) != 400*time.Second || s.Overlap(time.Hour) != time.Hour {
		t.Error("the overlap is not the greater of the two")
	}
}

// TestAResumeNeverSkipsWhateverTheOrderOfTimes plays logs of two data centres
// with times in any order to a server that looks for the first record at or
// after a time, cuts everywhere and asks whether everything after the cut comes.
func TestAResumeNeverSkipsWhateverTheOrderOfTimes(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		type rec struct {
			topic string
			ts    int64
		}
		var log []rec
		for range 40 {
			log = append(log, rec{[]string{eqiad, codfw}[rng.IntN(2)], 1_000_000 + rng.Int64N(900_000)})
		}
		var v Vector
		var p Parser
		last := map[string]int64{}
		for cut, r := range log {
			last[r.topic] = r.ts + 1
			var parts []string
			for _, topic := range []string{codfw, eqiad} {
				if ts, ok := last[topic]; ok {
					parts = append(parts, at(topic, ts))
				} else {
					parts = append(parts, off(topic, -1))
				}
			}
			ps, _ := p.Parse([]byte(id(parts...)))
			v.Merge(ps)
			from := v.Resume(0, nil)
			for i := cut + 1; i < len(log); i++ {
				q, _ := from.Part(Key{log[i].topic, 0})
				first := -1
				for j := range log {
					if log[j].topic == log[i].topic && log[j].ts >= q.Value {
						first = j
						break
					}
				}
				if _, seen := last[log[i].topic]; seen && (first < 0 || first > i) {
					t.Fatalf("seed %d: cut after %d: record %d is skipped (resume %s)", seed, cut, i, from.LastEventID())
				}
			}
		}
	}
}

func ident(n int) Ident { return IdentOf(fmt.Appendf(nil, "k%d", n), nil) }

func TestAFilterDropsEachEventAsOftenAsItWasTaken(t *testing.T) {
	w := NewWindow(100)
	for _, n := range []int{1, 2, 2, 3} {
		w.Add(ident(n), &Part{Key: Key{eqiad, 0}, Timed: true, Value: int64(1000 + n)}, int64(n))
	}
	f := NewFilter(w.Since(Vector{}, 0))
	var got []bool
	for _, n := range []int{2, 2, 2, 4, 1, 3, 3} {
		got = append(got, f.Drop(ident(n)))
	}
	if fmt.Sprint(got) != "[true true false false true true false]" {
		t.Error(got)
	}
	if !f.Spent() {
		t.Error("an empty filter goes on")
	}
}

func TestAFilterEndsEvenIfTheServerDoesNotRepeat(t *testing.T) {
	w := NewWindow(10)
	w.Add(ident(1), nil, 1)
	f := NewFilter(w.Since(Vector{}, 0))
	n := 0
	for !f.Spent() {
		n++
	}
	if n > filterSlack+10 {
		t.Errorf("consulted %d times", n)
	}
}

func TestTheWindowKnowsWhatAResumeSendsAgain(t *testing.T) {
	w := NewWindow(100)
	for i, p := range []struct {
		topic string
		ts    int64
	}{{eqiad, 10}, {codfw, 500}, {eqiad, 30}, {eqiad, 20}, {codfw, 510}} {
		w.Add(ident(i), &Part{Key: Key{p.topic, 0}, Timed: true, Value: p.ts + 1}, int64(i))
	}
	from := Vector{Parts: []Part{{Key{codfw, 0}, true, 505}, {Key{eqiad, 0}, true, 20}}}
	if n := len(w.Since(from, 0)); n != 3 { // from the first eqiad at or after 20
		t.Errorf("%d entries", n)
	}
}

func TestAFullWindowRaisesTheResumeSoThatNothingDoubles(t *testing.T) {
	w := NewWindow(3)
	for i := range 10 {
		w.Add(ident(i), &Part{Key: Key{eqiad, 0}, Timed: true, Value: int64(1000*i) + 1}, int64(i))
	}
	if w.Len() != 3 || w.Overflow != 7 {
		t.Errorf("%d entries, %d pushed out", w.Len(), w.Overflow)
	}
	v := Vector{Parts: []Part{{Key{eqiad, 0}, true, 9001}}}
	from := v.Resume(time.Minute, w.Low())
	if p, _ := from.Part(Key{eqiad, 0}); p.Value != 6001 {
		t.Errorf("%+v", p)
	}
	// Losing nothing outranks doubling nothing.
	v = Vector{Parts: []Part{{Key{eqiad, 0}, true, 3001}}}
	if p, _ := v.Resume(time.Minute, w.Low()).Part(Key{eqiad, 0}); p.Value != 3000 {
		t.Errorf("%+v", p)
	}
}

func TestAStoredWindowIsTheSameWindow(t *testing.T) {
	w := NewWindow(100)
	for i := range 50 {
		var p *Part
		if i%5 > 0 {
			p = &Part{Key: Key{[]string{eqiad, codfw}[i%2], int32(i % 3)}, Timed: true, Value: int64(i)}
		}
		w.Add(ident(i), p, int64(i))
	}
	b, err := json.Marshal(w.Store(w.Tail(40, 5)))
	if err != nil {
		t.Fatal(err)
	}
	var r Recent
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	got := NewWindow(100)
	if err := got.Load(r); err != nil {
		t.Fatal(err)
	}
	want := w.Tail(40, 5)
	if got.Len() != len(want) {
		t.Fatalf("%d entries, want %d", got.Len(), len(want))
	}
	for i, e := range got.Tail(100, 0) {
		x := want[i]
		if e.Ident != x.Ident || e.pos != x.pos || (e.slot == noSlot) != (x.slot == noSlot) || (e.slot != noSlot && got.keys[e.slot] != w.keys[x.slot]) {
			t.Errorf("entry %d: %+v %+v", i, e, x)
		}
	}
	for _, bad := range []Recent{{Entries: "!"}, {Entries: "AAAA"}, {Entries: r.Entries}} {
		if NewWindow(10).Load(bad) == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

func TestAUUIDIsRecognisedHoweverItIsSpelled(t *testing.T) {
	a := IdentOf([]byte("eccfc9ef-1970-4300-b25a-06f1cfe131b0"), nil)
	if a != IdentOf([]byte("ECCFC9EF-1970-4300-B25A-06F1CFE131B0"), []byte("x")) {
		t.Error("upper case is another event")
	}
	if IdentOf(nil, []byte("x")) == IdentOf([]byte("x"), nil) || IdentOf(nil, []byte("x")) != IdentOf(nil, []byte("x")) {
		t.Error("bytes and keys are mixed up")
	}
}

func open(t *testing.T, dir string) *File {
	t.Helper()
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func TestASavedPositionIsReadBackAndBelongsToItsStream(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ingest")
	f := open(t, dir)
	if s, err := f.Load(); s != nil || err != nil {
		t.Fatal(s, err)
	}
	s := &State{Version: StateVersion, URL: StreamURL("https://u:p@h/v2/stream/a?since=5"), Topic: "w", Seq: 9, Position: after(t, id(at(eqiad, 5), off(codfw, -1)))}
	for range 3 {
		if err := f.Save(s); err != nil {
			t.Fatal(err)
		}
	}
	got, err := f.Load()
	if err != nil || got.Position.LastEventID() != s.Position.LastEventID() || got.Seq != 9 {
		t.Fatalf("%+v %v", got, err)
	}
	if err := got.Belongs("https://h/v2/stream/a?since=77", "w", "x"); err != nil {
		t.Error(err)
	}
	for _, other := range [][2]string{{"https://h/v2/stream/b", "w"}, {"https://h/v2/stream/a", "v"}} {
		err := got.Belongs(other[0], other[1], "x")
		if !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%v: %v", other, err)
		}
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
}

func TestAPositionThatIsTornOrForeignIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	for _, body := range []string{"", "{", `{"version":1`, `{"version":1}x`, `{"version":2}`, `{}`, "\x00\x00\x00", `{"version":1,"position":{"parts":[{"topic":"a"}]}}`} {
		if err := os.WriteFile(f.Path(), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Load(); !failure.Is(err, failure.Checkpoint) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestASecondIngestionOnTheSamePositionIsRefused(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	if _, err := Open(dir); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	f.Close()
	open(t, dir)
}

func TestWhatACrashLeftBesideThePositionIsRemoved(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, FileName+".tmp-0123")
	if err := os.WriteFile(left, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there")
	}
}

func TestStateVersion1IsReadForEver(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "position-v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Decode(b, "testdata")
	if err != nil {
		t.Fatal(err)
	}
	w := NewWindow(10)
	if err := w.Load(s.Recent); err != nil {
		t.Fatal(err)
	}
	if s.Position.LastEventID() != id(off(codfw, -1), at(eqiad, 1700000000001)) || s.Seq != 12 || s.DisorderMillis != 7000 || w.Len() != 2 {
		t.Errorf("%+v, %d remembered", s, w.Len())
	}
}
