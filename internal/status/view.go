package status

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

//go:embed assets
var assets embed.FS

// fragmentNames are the parts of the page that are replaced while it is open;
// each is a template of that name in an element of that id.
var fragmentNames = []string{"health", "tiles", "flow", "legend", "queries", "batches", "letters", "jobs", "tables", "proof", "alerts"}

// What the page lists.
const (
	recentBatches = 25
	firstLetters  = 4 // samples of a kind that are shown without asking
)

var pageTemplate = template.Must(template.New("page.html").Funcs(template.FuncMap{
	"count": count, "rate": rate, "size": size, "span": span, "seconds": seconds, "ago": ago,
	"dict": dict,
	"ms":   func(n int64) string { return span(float64(n) / 1000) }, "breakable": breakable,
}).ParseFS(assets, "assets/page.html", "assets/fragments.html"))

// view is the model with what only a page needs.
type view struct {
	M       Model
	Flow    [][]node
	Tiles   []tile
	Batches []Batch
	Advice  []advice
	Charts  []chart
	// Tone is ok, wait or bad.
	Tone string
	// Unknown is what could not be looked up, but for what the reasons say.
	Unknown []string
}

// tile is one figure of the top row.
type tile struct{ Label, Value, Note, Tone string }

// chart is one chart of the section "over time"; the script draws it.
type chart struct{ Key, Title, Unit, Note string }

var charts = []chart{
	{"input", "Throughput", "rate", "rows read, per second"},
	{"commit_ms", "Commit time", "ms", "the commit step, the longest of each 2 s"},
	{"freshness_seconds", "Freshness", "s", "commit time − event time, 95th percentile"},
	{"lag", "Lag", "count", "offsets waiting when a batch was planned, what it took included"},
}

// dict gives a template several values by name.
func dict(pairs ...any) map[string]any {
	out := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		out[pairs[i].(string)] = pairs[i+1]
	}
	return out
}

// Until is how long it is until t.
func (v *view) Until(t time.Time) string { return ago(t.Sub(v.M.Now)) }

// Done is what care did in this run: files put together, snapshots expired,
// files removed.
func (c Care) Done() string {
	var out []string
	for _, d := range []struct {
		n    int64
		what string
	}{
		{c.CompactedFiles, "compacted"}, {c.ExpiredSnapshots, "expired"}, {c.RemovedFiles, "removed"}, {c.WaitingFiles, "to be removed"},
	} {
		if d.n > 0 {
			out = append(out, count(d.n)+" "+d.what)
		}
	}
	if c.Skipped != "" {
		out = append(out, c.Skipped)
	}
	if len(out) == 0 {
		return "nothing was due"
	}
	return strings.Join(out, ", ")
}

// Tone is the colour of a proof's outcome.
func (p Proof) Tone() string { return proofTone(p.Outcome) }

// Tone is the colour of a scenario's outcome.
func (p ProofCase) Tone() string { return proofTone(p.Outcome) }

func proofTone(outcome string) string {
	switch outcome {
	case "proved":
		return "ok"
	case "violated":
		return "bad"
	}
	return "wait"
}

