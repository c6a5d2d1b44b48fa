package replay

// The make-up of one loop, after the counts of the recorded collection (edits
// and categorizations lead, logs are few), with the number of edits and new
// pages that the reference scenario fixes.
const (
	// SampleSize is the number of base events in a loop.
	SampleSize = 400
	// SampleEditNew is how many of them are of type edit or new.
	SampleEditNew = 196

	sampleNew        = 11
	sampleCategorize = 171
	sampleExternal   = 3
	// variants is how many texts each place of a loop has, so that a batch does
	// not compress better than real events do.
	variants = 16
	// followersMax is how many events may share the request of an edit.
	followersMax = 7
)

// logs are the log events of a loop, by log_type.
var logs = []struct {
	kind  string
	count int
}{
	{"abusefilter", 11}, {"upload", 6}, {"newusers", 3}, {"block", 2}, {"patrol", 2},
	{"delete", 1}, {"thanks", 1}, {"review", 1}, {"move", 1}, {"protect", 1},
}

// seat is one place of a loop.
type seat struct {
	kind string // type, or the log_type of a log event
	log  bool
	back int
}

// editNew reports whether the seat's event is an edit or a new page.
func (s seat) editNew() bool { return s.kind == "edit" || s.kind == "new" }

// layout decides the order of a loop: edits followed by the categorizations
// that they cause, everything else by itself.
func layout(r *rng) []seat {
	var groups [][]seat
	for i := range SampleEditNew {
		kind := "edit"
		if i < sampleNew {
			kind = "new"
		}
		groups = append(groups, []seat{{kind: kind}})
	}
	for range sampleCategorize {
		g := r.n(SampleEditNew)
		if back := len(groups[g]); back <= followersMax && !r.chance(15) {
			groups[g] = append(groups[g], seat{kind: "categorize", back: back})
			continue
		}
		groups = append(groups, []seat{{kind: "categorize"}})
	}
	for _, l := range logs {
		for range l.count {
			groups = append(groups, []seat{{kind: l.kind, log: true}})
		}
	}
	for range sampleExternal {
		groups = append(groups, []seat{{kind: "external"}})
	}
	groups = append(groups, []seat{{kind: "142"}})
	r.shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	out := make([]seat, 0, SampleSize)
	for _, g := range groups {
		out = append(out, g...)
	}
	return out
}

// sample is every template of a generator.
type sample struct {
	seats [SampleSize]seat
	// base is by variant and seat.
	base [variants][SampleSize]*template
	// editSeats are the seats of edits and new pages; editsBefore counts them.
	editSeats   []int
	editsBefore [SampleSize + 1]int
	canaries    []*template
	violations  []*template
}

func newSample(seed uint64) *sample {
	s := &sample{}
	r := newRNG(seed)
	copy(s.seats[:], layout(r))
	for i, seat := range s.seats {
		s.editsBefore[i+1] = s.editsBefore[i]
		if seat.editNew() {
			s.editSeats = append(s.editSeats, i)
			s.editsBefore[i+1]++
		}
	}
	for v := range variants {
		var head spec
		for i, seat := range s.seats {
			sp := newSpec(r, seat, &head)
			s.base[v][i] = sp.template(r)
			if seat.back == 0 {
				head = sp
			}
		}
	}
	plain := seat{kind: "edit"}
	for range variants {
		s.canaries = append(s.canaries, bareCanary())
		full := newSpec(r, plain, nil)
		full.canary = true
		s.canaries = append(s.canaries, full.template(r))
	}
	for range variants {
		for f := flaw(1); f < flaws; f++ {
			bad := newSpec(r, plain, nil)
			bad.flaw = f
			s.violations = append(s.violations, bad.template(r))
		}
	}
	return s
}

// sizes are the deciles of the recorded events' sizes in bytes, by type. The
// targets of the templates are drawn from them.
var sizes = map[string][]int{
	"edit":       {717, 792, 903, 930, 989, 1019, 1072, 1088, 1143, 1375, 2427},
	"categorize": {812, 876, 968, 998, 1032, 1063, 1098, 1141, 1270, 1426, 3005},
	"log":        {774, 777, 811, 943, 1026, 1064, 1077, 1160, 1295, 1598, 3080},
	"new":        {776, 786, 802, 825, 834, 905, 1051, 1165, 1198, 1261, 1447},
}

// scale, in percent, brings the mean of a loop to that of the whole collection,
// in which small edits have a greater share than in a loop.
const scale = 90

// target draws a size for a type. The last tenth leans to its lower end, as
// the recorded mean shows.
func target(r *rng, kind string) int {
	d, ok := sizes[kind]
	if !ok {
		d = sizes["new"]
	}
	i := r.n(10)
	within := r.n(1000)
	if i == 9 {
		within = within * within / 1000 * within / 1000
	}
	return (d[i] + (d[i+1]-d[i])*within/1000) * scale / 100
}
