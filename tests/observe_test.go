package tests

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// heard is a server that keeps the bodies of what it is sent, by path.
func heard(t *testing.T) (url string, bodies func(path string) [][]byte, gone func()) {
	t.Helper()
	var mu sync.Mutex
	all := map[string][][]byte{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		all[r.URL.Path] = append(all[r.URL.Path], b)
	}))
	t.Cleanup(s.Close)
	return s.URL, func(path string) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return all[path]
	}, s.Close
}

func TestTracesAndLineageOfARunArriveAndNobodyWaitsForThem(t *testing.T) {
	l := newLab(t, 2000)
	url, bodies, gone := heard(t)
	env := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_EXPORTER_OTLP_COMPRESSION=none", "OPENLINEAGE_URL=" + url, "OPENLINEAGE_NAMESPACE=lab"}
	if _, errs, code := weir(t, env, "run", l.file, "--once"); code != exitOK {
		t.Fatalf("exit %d\n%s", code, tail(errs))
	}
	if n := len(bodies("/v1/traces")); n == 0 {
		t.Error("no traces arrived")
	}
	for _, b := range bodies("/v1/traces") {
		// Names are plain text in the protobuf; package tracing decodes all of it.
		if !strings.Contains(string(b), "weir.batch.id") || !strings.Contains(string(b), "commit") {
			t.Error("a request holds no batch")
		}
	}
	kinds := map[string]map[string]int{} // by job and type
	for _, b := range bodies("/api/v1/lineage") {
		var e struct {
			EventType string
			Job       struct{ Namespace, Name string }
			Outputs   []struct{ Facets map[string]any }
		}
		if err := json.Unmarshal(b, &e); err != nil || e.Job.Namespace != "lab" || len(e.Outputs) == 0 || e.Outputs[0].Facets["schema"] == nil {
			t.Errorf("%v: %s", err, b)
		}
		if kinds[e.Job.Name] == nil {
			kinds[e.Job.Name] = map[string]int{}
		}
		kinds[e.Job.Name][e.EventType]++
	}
	if len(kinds) < 2 {
		t.Errorf("jobs %v", kinds)
	}
	for job, k := range kinds {
		if k["START"] == 0 || k["START"] != k["COMPLETE"] || k["FAIL"]+k["ABORT"] != 0 {
			t.Errorf("job %s: %v", job, k)
		}
	}
	// Both servers away: the next run works off what is new all the same.
	gone()
	l.produce(500)
	if _, errs, code := weir(t, env, "run", l.file, "--once"); code != exitOK {
		t.Fatalf("without servers: exit %d\n%s", code, tail(errs))
	}
	if out, errs, code := weir(t, nil, "audit", l.file); code != exitOK {
		t.Errorf("audit: exit %d\n%s%s", code, out, tail(errs))
	}
}

func TestTracesThatCannotBeAreRefusedAtTheStart(t *testing.T) {
	l := newLab(t, 1)
	for _, env := range [][]string{{"OTEL_TRACES_EXPORTER=zipkin"}, {"OPENLINEAGE_URL=marquez:5000"}} {
		if _, errs, code := weir(t, env, "run", l.file, "--once"); code != 2 || !strings.Contains(errs, "hint") {
			t.Errorf("%v: exit %d\n%s", env, code, tail(errs))
		}
	}
}
