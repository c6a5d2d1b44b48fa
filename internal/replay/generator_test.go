package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/ingest/contract"
)

func generator(t testing.TB, c GeneratorConfig) *Generator {
	t.Helper()
	g, err := NewGenerator(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// everything is a plan with many specials.
func everything() GeneratorConfig {
	return GeneratorConfig{Seed: 7, SwitchEvery: 5000, Plan: Plan{Canaries: 40, Violations: 37, Duplicates: 61, Late: 23}}
}

// parsed is what the tests look at.
type parsed struct {
	Schema string `json:"$schema"`
	Meta   struct {
		ID, Domain, DT, Topic, Stream string
		Request                       string `json:"request_id"`
		Offset                        int64
	}
	Type      string
	ID        *int64
	Wiki      string
	Timestamp int64
	User      string
}

func parse(t *testing.T, b []byte) parsed {
	t.Helper()
	var p parsed
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	return p
}

func TestAFrameIsTheSameHoweverItIsReached(t *testing.T) {
	g := generator(t, everything())
	c := g.Cursor()
	var want [][]byte
	for n := range int64(9000) {
		want = append(want, c.Append(nil, n))
	}
	other := generator(t, everything()).Cursor()
	r := newRNG(3)
	for range 3000 {
		n := r.n(len(want))
		if got := other.Append(nil, int64(n)); !bytes.Equal(got, want[n]) {
			t.Fatalf("frame %d is\n%s\nwant\n%s", n, got, want[n])
		}
	}
	far := int64(3_000_000_000)
	if a, b := c.Append(nil, far), other.Append(nil, far); !bytes.Equal(a, b) || !bytes.Contains(a, []byte("mediawiki.recentchange")) {
		t.Error("a far frame differs")
	}
}

func TestTheStreamOfASeedNeverChanges(t *testing.T) {
	c := generator(t, everything()).Cursor()
	h := sha256.New()
	for n := range int64(5000) {
		h.Write(c.Append(nil, n))
	}
	const want = "e8a089f8a8c75c18bd6166c1b44d2b13c0f54e87d08b53f97ba4ac5df2b7e678"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the first 5,000 frames hash to %s, not %s: whoever resumes a stream of an older build would get other events", got, want)
	}
}

func TestEventIDsNeverRepeat(t *testing.T) {
	const n = 300_000
	seed := uint64(12345)
	seen := make(map[[36]byte]struct{}, n)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for i := range int64(n) {
		// Dense ordinals, far ones, and those of another class.
		k := i
		switch i % 3 {
		case 1:
			k = i * 10_007
		case 2:
			k = i | int64(Late)<<classBits
		}
		id := [36]byte(AppendUUID(nil, seed, k))
		if _, dup := seen[id]; dup && i%3 != 1 {
			t.Fatalf("id %s of %d is used twice", id, k)
		}
		seen[id] = struct{}{}
		if i < 1000 && !uuid.Match(id[:]) {
			t.Fatalf("%s is not a version-4 UUID", id)
		}
	}
}

func TestALoopHas400EventsOfWhich196AreEditsOrNewPagesWithFreshIDs(t *testing.T) {
	sample, err := Sample400(5)
	if err != nil {
		t.Fatal(err)
	}
	g := generator(t, GeneratorConfig{Seed: 5})
	ids := map[string]bool{}
	for loop := range int64(50) {
		events := g.Loop(loop)
		if loop == 0 && !bytes.Equal(bytes.Join(events, nil), bytes.Join(sample, nil)) {
			t.Error("Sample400 is not loop 0")
		}
		edits := 0
		for _, e := range events {
			p := parse(t, e)
			if p.Type == "edit" || p.Type == "new" {
				edits++
			}
			ids[p.Meta.ID] = true
		}
		if len(events) != 400 || edits != 196 {
			t.Fatalf("loop %d has %d events, %d edits and new pages", loop, len(events), edits)
		}
	}
	if len(ids) != 20_000 {
		t.Errorf("50 loops have %d distinct ids", len(ids))
	}
}

// count counts frames the slow way, by reading them.
func count(t *testing.T, g *Generator, frames int64, at map[int64]Counts) {
	t.Helper()
	c := g.Cursor()
	ids := map[string]bool{}
	var got Counts
	for n := int64(0); ; n++ {
		if want, ok := at[n]; ok && got != want {
			t.Fatalf("after %d frames: counted %+v, stated %+v", n, got, want)
		}
		if n == frames {
			return
		}
		b := c.Append(nil, n)
		class := c.Class(n)
		if class == ContractViolation {
			got.add(class, false)
			continue
		}
		p := parse(t, b)
		if (class == Canary) != (p.Meta.Domain == "canary") {
			t.Fatalf("frame %d is %s: %s", n, class, b)
		}
		if (class == Duplicate) != ids[p.Meta.ID] {
			t.Fatalf("frame %d is %s, its id was seen: %v", n, class, ids[p.Meta.ID])
		}
		ids[p.Meta.ID] = true
		got.add(class, p.Type == "edit" || p.Type == "new")
	}
}

func TestStatedCountsAreThoseOfTheFrames(t *testing.T) {
	none := GeneratorConfig{Seed: 1}
	demo := GeneratorConfig{Seed: 2, Plan: DefaultPlan()}
	for _, cfg := range []GeneratorConfig{none, demo, everything()} {
		g := generator(t, cfg)
		at := map[int64]Counts{}
		for _, frames := range []int64{0, 1, 2, 399, 400, 401, 3999, 4000, 4001, 4010, 4161, 4162, 8324, 12_000, 17_500} {
			at[frames] = g.Counts(frames)
		}
		count(t, g, 17_500, at)
	}
}

func TestFramesForHoldsJustSoManyEvents(t *testing.T) {
	g := generator(t, everything())
	for _, events := range []int64{1, 100, 4099, 4100, 4101, 20_000, 1_000_000} {
		f := g.FramesFor(events)
		if g.Counts(f).Events != events || g.Counts(f-1).Events != events-1 {
			t.Errorf("%d frames hold %d events", f, g.Counts(f).Events)
		}
		c := g.Counts(f)
		if c.Events != c.Canaries+c.Violations+c.Published || c.Frames != c.Events+c.Duplicates {
			t.Errorf("counts do not add up: %+v", c)
		}
	}
}

func TestReferenceScriptGivesTheReferencesFigures(t *testing.T) {
	g := generator(t, GeneratorConfig{Seed: 11, Script: ReferenceScript()})
	c := g.Counts(g.Length())
	if got := c.Published + c.Duplicates; got != 20_500 {
		t.Errorf("%d messages meet the contract", got)
	}
	if c.EditNew-c.Late != 9_800 || c.Violations != 25 || c.Late != 100 || c.Duplicates != 400 {
		t.Errorf("%+v", c)
	}
	count(t, g, g.Length(), map[int64]Counts{g.Length(): c, 900: g.Counts(900)})
}

func TestAScriptOrPlanThatCannotBePlayedIsRefusedAtOnce(t *testing.T) {
	_, err := NewGenerator(GeneratorConfig{Rate: -1, Backward: time.Hour, BackwardShare: 2, SwitchEvery: -1,
		Plan:   Plan{Canaries: -1, Late: 2000, LateBy: -time.Second},
		Script: Script{{Kind: "loops", Count: -1}, {Kind: "resend", Loop: 3}, {Kind: "what"}, {Kind: SegmentLoops, Count: 1 << 40}}})
	if err == nil || strings.Count(err.Error(), ";") < 9 {
		t.Error(err)
	}
}

func TestTimesRepeatAndGoBackALittle(t *testing.T) {
	c := generator(t, GeneratorConfig{Seed: 3}).Cursor()
	var last, greatest, back, same, furthest int64
	const n = 100_000
	for i := range int64(n) {
		ms, _ := c.Position(i)
		switch {
		case ms < last:
			back++
		case ms == last:
			same++
		}
		greatest = max(greatest, ms)
		furthest = max(furthest, greatest-ms)
		last = ms
		if i%1000 == 0 {
			if p := parse(t, c.Append(nil, i)); p.Meta.DT != time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") {
				t.Fatalf("frame %d: dt %s, position %d", i, p.Meta.DT, ms)
			}
		}
	}
	if furthest > 1000 || furthest < 900 || back < n/100 || back > n*2/100 || same < n/10 {
		t.Errorf("of %d, %d go back, at most %d ms, %d repeat", n, back, furthest, same)
	}
	if want := DefaultStart.UnixMilli() + n; last < want-2000 || last > want {
		t.Errorf("after %d events at 1,000 a second it is %d", n, last-DefaultStart.UnixMilli())
	}
}

