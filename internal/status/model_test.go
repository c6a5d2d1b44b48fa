package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirlake/weir/internal/failure"
)

func TestReadinessAsksForProgressOnlyWhereThereIsLag(t *testing.T) {
	lag := func(n int64) *int64 { return &n }
	limit := stallLimit(time.Second).Seconds()
	ingest := []Ingest{{Name: "in", State: Running}}
	for _, c := range []struct {
		name    string
		q       Query
		in      []Ingest
		failing time.Duration
		why     error
		live    bool
		codes   string
	}{
		{name: "running", q: Query{State: Running, LagOffsets: lag(0)}, in: ingest, live: true},
		{name: "slow but moving", q: Query{State: Running, LagOffsets: lag(9), StalledSeconds: limit, TriggerSeconds: 1}, live: true},
		{name: "stalled", q: Query{State: Running, LagOffsets: lag(9), StalledSeconds: limit + 1, TriggerSeconds: 1}, live: true, codes: "stalled"},
		{name: "a long trigger has longer", q: Query{State: Running, LagOffsets: lag(9), StalledSeconds: limit + 1, TriggerSeconds: 60}, live: true},
		{name: "starting", q: Query{State: Starting}, live: true, codes: "starting"},
		{name: "ended as told", q: Query{State: Done}, live: true},
		{name: "failed", q: Query{State: Failed, Error: "no"}, codes: "failed"},
		{name: "ingestion failed", q: Query{State: Running}, in: []Ingest{{Name: "in", State: Failed, Error: "no"}}, codes: "failed"},
		{name: "broker away a moment", q: Query{State: Running}, failing: unreachableGrace, why: errBroker, live: true},
		{name: "broker away", q: Query{State: Running}, failing: unreachableGrace + time.Second, why: errBroker, live: true, codes: "unreachable"},
	} {
		c.q.Name = "q"
		h := judge([]Query{c.q}, c.in, c.failing, c.why)
		var codes []string
		for _, r := range h.Reasons {
			codes = append(codes, r.Code)
		}
		if got := strings.Join(codes, " "); got != c.codes || h.Live != c.live || h.Ready != (c.codes == "") {
			t.Errorf("%s: %+v, want live %v, reasons %q", c.name, h, c.live, c.codes)
		}
	}
}

func TestAQueryThatIsIdleIsNotStalled(t *testing.T) {
	lag := int64(7)
	b, clk := newTestBoard(t, Facts{})
	b.Restore("bronze", Restored{BatchID: 4, Position: []byte(`{}`)})
	b.broker.value, b.broker.got = Broker{Lag: map[string]int64{"bronze": lag}}, clk.Now()
	b.Idle("bronze")
	clk.move(20 * time.Second)
	if q := b.model(t.Context(), nothing).Queries[0]; q.State != Running || q.StalledSeconds != 20 || *q.LagOffsets != 7 || q.BatchID != 4 {
		t.Fatalf("%+v", q)
	}
	b.Idle("bronze")
	if q := b.model(t.Context(), nothing).Queries[0]; q.StalledSeconds != 0 {
		t.Fatalf("stalled for %v s after a sign of life", q.StalledSeconds)
	}
}

func TestALagThatCannotBeLookedUpIsUnknownAndNotOld(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	clk.move(time.Second)
	commit(b, clk, "bronze", 0, 10)
	b.broker.failing, b.broker.err = clk.Now(), errBroker
	if q := b.model(t.Context(), nothing).Queries[0]; q.LagOffsets == nil {
		t.Error("the lag of a batch that has just ended is unknown")
	}
	clk.move(lagOld + time.Second)
	if q := b.model(t.Context(), nothing).Queries[0]; q.LagOffsets != nil {
		t.Errorf("the lag is said to be %d", *q.LagOffsets)
	}
}

func TestTheModelAddsUpWhatTheBatchesSay(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	for id := range int64(20) {
		clk.move(time.Second)
		commit(b, clk, "bronze", id, 100)
	}
	clk.move(3 * time.Second)
	b.Alert("bronze", "adopted")
	b.Ended("silver", failure.New(failure.Fenced, "another run").WithHint("stop one"))
	m := b.model(t.Context(), nothing)
	q := m.Queries[0]
	if q.Totals != (Totals{Batches: 20, InputRows: 2000, OutputRows: 1000, Filtered: 500, Late: 20, Duplicate: 40, DeadLettered: 60}) {
		t.Errorf("totals %+v", q.Totals)
	}
	if math.Abs(q.Rates.Input-100) > 1 || q.BatchID != 19 || q.Epoch != 3 || q.Alerts != 1 || q.Freshness.P95Seconds != 1.5 {
		t.Errorf("query %+v", q)
	}
	if s := m.Queries[1]; s.State != Failed || s.ErrorClass != "fenced" || m.Health.Live {
		t.Errorf("silver %+v, health %+v", s, m.Health)
	}
	if in := m.Ingests[0]; in.Source != "https://example.org/v2/stream" {
		t.Errorf("the source is shown as %q", in.Source)
	}
}

