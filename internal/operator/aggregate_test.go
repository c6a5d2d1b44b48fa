package operator

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// edit is a row of the tests: what a silver table has.
type edit struct {
	at         int64 // seconds
	wiki, user string
	title      string // empty is null
	size       int64
}

var editSchema = arrow.NewSchema([]arrow.Field{
	{Name: "event_time", Type: batch.Timestamp},
	{Name: "wiki", Type: arrow.BinaryTypes.String},
	{Name: "user", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "title", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "size", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
}, nil)

const second = int64(1_000_000)

func editRecord(rows []edit) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, editSchema)
	defer b.Release()
	for _, r := range rows {
		b.Field(0).(*array.TimestampBuilder).Append(arrow.Timestamp(r.at * second))
		b.Field(1).(*array.StringBuilder).Append(r.wiki)
		for i, s := range []string{r.user, r.title} {
			if s == "" {
				b.Field(2 + i).AppendNull()
			} else {
				b.Field(2 + i).(*array.StringBuilder).Append(s)
			}
		}
		b.Field(4).(*array.Int64Builder).Append(r.size)
	}
	return b.NewRecordBatch()
}

var editColumns = []Aggregate{
	{Name: "edits", Function: Count},
	{Name: "titled", Function: Count, Column: "title"},
	{Name: "bytes", Function: Sum, Column: "size"},
	{Name: "least", Function: Min, Column: "size"},
	{Name: "greatest", Function: Max, Column: "title"},
	{Name: "first_title", Function: First, Column: "title"},
	{Name: "last_size", Function: Last, Column: "size"},
	{Name: "pages", Function: ApproxCountDistinct, Column: "title"},
	{Name: "some", Function: CollectSet, Column: "title", Limit: 2},
	{Name: "mean", Function: Avg, Column: "size"},
}

func sessionStage(gap time.Duration) Aggregation {
	return Aggregation{Session: &SessionWindow{Gap: gap}, Keys: []string{"wiki", "user"}, Columns: editColumns}
}

func windowStage(duration, slide time.Duration) Aggregation {
	return Aggregation{Window: &TimeWindow{Duration: duration, Slide: slide}, Keys: []string{"wiki"}, Columns: editColumns}
}