func TestFirstAtIsTheFirstFrameInOrderThatReachesTheTime(t *testing.T) {
	cfgs := []GeneratorConfig{everything(), {Seed: 4, Rate: 30, Backward: 9 * time.Minute, BackwardShare: 0.2}, {Seed: 11, Script: ReferenceScript()[:7]}}
	for _, cfg := range cfgs {
		g := generator(t, cfg)
		c := g.Cursor()
		frames := min(g.Length(), 6000)
		r := newRNG(1)
		from := g.start
		to, _ := c.Position(frames - 1)
		for range 300 {
			ms := from - 10 + int64(r.n(int(to-from)+20))
			want := int64(0)
			for want < frames {
				if at, _ := c.Position(want); at >= ms {
					break
				}
				want++
			}
			if got := c.FirstAt(ms); got != want && want < frames {
				t.Fatalf("first at %d is frame %d, want %d", ms, got, want)
			}
		}
	}
}

func TestDuplicatesAreEarlierEventsAndLateEventsAreLate(t *testing.T) {
	g := generator(t, everything())
	c := g.Cursor()
	offset := regexp.MustCompile(`"topic":"[a-z]+\.mediawiki\.recentchange","partition":0,"offset":[0-9]+`)
	bare := func(n int64) string { return offset.ReplaceAllString(string(c.Append(nil, n)), "") }
	seen := map[string]bool{}
	late := 0
	for n := range int64(9000) {
		switch b := bare(n); c.Class(n) {
		case Base:
			seen[b] = true
		case Duplicate:
			if !seen[b] {
				t.Fatalf("frame %d repeats nothing: %s", n, b)
			}
		case Late:
			late++
			at, _ := c.Position(n)
			dt, err := time.Parse(time.RFC3339, parse(t, c.Append(nil, n)).Meta.DT)
			if err != nil || at-dt.UnixMilli() != DefaultLateBy.Milliseconds() {
				t.Errorf("late by %d ms, %v", at-dt.UnixMilli(), err)
			}
		}
	}
	if late == 0 {
		t.Error("no late event")
	}
}