// breakable is a name that may be broken after its separators, and not in the
// middle of a word.
func breakable(s string) template.HTML {
	var b strings.Builder
	for len(s) > 0 {
		n := strings.IndexAny(s, "._/-") + 1
		if n == 0 {
			n = len(s)
		}
		b.WriteString(template.HTMLEscapeString(s[:n]))
		if s = s[n:]; s != "" {
			b.WriteString("<wbr>")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // every piece was escaped above
}

func newView(b *Board, ctx context.Context) *view {
	m := b.model(ctx, all)
	batches, _ := b.Batches("", recentBatches)
	v := &view{M: m, Batches: batches, Advice: adviceList, Charts: charts, Flow: flow(&m), Tone: tone(m.Health, m.Warnings)}
	v.Tiles = v.tiles()
	for _, e := range m.Errors {
		if !slices.ContainsFunc(m.Health.Reasons, func(r Reason) bool { return strings.Contains(r.Text, e) }) {
			v.Unknown = append(v.Unknown, e)
		}
	}
	return v
}

// Headline is the state in a word or two.
func (v *view) Headline() string {
	switch {
	case !v.M.Health.Live:
		return "Stopped by a failure"
	case v.Tone == "bad" && v.M.Health.Ready:
		return "Flowing, but something is red"
	case v.Tone == "bad":
		return "Needs attention"
	case v.Tone == "wait" && !v.M.Health.Ready:
		return "Starting"
	case v.Tone == "wait":
		return "Flowing, with a warning"
	}
	return "All is flowing"
}

// Reasons are everything that is not as it should be, the stream's first.
func (v *view) Reasons() []Reason { return slices.Concat(v.M.Health.Reasons, v.M.Warnings) }

// tone is the colour of the whole: starting is no fault, and nor is a proof that
// shows nothing either way.
func tone(h Health, warnings []Reason) string {
	t := "ok"
	for _, r := range warnings {
		if r.Code != CodeProofInconclusive {
			return "bad"
		}
		t = "wait"
	}
	for _, r := range h.Reasons {
		if r.Code != CodeStarting {
			return "bad"
		}
		t = "wait"
	}
	return t
}

// fragments renders every fragment.
func fragments(v *view) map[string]string {
	out := make(map[string]string, len(fragmentNames))
	for _, name := range fragmentNames {
		var b bytes.Buffer
		if err := pageTemplate.ExecuteTemplate(&b, name, v); err != nil {
			panic(err) // the templates and the view are both ours; a test renders every state
		}
		out[name] = b.String()
	}
	return out
}

func (v *view) tiles() []tile {
	var in, out, late, dup, dead, batches, lag int64
	var rows, fresh float64
	known, last := false, ""
	for _, q := range v.M.Queries {
		batches += q.Totals.Batches
		late, dup, dead = late+q.Totals.Late, dup+q.Totals.Duplicate, dead+q.Totals.DeadLettered
		if q.LagOffsets != nil {
			lag, known = lag+*q.LagOffsets, true
		}
		if q.Level == 0 {
			in, rows = in+q.Totals.InputRows, rows+q.Rates.Input
		}
		// The last query whose rows have event times tells how old they are when
		// they arrive; sessions are silent until one ends.
		if q.Freshness != (Freshness{}) {
			last, fresh, out = q.Name, q.Freshness.P95Seconds, q.Totals.OutputRows
		}
	}
	for _, i := range v.M.Ingests {
		dead += i.Stats.DeadLetters
	}
	tiles := []tile{{Label: "Rows in", Value: rate(rows), Note: count(in) + " this run"}}
	if len(v.M.Queries) > 0 {
		value, note := "–", "no batch yet"
		if last != "" {
			value, note = span(fresh), "p95 at "+last+", "+count(out)+" rows out"
		}
		tiles = append(tiles, tile{Label: "Freshness", Value: value, Note: note})
	}
	lagText := "–"
	if known {
		lagText = count(lag)
	}
	tiles = append(tiles,
		tile{Label: "Lag", Value: lagText, Note: "offsets waiting, all queries"},
		tile{Label: "Commits", Value: count(batches), Note: "this run"},
		tile{Label: "Late · duplicate", Value: count(late) + " · " + count(dup), Note: "counted, kept upstream"},
		tile{Label: "Dead letters", Value: count(dead), Note: "set aside with a reason", Tone: warnIf(dead > 0)})
	return tiles
}

func warnIf(b bool) string {
	if b {
		return "warn"
	}
	return ""
}

// When is a time for people, in UTC.
func (v *view) When(t time.Time) string { return clockTime(t, v.M.Now) }

// Since is how long ago t was.
func (v *view) Since(t time.Time) string { return ago(v.M.Now.Sub(t)) }

// Behind is how far a watermark is behind the clock.
func (v *view) Behind(t time.Time) string { return ago(v.M.Now.Sub(t)) }

// Letters is every count of rows that did not come through, by query and
// ingestion.
func (v *view) Letters() []letterCount {
	var out []letterCount
	for _, in := range v.M.Ingests {
		out = append(out, letterCount{Name: in.Name, Kind: "ingest", In: in.Stats.Received, Duplicate: in.Stats.Dropped,
			Filtered: in.Stats.Canaries, Dead: in.Stats.DeadLetters, Where: in.DeadLetterTopic, Reasons: reasons(in.Violations)})
	}
	for _, q := range v.M.Queries {
		out = append(out, letterCount{Name: q.Name, Kind: "query", In: q.Totals.InputRows, Late: q.Totals.Late, Duplicate: q.Totals.Duplicate,
			Filtered: q.Totals.Filtered, Dead: q.Totals.DeadLettered, Where: q.DeadLetterTable})
	}
	return out
}

// rows is a list of samples, the newest apart from the rest.
type rows struct{ First, More []SetAside }

// SetAside are the samples of late or duplicate rows.
func (v *view) SetAside(kind string) rows {
	var of []SetAside
	for _, r := range v.M.SetAside {
		if r.Kind == kind {
			of = append(of, r)
		}
	}
	n := min(firstLetters, len(of))
	return rows{of[:n], of[n:]}
}

// Before is how long before b the time a is.
func (v *view) Before(a time.Time, b *time.Time) string {
	if b == nil {
		return ""
	}
	return ago(b.Sub(a))
}

// FirstLetters and MoreLetters are the samples, the newest apart from the rest.
func (v *view) FirstLetters() []DeadLetter {
	return v.M.DeadLetters[:min(firstLetters, len(v.M.DeadLetters))]
}

// MoreLetters are the others.
func (v *view) MoreLetters() []DeadLetter {
	return v.M.DeadLetters[min(firstLetters, len(v.M.DeadLetters)):]
}

// letterCount is one row of that table.
type letterCount struct {
	Name, Kind                          string
	In, Late, Duplicate, Filtered, Dead int64
	Where, Reasons                      string
}

func reasons(m map[string]int64) string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int { return int(m[b] - m[a]) })
	for i, k := range keys {
		keys[i] = fmt.Sprintf("%s %s", k, count(m[k]))
	}
	return strings.Join(keys, ", ")
}

// Bar is the parts of a batch's duration as an SVG of width 100.
func (v *view) Bar(b *Batch) []part {
	whole := float64(max(b.TotalMs(), 1))
	var out []part
	x := 0.0
	for _, p := range []struct{ key, name string }{{"plan", "plan"}, {"read_transform", "read and transform"}, {"stage", "stage"}, {phaseCommit, "commit"}} {
		w := min(float64(b.DurationMs[p.key])/whole*100, 100-x)
		out = append(out, part{Name: p.name, Class: "phase-" + p.key, X: x, Width: w, Ms: b.DurationMs[p.key]})
		x += w
	}
	return out
}

type part struct {
	Name, Class string
	X, Width    float64
	Ms          int64
}

func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, "page.html", newView(s.board, r.Context())); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

// asset serves the style sheet, the script and the icon; nothing else is there.
func (s *Server) asset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	kind := mime.TypeByExtension(path.Ext(name))
	b, err := assets.ReadFile("assets/" + name)
	if err != nil || path.Ext(name) == ".html" {
		http.NotFound(w, r)
		return
	}
	if path.Ext(name) == ".js" {
		kind = "text/javascript; charset=utf-8"
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(b)
}
