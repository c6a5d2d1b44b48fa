package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
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

func TestTheSampleHolds196EditsAndItsIDsNeverRepeat(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	ids := map[string]bool{}
	for range 3 {
		var counted int
		for _, ev := range sample(r, time.Unix(1_700_000_000, 0)) {
			if ev.counted() {
				counted++
			}
			if ids[ev.id] {
				t.Fatalf("id %s twice", ev.id)
			}
			ids[ev.id] = true
			if !json.Valid(ev.payload) {
				t.Fatalf("not JSON: %s", ev.payload)
			}
		}
		if counted != 196 {
			t.Fatalf("%d edits and new pages", counted)
		}
	}
	if len(ids) != 1200 {
		t.Fatalf("%d ids", len(ids))
	}
}

func TestTheFeedGoesOnWhereAnIDPoints(t *testing.T) {
	f := &feed{events: make([]event, 5), base: 1000}
	for id, want := range map[string]int{
		"": 0,
		`[{"topic":"eqiad","partition":0,"timestamp":1003},{"topic":"codfw","partition":0,"offset":-1}]`: 3,
		`[{"timestamp":2000}]`: 5,
	} {
		if got := f.resume(id); got != want {
			t.Errorf("resume(%s) = %d, want %d", id, got, want)
		}
	}
}

func TestThePipelineFilesOfTheScenariosAreValid(t *testing.T) {
	dir := t.TempDir() + "/it's ${odd}"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := setup{Name: "x", Dir: dir, Brokers: []string{"127.0.0.1:1", "127.0.0.1:2"}, Topic: "a", DLQ: "b", MaxOffsets: 5, Trigger: time.Second, IngestName: "late"}
	if err := s.write(dir + "/queries.yaml"); err != nil {
		t.Error(err)
	}
	s.Ingest = "http://127.0.0.1:1/v2"
	if err := s.write(dir + "/ingest.yaml"); err != nil {
		t.Error(err)
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
	for names, want := range map[string]int{"": len(all), "reference": 1, "crash-points": 26, "crash-points-first": 26, "bronze-commit.*": 3} {
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
		Checks: []Check{{"bronze_rows", "bronze rows", int64(2)}}, Kills: 1, RecoverySeconds: []float64{0.5},
		Timeline: []Event{{Seconds: 1, Kind: "commit", Lane: "bronze.<t>", Rows: 5}, {Seconds: 2, Kind: "kill", Lane: "process"}},
	}}}
}

func TestTheHTMLReportEscapesAndShowsTheKill(t *testing.T) {
	var b bytes.Buffer
	if err := reportForForm().WriteHTML(&b, "Proof"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"It &lt;holds&gt; &amp; stays.", "bronze.&lt;t&gt;", "SIGKILL", "violated"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %q", want)
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