func TestWhatIsKeptIsBounded(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	for id := range int64(3 * batchesKept) {
		clk.move(time.Second)
		commit(b, clk, "bronze", id, 10)
		b.Alert("bronze", "alert "+strconv.FormatInt(id, 10))
	}
	if n := len(b.queries[0].batches); n > batchesKept {
		t.Errorf("%d batches are kept", n)
	}
	m := b.model(t.Context(), nothing)
	if len(m.Alerts) != alertsKept || m.AlertsTotal != 3*batchesKept || m.Alerts[0].Text != "alert 1499" {
		t.Errorf("%d alerts of %d, newest %q", len(m.Alerts), m.AlertsTotal, m.Alerts[0].Text)
	}
	if n := len(m.Queries[0].Series.Input); n > bucketsKept {
		t.Errorf("%d steps are kept", n)
	}
	if got, _ := b.Batches("bronze", 3); len(got) != 3 || got[0].BatchID != 3*batchesKept-1 || got[2].BatchID != 3*batchesKept-3 {
		t.Errorf("batches %+v", got)
	}
}

func TestRowsAreSpreadOverTheTimeTheyCameIn(t *testing.T) {
	var h history
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h.add(&Batch{StartedAt: begin, CommittedAt: begin.Add(time.Second), InputRows: 10, DurationMs: map[string]int64{}})
	h.add(&Batch{StartedAt: begin.Add(9 * time.Second), CommittedAt: begin.Add(21 * time.Second), InputRows: 2000, DurationMs: map[string]int64{"commit": 7}})
	s := h.series(begin.Add(22 * time.Second))
	sum := 0.0
	for i, v := range s.Input {
		if i > 0 && i < 10 && math.Abs(v-100) > 1e-9 {
			t.Errorf("step %d: %v rows a second, want 100", i, v)
		}
		if !math.IsNaN(v) {
			sum += v * s.StepSeconds
		}
	}
	if math.Abs(sum-10-1900) > 51 { // the last second is in the step that is not full yet
		t.Errorf("%v rows in all", sum)
	}
	if !math.IsNaN(s.CommitMs[3]) || s.CommitMs[10] != 7 {
		t.Errorf("commit times %v", s.CommitMs)
	}
	h.add(&Batch{StartedAt: begin, CommittedAt: begin.Add(time.Second), InputRows: 5, DurationMs: map[string]int64{}}) // the clock went back
	if got := len(h.series(begin.Add(22 * time.Second)).Input); got != len(s.Input) {
		t.Errorf("a clock that goes back made %d steps of %d", got, len(s.Input))
	}
	if r := h.series(begin.Add(10 * time.Minute)).rates(); r.Input != 0 {
		t.Errorf("rate %v long after the last batch", r.Input)
	}
}

func TestTheTailOfALineIsItsEnd(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	for id := range int64(200) {
		clk.move(time.Second)
		commit(b, clk, "bronze", id, id)
	}
	whole := b.model(t.Context(), nothing).Queries[0].Series
	tail := whole.Tail()
	if len(tail.Input) != tailBuckets {
		t.Fatalf("%d steps", len(tail.Input))
	}
	at := int(tail.Start-whole.Start) / int(whole.StepSeconds)
	for i := range tail.Input {
		if a, b := tail.Lag[i], whole.Lag[at+i]; a != b && !math.IsNaN(a) {
			t.Fatalf("step %d: %v and %v", i, a, b)
		}
	}
	raw, err := json.Marshal(tail)
	if err != nil {
		t.Fatal(err)
	}
	var back Series
	if err := json.Unmarshal(raw, &back); err != nil || len(back.Input) != len(tail.Input) {
		t.Fatalf("%v: %s", err, raw)
	}
}