func newAggregated(t testing.TB, stages ...Aggregation) *aggregated {
	t.Helper()
	rows, err := NewTableRows(TableRows{Schema: editSchema, TimeColumn: "event_time"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := NewAggregated(rows, "event_time", stages)
	if err != nil {
		t.Fatal(err)
	}
	kept(t, a, t.TempDir())
	return a.(*aggregated)
}

// runner plays batches through a transform.
type runner struct {
	t         testing.TB
	a         *aggregated
	watermark marker.Watermark
	batch     int64
	out       []string
	counters  marker.Counters
}

func newRunner(t testing.TB, a *aggregated) *runner {
	return &runner{t: t, a: a, watermark: marker.Watermark{Micros: marker.MinTime}}
}

// run processes a batch without making it final; upstream in seconds.
func (r *runner) run(upstream int64, rows ...[]edit) (Result, []string) {
	r.t.Helper()
	up := upstream * second
	if err := r.a.Begin(Env{BatchID: r.batch, Watermark: r.watermark, Upstream: &up}); err != nil {
		r.t.Fatal(err)
	}
	var out []string
	emit := func(output string, rec arrow.RecordBatch) error {
		defer rec.Release()
		if output != Main {
			r.t.Fatalf("rows for %s", output)
		}
		out = append(out, rowTexts(rec)...)
		return nil
	}
	for _, part := range rows {
		if err := r.a.Process(editRecord(part), emit); err != nil {
			r.t.Fatal(err)
		}
	}
	res, err := r.a.Finish(emit)
	if err != nil {
		r.t.Fatal(err)
	}
	if int64(len(out)) != res.Counters.Emitted || !res.Counters.Balanced() {
		r.t.Fatalf("%d rows were emitted, the counts are %+v", len(out), res.Counters)
	}
	return res, out
}

func (r *runner) commit(upstream int64, rows ...[]edit) {
	r.t.Helper()
	res, out := r.run(upstream, rows...)
	r.out = append(r.out, out...)
	r.watermark = res.Watermark
	r.counters.Add(res.Counters)
	r.batch++
}

// rowTexts prints rows by their values, column by column.
func rowTexts(rec arrow.RecordBatch) []string {
	out := make([]string, rec.NumRows())
	for row := range out {
		var parts []string
		for i, c := range rec.Columns() {
			text := c.ValueStr(row)
			if ts, ok := c.(*array.Timestamp); ok && ts.IsValid(row) {
				text = fmt.Sprintf("%d", int64(ts.Value(row)))
			}
			parts = append(parts, rec.ColumnName(i)+"="+text)
		}
		out[row] = strings.Join(parts, " ")
	}
	return out
}

// oracleGroup is a group of the oracle: its rows, and nothing computed yet.
type oracleGroup struct {
	key        string
	start, end int64 // seconds
	rows       []edit
}

// oracleSessions sorts the rows of each key and cuts them where two are further
// apart than the gap.
func oracleSessions(rows []edit, gap int64) []oracleGroup {
	by := map[string][]edit{}
	for _, r := range rows {
		k := fmt.Sprintf("wiki=%s user=%s", r.wiki, cmp.Or(r.user, "(null)"))
		by[k] = append(by[k], r)
	}
	var out []oracleGroup
	for k, list := range by {
		slices.SortFunc(list, func(a, b edit) int { return cmp.Compare(a.at, b.at) })
		from := 0
		for i := 1; i <= len(list); i++ {
			if i == len(list) || list[i].at-list[i-1].at > gap {
				out = append(out, oracleGroup{k, list[from].at, list[i-1].at + gap, list[from:i]})
				from = i
			}
		}
	}
	return out
}

func oracleWindows(rows []edit, duration, slide int64) []oracleGroup {
	type id struct {
		key   string
		start int64
	}
	by := map[id][]edit{}
	for _, r := range rows {
		for start := -10_000 * slide; start <= r.at; start += slide {
			if r.at < start+duration {
				k := id{"wiki=" + r.wiki, start}
				by[k] = append(by[k], r)
			}
		}
	}
	var out []oracleGroup
	for k, list := range by {
		out = append(out, oracleGroup{k.key, k.start, k.start + duration, list})
	}
	return out
}

// text computes the aggregates in the plainest way.
func (g oracleGroup) text(bounds string) string {
	titled, sum := 0, int64(0)
	least, greatest := g.rows[0].size, ""
	titles := map[string]bool{}
	byTime := slices.Clone(g.rows)
	for _, r := range g.rows {
		sum += r.size
		least = min(least, r.size)
		if r.title != "" {
			titled++
			greatest = max(greatest, r.title)
			titles[r.title] = true
		}
	}
	slices.SortFunc(byTime, func(a, b edit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.size, b.size)) })
	lastSize := byTime[len(byTime)-1].size
	slices.SortFunc(byTime, func(a, b edit) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.title, b.title)) })
	first := "(null)"
	for _, r := range byTime {
		if r.title != "" {
			first = r.title
			break
		}
	}
	some := slices.Sorted(maps.Keys(titles))
	some = some[:min(2, len(some))]
	quoted := make([]string, len(some))
	for i, s := range some {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%s %s_start=%d %s_end=%d edits=%d titled=%d bytes=%d least=%d greatest=%s first_title=%s last_size=%d pages=%d some=[%s] mean=%v",
		g.key, bounds, g.start*second, bounds, g.end*second, len(g.rows), titled, sum, least, cmp.Or(greatest, "(null)"), first, lastSize,
		len(titles), strings.Join(quoted, ","), float64(sum)/float64(len(g.rows)))
}

// randomDay plays n rows in batches whose rows are never before the watermark,
// in any order, and gives the batches and the watermark after each.
type playedBatch struct {
	rows     []edit
	upstream int64
}

