package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/weirlake/weir/internal/bench/plot"
	"github.com/weirlake/weir/internal/failure"
)

// Of the history: the sizes of the table, in units of --rows, at which the rate is
// held against that of the first unit, and the commits that lie behind it from the
// start.
const (
	historyFirst = "history/first"
	// historyShare is the part of the first rate that is left at every size.
	historyShare   = 0.9
	historyCommits = 10_000
	historyQuick   = 300
)

// historySizes are the sizes in units of --rows.
func (b *bench) historySizes() (sizes []int64, commits int64) {
	if b.o.quick {
		return []int64{10}, historyQuick
	}
	return []int64{10, 50}, historyCommits
}

// Point is a stretch of a table's history.
type Point struct {
	// Rows and Commits lie in the table at its end.
	Rows    int64 `json:"rows"`
	Commits int64 `json:"commits"`
	// RowsPerSecond is the steady rate of the stretch, CommitMS the mean of what
	// a batch's commit took.
	RowsPerSecond float64 `json:"rows_per_second"`
	CommitMS      float64 `json:"commit_ms"`
}

// history measures whether what a row costs depends on how many there are already:
// the same number of events is worked off again and again into one table. The topic
// rolls: what was read is removed from it, so that the disk suffices.
func (b *bench) history(ctx context.Context) ([]Result, error) {
	sizes, commits := b.historySizes()
	last := sizes[len(sizes)-1]
	b.say("history: a table of %d to %d events, %d commits behind it", b.o.Rows, last*b.o.Rows, commits)
	return b.each(ctx, History, func(int) ([]Result, error) {
		topic, err := b.topic(ctx, History)
		if err != nil {
			return nil, err
		}
		defer b.dropTopic(ctx, topic)
		h := &historyRun{b: b, s: b.setup(topic, false)}
		defer b.discard(h.s)
		out, err := h.measure(ctx, sizes, commits)
		if err != nil {
			return nil, err
		}
		out[0].History = h.points
		return out, nil
	})
}

type historyRun struct {
	b      *bench
	s      setup
	rows   int64
	behind int64
	points []Point
}

func (h *historyRun) measure(ctx context.Context, sizes []int64, commits int64) ([]Result, error) {
	unit := h.b.o.Rows
	first, err := h.stretches(ctx, historyFirst, historyOver)
	if err != nil {
		return nil, err
	}
	out := []Result{first}
	against := func(r Result) {
		r.Ratio = round(r.RowsPerSecond / first.RowsPerSecond)
		out = append(out, r)
	}
	// So many commits of few rows each.
	h.s.MaxOffsets = max(unit/commits, int64(h.b.o.Partitions))
	if _, err := h.stretch(ctx, "history/small-commits"); err != nil {
		return nil, err
	}
	h.s.MaxOffsets = h.b.o.MaxOffsets
	r, err := h.stretches(ctx, historyAfterCommits, historyOver)
	if err != nil {
		return nil, err
	}
	against(r)
	for _, size := range sizes {
		r, err := h.stretches(ctx, historyAt(size), size-h.rows/unit)
		if err != nil {
			return nil, err
		}
		against(r)
	}
	return out, nil
}

// historyOver is how many stretches a figure is the median of: the last ones
// before a size is reached. One alone is a few seconds, and the very first finds
// a broker that has just started.
const historyOver = 3

// stretches works off n stretches; the result is the median of the last of them.
func (h *historyRun) stretches(ctx context.Context, name string, n int64) (Result, error) {
	var all []Result
	for range n {
		r, err := h.stretch(ctx, name)
		if err != nil {
			return Result{}, err
		}
		all = append(all, r)
	}
	return medians(all[max(0, len(all)-historyOver):])[0], nil
}

const historyAfterCommits = "history/after-small-commits"

func historyAt(units int64) string { return "history/x" + strconv.FormatInt(units, 10) }

// stretch works one more unit of events off.
func (h *historyRun) stretch(ctx context.Context, name string) (Result, error) {
	b, rows := h.b, h.b.o.Rows
	if err := b.preload(ctx, h.s.Topic, None, rows); err != nil {
		return Result{}, err
	}
	h.rows += rows
	r, err := b.work(ctx, name, h.s, rows, map[string]int64{bronzeTable: h.rows})
	if err != nil {
		return Result{}, err
	}
	h.behind += int64(r.Commits)
	p := Point{Rows: h.rows, Commits: h.behind, RowsPerSecond: r.RowsPerSecond, CommitMS: round(r.Stages[Bronze+".commit"] * float64(rows) / 1e6 / float64(r.Commits) * 1000)}
	h.points = append(h.points, p)
	b.say("  %s: %d rows and %d commits in the table, %.0f rows/s, %.1f ms a commit, others used %.1f cores", name, p.Rows, p.Commits, p.RowsPerSecond, p.CommitMS, r.Others)
	return r, b.roll(ctx, h.s.Topic)
}

// historyOf is that of the last run.
func historyOf(all []Result) (out []Point) {
	for _, r := range all {
		if len(r.History) > 0 {
			out = r.History
		}
	}
	return out
}

// roll removes everything from the topic.
func (b *bench) roll(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, adminMax)
	defer cancel()
	ends, err := b.endOffsets(ctx, topic)
	if err != nil {
		return err
	}
	done, err := b.kafka.admin.DeleteRecords(ctx, ends.Offsets())
	if err == nil {
		err = done.Error()
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "remove what was read from topic %s", topic)
	}
	return nil
}

// WriteCSV writes the table's history, a stretch a line.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{"rows", "commits", "rows_per_second", "commit_ms"})
	for _, p := range r.History {
		_ = c.Write([]string{fmt.Sprint(p.Rows), fmt.Sprint(p.Commits), fmt.Sprintf("%.0f", p.RowsPerSecond), fmt.Sprintf("%.1f", p.CommitMS)})
	}
	c.Flush()
	return c.Error()
}

// WriteSVG draws it.
func (r *Report) WriteSVG(w io.Writer) error {
	rate, commit := plot.Line{Title: "rows a second", Unit: "k/s"}, plot.Line{Title: "commit", Unit: "ms"}
	var places []float64
	for _, p := range r.History {
		rate.Values, commit.Values = append(rate.Values, p.RowsPerSecond/1000), append(commit.Values, p.CommitMS)
		places = append(places, float64(p.Rows))
	}
	end, label := 1.0, "no history was measured"
	if n := len(r.History); n > 0 {
		end, label = places[n-1], fmt.Sprintf("%d rows, %d commits", r.History[n-1].Rows, r.History[n-1].Commits)
	}
	return plot.WriteSVG(w, []plot.Line{rate, commit}, places, end, label)
}
