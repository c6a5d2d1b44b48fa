package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// sessionsFile is a pipeline whose sessions and windows read what silver has
// parsed. Batches are small: every group is made of rows of several.
const sessionsFile = `name: groups
catalog: {type: sql, name: weir, uri: "sqlite:%[1]s/catalog.db"}
warehouse: "%[1]s/warehouse"
checkpointLocation: "%[1]s/checkpoints"
kafka:
  bootstrapServers: [%[2]q]
queries:
  - name: bronze
    from: {kafka: {topics: [edits], maxOffsetsPerTrigger: 80}}
    to: {iceberg: {table: bronze.edits}}
  - name: silver
    from: {table: {name: bronze.edits, maxOffsetsPerTrigger: 80}}
    parse:
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
        - {name: seen, path: $.seen, type: timestamptz, timeFormat: epochMillis, required: true}
        - {name: editor, path: $.editor, type: string}
        - {name: page, path: $.page, type: string}
        - {name: size, path: $.size, type: long}
        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    watermark: {column: seen, delay: 1m}
    dropDuplicatesWithinWatermark: [event_id]
    deadLetter: {table: silver.dead}
    to: {iceberg: {table: silver.edits}}
  - name: sessions
    from: {table: {name: silver.edits, maxOffsetsPerTrigger: 80}}
    watermark: {column: seen}
    aggregate:
      - session: {gap: %[3]s}
        keys: [editor]
        columns: &columns
          - {name: edits, function: count}
          - {name: paged, function: count, column: page}
          - {name: bytes, function: sum, column: size}
          - {name: mean, function: avg, column: size}
          - {name: least, function: min, column: size}
          - {name: greatest, function: max, column: page}
          - {name: first_page, function: first, column: page}
          - {name: last_size, function: last, column: size}
          - {name: pages, function: approxCountDistinct, column: page}
    to: {iceberg: {table: silver.sessions}}
  - name: windows
    from: {table: {name: silver.edits}}
    watermark: {column: seen}
    aggregate:
      - window: {duration: 60s, slide: 20s}
        keys: [editor]
        columns: *columns
    to: {iceberg: {table: silver.windows}}
status: {listen: none}
`

const (
	sessionsGap  = "20s"
	sessionsLate = 70 // seconds: beyond the watermark's delay
)

// groupsLab is such a pipeline with its broker and its clock of event time.
type groupsLab struct {
	t      *testing.T
	dir    string
	file   string
	client *kgo.Client
	rng    *rand.Rand
	at     int64 // seconds of event time
	sent   int
}

func newGroupsLab(t *testing.T) *groupsLab {
	t.Helper()
	weirBin(t)
	python(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	l := &groupsLab{t: t, dir: t.TempDir(), rng: rand.New(rand.NewPCG(seed, 2)), at: time.Now().Unix() - 40_000}
	bootstrap, _ := embeddedBroker(t, filepath.Join(l.dir, "kafka"), "edits:3")
	l.file = filepath.Join(l.dir, "groups.yaml")
	l.write(bootstrap, sessionsGap)
	var err error
	if l.client, err = kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic("edits"), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Close)
	return l
}