func randomDay(rng *rand.Rand, n int) []playedBatch {
	var out []playedBatch
	watermark := int64(0)
	for n > 0 {
		k := min(n, rng.IntN(40))
		n -= k
		var rows []edit
		greatest := watermark
		for range k {
			r := edit{at: watermark + rng.Int64N(120), wiki: fmt.Sprint("w", rng.IntN(2)), user: fmt.Sprint("u", rng.IntN(4)), size: rng.Int64N(100) - 50}
			if rng.IntN(10) == 0 {
				r.user = ""
			}
			if rng.IntN(4) > 0 {
				r.title = fmt.Sprint("t", rng.IntN(9))
			}
			greatest = max(greatest, r.at)
			rows = append(rows, r)
		}
		if rng.IntN(3) > 0 {
			watermark = max(watermark, greatest-60)
		}
		if rng.IntN(20) == 0 {
			watermark += 200 // a quiet time
		}
		out = append(out, playedBatch{rows, watermark})
	}
	return out
}

func expect(groups []oracleGroup, bounds string, complete func(end int64) bool) []string {
	var out []string
	for _, g := range groups {
		if complete(g.end) {
			out = append(out, g.text(bounds))
		}
	}
	return out
}

func sameRows(t *testing.T, got, want []string) {
	t.Helper()
	g, w := slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if slices.Equal(g, w) {
		return
	}
	for i := range max(len(g), len(w)) {
		if i >= len(g) || i >= len(w) || g[i] != w[i] {
			a, b := "(none)", "(none)"
			if i < len(g) {
				a = g[i]
			}
			if i < len(w) {
				b = w[i]
			}
			t.Fatalf("%d rows, %d were expected; the first that differs:\n got %s\nwant %s", len(g), len(w), a, b)
		}
	}
}

// resumed counts the stages that went on from what their store had kept.
var resumed int

func fileVersion(b []byte) Version { return Version{Path: "file", SHA256: marker.Hash(b)} }

func last(files [][]byte) []byte { return files[len(files)-1] }

// forward applies the files from one on, as package state does.
func forward(t *testing.T, s *groups, files [][]byte, from int) {
	t.Helper()
	for j := from; j < len(files); j++ {
		load := s.ApplyDelta
		if j == 0 {
			load = s.LoadSnapshot
		}
		if err := load(files[j]); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Loaded(fileVersion(last(files))); err != nil {
		t.Fatal(err)
	}
}

// hurt restarts the operator as a run does: from its files, or rebuilt from the
// rows that were delivered.
func hurt(t *testing.T, rng *rand.Rand, r *runner, fresh func() *aggregated, delivered []edit, files *[][][]byte) {
	t.Helper()
	for i, s := range r.a.stages {
		if r.batch == 1 || rng.IntN(5) == 0 {
			b, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			(*files)[i] = [][]byte{b}
			continue
		}
		b, err := s.Delta()
		if err != nil {
			t.Fatal(err)
		}
		(*files)[i] = append((*files)[i], b)
	}
	for i, s := range r.a.stages {
		s.Saved(fileVersion(last((*files)[i])))
	}
	switch rng.IntN(6) {
	case 0: // from its files
		next := fresh()
		for i, s := range next.stages {
			forward(t, s, (*files)[i], 0)
			sameState(t, s, r.a.stages[i])
		}
		r.a = next
	case 2: // from what its store has kept, as far as that has come
		var want [][]string
		for _, s := range r.a.stages {
			want = append(want, stateTexts(s))
		}
		if err := Release(r.a); err != nil {
			t.Fatal(err)
		}
		for i, s := range r.a.stages {
			at, err := s.Resume()
			if err != nil {
				t.Fatal(err)
			}
			from := 1 + slices.IndexFunc((*files)[i], func(b []byte) bool { return fileVersion(b) == at })
			if from == 0 {
				s.Reset()
			}
			resumed += min(from, 1)
			forward(t, s, (*files)[i], from)
			if got := stateTexts(s); !slices.Equal(got, want[i]) {
				t.Fatalf("from file %d of %d: %d keys, %d were there", from, len((*files)[i]), len(got), len(want[i]))
			}
		}
	case 1: // rebuilt
		next := fresh()
		rebuild(t, next, delivered, r.watermark)
		for i, s := range next.stages {
			sameState(t, s, r.a.stages[i])
		}
		r.a = next
	}
}

func rebuild(t *testing.T, a *aggregated, delivered []edit, w marker.Watermark) (reads int) {
	t.Helper()
	var from *int64
	for reads = 1; ; reads++ {
		at := a.RebuildBegin(w, from)
		var rows []edit
		for _, r := range delivered {
			if r.at*second >= at {
				rows = append(rows, r)
			}
		}
		if err := a.RebuildAdd(editRecord(rows)); err != nil {
			t.Fatal(err)
		}
		further, again, err := a.RebuildEnd(w, at)
		if err != nil {
			t.Fatal(err)
		}
		if !again {
			return reads
		}
		from = &further
	}
}

func stateTexts(s *groups) []string {
	out := []string{fmt.Sprintf("%+v", s.sizes)}
	_ = s.eachKey(func(key, packed []byte) error {
		out = append(out, fmt.Sprintf("%q %x", key, packed))
		return nil
	})
	return slices.Sorted(slices.Values(out))
}

func sameState(t *testing.T, got, want *groups) {
	t.Helper()
	if g, w := stateTexts(got), stateTexts(want); !slices.Equal(g, w) {
		t.Fatalf("the state differs:\n got %v\nwant %v", g, w)
	}
}

// property plays random days through the stages, with failed batches, restarts
// and rebuilds, and compares with what all rows at once give.
func property(t *testing.T, stages []Aggregation, want func(rows []edit, w int64) []string) {
	for try := range tries(60) {
		seed := uint64(time.Now().UnixNano()) + uint64(try) //nolint:forbidigo // printed below
		rng := rand.New(rand.NewPCG(seed, 1))
		fresh := func() *aggregated { return newAggregated(t, stages...) }
		r := newRunner(t, fresh())
		files := make([][][]byte, len(stages))
		var delivered []edit
		w := int64(0)
		for _, b := range randomDay(rng, 400) {
			cut := rng.IntN(len(b.rows) + 1)
			if rng.IntN(4) == 0 { // a batch that fails and is run again
				_, first := r.run(b.upstream, b.rows)
				r.a.Rollback()
				_, second := r.run(b.upstream, b.rows[cut:], b.rows[:cut])
				r.a.Rollback()
				sameRows(t, second, first)
			}
			r.commit(b.upstream, b.rows[:cut], b.rows[cut:])
			delivered = append(delivered, b.rows...)
			w = b.upstream
			hurt(t, rng, r, fresh, delivered, &files)
		}
		if r.counters.Late > 0 || r.counters.Aggregated != int64(len(delivered)) {
			t.Fatalf("seed %d: %+v of %d rows", seed, r.counters, len(delivered))
		}
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { sameRows(t, r.out, want(delivered, w)) })
	}
}

