package operator

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTableBehavesLikeAMap(t *testing.T) {
	const seed = 8
	t.Logf("seed %d", seed)
	for _, withIDs := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(seed, 5))
		tab := newTable(withIDs, 3)
		type entry struct {
			k  key
			id string
		}
		model := map[entry]int64{}
		bound := int64(0)
		removed := 0
		gone := func(at int64) {
			if at >= bound {
				t.Fatalf("a key of time %d was removed, the bound is %d", at, bound)
			}
			removed++
		}
		for step := range 60_000 {
			// Few distinct high halves make long probe runs and shared hashes.
			e := entry{k: key{rng.Uint64N(50), rng.Uint64N(400)}}
			if withIDs {
				e.id = fmt.Sprint(rng.IntN(3))
			}
			at := bound - 20 + rng.Int64N(1000)
			switch rng.IntN(10) {
			case 0:
				tab.remove(e.k, []byte(e.id))
				delete(model, e)
			case 1:
				if step%100 == 0 {
					bound += 40
				}
				tab.sweep(rng.IntN(segments), &bounds{removable: bound, removed: gone})
			default:
				tab.insert(e.k, []byte(e.id), at, &bounds{alive: math.MaxInt64, removable: bound, removed: gone})
				model[e] = at
			}
		}
		if removed == 0 {
			t.Error("nothing was ever removed")
		}
		n := 0
		for e, at := range model {
			got := tab.get(e.k, []byte(e.id))
			if got != at && (got != vacant || at >= bound) {
				t.Fatalf("%v is %d, want %d", e, got, at)
			}
			if got != vacant {
				n++
			}
		}
		all := 0
		_ = tab.each(func(k key, id []byte, at int64) error {
			if model[entry{k, string(id)}] != at {
				t.Fatalf("%v %s is there with %d", k, id, at)
			}
			all++
			return nil
		})
		if all != n {
			t.Errorf("%d keys are listed, %d are found", all, n)
		}
	}
}

func TestTimesOfEveryDistanceAreKeptExactly(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 6))
	for name, spread := range map[string]int64{"minutes": 1 << 30, "hours": 1 << 36, "weeks": 1 << 42, "centuries": 1 << 52, "all": math.MaxInt64} {
		tab := newTable(false, 3)
		bound := int64(math.MinInt64 + 1)
		b := &bounds{alive: math.MaxInt64, removable: bound, removed: func(at int64) { t.Fatalf("%s: a key of time %d was removed", name, at) }}
		model := map[key]int64{}
		for i := range 40_000 {
			k := key{rng.Uint64N(20_000), rng.Uint64N(2)}
			at := now + rng.Int64N(spread) - spread/2 + int64(i)*spread/40_000/4
			switch {
			case i%5_000 == 4_999:
				at = []int64{math.MinInt64 + 1, math.MaxInt64 - 1, 0, -1}[i/5_000%4]
			case i%7 == 0:
				tab.remove(k, nil)
				delete(model, k)
				continue
			}
			before, ok := tab.insert(k, nil, at, b)
			if was, there := model[k]; !ok || there && before != was || !there && before != vacant {
				t.Fatalf("%s: %v was %d, the table says %d", name, k, was, before)
			}
			model[k] = at
		}
		if tab.size() != len(model) {
			t.Errorf("%s: %d keys, want %d", name, tab.size(), len(model))
		}
		for k, at := range model {
			if got := tab.get(k, nil); got != at {
				t.Fatalf("%s: %v is %d, want %d", name, k, got, at)
			}
		}
	}
}

func TestASegmentHoldsTheTimesThatItIsMadeFor(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 6))
	for range 100_000 {
		first := int64(rng.Uint64()) | 1
		last := first + rng.Int64N(math.MaxInt64)>>rng.IntN(62)
		if last < first {
			last = math.MaxInt64
		}
		s := timesOf(first, last, rng.IntN(segments))
		if !s.holds(first) || !s.holds(last) || s.holds(vacant) || s.base == first {
			t.Fatalf("%+v for %d to %d", s, first, last)
		}
	}
	// Twenty minutes, the memory of a delay of ten, take four bytes; a day five.
	if s := timesOf(now-minutes(20), now, segments-1); s.timeBytes != 4 || !s.holds(now+minutes(20)) {
		t.Errorf("%+v", s)
	}
	if s := timesOf(now-minutes(24*60), now, segments-1); s.timeBytes != 5 {
		t.Errorf("%+v", s)
	}
}