func TestASnippetIsShortTextWhateverThePayload(t *testing.T) {
	for _, in := range []string{"", "plain", strings.Repeat("é", 500), strings.Repeat("\x00", 500), "\xff\xfe\xfd" + strings.Repeat("日本", 80),
		strings.Repeat("\xe6", 300), hostile, "a\nb\tc", strings.Repeat("x", 199) + "日"} {
		got := Snippet([]byte(in))
		if payload := strings.TrimSuffix(got, "…"); len(payload) > maxSnippetBytes || !utf8.ValidString(got) || strings.ContainsAny(got, "\x00\n\u202e") {
			t.Errorf("%q gave %d bytes: %q", in, len(payload), got)
		}
	}
	if got := Snippet([]byte("plain")); got != "plain" {
		t.Errorf("got %q", got)
	}
}

func TestMetricsParseBackAndSayWhatTheModelSays(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	clk.move(time.Second)
	commit(b, clk, "bronze", 41, 100)
	commit(b, clk, "silver", 40, 80)
	b.Alert("silver", "adopted")
	b.broker.value = Broker{Topics: []Topic{{Name: "wiki.recentchange", Partitions: 4, Records: 9}}}
	now := clk.Now()
	b.o.Lineage = func() *Lineage { return &Lineage{Sent: 5, Dropped: 1} }
	b.proof.value = &Proof{At: now, Scenarios: 3, Proved: 2, Violated: 1}
	b.tables.value = []Table{{Name: "silver.edits", Rows: 40, DataFiles: 2, Snapshots: 3, MetadataBytes: 77, CommittedAt: &now,
		Care: &Care{At: &now, Steps: 9, Failures: 1, SmallFiles: 31, SmallFilesMax: 7, Manifests: 5, ManifestBytes: 6, WaitingFiles: 2, CompactedFiles: 10, ExpiredSnapshots: 11, MergedManifests: 12, RemovedFiles: 13}}, {Name: "gone", Missing: true}}
	res := request(t, handler(b, "", false), "GET", "/metrics", nil)
	text := body(t, res)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	value := func(name, label string) float64 {
		for _, m := range families[name].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					return number(m)
				}
			}
		}
		return math.NaN()
	}
	for name, want := range map[string]float64{
		"weir_query_input_rows_total bronze": 100, "weir_query_output_rows_total silver": 40, "weir_query_rows_late_total silver": 1,
		"weir_query_rows_duplicate_total silver": 2, "weir_query_rows_dead_lettered_total silver": 3, "weir_query_rows_filtered_total bronze": 25,
		"weir_query_batches_total bronze": 1, "weir_query_batch_duration_seconds total": 1, "weir_query_batch_id bronze": 41,
		"weir_query_freshness_seconds p95": 1.5, "weir_query_lag_offsets bronze": 0, "weir_query_state_keys silver": 50,
		"weir_query_state_bytes silver": 2048, "weir_alerts_total silver": 1, "weir_ingest_events_published_total recentchange": 1000,
		"weir_ingest_violations_total invalid_json": 6, "weir_ingest_lag_seconds recentchange": 1.5, "weir_build_info 1.2.3": 1,
		"weir_table_small_files silver.edits": 31, "weir_table_small_files_per_partition_max silver.edits": 7,
		"weir_table_care_steps_total silver.edits": 9, "weir_table_care_failures_total silver.edits": 1, "weir_table_care_removed_files_total silver.edits": 13,
		"weir_lineage_events_total dropped": 1, "weir_proof_scenarios violated": 1, "weir_warnings proof-violated": 1, "weir_warnings care-failed": 0,
		"weir_table_metadata_bytes silver.edits": 77, "weir_query_watermark_seconds silver": float64(clk.Now().Add(-10 * time.Minute).Unix()),
	} {
		metric, label, _ := strings.Cut(name, " ")
		if got := value(metric, label); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for name, f := range families {
		if strings.HasPrefix(name, "weir_") && f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
	}
	for _, h := range metricHelp {
		if families[h.name] == nil {
			t.Errorf("%s is described and never given", h.name)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "weir_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func number(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	}
	return m.GetGauge().GetValue()
}

func TestEveryReasonAndEveryClassThatNeedsADecisionHasAdvice(t *testing.T) {
	known := map[string]bool{}
	for _, a := range adviceList {
		if known[a.ID] || a.Meaning == "" || len(a.Steps) == 0 {
			t.Errorf("advice %q is doubled or empty", a.ID)
		}
		known[a.ID] = true
	}
	for _, code := range []string{CodeFailed, CodeStarting, CodeStalled, CodeUnreachable, "alert"} {
		if !known[code] {
			t.Errorf("no advice for %s", code)
		}
	}
	v := &view{M: Model{Queries: []Query{{Name: "q", State: Failed, ErrorClass: failure.Fenced.String()}}}}
	if got := v.AdviceID(Reason{Subject: "q", Code: CodeFailed}); got != "failed-fenced" || !known[got] {
		t.Errorf("advice %q", got)
	}
	v.M.Queries[0].ErrorClass = failure.Runtime.String()
	if got := v.AdviceID(Reason{Subject: "q", Code: CodeFailed}); got != "failed-runtime" {
		t.Errorf("advice %q", got)
	}
}

func TestTheAPIGivesTheModelAndTheBatches(t *testing.T) {
	b, clk := newTestBoard(t, Facts{Tables: nil})
	clk.move(time.Second)
	commit(b, clk, "bronze", 0, 10)
	clk.move(time.Second)
	commit(b, clk, "silver", 0, 10)
	h := handler(b, "", false)
	var m Model
	if err := json.Unmarshal([]byte(body(t, request(t, h, "GET", "/api/status", nil))), &m); err != nil || len(m.Queries) != 2 || m.Pipeline != "wikimedia" {
		t.Fatalf("%v: %+v", err, m)
	}
	for path, want := range map[string]int{"/api/batches": 2, "/api/batches?query=silver": 1, "/api/batches?limit=1": 1} {
		var got struct{ Batches []Batch }
		if err := json.Unmarshal([]byte(body(t, request(t, h, "GET", path, nil))), &got); err != nil || len(got.Batches) != want {
			t.Errorf("%s: %v, %d batches, want %d", path, err, len(got.Batches), want)
		}
	}
	for path, want := range map[string]int{"/api/batches?query=none": 404, "/api/batches?limit=0": 400, "/api/batches?limit=x": 400, "/nothing": 404} {
		if got := request(t, h, "GET", path, nil).StatusCode; got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

func TestProbesGiveTheirReasons(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	h := handler(b, "", false)
	answer := func(path string) (int, string) {
		r := request(t, h, "GET", path, nil)
		return r.StatusCode, body(t, r)
	}
	if code, text := answer("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(text, "starting") {
		t.Errorf("readyz at the start: %d %s", code, text)
	}
	if code, text := answer("/livez"); code != http.StatusOK || strings.Contains(text, "starting") {
		t.Errorf("livez at the start: %d %s", code, text)
	}
	b.IngestStarted("recentchange")
	commit(b, clk, "bronze", 0, 10)
	b.Idle("silver")
	if code, text := answer("/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, text)
	}
	b.Ended("bronze", errors.New("disk full"))
	for _, path := range []string{"/livez", "/readyz"} {
		if code, text := answer(path); code != http.StatusServiceUnavailable || !strings.Contains(text, "disk full") {
			t.Errorf("%s after a failure: %d %s", path, code, text)
		}
	}
}

func TestNumbersReadWell(t *testing.T) {
	for got, want := range map[string]string{
		count(1234567): "1,234,567", count(-1000): "-1,000", count(999): "999", rate(0.25): "0.2/s", rate(1234): "1,234/s", rate(math.NaN()): "0/s",
		size(1023): "1023 B", size(1536): "1.5 KiB", size(5 << 40): "5.0 TiB", ago(59 * time.Second): "59 s", ago(95 * time.Second): "95 s", ago(125 * time.Second): "2 min 5 s",
		ago(2 * time.Hour): "2 h", ago(50 * time.Hour): "2 d 2 h", span(0.0421): "42 ms", span(1.25): "1.2 s", span(-2): "-2.0 s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEveryStateOfAPipelineRenders(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	empty := NewBoard(Options{Pipeline: "empty", Clock: clk})
	t.Cleanup(empty.Close)
	render := func(name string, b *Board) {
		var out bytes.Buffer
		v := newView(b, t.Context())
		if err := pageTemplate.ExecuteTemplate(&out, "page.html", v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for id, html := range fragments(v) {
			if !strings.Contains(out.String(), `id="`+id+`"`) || !strings.Contains(out.String(), strings.TrimSpace(html)) {
				t.Errorf("%s: fragment %s is not what the page holds", name, id)
			}
		}
	}
	render("nothing at all", empty)
	render("starting", b)
	commit(b, clk, "bronze", 0, 10)
	commit(b, clk, "silver", 0, 0)
	render("running", b)
	b.Ended("silver", failure.New(failure.Checkpoint, "rewound"))
	b.IngestEnded("recentchange", errBroker)
	b.Alert("bronze", "adopted")
	render("failed", b)
}
