package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

func TestARecordIsAsOldAsTheFirstSightingThatHoldsIt(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	sent := []stamp{{append: 1000, event: 900}, {append: 2000, event: 1990}, {append: 2100, event: 2000}, {append: 9000, event: 9000}}
	seen := []sighting{
		{at(1500), map[int32]int64{3: 7}}, // before the partition's first record of ours at offset 7
		{at(2050), map[int32]int64{3: 8}}, // the first record, not counted
		{at(2600), map[int32]int64{3: 10}},
		{at(2700), map[int32]int64{3: 10}},
	}
	appends, events := latencies(sent, 7, seen, 3, 2000)
	if want := []float64{0.6, 0.5}; !slices.Equal(appends, want) {
		t.Errorf("from the append: %v, want %v", appends, want)
	}
	if want := []float64{0.61, 0.6}; !slices.Equal(events, want) {
		t.Errorf("from the event: %v, want %v", events, want)
	}
}

func TestSteadyRateLeavesOutTheFirstBatchAndItsTime(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	lines := []batchLine{
		{Query: Bronze, CommittedAt: at(10), InputRows: 100},
		{Query: Silver, CommittedAt: at(11), InputRows: 100},
		{Query: Bronze, CommittedAt: at(12), InputRows: 300},
		{Query: Silver, CommittedAt: at(15), InputRows: 300},
	}
	if got := steady(lines, Bronze, 400); got != 150 {
		t.Errorf("bronze: %v rows/s, want 300 rows in 2 s", got)
	}
	if got := steady(lines, Silver, 400); got != 60 {
		t.Errorf("silver: %v rows/s, want 300 rows in 5 s", got)
	}
	if got := steady(lines[:1], Bronze, 100); got != 0 {
		t.Errorf("a single batch has no steady rate, got %v", got)
	}
}

func TestMediansAreTakenFieldByField(t *testing.T) {
	got := medians([]Result{
		{Name: "x", RowsPerSecond: 1, CPU: 30, Stages: map[string]float64{"a": 1}}, {Name: "y", P95: 4},
		{Name: "x", RowsPerSecond: 9, CPU: 10, Stages: map[string]float64{"a": 3}}, {Name: "y", P95: 2},
		{Name: "x", RowsPerSecond: 5, CPU: 20, Stages: map[string]float64{"a": 2}},
	})
	if len(got) != 2 || got[0].Name != "x" || got[1].Name != "y" {
		t.Fatalf("%+v", got)
	}
	if x := got[0]; x.RowsPerSecond != 5 || x.CPU != 20 || x.Stages["a"] != 2 || x.Runs != 3 {
		t.Errorf("x: %+v", x)
	}
	if y := got[1]; y.P95 != 3 || y.Runs != 2 {
		t.Errorf("y: %+v", y)
	}
}

func TestAVerdictNeedsEveryPartOfTheTarget(t *testing.T) {
	r := Result{Name: "bronze/none", RowsPerSecond: 230_000, CPU: 5, PeakRSSMB: 390}
	if r.judge(); r.Met == nil || !*r.Met {
		t.Errorf("all parts are met: %+v", r)
	}
	r.PeakRSSMB = 401
	if r.judge(); *r.Met {
		t.Errorf("memory is over the target: %+v", r)
	}
	r.PeakRSSMB = 0
	if r.judge(); *r.Met {
		t.Error("a figure that could not be measured counts as met")
	}
	free := Result{Name: "freshness/100/bronze/event"}
	if free.judge(); free.Met != nil || free.Target != "" {
		t.Errorf("no target, but a verdict: %+v", free)
	}
}

func TestNamesAndNumbersAreCheckedBeforeAnythingStarts(t *testing.T) {
	for _, o := range []Options{
		{}, {Names: []string{"nothing"}}, {Names: []string{Bronze}, Compression: "lz4"}, {Names: []string{Bronze}, Rows: 10},
		{Names: []string{Bronze}, Kafka: []string{"localhost:1"}, KafkaScript: "x"}, {Names: []string{Bronze}, Rates: []int{0}},
	} {
		if err := o.fill(); !failure.Is(err, failure.Config) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	o := Options{Names: []string{Silver, Quick}}
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.Names, order) || o.Rows != rowsQuick || !slices.Equal(o.Rates, []int{5000}) {
		t.Errorf("quick: %+v", o)
	}
}

func TestThePipelineFilesAreAccepted(t *testing.T) {
	for _, s := range []setup{
		{Topic: "a", MaxOffsets: 5}, {Topic: "b", MaxOffsets: 5, Silver: true, Trigger: 50 * time.Millisecond}, {Topic: "c", URL: "http://localhost:1/x"},
	} {
		s.Dir, s.Brokers = filepath.Join(t.TempDir(), "it's ${x}"), []string{"127.0.0.1:1", "127.0.0.1:2"}
		if _, err := s.write(); err != nil {
			t.Error(err)
		}
	}
}

func TestABacklogIsMeasuredEndToEnd(t *testing.T) {
	bin := os.Getenv("WEIR_BIN")
	if testing.Short() || bin == "" {
		t.Skip("starts processes: needs WEIR_BIN, the path of the built binary")
	}
	record := t.TempDir() + "/record.jsonl"
	rep, err := Run(t.Context(), Options{Names: []string{Silver}, Binary: bin, Dir: t.TempDir(), Rows: 3000, MaxOffsets: 1000, Record: record})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Benchmarks) != 1 || rep.Benchmarks[0].Rows != 3000 || rep.Benchmarks[0].RowsPerSecond <= 0 {
		t.Errorf("%+v", rep.Benchmarks)
	}
	line, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	if err := json.Unmarshal(line, &r); err != nil || r.Name != "silver/none" {
		t.Errorf("%s: %v", line, err)
	}
}
