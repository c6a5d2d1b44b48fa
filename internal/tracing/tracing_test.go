package tracing

import (
	"compress/gzip"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
)

// fakeCollector decodes what it is sent.
type fakeCollector struct {
	*httptest.Server
	mu        sync.Mutex
	spans     []*tracepb.Span
	resource  map[string]string
	header    http.Header
	path      string
	undecoded error
	// hold, where set, is waited for before the first answer.
	hold chan struct{}
}

func newCollector(t *testing.T) *fakeCollector {
	c := &fakeCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.hold != nil {
			<-c.hold
		}
		in := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			in, _ = gzip.NewReader(r.Body)
		}
		raw, err := io.ReadAll(in)
		var req collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(raw, &req)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.undecoded = errors.Join(c.undecoded, err)
		c.header, c.path = r.Header, r.URL.Path
		for _, rs := range req.ResourceSpans {
			c.resource = texts(rs.Resource.Attributes)
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func texts(kvs []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range kvs {
		out[kv.Key] = strings.Trim(strings.TrimSpace(kv.Value.String()), `"`)
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		}
	}
	return out
}

func number(s *tracepb.Span, key string) int64 {
	for _, kv := range s.Attributes {
		if kv.Key == key {
			return kv.Value.GetIntValue()
		}
	}
	return -1
}

func tracer(t *testing.T, endpoint string) *Tracer {
	t.Helper()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	if want, err := Wanted(); !want || err != nil {
		t.Fatalf("with an endpoint: %v, %v", want, err)
	}
	tr, err := New(t.Context(), Options{Pipeline: "p", Version: "1.2.3", Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func kafkaAt(next int64) batch.Position {
	return batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{
		"events": {ID: "t", Partitions: map[int32]batch.PartitionPosition{0: {NextOffset: next}}},
	}}}
}

func aBatch(id int64) engine.BatchRun {
	at := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	b := engine.BatchRun{
		QueryName: "silver", QueryID: "q-1", BatchID: id, Epoch: 4, PlanEpoch: 4, Attempt: "n", From: kafkaAt(100), To: kafkaAt(350), Started: at, Ended: at.Add(time.Second),
		Counters: marker.Counters{Read: 250, Emitted: 240, Late: 10},
		Outputs:  []engine.OutputRun{{Output: operator.Main, Sink: "silver.edits", Rows: 240, Bytes: 9000, Files: 2, SnapshotID: 77}},
	}
	for i, name := range []string{"plan", "read", "transform", "stage", "commit", "done"} {
		b.Steps = append(b.Steps, engine.Step{Name: name, Start: at.Add(time.Duration(i) * 100 * time.Millisecond), End: at.Add(time.Duration(i+1) * 100 * time.Millisecond)})
	}
	return b
}

func TestABatchIsASpanWithItsStepsBelowIt(t *testing.T) {
	c := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=weir")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	tr := tracer(t, c.URL)
	tr.BatchEnded(aBatch(12))
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if c.undecoded != nil || c.path != "/v1/traces" || c.header.Get("X-Tenant") != "weir" || c.header.Get("Content-Type") != "application/x-protobuf" {
		t.Errorf("%v, %s, %v", c.undecoded, c.path, c.header)
	}
	if r := c.resource; r["service.name"] != "weir" || r["service.version"] != "1.2.3" || r["weir.pipeline"] != "p" || r["deployment.environment.name"] != "test" {
		t.Errorf("resource %v", r)
	}
	byName := map[string]*tracepb.Span{}
	for _, s := range c.spans {
		byName[s.Name] = s
	}
	root := byName["batch"]
	if root == nil || len(c.spans) != 7 || len(root.ParentSpanId) != 0 {
		t.Fatalf("spans %v", c.spans)
	}
	a := texts(root.Attributes)
	if a["weir.query.name"] != "silver" || a["weir.query.id"] != "q-1" || a["weir.output"] != "silver.edits" || a["messaging.system"] != "kafka" {
		t.Errorf("attributes %v", a)
	}
	for key, want := range map[string]int64{
		"weir.batch.id": 12, "weir.epoch": 4, "weir.offsets.count": 250, "weir.rows.read": 250, "weir.rows.emitted": 240, "weir.rows.late": 10, "weir.output.snapshot_id": 77,
	} {
		if got := number(root, key); got != want {
			t.Errorf("%s is %d, want %d", key, got, want)
		}
	}
	want := aBatch(12)
	if root.StartTimeUnixNano != uint64(want.Started.UnixNano()) || root.EndTimeUnixNano != uint64(want.Ended.UnixNano()) {
		t.Errorf("from %d to %d", root.StartTimeUnixNano, root.EndTimeUnixNano)
	}
	for _, s := range want.Steps {
		got := byName[s.Name]
		if got == nil || string(got.ParentSpanId) != string(root.SpanId) || got.StartTimeUnixNano != uint64(s.Start.UnixNano()) || got.EndTimeUnixNano != uint64(s.End.UnixNano()) {
			t.Errorf("step %s: %v", s.Name, got)
		}
	}
	if got := texts(byName["read"].Attributes)["weir.offsets"]; got != "events/0 [100,350)" {
		t.Errorf("offsets %q", got)
	}
	if byName["commit"] != nil && number(byName["commit"], "weir.files") != 2 {
		t.Errorf("commit %v", byName["commit"])
	}
}

func TestAFailedBatchSaysWhichStepFailedAndAStopIsNoFailure(t *testing.T) {
	c := newCollector(t)
	tr := tracer(t, c.URL)
	b := aBatch(1)
	b.Err = failure.New(failure.Unreachable, "no catalog")
	b.Steps = append(b.Steps[:4:4], engine.Step{Name: "commit", Start: b.Steps[4].Start, End: b.Ended, Failed: true})
	tr.BatchEnded(b)
	b.Stopped, b.BatchID = true, 2
	tr.BatchEnded(b)
	_ = tr.Close()
	failed := map[string]bool{}
	for _, s := range c.spans {
		if s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
			failed[s.Name] = true
			if s.Name == "batch" && (number(s, "weir.batch.id") != 1 || texts(s.Attributes)["error.type"] != "unreachable") {
				t.Errorf("%v", s)
			}
		}
	}
	if len(failed) != 2 || !failed["batch"] || !failed["commit"] {
		t.Errorf("failed %v", failed)
	}
}