func TestSessionsEqualABatchRecomputationWhateverTheOrderTheCutsAndTheRestarts(t *testing.T) {
	property(t, []Aggregation{sessionStage(30 * time.Second)}, func(rows []edit, w int64) []string {
		return expect(oracleSessions(rows, 30), "session", func(end int64) bool { return end < w })
	})
}

func TestTumblingWindowsEqualABatchRecomputation(t *testing.T) {
	property(t, []Aggregation{windowStage(time.Minute, 0)}, func(rows []edit, w int64) []string {
		return expect(oracleWindows(rows, 60, 60), "window", func(end int64) bool { return end <= w })
	})
}

func TestSlidingWindowsEqualABatchRecomputation(t *testing.T) {
	property(t, []Aggregation{windowStage(time.Minute, 25*time.Second)}, func(rows []edit, w int64) []string {
		return expect(oracleWindows(rows, 60, 25), "window", func(end int64) bool { return end <= w })
	})
}

func TestAStageDropsNothingThatTheStageBeforeItEmits(t *testing.T) {
	perHour := Aggregation{Window: &TimeWindow{Duration: 5 * time.Minute}, Keys: []string{"wiki"}, Columns: []Aggregate{
		{Name: "sessions", Function: Count}, {Name: "edits", Function: Sum, Column: "edits"}}}
	property(t, []Aggregation{sessionStage(30 * time.Second), perHour}, func(rows []edit, w int64) []string {
		type id struct {
			wiki  string
			start int64
		}
		type sums struct{ sessions, edits int64 }
		by := map[id]sums{}
		for _, s := range oracleSessions(rows, 30) {
			if s.end >= w {
				continue
			}
			k := id{strings.Fields(s.key)[0], (s.end*second - 1) / (300 * second) * 300}
			v := by[k]
			by[k] = sums{v.sessions + 1, v.edits + int64(len(s.rows))}
		}
		var out []string
		for k, v := range by {
			if (k.start+300)*second <= w*second-1 {
				out = append(out, fmt.Sprintf("%s window_start=%d window_end=%d sessions=%d edits=%d", k.wiki, k.start*second, (k.start+300)*second, v.sessions, v.edits))
			}
		}
		return out
	})
}

