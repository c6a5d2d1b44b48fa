package status

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestWarningsAreRedAndLeaveTheProbesAlone(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	clk.move(time.Second)
	b.IngestStarted("recentchange")
	commit(b, clk, "bronze", 0, 10)
	commit(b, clk, "silver", 0, 10)
	if v := newView(b, t.Context()); v.Headline() != "All is flowing" || v.Tone != "ok" {
		t.Fatalf("%s, %s", v.Headline(), v.Tone)
	}
	b.o.Jobs = func() *Jobs {
		return &Jobs{
			Jobs:   []Job{{Name: "guard", What: "checks", State: "failed"}, {Name: "marts", What: "gold build", State: "failed", Error: "no DuckDB"}},
			Checks: []Check{{Name: "once", State: "failed", Severity: "error", Observed: "2", Expected: "0"}},
		}
	}
	v := newView(b, t.Context())
	if v.Headline() != "Flowing, but something is red" || !v.M.Health.Ready || !v.M.Health.Live {
		t.Errorf("%s, %+v", v.Headline(), v.M.Health)
	}
	// The checks' job is told by its check; the other job's failure by itself.
	if w := v.M.Warnings; len(w) != 2 || w[0].Code != CodeCheck || w[1].Code != CodeJob || w[1].Subject != "marts" {
		t.Errorf("warnings %+v", w)
	}
	h := handler(b, "", false)
	for _, path := range []string{"/livez", "/readyz"} {
		if r := request(t, h, "GET", path, nil); r.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
}

func TestAQueryThatWaitsForItsStoreIsNotReadyUntilItCommits(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	b.IngestStarted("recentchange")
	commit(b, clk, "bronze", 0, 10)
	commit(b, clk, "silver", 0, 10)
	b.Retrying("silver", errors.New("no answer"))
	if h := b.model(t.Context(), nothing).Health; h.Ready || !h.Live || h.Reasons[0].Code != CodeRetrying {
		t.Errorf("%+v", h)
	}
	commit(b, clk, "silver", 1, 10)
	m := b.model(t.Context(), nothing)
	if !m.Health.Ready || m.Queries[1].Error != "" {
		t.Errorf("%+v, %+v", m.Health, m.Queries[1])
	}
}

func TestSetAsideSamplesAreBounded(t *testing.T) {
	b, clk := newTestBoard(t, Facts{})
	for n := range 100 {
		b.SetAside("silver", []SetAside{{Query: "silver", Kind: LateRow, Offset: int64(n), At: clk.move(time.Second)}})
	}
	m := b.model(t.Context(), nothing)
	if len(m.SetAside) != setAsideKept || m.SetAside[0].Offset != 99 {
		t.Errorf("%d samples, the first %+v", len(m.SetAside), m.SetAside[0])
	}
}
