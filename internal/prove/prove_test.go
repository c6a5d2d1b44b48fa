package prove

import (
	"bytes"
	"context"
	"encoding/xml"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/replay"
)

// prove runs scenarios against the fake binary in one of its modes.
func prove(t *testing.T, mode string, o Options) *Report {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: not under -short")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeEnv, mode)
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	var progress bytes.Buffer
	o.Binary, o.Direct, o.Port, o.Progress, o.Seed = exe, true, loopbackPort(t), &progress, 7
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	rep, err := Main(ctx, o)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if testing.Verbose() {
		rep.WriteText(&progress)
		t.Log("\n" + progress.String())
	}
	return rep
}

func outcome(t *testing.T, rep *Report, want, reason string) *Result {
	t.Helper()
	r := rep.Scenarios[0]
	if r.Outcome != want || !strings.Contains(r.Reason, reason) {
		t.Fatalf("%s: %s (%s), want %s with %q; observed %v", r.Name, r.Outcome, r.Reason, want, reason, r.Observed)
	}
	return r
}

func TestReferenceProvesAnExactEngine(t *testing.T) {
	rep := prove(t, fakeExact, Options{Names: []string{"reference"}, Trigger: 20 * time.Millisecond, KillAfter: 300 * time.Millisecond})
	r := outcome(t, rep, Proved, "")
	for key, want := range map[string]int64{"kafka_messages": 20500, "bronze_rows": 20500, "bronze_distinct_offsets": 20500,
		"silver_rows": 9800, "late_events_in_silver": 0, "dead_letter_messages": 25} {
		if r.Observed[key] != want {
			t.Errorf("%s = %v, want %d", key, r.Observed[key], want)
		}
	}
	if r.Kills != 1 || len(r.RecoverySeconds) != 1 {
		t.Errorf("kills %d, recovery %v", r.Kills, r.RecoverySeconds)
	}
	if rep.Err() != nil {
		t.Error(rep.Err())
	}
}

func TestReferenceIsInconclusiveWhenTheKillComesBeforeTheFirstCommit(t *testing.T) {
	rep := prove(t, fakeExact, Options{Names: []string{"reference"}, KillAt: KillBeforeFirstCommit})
	outcome(t, rep, Inconclusive, "before the first commit")
}

func TestReferenceIsInconclusiveWhenTheKillComesAfterTheLastCommit(t *testing.T) {
	rep := prove(t, fakeExact, Options{Names: []string{"reference"}, KillAt: KillAfterLast, Trigger: time.Millisecond})
	outcome(t, rep, Inconclusive, "after the last commit")
}

func TestAnEngineThatSavesOffsetsAfterTheCommitIsCaughtDoubling(t *testing.T) {
	rep := prove(t, fakeAfter, Options{Names: []string{"bronze-commit.swapped"}})
	r := outcome(t, rep, Violated, "bronze_rows is")
	if r.Folder == "" {
		t.Error("a violated scenario keeps its folder")
	}
}

func TestAnEngineThatSavesOffsetsBeforeTheCommitIsCaughtLosing(t *testing.T) {
	rep := prove(t, fakeBefore, Options{Names: []string{"bronze-commit.before"}})
	outcome(t, rep, Violated, "bronze_rows is")
}

func TestAnEngineThatDoesNotStartAgainViolatesTheClaim(t *testing.T) {
	rep := prove(t, fakeRefuse, Options{Names: []string{"bronze-first-read.done"}})
	outcome(t, rep, Violated, "I do not start twice")
}

func TestAStepThatIsNeverReachedIsInconclusive(t *testing.T) {
	rep := prove(t, fakeExact, Options{Names: []string{"silver-stage.state"}})
	outcome(t, rep, Inconclusive, "never reached stage.state")
}

func TestCrashPointsProveAnExactEngineAndResumeKeepsResults(t *testing.T) {
	dir := t.TempDir()
	rep := prove(t, fakeExact, Options{Dir: dir, Names: []string{"bronze-plan.written", "bronze-commit.metadata", "silver-stage.state"}})
	if rep.Scenarios[0].Outcome != Proved || rep.Scenarios[1].Outcome != Proved || rep.Outcome() != Inconclusive {
		t.Fatalf("%+v %+v", rep.Scenarios[0], rep.Scenarios[1])
	}
	again := prove(t, fakeRefuse, Options{Dir: dir, Resume: true, Names: []string{"bronze-plan.written", "bronze-commit.metadata", "silver-stage.state"}})
	if again.Scenarios[0].Outcome != Proved || again.Scenarios[0].ElapsedSeconds != rep.Scenarios[0].ElapsedSeconds {
		t.Errorf("a proved scenario was done again: %+v", again.Scenarios[0])
	}
	if again.Scenarios[2].ElapsedSeconds == rep.Scenarios[2].ElapsedSeconds {
		t.Errorf("an inconclusive scenario was not done again: %+v", again.Scenarios[2])
	}
}