func TestASessionIsEmittedOnceTheWatermarkHasPassedItsEndAndNotAtIt(t *testing.T) {
	r := newRunner(t, newAggregated(t, sessionStage(10*time.Second)))
	r.commit(0, []edit{{at: 100, wiki: "w", user: "u"}})
	r.commit(110)
	if len(r.out) != 0 {
		t.Fatalf("emitted at its end, where an event would still belong to it: %v", r.out)
	}
	r.commit(110, []edit{{at: 110, wiki: "w", user: "u"}})
	r.commit(121)
	if len(r.out) != 1 || !strings.Contains(r.out[0], "edits=2") {
		t.Fatalf("not one session of both edits: %v", r.out)
	}
	if n := r.a.stages[0].Keys(); n != 0 {
		t.Fatalf("%d groups are left", n)
	}
}

func TestARowThatTouchesTwoSessionsMakesOneOfThem(t *testing.T) {
	r := newRunner(t, newAggregated(t, sessionStage(10*time.Second)))
	r.commit(0, []edit{{at: 100, wiki: "w", user: "u", size: 1}, {at: 118, wiki: "w", user: "u", size: 2}})
	if n := r.a.stages[0].Keys(); n != 2 {
		t.Fatalf("%d open sessions, 2 were expected", n)
	}
	r.commit(0, []edit{{at: 109, wiki: "w", user: "u", size: 4}})
	if n := r.a.stages[0].Keys(); n != 1 {
		t.Fatalf("%d open sessions, 1 was expected", n)
	}
	r.commit(1000)
	if len(r.out) != 1 || !strings.Contains(r.out[0], "bytes=7") {
		t.Fatalf("got %v", r.out)
	}
}

func TestARowBeforeTheWatermarkIsLateAndInNoSession(t *testing.T) {
	r := newRunner(t, newAggregated(t, sessionStage(10*time.Second)))
	r.commit(100)
	r.commit(100, []edit{{at: 99, wiki: "w", user: "u"}, {at: 100, wiki: "w", user: "u"}, {at: 98, wiki: "w", user: "u"}})
	if r.counters.Late != 2 || r.counters.Aggregated != 1 {
		t.Fatalf("got %+v", r.counters)
	}
}

func TestALongSessionIsRebuiltByGoingFurtherBack(t *testing.T) {
	var rows []edit
	for at := int64(0); at < 10_000; at += 9 {
		rows = append(rows, edit{at: at, wiki: "w", user: "u", size: 1})
	}
	r := newRunner(t, newAggregated(t, sessionStage(10*time.Second)))
	r.commit(9_000, rows)
	next := newAggregated(t, sessionStage(10*time.Second))
	if reads := rebuild(t, next, rows, r.watermark); reads < 3 {
		t.Fatalf("%d reads found a session of 10,000 seconds", reads)
	}
	sameState(t, next.stages[0], r.a.stages[0])
}

func TestDistinctIsExactUpToItsBoundAndCloseBeyond(t *testing.T) {
	for _, n := range []int{1, 1000, DistinctExact - 1, 100_000} {
		a, b := &distinctAcc{typ: valString}, &distinctAcc{typ: valString}
		for i := range n {
			to := a
			if i%2 == 0 {
				to = b
			}
			to.add(value{text: fmt.Append(nil, "page ", i)}, 0)
			b.add(value{text: fmt.Append(nil, "page ", i%7)}, 0)
		}
		a.merge(b)
		got := a.estimate()
		switch {
		case n < DistinctExact && got != int64(n):
			t.Errorf("%d distinct values were counted as %d", n, got)
		case n > DistinctExact && (got < int64(n)*85/100 || got > int64(n)*115/100):
			t.Errorf("%d distinct values were estimated as %d", n, got)
		}
	}
}

