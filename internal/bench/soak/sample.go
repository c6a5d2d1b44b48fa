package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirlake/weir/internal/failure"
)

// Sample is what was seen of the demo within a minute or so.
type Sample struct {
	// Stretch is the life of the process, from 1; Seconds is the running time of
	// all stretches together at the end of the sample.
	Stretch int     `json:"stretch"`
	Seconds float64 `json:"seconds"`
	// Events that came from the stream in the sample.
	Events float64 `json:"events"`
	// MemoryMB is the resident set, the median of looks every few seconds; MemoryMaxMB
	// is the greatest of them: gold and checks work for moments of a minute.
	MemoryMB    float64 `json:"memory_mb"`
	MemoryMaxMB float64 `json:"memory_max_mb"`
	// CommitMS and BatchMS are means of the sample by query, of the commit and of
	// the whole batch.
	CommitMS map[string]float64 `json:"commit_ms"`
	BatchMS  map[string]float64 `json:"batch_ms"`
	// Lag is the greatest number of offsets that a query has still to read.
	Lag float64 `json:"lag_offsets"`
	// The others are sums over all tables.
	DataFiles     float64 `json:"data_files"`
	Snapshots     float64 `json:"snapshots"`
	MetadataBytes float64 `json:"metadata_bytes"`
	Rows          float64 `json:"rows"`
	StateKeys     float64 `json:"state_keys"`
}

func (s Sample) String() string {
	return fmt.Sprintf("%7.0f s  life %d  %8.0f events  %5.0f MB (%5.0f)  commit %5.1f ms  lag %6.0f  %5.0f files  %5.0f snapshots  %4.0f KB metadata",
		s.Seconds, s.Stretch, s.Events, s.MemoryMB, s.MemoryMaxMB, s.commit(), s.Lag, s.DataFiles, s.Snapshots, s.MetadataBytes/1000)
}

// commit is the mean over the queries.
func (s Sample) commit() float64 {
	if len(s.CommitMS) == 0 {
		return 0
	}
	var sum float64
	for _, v := range s.CommitMS {
		sum += v
	}
	return sum / float64(len(s.CommitMS))
}

// load reads the samples of earlier stretches. A last line that a kill has torn
// is left out.
func load(path string) ([]Sample, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, failure.Wrap(failure.Config, err, "the samples of the soak")
	}
	defer f.Close()
	var out []Sample
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var s Sample
		if json.Unmarshal(lines.Bytes(), &s) == nil {
			out = append(out, s)
		}
	}
	return out, lines.Err()
}

// scraped are the figures of one look at /metrics.
type scraped struct{ families map[string]*dto.MetricFamily }

func parse(r io.Reader) (*scraped, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("read /metrics: %w", err)
	}
	return &scraped{families}, nil
}

// memoryMB is the resident set of the process.
func (s *scraped) memoryMB() float64 { return s.sum("process_resident_memory_bytes") / (1 << 20) }

// since is the sample between an earlier look and this one; memory is what looks
// between them saw, this one's included.
func (s *scraped) since(last *scraped, memory []float64, stretch int, seconds float64) Sample {
	out := Sample{
		Stretch: stretch, Seconds: math.Round(seconds), MemoryMB: medianOf(memory), MemoryMaxMB: slices.Max(memory),
		Events:   s.sum("weir_ingest_events_received_total") - last.sum("weir_ingest_events_received_total"),
		CommitMS: map[string]float64{}, BatchMS: map[string]float64{},
		DataFiles: s.sum("weir_table_data_files"), Snapshots: s.sum("weir_table_snapshots"),
		MetadataBytes: s.sum("weir_table_metadata_bytes"), Rows: s.sum("weir_table_rows"), StateKeys: s.sum("weir_query_state_keys"),
	}
	for _, m := range s.families["weir_query_lag_offsets"].GetMetric() {
		out.Lag = max(out.Lag, value(m))
	}
	was := last.durations()
	now := s.durations()
	for k := range now {
		n, seconds := now[k].count-was[k].count, now[k].seconds-was[k].seconds
		if n == 0 {
			continue
		}
		mean := math.Round(seconds/float64(n)*1e5) / 100
		switch k.name {
		case "commit":
			out.CommitMS[k.query] = mean
		case "total":
			out.BatchMS[k.query] = mean
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	if m.Gauge != nil {
		return m.Gauge.GetValue()
	}
	return m.Counter.GetValue()
}

func (s *scraped) sum(name string) (total float64) {
	for _, m := range s.families[name].GetMetric() {
		total += value(m)
	}
	return total
}

// phase is one of a query's batches, and spent what its batches took there so far.
type phase struct{ query, name string }

type spent struct {
	count   uint64
	seconds float64
}

func (s *scraped) durations() map[phase]spent {
	out := map[phase]spent{}
	for _, m := range s.families["weir_query_batch_duration_seconds"].GetMetric() {
		var p phase
		for _, l := range m.GetLabel() {
			switch l.GetName() {
			case "query":
				p.query = l.GetValue()
			case "phase":
				p.name = l.GetValue()
			}
		}
		out[p] = spent{m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()}
	}
	return out
}