func TestMemoryOfExpiredKeysIsGivenBack(t *testing.T) {
	cfg := small()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d := tr.State()[0].(*dedup)
	empty := d.Bytes()
	mustBegin(t, d, now)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 200_000 {
		d.add(&rowKey{key: key{rng.Uint64(), rng.Uint64()}, uuid: i%2 == 0}, nil, now)
	}
	full := d.Bytes()
	if d.Keys() != 200_000 {
		t.Fatalf("%d keys", d.Keys())
	}
	for i := range 100 {
		mustBegin(t, d, now+minutes(60)+int64(i))
	}
	if d.Keys() != 0 || len(d.counts) != 0 || d.Bytes() > empty+full/4 {
		t.Errorf("%d keys, %d bytes of %d (empty: %d)", d.Keys(), d.Bytes(), full, empty)
	}
}

func TestSteadyStreamsUseBoundedMemory(t *testing.T) {
	tr, err := New(small())
	if err != nil {
		t.Fatal(err)
	}
	d := tr.State()[0].(*dedup)
	rng := rand.New(rand.NewPCG(2, 1))
	var most int64
	for b := range 300 {
		when := now + minutes(float64(b))
		mustBegin(t, d, when-minutes(10))
		for range 2000 {
			d.add(&rowKey{key: key{rng.Uint64(), rng.Uint64()}, uuid: true}, nil, when)
		}
		if b > 60 {
			most = max(most, d.Bytes())
		}
	}
	// 20 minutes are remembered: 42,000 keys. Small segments waste more.
	if d.Keys() > 45_000 || most > 45_000*60+3*segments*80 {
		t.Errorf("%d keys, %d bytes at most", d.Keys(), most)
	}
}

// threadTime is the CPU time of this thread: a busy machine does not change it.
func threadTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDedup remembers a million new keys (ten million with
// WEIR_BENCH_KEYS=10000000) and looks them up again; it reports bytes a key
// and the longest single step of 1,000 keys, in CPU time of the thread.
func BenchmarkDedup(b *testing.B) {
	n := 1_000_000
	if s := os.Getenv("WEIR_BENCH_KEYS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	tr, err := New(small())
	if err != nil {
		b.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		d := tr.State()[0].(*dedup)
		d.Reset()
		mustBegin(b, d, now)
		rng := rand.New(rand.NewPCG(7, 7))
		var longest, add, look, load time.Duration
		step := func(f func(k *rowKey)) (total time.Duration) {
			for i := 0; i < n; i += 1000 {
				start := threadTime(b)
				for range 1000 {
					f(&rowKey{key: key{rng.Uint64(), rng.Uint64()}, uuid: true})
				}
				took := threadTime(b) - start
				longest = max(longest, took)
				total += took
				if i%10_000 == 0 {
					d.settle()
				}
			}
			return total
		}
		add = step(func(k *rowKey) {
			if !d.add(k, nil, now) {
				b.Fatal("a new key is a duplicate")
			}
		})
		b.ReportMetric(float64(d.Bytes())/float64(n), "bytes/key")
		rng = rand.New(rand.NewPCG(7, 7))
		look = step(func(k *rowKey) {
			if d.add(k, nil, now) {
				b.Fatal("a key was forgotten")
			}
		})
		runtime.GC()
		start := threadTime(b)
		snapshot, err := d.Snapshot()
		if err != nil {
			b.Fatal(err)
		}
		write := threadTime(b) - start
		start = threadTime(b)
		if err := d.LoadSnapshot(snapshot); err != nil {
			b.Fatal(err)
		}
		load = threadTime(b) - start
		// Everything expires: how long are the sweeps?
		mustBegin(b, d, now)
		var sweep time.Duration
		for i := 0; d.Keys() > 0 || len(d.counts) > 0; i++ {
			start := threadTime(b)
			mustBegin(b, d, now+minutes(60))
			sweep = max(sweep, threadTime(b)-start)
		}
		b.ReportMetric(float64(add.Nanoseconds())/float64(n), "ns/add")
		b.ReportMetric(float64(look.Nanoseconds())/float64(n), "ns/look-up")
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-1000")
		b.ReportMetric(float64(sweep.Microseconds())/1000, "ms/longest-sweep")
		b.ReportMetric(write.Seconds(), "s/snapshot")
		b.ReportMetric(load.Seconds(), "s/load")
		b.ReportMetric(float64(len(snapshot))/float64(n), "snapshot-bytes/key")
	}
}