func TestASumBeyond64BitsIsNullAndDoesNotDependOnTheOrder(t *testing.T) {
	const most = int64(^uint64(0) >> 1)
	for _, c := range []struct {
		in   []int64
		want string
	}{
		{[]int64{most, 1, -2}, fmt.Sprint(most - 1)},
		{[]int64{-most, -most, most, most, 7}, "7"},
		{[]int64{most, 1}, "(null)"},
	} {
		a := &sumAcc{}
		for _, v := range c.in {
			a.add(value{bits: uint64(v)}, 0)
		}
		b := array.NewInt64Builder(memory.DefaultAllocator)
		a.result(b)
		if got := b.NewArray().ValueStr(0); got != c.want {
			t.Errorf("the sum of %v is %s, %s was expected", c.in, got, c.want)
		}
	}
}

func TestADamagedStateOfAnAggregationIsRefused(t *testing.T) {
	r := newRunner(t, newAggregated(t, sessionStage(10*time.Second)))
	r.commit(0, []edit{{at: 100, wiki: "w", user: "u", title: "t"}, {at: 105, wiki: "w", user: "v"}})
	b, err := r.a.stages[0].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		broken := slices.Clone(b)
		broken[i] ^= 0x40
		if err := newAggregated(t, sessionStage(10*time.Second)).stages[0].LoadSnapshot(broken); err == nil {
			t.Fatalf("byte %d of %d may be anything", i, len(b))
		}
		if err := newAggregated(t, sessionStage(10*time.Second)).stages[0].LoadSnapshot(b[:i]); err == nil {
			t.Fatalf("it may end after %d of %d bytes", i, len(b))
		}
	}
	other := sessionStage(10 * time.Second)
	other.Columns = other.Columns[1:]
	if err := newAggregated(t, other).stages[0].LoadSnapshot(b); err == nil {
		t.Fatal("the state of other columns was loaded")
	}
}

func TestAnAggregationThatCannotBeIsRefusedWithEveryFault(t *testing.T) {
	rows, err := NewTableRows(TableRows{Schema: editSchema, TimeColumn: "event_time"})
	if err != nil {
		t.Fatal(err)
	}
	for want, a := range map[string]Aggregation{
		"one of session and window":              {},
		"gap of a session":                       {Session: &SessionWindow{}},
		"slide is longer":                        windowStage(time.Second, time.Minute),
		"at most 1000":                           windowStage(time.Hour, time.Second),
		`no column "nobody"`:                     {Session: &SessionWindow{Gap: 1e9}, Keys: []string{"nobody"}},
		`two columns "WIKI"`:                     {Session: &SessionWindow{Gap: 1e9}, Keys: []string{"wiki"}, Columns: []Aggregate{{Name: "WIKI", Function: Count}}},
		"only int, long and the sum of decimals": {Session: &SessionWindow{Gap: 1e9}, Columns: []Aggregate{{Name: "x", Function: Sum, Column: "title"}}},
		`function "median" is not`:               {Session: &SessionWindow{Gap: 1e9}, Columns: []Aggregate{{Name: "x", Function: "median", Column: "size"}}},
		"sum needs a column":                     {Session: &SessionWindow{Gap: 1e9}, Columns: []Aggregate{{Name: "x", Function: Sum}}},
		"limit 99999 is not between":             {Session: &SessionWindow{Gap: 1e9}, Columns: []Aggregate{{Name: "x", Function: CollectSet, Column: "title", Limit: 99_999}}},
	} {
		_, err := NewAggregated(rows, "event_time", []Aggregation{a})
		if failure.ClassOf(err) != failure.Config || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func BenchmarkSessions(b *testing.B) {
	a := newAggregated(b, sessionStage(30*time.Minute))
	rng := rand.New(rand.NewPCG(1, 1))
	const n = 8192
	rows := make([]edit, n)
	for i := range rows {
		rows[i] = edit{at: rng.Int64N(600), wiki: "enwiki", user: fmt.Sprint("user ", rng.IntN(5000)), title: fmt.Sprint("page ", rng.IntN(9000)), size: 3}
	}
	rec := editRecord(rows)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		up := int64(0)
		if err := a.Begin(Env{BatchID: int64(i), Watermark: marker.Watermark{Micros: marker.MinTime}, Upstream: &up}); err != nil {
			b.Fatal(err)
		}
		rec.Retain()
		if err := a.Process(rec, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "rows/s")
}
