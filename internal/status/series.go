package status

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Bounds of what is kept for the charts.
const (
	bucketWidth = 2 * time.Second
	bucketsKept = 450             // 15 minutes
	rateBuckets = 5               // the rates that the page shows are means over 10 s
	spreadMax   = time.Minute     // rows of a batch are spread over at most this
	idleAfter   = 5 * bucketWidth // without a batch for so long, the rate is 0 and no longer unknown
	// tailBuckets reach back as far as a batch may still change them.
	tailBuckets = int(spreadMax/bucketWidth) + rateBuckets
)

// Values is a line of a chart. NaN, null in JSON, is a gap.
type Values []float64

// MarshalJSON implements json.Marshaler.
func (v Values) MarshalJSON() ([]byte, error) {
	out := make([]byte, 0, 8*len(v)+2)
	out = append(out, '[')
	for i, f := range v {
		if i > 0 {
			out = append(out, ',')
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			out = append(out, "null"...)
			continue
		}
		out = strconv.AppendFloat(out, math.Round(f*1000)/1000, 'f', -1, 64)
	}
	return append(out, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Values) UnmarshalJSON(b []byte) error {
	var in []*float64
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	out := make(Values, len(in))
	for i, p := range in {
		out[i] = math.NaN()
		if p != nil {
			out[i] = *p
		}
	}
	*v = out
	return nil
}

// Series is the recent past of a query, one value a step, oldest first.
type Series struct {
	// Start is the time of the first value, in seconds since 1970.
	Start       int64   `json:"start"`
	StepSeconds float64 `json:"step_seconds"`
	// Input and Output are rows per second; the rows of a batch are spread over
	// the time since the batch before.
	Input  Values `json:"input"`
	Output Values `json:"output"`
	// CommitMs, BatchMs, FreshnessSeconds (p95) and Lag are the worst of a step.
	// Lag is what waited when a batch was planned: what it took, and what not.
	CommitMs         Values `json:"commit_ms"`
	BatchMs          Values `json:"batch_ms"`
	FreshnessSeconds Values `json:"freshness_seconds"`
	Lag              Values `json:"lag"`
}

// Tail is the end of the series that may have changed since the last look.
func (s Series) Tail() Series {
	n := max(len(s.Input)-tailBuckets, 0)
	s.Start += int64(float64(n) * s.StepSeconds)
	for _, v := range []*Values{&s.Input, &s.Output, &s.CommitMs, &s.BatchMs, &s.FreshnessSeconds, &s.Lag} {
		*v = (*v)[n:]
	}
	return s
}

// bucket is one step of a history.
type bucket struct {
	input, output              float64 // rows
	batches                    int
	commitMs, batchMs, freshMs int64
	fresh                      bool // a batch of the step had rows with event times
	lag                        int64
}

// history is a ring of buckets by time. Not safe for concurrent use.
type history struct {
	first   int64 // number of the first bucket ever used, 0 before that
	last    int64 // and of the newest
	buckets [bucketsKept]bucket
	prev    time.Time // the last batch's commit
}

func bucketOf(t time.Time) int64 { return t.Unix() / int64(bucketWidth/time.Second) }

// at is bucket n, nil where it has been forgotten.
func (h *history) at(n int64) *bucket {
	if h.first == 0 {
		h.first, h.last = n, n
	}
	if n > h.last {
		for i := max(h.last+1, n-bucketsKept+1); i <= n; i++ {
			h.buckets[i%bucketsKept] = bucket{}
		}
		h.last = n
	}
	if n <= h.last-bucketsKept || n < 0 {
		return nil
	}
	h.first = min(h.first, n)
	return &h.buckets[n%bucketsKept]
}

// add records a batch.
func (h *history) add(b *Batch) {
	end := bucketOf(b.CommittedAt)
	if h.first != 0 && end < h.last {
		end = h.last // the clock went back: what is recorded stays where it is
	}
	from := h.prev
	if from.IsZero() || from.After(b.CommittedAt) || b.CommittedAt.Sub(from) > spreadMax {
		from = b.StartedAt
	}
	h.prev = b.CommittedAt
	k := h.at(end)
	k.batches++
	k.commitMs = max(k.commitMs, b.DurationMs[phaseCommit])
	k.batchMs = max(k.batchMs, b.TotalMs())
	if b.Freshness != (Freshness{}) {
		k.freshMs, k.fresh = max(k.freshMs, int64(b.Freshness.P95Seconds*1000)), true
	}
	k.lag = max(k.lag, b.LagOffsets+b.InputRows)
	h.spread(from, b.CommittedAt, float64(b.InputRows), float64(b.OutputRows))
}

// spread lays rows evenly over the time that they came in.
func (h *history) spread(from, to time.Time, input, output float64) {
	if to.Sub(from) > spreadMax {
		from = to.Add(-spreadMax)
	}
	whole := to.Sub(from).Seconds()
	if whole <= 0 {
		if k := h.at(bucketOf(to)); k != nil {
			k.input, k.output = k.input+input, k.output+output
		}
		return
	}
	width := bucketWidth.Seconds()
	for n := bucketOf(from); n <= bucketOf(to); n++ {
		begin := time.Unix(n*int64(width), 0)
		part := minTime(to, begin.Add(bucketWidth)).Sub(maxTime(from, begin)).Seconds() / whole
		if k := h.at(n); k != nil && part > 0 {
			k.input, k.output = k.input+input*part, k.output+output*part
		}
	}
}

// series exports the whole past up to the last full step.
func (h *history) series(now time.Time) Series {
	s := Series{StepSeconds: bucketWidth.Seconds()}
	if h.first == 0 {
		return s
	}
	end := max(bucketOf(now)-1, h.first)
	first := max(h.first, end-bucketsKept+2, 1)
	s.Start = first * int64(s.StepSeconds)
	idle := now.Sub(h.prev) > idleAfter
	known := bucketOf(h.prev)
	for n := first; n <= end; n++ {
		k := bucket{}
		if n <= h.last && n > h.last-bucketsKept {
			k = h.buckets[n%bucketsKept]
		}
		in, out := k.input/s.StepSeconds, k.output/s.StepSeconds
		if n >= known && !idle {
			in, out = math.NaN(), math.NaN() // the next batch fills it
		}
		s.Input, s.Output = append(s.Input, in), append(s.Output, out)
		if k.batches == 0 {
			s.CommitMs, s.BatchMs = append(s.CommitMs, math.NaN()), append(s.BatchMs, math.NaN())
			s.FreshnessSeconds, s.Lag = append(s.FreshnessSeconds, math.NaN()), append(s.Lag, math.NaN())
			continue
		}
		s.CommitMs, s.BatchMs = append(s.CommitMs, float64(k.commitMs)), append(s.BatchMs, float64(k.batchMs))
		fresh := math.NaN()
		if k.fresh {
			fresh = float64(k.freshMs) / 1000
		}
		s.FreshnessSeconds, s.Lag = append(s.FreshnessSeconds, fresh), append(s.Lag, float64(k.lag))
	}
	return s
}

// rates is the mean of the last known steps.
func (s Series) rates() Rates {
	return Rates{Input: recentMean(s.Input), Output: recentMean(s.Output)}
}

func recentMean(v Values) float64 {
	sum, n := 0.0, 0
	for i := len(v) - 1; i >= 0 && n < rateBuckets; i-- {
		if !math.IsNaN(v[i]) {
			sum, n = sum+v[i], n+1
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