func TestACollectorThatDoesNotAnswerDelaysNobody(t *testing.T) {
	c := newCollector(t)
	c.hold = make(chan struct{})
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
	tr := tracer(t, c.URL)
	// The collector answers only after every batch has been told: if one of them
	// waited for it, the test would never end.
	for id := range int64(1000) {
		tr.BatchEnded(aBatch(id))
	}
	close(c.hold)
	_ = tr.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.spans); n == 0 || n > 500 {
		t.Errorf("%d spans of 7000 arrived; the queue holds 64", n)
	}
}

func TestACollectorThatIsNotThereLeavesAnEndAlone(t *testing.T) {
	c := newCollector(t)
	c.Close()
	tr := tracer(t, c.URL)
	tr.BatchEnded(aBatch(1))
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

func TestTracesAreOffUnlessTheEnvironmentAsksForThem(t *testing.T) {
	for _, c := range []struct {
		env  string
		want bool
		bad  string
	}{
		{"", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4318/v1/traces", true, ""},
		{"OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_TRACES_EXPORTER=none OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", false, ""},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", false, ""},
		{"OTEL_TRACES_EXPORTER=zipkin", false, "zipkin"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "4318"},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, pair := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(pair, "=")
				t.Setenv(name, value)
			}
			got, err := Wanted()
			if got != c.want || (err != nil) != (c.bad != "") || err != nil && (!failure.Is(err, failure.Config) || !strings.Contains(err.Error(), c.bad)) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}