func (l *groupsLab) write(bootstrap, gap string) {
	l.t.Helper()
	if err := os.WriteFile(l.file, fmt.Appendf(nil, sessionsFile, l.dir, bootstrap, gap), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// produce sends edits in any order of event time, some of them twice and a few
// too late.
func (l *groupsLab) produce(n int) {
	l.t.Helper()
	var records []*kgo.Record
	for range n {
		l.sent++
		l.at += l.rng.Int64N(3)
		at := l.at*1000 - l.rng.Int64N(40_000)
		if l.rng.IntN(30) == 0 {
			at -= sessionsLate * 1000
		}
		page := "null"
		if l.rng.IntN(4) > 0 {
			page = fmt.Sprintf("%q", fmt.Sprint("page ", l.rng.IntN(12)))
		}
		editor := fmt.Sprintf("%q", fmt.Sprint("editor ", l.rng.IntN(7)))
		if l.rng.IntN(12) == 0 {
			editor = "null"
		}
		r := &kgo.Record{Key: fmt.Append(nil, l.sent), Value: fmt.Appendf(nil, `{"id":"e%d","seen":%d,"editor":%s,"page":%s,"size":%d}`,
			l.sent, at, editor, page, l.rng.IntN(1000)-500)}
		records = append(records, r)
		if l.rng.IntN(20) == 0 {
			records = append(records, &kgo.Record{Key: r.Key, Value: r.Value})
		}
	}
	if err := l.client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

// once drains the pipeline; it must end with the exit code.
func (l *groupsLab) once(want int, args ...string) (stderr string) {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, append([]string{"run", l.file, "--once"}, args...)...)
	if code != want {
		l.t.Fatalf("exit %d, must be %d\n%s\n%s", code, want, tail(out), tail(errs))
	}
	return out + errs
}

// crash drains it until the step, where the process kills itself.
func (l *groupsLab) crash(point string) {
	l.t.Helper()
	p := start(l.t, []string{"WEIR_CRASH_AT=" + point}, "run", l.file, "--once")
	if code := p.wait(); code != -1 || !strings.Contains(p.errs.String(), "crash point") {
		l.t.Fatalf("%s was not reached: exit %d\n%s", point, code, tail(p.errs.String()))
	}
}

// groupCounts is what count_groups.py says.
type groupCounts struct {
	Rows, Groups, Expected, Held, Missing, Extra int64
	Examples                                     []string
}

// exact lets DuckDB compute every group again, and the audit too.
func (l *groupsLab) exact() {
	l.t.Helper()
	for table, args := range map[string][]string{
		"sessions": {"--gap", "20000000"}, "windows": {"--duration", "60000000", "--slide", "20000000"},
	} {
		var c groupCounts
		reader(l.t, &c, "count_groups.py", append([]string{"--catalog", filepath.Join(l.dir, "catalog.db"), "--table", "silver.edits",
			"--groups", "silver." + table, "--query", table}, args...)...)
		if c.Missing != 0 || c.Extra != 0 || c.Held != c.Expected || c.Expected == 0 {
			l.t.Errorf("%s: %+v", table, c)
		}
		l.t.Logf("%s: %d rows make %d groups, %d of them complete", table, c.Rows, c.Groups, c.Held)
	}
	out, errs, code := weir(l.t, nil, "audit", l.file)
	if code != 0 {
		l.t.Errorf("audit: exit %d\n%s\n%s", code, tail(out), tail(errs))
	}
}

// sessionPoints are the steps that the query of sessions goes through.
func sessionPoints() []string {
	return []string{"claim.before", "claim.done", "plan.written", "read.done", "transform.done", "stage.file", "stage.state", "stage.done",
		"commit.before", "commit.metadata", "commit.swapped", "done.written", "report.done"}
}

func TestSessionsAndWindowsEqualWhatDuckDBComputesAfterKillsAndLostState(t *testing.T) {
	l := newGroupsLab(t)
	points := []string{"sessions/stage.state:2", "sessions/commit.swapped:2", "windows/stage.done:2"}
	if os.Getenv("WEIR_SESSIONS") == "" {
		t.Log("three steps of thirteen; make sessions goes through all (WEIR_SESSIONS=1)")
	} else {
		points = nil
		for _, p := range sessionPoints() {
			n := 1 + l.rng.IntN(3)
			if strings.HasPrefix(p, "claim.") {
				n = 1
			}
			points = append(points, fmt.Sprintf("sessions/%s:%d", p, n))
		}
		l.rng.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	}
	for _, p := range points {
		l.produce(600)
		l.crash(p)
	}
	l.produce(300)
	l.once(0)
	l.exact()

	// The operator's memory is lost: it is read again from silver.
	if err := os.RemoveAll(filepath.Join(l.dir, "checkpoints", "sessions", "state")); err != nil {
		t.Fatal(err)
	}
	l.produce(200)
	if out := l.once(0); !strings.Contains(out, "rebuilt from the source") {
		t.Errorf("nobody said that state was rebuilt:\n%s", tail(out))
	}
	// The whole checkpoint is lost, and silver's history with it.
	if err := os.RemoveAll(filepath.Join(l.dir, "checkpoints", "sessions")); err != nil {
		t.Fatal(err)
	}
	reader(t, &struct{}{}, "compact_pyiceberg.py", "--catalog", filepath.Join(l.dir, "catalog.db"), "--table", "silver.edits", "--no-rewrite", "--expire")
	l.produce(200)
	l.once(0)
	l.exact()
}

func TestCompactionOfTheTableThatSessionsReadRepeatsNoRow(t *testing.T) {
	l := newGroupsLab(t)
	l.produce(300)
	l.once(0)
	reader(t, &struct{}{}, "compact_pyiceberg.py", "--catalog", filepath.Join(l.dir, "catalog.db"), "--table", "silver.edits")
	l.produce(300)
	l.once(0)
	l.exact()
}

func TestAnotherGapOverExistingStateIsRefusedWithTheDifference(t *testing.T) {
	l := newGroupsLab(t)
	l.produce(300)
	l.once(0)
	whole, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(whole), "session: {gap: 20s}", "session: {gap: 25s}", 1)
	other = strings.Replace(other, "{name: edits, function: count}", "{name: edits, function: count, column: page}", 1)
	if err := os.WriteFile(l.file, []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	l.produce(100)
	refused := l.once(exitCheckpoint, "--query", "bronze,silver,sessions")
	for _, want := range []string{"session-1: gap was 20s, is 25s", "no longer: edits = count()", "new: edits = count(page string)", "weir run --new-state sessions"} {
		if !strings.Contains(refused, want) {
			t.Errorf("the refusal does not say %q:\n%s", want, tail(refused))
		}
	}
	// Nothing was claimed or changed: as it was before, it goes on and is exact.
	if err := os.WriteFile(l.file, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	l.once(0)
	l.exact()

	// Another column of the same groups is no other grouping: what is open is read
	// again from silver, and what was put out has null.
	const last, more = "{name: pages, function: approxCountDistinct, column: page}", "\n          - {name: most, function: max, column: size}"
	wider := func(text string) string { return strings.Replace(text, last, last+more, 1) }
	if err := os.WriteFile(l.file, []byte(wider(string(whole))), 0o644); err != nil {
		t.Fatal(err)
	}
	l.produce(200)
	if out := l.once(0); !strings.Contains(out, "its definition has changed; state is rebuilt from the source") {
		t.Errorf("nobody said that open groups were read again:\n%s", tail(out))
	}
	l.exact()

	// With the state given up it goes on under the new definition, once said.
	other = wider(other)
	if err := os.WriteFile(l.file, []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	l.produce(100)
	if out := l.once(0, "--query", "bronze,silver,sessions", "--new-state", "sessions"); !strings.Contains(out, "given up") {
		t.Errorf("nobody said what was given up:\n%s", tail(out))
	}
	l.produce(100)
	l.once(0, "--query", "bronze,silver,sessions")
}
