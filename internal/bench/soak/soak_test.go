package soak

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// page is a /metrics that was read.
func page(t *testing.T, text string) *scraped {
	t.Helper()
	s, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const before = `# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1.048576e+08
# TYPE weir_ingest_events_received_total counter
weir_ingest_events_received_total{ingest="a"} 1000
# TYPE weir_query_batch_duration_seconds histogram
weir_query_batch_duration_seconds_bucket{query="bronze",phase="commit",le="+Inf"} 10
weir_query_batch_duration_seconds_sum{query="bronze",phase="commit"} 1
weir_query_batch_duration_seconds_count{query="bronze",phase="commit"} 10
`

const after = `# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 2.097152e+08
# TYPE weir_ingest_events_received_total counter
weir_ingest_events_received_total{ingest="a"} 61000
# TYPE weir_table_data_files gauge
weir_table_data_files{table="x"} 3
weir_table_data_files{table="y"} 4
# TYPE weir_query_lag_offsets gauge
weir_query_lag_offsets{query="bronze"} 7
weir_query_lag_offsets{query="silver"} 9
# TYPE weir_query_batch_duration_seconds histogram
weir_query_batch_duration_seconds_bucket{query="bronze",phase="commit",le="+Inf"} 30
weir_query_batch_duration_seconds_sum{query="bronze",phase="commit"} 2
weir_query_batch_duration_seconds_count{query="bronze",phase="commit"} 30
`

func TestASampleIsTheDifferenceOfTwoLooks(t *testing.T) {
	s := page(t, after).since(page(t, before), []float64{100, 900, 200}, 2, 120)
	if s.Events != 60_000 || s.MemoryMB != 200 || s.MemoryMaxMB != 900 || s.DataFiles != 7 || s.Lag != 9 || s.CommitMS["bronze"] != 50 {
		t.Fatalf("sample %+v", s)
	}
}

func TestSamplesAreReadBackButForATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), samplesFile)
	if err := os.WriteFile(path, []byte(`{"stretch":1,"seconds":60,"commit_ms":{"b":5}}`+"\n"+`{"stretch":1,"sec`), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := load(path)
	if err != nil || len(got) != 1 || got[0].Seconds != 60 {
		t.Fatalf("samples %+v, %v", got, err)
	}
}

func TestTheReportComparesTheFirstQuarterWithTheLast(t *testing.T) {
	var samples []Sample
	for i := range 8 {
		samples = append(samples, Sample{Stretch: 1 + i/4, Seconds: float64(60 * (i + 1)), Events: 10, MemoryMB: float64(100 + i), CommitMS: map[string]float64{"b": float64(i)}})
	}
	r := newReport(Options{Rate: 1000}, samples)
	if r.Stretches != 2 || r.Seconds != 480 || r.Events != 80 || r.First.MemoryMB != 101 || r.Last.MemoryMB != 107 || r.Last.CommitMS["b"] != 7 {
		t.Fatalf("report %+v", r)
	}
	var text, csv, svg bytes.Buffer
	for _, err := range []error{r.WriteText(&text), r.WriteCSV(&csv), r.WriteSVG(&svg)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(csv.String(), "\n"); n != 9 {
		t.Errorf("%d lines of CSV", n)
	}
	if !strings.Contains(text.String(), "8 minutes in 2 stretches") || !strings.Contains(svg.String(), "8 minutes") {
		t.Errorf("text %s", text.String())
	}
	if empty := newReport(Options{}, nil); empty.First.MemoryMB != 0 {
		t.Error("figures of nothing")
	}
}