func TestOnlyViolationsBreakTheContractAndOnlyCanariesAreCanaries(t *testing.T) {
	built, err := contract.Compile(contract.Options{Schema: contract.Wikimedia, KeyPath: "$.meta.id", Canary: contract.WikimediaCanary()})
	if err != nil {
		t.Fatal(err)
	}
	check := built.NewChecker()
	c := generator(t, everything()).Cursor()
	reasons := map[contract.Reason]int{}
	for n := range int64(12_000) {
		b := c.Append(nil, n)
		v := check.Check(b)
		class := c.Class(n)
		if (v.Reason != "") != (class == ContractViolation) || v.Canary != (class == Canary) {
			t.Fatalf("frame %d is %s, the contract says %+v: %s", n, class, v, b)
		}
		if v.Reason != "" {
			reasons[v.Reason]++
		}
	}
	for _, want := range []contract.Reason{contract.MissingField, contract.WrongType, contract.InvalidJSON, contract.BadFormat} {
		if reasons[want] == 0 {
			t.Errorf("no violation with the reason %s", want)
		}
	}
}

func TestChangeIDsAreUniqueWithinAWikiAndPast32Bits(t *testing.T) {
	c := generator(t, everything()).Cursor()
	type key struct {
		wiki string
		id   int64
	}
	seen := map[key]string{}
	large := 0
	for n := range int64(12_000) {
		if k := c.Class(n); k == ContractViolation || k == Canary {
			continue
		}
		p := parse(t, c.Append(nil, n))
		if p.Meta.Offset <= 1<<31 {
			t.Fatal("meta.offset fits into 32 bits")
		}
		if p.ID == nil {
			continue
		}
		if *p.ID > 1<<31 {
			large++
		}
		if was, dup := seen[key{p.Wiki, *p.ID}]; dup && was != p.Meta.ID {
			t.Fatalf("%s has two changes %d", p.Wiki, *p.ID)
		}
		seen[key{p.Wiki, *p.ID}] = p.Meta.ID
	}
	if large == 0 {
		t.Error("no id is past 2^31")
	}
}

func TestUsersComeAndGoSoSessionsEnd(t *testing.T) {
	c := generator(t, GeneratorConfig{Seed: 9}).Cursor()
	users := func(from int64) map[string]bool {
		out := map[string]bool{}
		for n := from; n < from+2000; n++ {
			if p := parse(t, c.Append(nil, n)); !strings.HasSuffix(p.User, "Bot") {
				out[p.User] = true
			}
		}
		return out
	}
	early, later := users(0), users(2*usersRotate)
	stayed := 0
	for u := range early {
		if later[u] {
			stayed++
		}
	}
	if len(early) < 100 || stayed > len(early)/10 {
		t.Errorf("of %d users %d are still there", len(early), stayed)
	}
}

func BenchmarkGenerator(b *testing.B) {
	c := generator(b, GeneratorConfig{Seed: 1, Plan: DefaultPlan()}).Cursor()
	var buf []byte
	var n int64
	for b.Loop() {
		buf = c.Append(buf[:0], n)
		n++
	}
	b.SetBytes(int64(len(buf)))
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

func BenchmarkNewGenerator(b *testing.B) {
	for b.Loop() {
		generator(b, GeneratorConfig{Seed: 1})
	}
}
