package openlineage

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
)

// server keeps what it is sent.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	events []map[string]any
	raw    [][]byte
	paths  map[string]int
	auth   string
	// fail is how many requests are answered with an error first.
	fail int
	hold chan struct{}
}

func newServer(t *testing.T) *server {
	s := &server{paths: map[string]int{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.hold != nil {
			<-s.hold
		}
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.fail > 0 {
			s.fail--
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		s.paths[r.Method+" "+r.URL.Path]++
		s.auth = r.Header.Get("Authorization")
		var e map[string]any
		if err := json.Unmarshal(body, &e); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		s.events, s.raw = append(s.events, e), append(s.raw, body)
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(s.Close)
	return s
}

// quick is a clock whose pauses take a moment.
type quick struct{ clock.System }

func client(t *testing.T, s *server, o Options) *Client {
	t.Helper()
	o.URL, o.Version, o.Clock, o.Logger = s.URL, "1.2.3", quick{}, slog.New(slog.DiscardHandler)
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var at = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

func kafkaAt(next int64) batch.Position {
	return batch.Position{Kafka: &batch.KafkaPosition{ClusterID: "c", Topics: map[string]batch.TopicPosition{
		"events": {ID: "t", Partitions: map[int32]batch.PartitionPosition{0: {NextOffset: next}, 1: {NextOffset: next}}},
	}}}
}

func aRun(id int64) engine.BatchRun {
	return engine.BatchRun{
		QueryName: "bronze", QueryID: "q-1", BatchID: id, Epoch: 4, PlanEpoch: 4, From: kafkaAt(0), To: kafkaAt(10), BatchTime: at, Started: at, Ended: at.Add(time.Second),
		Counters: marker.Counters{Read: 20, Emitted: 19, DeadLettered: 1},
		Outputs: []engine.OutputRun{
			{Output: operator.DeadLetter, Sink: "bronze.dead", Rows: 1, Bytes: 10, Files: 1, SnapshotID: 6},
			{Output: operator.Main, Sink: "bronze.events", Rows: 19, Bytes: 900, Files: 2, SnapshotID: 7},
		},
	}
}

func aTable(name string) Table {
	ns, path := Place("s3://lake/warehouse/" + strings.ReplaceAll(name, ".", "/"))
	return Table{Namespace: ns, Path: path, Catalog: "weir", Name: name, Fields: []Field{{"id", "utf8"}, {"at", "timestamp"}}}
}

func aQuery() Query {
	return Query{Job: "p.bronze", Kafka: "kafka://broker:9092", Outputs: map[string]Table{operator.Main: aTable("bronze.events"), operator.DeadLetter: aTable("bronze.dead")}}
}

func TestABatchIsARunWithItsTopicAndTables(t *testing.T) {
	s := newServer(t)
	c := client(t, s, Options{Namespace: "team", APIKey: "secret"})
	o := c.Observe(aQuery())
	o.BatchStarted(aRun(3))
	o.BatchEnded(aRun(3))
	_ = c.Close()
	if len(s.events) != 2 || s.paths["POST /api/v1/lineage"] != 2 || s.auth != "Bearer secret" || c.Stats() != (Stats{Sent: 2}) {
		t.Fatalf("%v %v %v %+v", s.events, s.paths, s.auth, c.Stats())
	}
	checkEvents(t, s.raw)
	var begin, end Event
	for i, e := range []*Event{&begin, &end} {
		if err := json.Unmarshal(s.raw[i], e); err != nil {
			t.Fatal(err)
		}
	}
	if begin.EventType != Start || end.EventType != Complete || begin.Run.RunID != end.Run.RunID || end.Job.Namespace != "team" || end.Job.Name != "p.bronze" {
		t.Errorf("%+v\n%+v", begin, end)
	}
	if in := end.Inputs; len(in) != 1 || in[0].Namespace != "kafka://broker:9092" || in[0].Name != "events" || value(in[0].InputFacets, "inputStatistics", "rowCount") != 20.0 {
		t.Errorf("inputs %+v", end.Inputs)
	}
	main := end.Outputs[1]
	if len(end.Outputs) != 2 || main.Namespace != "s3://lake" || main.Name != "warehouse/bronze/events" || value(main.Facets, "version", "datasetVersion") != "7" {
		t.Errorf("outputs %+v", end.Outputs)
	}
	if st := main.OutputFacets; value(st, "outputStatistics", "rowCount") != 19.0 || value(st, "outputStatistics", "fileCount") != 2.0 || value(st, "outputStatistics", "size") != 900.0 {
		t.Errorf("statistics %+v", st)
	}
	if f, _ := value(main.Facets, "schema", "fields").([]any); len(f) != 2 || f[0].(map[string]any)["name"] != "id" {
		t.Errorf("schema %+v", main.Facets)
	}
	if len(begin.Outputs) != 2 || begin.Outputs[0].OutputFacets != nil {
		t.Errorf("outputs at the start %+v", begin.Outputs)
	}
}

func value(facets map[string]any, name, field string) any {
	f, _ := facets[name].(map[string]any)
	return f[field]
}

func TestAFailureAStopAndADeadProcessEndTheirRuns(t *testing.T) {
	s := newServer(t)
	c := client(t, s, Options{})
	source := aTable("bronze.events")
	q := aQuery()
	q.Source = &source
	o := c.Observe(q)
	b := aRun(1)
	b.To = batch.Position{Table: &batch.TablePosition{Name: "bronze.events", SnapshotID: 42, Upstream: b.To.Kafka}}
	b.PlanEpoch = 3 // another process planned it, and is dead
	o.BatchStarted(b)
	failed := b
	failed.Err, failed.Outputs = failure.New(failure.Unreachable, "no catalog"), nil
	o.BatchEnded(failed)
	stopped := aRun(2)
	stopped.Err, stopped.Stopped = errors.New("canceled"), true
	o.BatchEnded(stopped)
	_ = c.Close()
	checkEvents(t, s.raw)
	var kinds, runs []string
	for _, e := range s.events {
		kinds, runs = append(kinds, e["eventType"].(string)), append(runs, e["run"].(map[string]any)["runId"].(string))
	}
	if strings.Join(kinds, " ") != "ABORT START FAIL ABORT" || runs[0] == runs[1] || runs[1] != runs[2] || runs[3] == runs[2] {
		t.Errorf("%v, %v", kinds, runs)
	}
	var e Event
	if err := json.Unmarshal(s.raw[2], &e); err != nil || value(e.Run.Facets, "errorMessage", "message") != "no catalog" || value(e.Inputs[0].Facets, "version", "datasetVersion") != "42" {
		t.Errorf("%v, %+v", err, e)
	}
	// The run that the dead process had begun is the one that is aborted.
	died := aRun(1)
	died.Epoch, died.PlanEpoch = 3, 3
	if want := (&batches{c: c, q: q}).event(Start, at, died).Run.RunID; runs[0] != want {
		t.Errorf("aborted %s, begun was %s", runs[0], want)
	}
}

func TestAModelOfGoldIsARunOfItsOwn(t *testing.T) {
	s := newServer(t)
	c := client(t, s, Options{})
	m := Model{
		Job: "p.gold.top_pages", RunID: "r", SQL: "SELECT 1", Begun: at, Ended: at.Add(time.Second), Inputs: []ModelInput{{aTable("silver.edits"), 5}},
		Output: aTable("gold.top_pages"), SnapshotID: 9, Rows: 12, Files: 1,
	}
	c.ModelRan(m)
	m.Job, m.Error = "p.gold.other", "Binder Error"
	c.ModelRan(m)
	_ = c.Close()
	checkEvents(t, s.raw)
	if len(s.events) != 4 || s.events[1]["eventType"] != Complete || s.events[3]["eventType"] != Fail {
		t.Fatalf("%v", s.events)
	}
	var e Event
	if err := json.Unmarshal(s.raw[1], &e); err != nil || value(e.Outputs[0].Facets, "version", "datasetVersion") != "9" || value(e.Outputs[0].OutputFacets, "outputStatistics", "rowCount") != 12.0 ||
		value(e.Inputs[0].Facets, "version", "datasetVersion") != "5" || value(e.Job.Facets, "sql", "query") != "SELECT 1" {
		t.Errorf("%v, %+v", err, e)
	}
}

func TestAServerThatDoesNotAnswerDelaysNobodyAndDropsAreCounted(t *testing.T) {
	s := newServer(t)
	s.hold = make(chan struct{})
	c := client(t, s, Options{})
	o := c.Observe(aQuery())
	// The server answers only after every event has been given: if one of them
	// waited for it, the test would never end.
	const events = 3 * queueMax
	for id := range int64(events) {
		o.BatchStarted(aRun(id))
	}
	close(s.hold)
	_ = c.Close()
	if st := c.Stats(); st.Sent+st.Dropped != events || st.Dropped < events-2*queueMax {
		t.Errorf("%+v of %d", st, events)
	}
}

func TestAnErrorOfTheServerIsTriedAgainAndARefusalIsNot(t *testing.T) {
	s := newServer(t)
	s.fail = triesMax - 1
	c := client(t, s, Options{Endpoint: "/in"})
	c.Observe(aQuery()).BatchStarted(aRun(1))
	_ = c.Close()
	if st := c.Stats(); st != (Stats{Sent: 1}) || s.paths["POST /in"] != 1 {
		t.Errorf("%+v, %v", st, s.paths)
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	c = client(t, &server{Server: refusing}, Options{})
	c.Observe(aQuery()).BatchStarted(aRun(1))
	_ = c.Close()
	c.Observe(aQuery()).BatchStarted(aRun(2)) // after the end
	if st := c.Stats(); st != (Stats{Dropped: 2}) {
		t.Errorf("%+v", st)
	}
}

func TestAServerURLThatIsNoneIsRefused(t *testing.T) {
	for _, bad := range []string{"", "marquez:5000", "ftp://x", "http://"} {
		if _, err := New(Options{URL: bad}); !failure.Is(err, failure.Config) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPlacesFollowTheNamingOfDatasets(t *testing.T) {
	for location, want := range map[string][2]string{
		"/data/w/silver/edits":  {"file", "/data/w/silver/edits"},
		"file:///data/w/t":      {"file", "/data/w/t"},
		"s3://bucket/w/t":       {"s3://bucket", "w/t"},
		"gs://bucket/w":         {"gs://bucket", "w"},
		"abfss://c@a.dfs/w/t/u": {"abfss://c@a.dfs", "w/t/u"},
	} {
		if ns, name := Place(location); ns != want[0] || name != want[1] {
			t.Errorf("%s: %s, %s", location, ns, name)
		}
	}
}

// checkEvents holds events to what the spec requires. With WEIR_OPENLINEAGE_SPEC,
// the folder spec of a checkout of OpenLineage, its JSON schemas judge as well.
func checkEvents(t *testing.T, raw [][]byte) {
	t.Helper()
	schemas := specSchemas(t)
	for _, r := range raw {
		var e map[string]any
		if err := json.Unmarshal(r, &e); err != nil {
			t.Fatal(err)
		}
		if _, err := time.Parse(time.RFC3339Nano, text(e, "eventTime")); err != nil {
			t.Errorf("eventTime: %v", err)
		}
		for _, key := range []string{"producer", "schemaURL"} {
			wantURI(t, text(e, key))
		}
		switch text(e, "eventType") {
		case Start, Complete, Fail, Abort:
		default:
			t.Errorf("eventType %v", e["eventType"])
		}
		run, _ := e["run"].(map[string]any)
		if _, err := uuid.Parse(text(run, "runId")); err != nil {
			t.Errorf("runId: %v", err)
		}
		job, _ := e["job"].(map[string]any)
		holders := []map[string]any{run, job}
		for _, side := range []string{"inputs", "outputs"} {
			list, ok := e[side].([]any)
			if !ok || len(list) == 0 {
				t.Errorf("no %s in %s", side, r)
			}
			for _, d := range list {
				holders = append(holders, d.(map[string]any))
				if text(d.(map[string]any), "namespace") == "" || text(d.(map[string]any), "name") == "" {
					t.Errorf("dataset %v", d)
				}
			}
		}
		if text(job, "namespace") == "" || text(job, "name") == "" {
			t.Errorf("job %v", job)
		}
		for _, h := range holders {
			for _, kind := range []string{"facets", "inputFacets", "outputFacets"} {
				of, _ := h[kind].(map[string]any)
				for name, f := range of {
					f := f.(map[string]any)
					wantURI(t, text(f, "_producer"))
					wantURI(t, text(f, "_schemaURL"))
					schemas.check(t, text(f, "_schemaURL"), name, f)
				}
			}
		}
		schemas.check(t, text(e, "schemaURL"), "event", e)
	}
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

func wantURI(t *testing.T, s string) {
	t.Helper()
	if u, err := url.Parse(s); err != nil || u.Scheme != "https" || u.Host == "" {
		t.Errorf("%q is no URI", s)
	}
}

// specs are the schemas of a checkout; nil where there is none.
type specs struct{ c *jsonschema.Compiler }

func specSchemas(t *testing.T) *specs {
	dir := os.Getenv("WEIR_OPENLINEAGE_SPEC")
	if dir == "" {
		return nil
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	files, err := filepath.Glob(filepath.Join(dir, "facets", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("WEIR_OPENLINEAGE_SPEC: no facets in %s", dir)
	}
	for _, path := range append(files, filepath.Join(dir, "OpenLineage.json")) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource(doc.(map[string]any)["$id"].(string), doc); err != nil {
			t.Fatal(err)
		}
	}
	return &specs{c}
}

func (s *specs) check(t *testing.T, schema, what string, v any) {
	t.Helper()
	if s == nil || !strings.HasPrefix(schema, "https://openlineage.io/") {
		return
	}
	compiled, err := s.c.Compile(schema)
	if err == nil {
		err = compiled.Validate(v)
	}
	if err != nil {
		t.Errorf("%s against %s: %v", what, schema, err)
	}
}
