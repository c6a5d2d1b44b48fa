package bench

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
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
		{Names: []string{Bronze}, Resume: true},
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

func TestWhatIsRecordedOfTheSameBinaryIsNotMeasuredAgain(t *testing.T) {
	dir := t.TempDir()
	open := func(repeat int, rows int64) *bench {
		b := &bench{o: Options{Names: []string{Small}, Binary: filepath.Join(dir, "binary"), Record: filepath.Join(dir, "record"), Resume: true, Repeat: repeat, Rows: rows}}
		if err := b.o.fill(); err != nil {
			t.Fatal(err)
		}
		b.kafka = &kafka{}
		if err := b.readRecords(); err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "binary"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	measured := 0
	measure := func(b *bench) []Result {
		got, err := b.each(t.Context(), Small, func(run int) ([]Result, error) {
			measured++
			return []Result{{Name: Small, RowsPerSecond: float64(run)}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	write("one")
	measure(open(2, 1000))
	if measured != 2 {
		t.Fatalf("%d measured", measured)
	}
	if b := open(2, 1000); len(b.recorded.complete(Small, 2)) != 2 || b.recorded.complete(Small, 3) != nil || b.recorded.complete(Large, 2) != nil {
		t.Fatalf("%+v", b.recorded)
	}
	if got := measure(open(3, 1000)); measured != 3 || len(got) != 3 || got[2].RowsPerSecond != 3 {
		t.Fatalf("%d measured, %+v", measured, got)
	}
	measure(open(2, 2000)) // other settings
	if measured != 5 {
		t.Fatalf("%d measured", measured)
	}
	write("two")
	measure(open(2, 1000))
	if measured != 7 {
		t.Fatalf("%d measured", measured)
	}
}

func TestSmallRecordsAreOfTheirSizeAndEachHasAnIDOfItsOwn(t *testing.T) {
	value, ids := smallRecord(1, 1_000), map[string]bool{}
	var from, to time.Time
	for n := range int64(1_000) {
		v := value([]byte("before"), n)[len("before"):]
		key := eventID(v)
		var r struct {
			Meta struct {
				ID string
				DT time.Time
			}
			Type string
		}
		if err := json.Unmarshal(v, &r); err != nil || len(v) != smallBytes || r.Type != "edit" || string(key) != r.Meta.ID || len(r.Meta.ID) != 36 {
			t.Fatalf("%s: %d bytes, key %s, %v", v, len(v), key, err)
		}
		if from.IsZero() {
			from = r.Meta.DT
		}
		ids[r.Meta.ID], to = true, r.Meta.DT
	}
	if len(ids) != 1_000 || to.Sub(from) > idsSpan || to.Sub(from) < idsSpan/2 {
		t.Fatalf("%d ids over %s", len(ids), to.Sub(from))
	}
	if string(value(nil, 7)) != string(smallRecord(1, 1_000)(nil, 7)) {
		t.Fatal("a record depends on more than seed and number")
	}
}

func TestTheHistoryIsHeldAgainstItsFirstStretch(t *testing.T) {
	r := Result{Name: historyAt(50), RowsPerSecond: 91, Ratio: 0.91}
	if r.judge(); r.Met == nil || !*r.Met {
		t.Errorf("%+v", r)
	}
	r.Ratio = 0.89
	if r.judge(); *r.Met {
		t.Errorf("%+v", r)
	}
	rep := Report{History: []Point{{Rows: 1000, Commits: 10, RowsPerSecond: 5000, CommitMS: 4}, {Rows: 2000, Commits: 20, RowsPerSecond: 4000, CommitMS: 6}}}
	var csv, svg strings.Builder
	if err := errors.Join(rep.WriteCSV(&csv), rep.WriteSVG(&svg)); err != nil {
		t.Fatal(err)
	}
	if csv.String() != "rows,commits,rows_per_second,commit_ms\n1000,10,5000,4.0\n2000,20,4000,6.0\n" || !strings.Contains(svg.String(), "2000 rows, 20 commits") {
		t.Errorf("%s\n%s", csv.String(), svg.String())
	}
}

func TestThePipelineFilesAreAccepted(t *testing.T) {
	for _, s := range []setup{
		{Topic: "a", MaxOffsets: 5}, {Topic: "b", MaxOffsets: 5, Silver: true, Trigger: 50 * time.Millisecond}, {Topic: "d", MaxOffsets: 5, Silver: true, Store: pipeline.StatePebble}, {Topic: "c", URL: "http://localhost:1/x"},
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
	var l recordLine
	if err := json.Unmarshal(line, &l); err != nil || l.Measurement != "silver/none" || l.Run != 1 || len(l.Results) != 1 || l.Results[0].Name != "silver/none" {
		t.Errorf("%s: %v", line, err)
	}
}
