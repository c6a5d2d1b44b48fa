package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Engines whose progress marks are read from a table's history.
const (
	engineWeir    = "weir"
	engineSpark   = "spark"
	engineFlink   = "flink"
	engineConnect = "kafka-connect"
	engineDelta   = "delta-txn"
)

// Keys of the marks. Weir's are public; the others are those that the engines'
// Iceberg sinks write into each snapshot's summary, and a Delta writer's app id
// (Spark's is the query id) in the log.
const (
	weirQueryID     = "weir.query-id"
	weirBatchID     = "weir.batch-id"
	sparkQueryID    = "spark.sql.streaming.queryId"
	sparkEpochID    = "spark.sql.streaming.epochId"
	flinkJobID      = "flink.job-id"
	flinkOperatorID = "flink.operator-id"
	flinkCheckpoint = "flink.max-committed-checkpoint-id"
	connectOffsets  = "kafka.connect.offsets."
	connectCommitID = "kafka.connect.commit-id"
	deltaApp        = "delta.txn."
)

// repeatedMax bounds the repeated marks that a report quotes.
const repeatedMax = 10

// Writer is one lineage of a streaming writer, as the marks in the history that
// is still there tell of it.
type Writer struct {
	Engine string `json:"engine"`
	// ID is the query id, job and operator id, control topic and group, or app id.
	ID string `json:"id"`
	// First and Last are the oldest and newest mark that is still there: batch,
	// epoch, checkpoint or commit id.
	First   string    `json:"first"`
	Last    string    `json:"last"`
	LastAt  time.Time `json:"last_at"`
	Commits int       `json:"commits"`
	// Repeated are marks that stand on more than one commit with rows: the same
	// batch may have been committed twice.
	Repeated []string `json:"repeated,omitempty"`
}

// mark is what one snapshot says of its writer.
type mark struct{ engine, id, at string }

func marksOf(s *snapshot) (out []mark) {
	sum := s.Summary
	if id := sum[weirQueryID]; id != "" {
		out = append(out, mark{engineWeir, id, sum[weirBatchID]})
	}
	if id := sum[sparkQueryID]; id != "" {
		out = append(out, mark{engineSpark, id, sum[sparkEpochID]})
	}
	if id := sum[flinkJobID]; id != "" {
		if op := sum[flinkOperatorID]; op != "" {
			id += "/" + op
		}
		out = append(out, mark{engineFlink, id, sum[flinkCheckpoint]})
	}
	for k, v := range sum {
		if id, ok := strings.CutPrefix(k, connectOffsets); ok {
			at := sum[connectCommitID]
			if at == "" {
				at = v
			}
			out = append(out, mark{engineConnect, id, at})
		}
		if id, ok := strings.CutPrefix(k, deltaApp); ok {
			out = append(out, mark{engineDelta, id, v})
		}
	}
	return out
}

// ancestry are the current snapshot and those that it was built on, the newest
// first, as far as they are still there.
func (m *metadata) ancestry() (out []*snapshot) {
	if m.delta { // each version is built on the one before
		for i := len(m.Snapshots) - 1; i >= 0; i-- {
			out = append(out, &m.Snapshots[i])
		}
		return out
	}
	for s := m.current(); s != nil && len(out) <= len(m.Snapshots); s = m.snapshot(*s.ParentID) {
		out = append(out, s)
		if s.ParentID == nil {
			break
		}
	}
	return out
}

// writers are the lineages in the current snapshot's ancestry, in the order in
// which they last committed, the newest last.
func (m *metadata) writers() []Writer {
	type key struct{ engine, id string }
	type seen struct {
		Writer
		times map[string]int
	}
	byKey := map[key]*seen{}
	for _, s := range m.ancestry() {
		added, _ := asInt(s.Summary["added-records"])
		for _, k := range marksOf(s) {
			w := byKey[key{k.engine, k.id}]
			if w == nil {
				w = &seen{Writer{Engine: k.engine, ID: k.id, Last: k.at, LastAt: time.UnixMilli(s.Timestamp).UTC()}, map[string]int{}}
				byKey[key{k.engine, k.id}] = w
			}
			w.First = k.at
			w.Commits++
			if added > 0 && k.at != "" {
				w.times[k.at]++
			}
		}
	}
	out := make([]Writer, 0, len(byKey))
	for _, w := range byKey {
		for at, n := range w.times {
			if n > 1 {
				w.Repeated = append(w.Repeated, at)
			}
		}
		slices.Sort(w.Repeated)
		w.Repeated = w.Repeated[:min(len(w.Repeated), repeatedMax)]
		out = append(out, w.Writer)
	}
	slices.SortFunc(out, func(a, b Writer) int {
		if c := a.LastAt.Compare(b.LastAt); c != 0 {
			return c
		}
		return strings.Compare(a.Engine+a.ID, b.Engine+b.ID)
	})
	return out
}

// noteWriters puts the lineages into the report, and says what a reader should
// look at: marks that stand twice, and an engine whose lineage has changed, as
// it does when a checkpoint is lost or reset.
func (t *TableReport) noteWriters(m *metadata) {
	t.Writers = m.writers()
	lineages := map[string][]string{}
	for _, w := range t.Writers {
		lineages[w.Engine] = append(lineages[w.Engine], w.ID)
		if len(w.Repeated) > 0 {
			t.note("%s %s committed rows more than once under %s", w.Engine, w.ID, strings.Join(w.Repeated, ", "))
		}
	}
	for _, engine := range []string{engineWeir, engineSpark, engineFlink, engineConnect, engineDelta} {
		if ids := lineages[engine]; len(ids) > 1 {
			t.note("%d lineages of %s wrote to this table, the newest last: %s", len(ids), engine, strings.Join(ids, ", "))
		}
	}
}

// writtenBy is the line of the text report.
func (w Writer) String() string {
	text := fmt.Sprintf("written by %s %s: %d commits, %s to %s", w.Engine, w.ID, w.Commits, w.First, w.Last)
	return strings.TrimSuffix(text, ",  to ")
}
