package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/replay"
)

// progressLineMax bounds a line of the child's progress: a position with many
// partitions is long.
const progressLineMax = 16 << 20

// batchLine is what is read of a progress line.
type batchLine struct {
	Query       string           `json:"query_name"`
	CommittedAt time.Time        `json:"committed_at"`
	InputRows   int64            `json:"input_rows"`
	DurationMs  map[string]int64 `json:"duration_ms"`
}

// bronze measures a backlog into the bronze table.
func (b *bench) bronze(ctx context.Context) ([]Result, error) { return b.backlogs(ctx, Bronze) }

// silver measures the same backlog into bronze and silver at once.
func (b *bench) silver(ctx context.Context) ([]Result, error) { return b.backlogs(ctx, Silver) }

func (b *bench) backlogs(ctx context.Context, name string) ([]Result, error) {
	var out []Result
	for _, codec := range b.o.compressions() {
		if got := b.recorded.complete(name+"/"+codec, b.o.Repeat); got != nil {
			out = append(out, got...)
			continue
		}
		b.say("%s/%s: a backlog of %d events", name, codec, b.o.Rows)
		topic, err := b.topic(ctx, codec)
		if err != nil {
			return nil, err
		}
		if err := b.preload(ctx, topic, codec, b.o.Rows); err != nil {
			return nil, err
		}
		got, err := b.each(ctx, name+"/"+codec, func(int) ([]Result, error) {
			return one(b.backlog(ctx, name+"/"+codec, topic, b.o.Rows, b.setup(topic, name == Silver)))
		})
		b.dropTopic(ctx, topic)
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

// backlog works the topic off once, in a folder of its own.
func (b *bench) backlog(ctx context.Context, name, topic string, rows int64, s setup) (Result, error) {
	defer b.discard(s)
	want := map[string]int64{bronzeTable: rows}
	if s.Silver {
		gen, err := replay.NewGenerator(replay.GeneratorConfig{Seed: b.o.Seed})
		if err != nil {
			return Result{}, err
		}
		want[silverTable] = gen.Counts(rows).EditNew
	}
	return b.work(ctx, name, s, rows, want)
}

// work works off the rows that the pipeline has before it, and counts the tables
// afterwards.
func (b *bench) work(ctx context.Context, name string, s setup, rows int64, want map[string]int64) (Result, error) {
	file, err := s.write()
	if err != nil {
		return Result{}, err
	}
	m := b.meter()
	c, err := b.start(name, "run", file, "--once", "--output", "json")
	if err != nil {
		return Result{}, err
	}
	if err := c.wait(ctx); err != nil {
		return Result{}, err
	}
	brokerCPU, others := m.read(c.userAndSys)
	lines, err := progressLines(c.out)
	if err != nil {
		return Result{}, err
	}
	if err := b.complete(ctx, s, want); err != nil {
		return Result{}, err
	}
	million := float64(rows) / 1e6
	r := Result{
		Name: name, Rows: rows, CPU: round(c.userAndSys.Seconds() / million), PeakRSSMB: round(c.peakMB()),
		Others: others, BrokerCPU: round(brokerCPU.Seconds() / million), Seconds: round(c.endedAt.Sub(c.startedAt).Seconds()),
		Whole: round(float64(rows) / c.endedAt.Sub(c.startedAt).Seconds()), Commits: len(lines), Stages: stages(lines, rows),
	}
	last := Bronze
	if s.Silver {
		last = Silver
	}
	r.RowsPerSecond = round(steady(lines, last, rows))
	return r, nil
}

// steady is the rate between the first commit of bronze and the last commit of
// the query that is measured: rows after the first batch over that time.
func steady(lines []batchLine, last string, rows int64) float64 {
	var from, to time.Time
	for _, l := range lines {
		if l.Query == Bronze && from.IsZero() {
			from = l.CommittedAt
			rows -= l.InputRows
		}
		if l.Query == last && l.CommittedAt.After(to) {
			to = l.CommittedAt
		}
	}
	if from.IsZero() || !to.After(from) || rows <= 0 {
		return 0
	}
	return float64(rows) / to.Sub(from).Seconds()
}

// stages are the seconds per million rows that each query spent in each step.
func stages(lines []batchLine, rows int64) map[string]float64 {
	sum := map[string]float64{}
	for _, l := range lines {
		for step, ms := range l.DurationMs {
			sum[l.Query+"."+step] += float64(ms) / 1000
		}
	}
	for k := range sum {
		sum[k] = round(sum[k] / float64(rows) * 1e6)
	}
	return sum
}

func progressLines(path string) ([]batchLine, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []batchLine
	sc := bufio.NewScanner(f)
	sc.Buffer(make([]byte, 64<<10), progressLineMax)
	for sc.Scan() {
		var l batchLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return nil, failure.Wrap(failure.Runtime, err, "progress of the measured process")
		}
		if l.Query != "" {
			out = append(out, l)
		}
	}
	return out, sc.Err()
}

// complete counts the tables: a figure for rows that are not there is none.
func (b *bench) complete(ctx context.Context, s setup, want map[string]int64) error {
	for table, rows := range want {
		h, err := audit.Peek(ctx, s.catalog(), nil, table)
		if err != nil {
			return err
		}
		if h.Rows != rows {
			return failure.New(failure.Mismatch, "table %s holds %d rows after the run, %d were to be there", table, h.Rows, rows)
		}
	}
	return nil
}
