package status

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirlake/weir/internal/clock"
)

func TestJobsModelsAndChecksAreOnThePageInTheJSONAndInTheMetrics(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	b := NewBoard(Options{Pipeline: "p", Clock: clock.System{}, Jobs: func() *Jobs {
		return &Jobs{
			Jobs:   []Job{{Name: "gold", What: "gold build", When: "after commits of silver", State: "succeeded", Started: &at, Seconds: 1.5, Runs: 3, Failures: 1}, {Name: "new"}},
			Models: []Mart{{Name: "top_pages", Kind: "table", State: "published", Mode: "full", Rows: 12, Reads: []string{"stg_edits"}}},
			Checks: []Check{{Name: "once<script>", Kind: "duplicates", Severity: "error", State: "failed", Observed: "2 values", Expected: "none", At: at}},
		}
	}})
	defer b.Close()
	html := fragments(newView(b, context.Background()))["jobs"]
	for _, want := range []string{"gold build", "after commits of silver", `class="pill ok">succeeded`, `class="pill bad">failed`, "once&lt;script&gt;", "none yet", "<wbr>pages"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page does not hold %q:\n%s", want, html)
		}
	}
	j, err := json.Marshal(b.model(context.Background(), nothing).Jobs)
	if err != nil || !strings.Contains(string(j), `"name":"top_pages","kind":"table","state":"published"`) {
		t.Errorf("%s, %v", j, err)
	}
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(b.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`weir_job_runs_total{job="gold"} 3`, `weir_job_failures_total{job="gold"} 1`, `weir_job_up{job="gold"} 1`,
		`weir_check_passed{check="once<script>",severity="error"} 0`, `weir_gold_rows{model="top_pages"} 12`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("the metrics do not hold %s", want)
		}
	}
	if strings.Contains(rec.Body.String(), `weir_job_up{job="new"}`) {
		t.Error("a job without a run is up or down")
	}
}

func TestAPipelineWithoutJobsSaysSo(t *testing.T) {
	b := NewBoard(Options{Pipeline: "p", Clock: clock.System{}})
	defer b.Close()
	if html := fragments(newView(b, context.Background()))["jobs"]; !strings.Contains(html, "no jobs") {
		t.Errorf("%s", html)
	}
}