func TestTheReferenceStreamHoldsTheReferencesFigures(t *testing.T) {
	e := &Env{o: Options{Clock: clock.System{}}, rng: generator(1, "reference", 0)}
	s, err := e.newStream(replay.ReferenceScript(), 0)
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.events(0, s.frames())
	if err != nil {
		t.Fatal(err)
	}
	var messages, dead int
	for _, ev := range events {
		if ev.class == replay.ContractViolation {
			dead++
		} else {
			messages++
		}
	}
	onTime, late := ids(events, replay.Base, event.edit), ids(events, replay.Late, nil)
	if messages != 20500 || dead != 25 || len(onTime) != 9800 || len(late) != 100 {
		t.Errorf("%d messages, %d violations, %d on-time edits, %d late events", messages, dead, len(onTime), len(late))
	}
	if n := s.gen.Counts(s.frames() - referenceLateEvents).Late; n != 0 {
		t.Errorf("%d of the late events come before the last segment", n)
	}
}

func TestTheSameSeedMakesTheSameEvents(t *testing.T) {
	read := func(seed uint64) []event {
		e := &Env{o: Options{Clock: clock.System{}}, rng: generator(seed, "x", 0)}
		s, err := e.newStream(replay.Script{{Kind: replay.SegmentLoops, Count: 1}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		events, err := s.events(0, s.frames())
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	a, b, c := read(1), read(1), read(2)
	if a[0].id != b[0].id || a[399].id != b[399].id || a[0].id == c[0].id {
		t.Errorf("%s %s, %s %s, %s", a[0].id, b[0].id, a[399].id, b[399].id, c[0].id)
	}
}

func TestPercentilesAreByNearestRank(t *testing.T) {
	values := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if p50, p95, top := percentile(values, 50), percentile(values, 95), percentile(values, 100); p50 != 5 || p95 != 10 || top != 10 {
		t.Error(p50, p95, top)
	}
	if got := percentile(values[:1], 50); got != 1 {
		t.Error(got)
	}
	if got := percentile(nil, 50); got != 0 {
		t.Error(got)
	}
}

func TestThePipelineFilesOfTheScenariosAreValid(t *testing.T) {
	dir := t.TempDir() + "/it's ${odd}"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := setup{Name: "x", Dir: dir, Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}, Topic: "a", DLQ: "b", MaxOffsets: 5, Trigger: time.Second}
	if err := s.write(); err != nil {
		t.Error(err)
	}
	s.Ingest = "http://127.0.0.1:1/v2"
	for _, s.Delivery = range []string{pipeline.AtLeastOnce, pipeline.ExactlyOnce} {
		if err := s.write(); err != nil {
			t.Error(err)
		}
	}
}

func TestSelectTakesNamesGroupsAndPatternsAndRefusesTheUnknown(t *testing.T) {
	all := List()
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.Name] {
			t.Errorf("scenario %s is there twice", s.Name)
		}
		seen[s.Name] = true
	}
	for names, want := range map[string]int{"": len(all), "all": len(all), "reference": 1, "crash-points": 30, "crash-points-first": 28, "bronze-commit.*": 3, "ingest": 10, "checkpoint": 7, "boundary": 1} {
		var list []string
		if names != "" {
			list = []string{names}
		}
		got, err := Select(all, list)
		if err != nil || len(got) != want {
			t.Errorf("Select(%q) = %d scenarios, %v; want %d", names, len(got), err, want)
		}
	}
	if _, err := Select(all, []string{"refrence"}); err == nil {
		t.Error("an unknown scenario was accepted")
	}
}

func TestAViolationOutranksWhatIsInconclusive(t *testing.T) {
	r := &Report{Scenarios: []*Result{{Outcome: Inconclusive}, {Outcome: Violated}, {Outcome: Proved}}}
	if r.Outcome() != Violated {
		t.Error(r.Outcome())
	}
}

func reportForForm() *Report {
	return &Report{Scenarios: []*Result{{
		Name: "reference", Group: "reference", Claim: "It <holds> & stays.", Outcome: Violated, Reason: "bronze_rows is 3, must be 2",
		Observed: map[string]any{"bronze_rows": int64(3), "bronze_rows_at_crash": int64(1)}, Expected: map[string]any{"bronze_rows": int64(2)},
		Checks: []Check{{"bronze_rows", "bronze rows", int64(2)}}, Remarks: []string{"it ends here"}, Kills: 1, KillsLanded: 1, RecoverySeconds: []float64{0.5},
		Timeline: []Event{{Seconds: 1, Kind: "commit", Lane: "bronze.<t>", Rows: 5}, {Seconds: 2, Kind: "kill", Lane: "process"}},
	}}}
}

func TestTheHTMLReportEscapesAndShowsTheKill(t *testing.T) {
	var b bytes.Buffer
	if err := reportForForm().WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"It &lt;holds&gt; &amp; stays.", "bronze.&lt;t&gt;", "SIGKILL", "violated"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestTheTextReportShowsFiguresLimitsAndRecovery(t *testing.T) {
	r := reportForForm()
	r.sum()
	var b bytes.Buffer
	r.WriteText(&b)
	for _, want := range []string{"reference: VIOLATED", "✗ bronze rows", "1 violated · 1 kill with SIGKILL, 1 of them at a step or over a batch under way · recovery p50 0.50 s", "it ends here", "bronze rows at crash 1"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
}

func TestTheJUnitReportNamesTheViolation(t *testing.T) {
	var b bytes.Buffer
	if err := reportForForm().WriteJUnit(&b); err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Suites[0].Failures != 1 || got.Suites[0].Cases[0].Failure.Message != "bronze_rows is 3, must be 2" {
		t.Errorf("%+v", got)
	}
}
