package mutants

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mutant is one rule broken.
type mutant struct {
	// rule is what the changed code no longer does.
	rule string
	// file is changed by putting to in the place of from, which occurs once.
	file, from, to string
	// pkg and run name the test that must fail; args go to its binary.
	pkg, run string
	args     []string
}

const (
	pairs  = "TestTwoWritersAtEveryPairOfSteps"
	random = "TestARandomScheduleOfFaults"
	broker = "TestARandomScheduleWithTheShippedKafkaSource"
)

var mutants = []mutant{
	{
		rule: "a new checkpoint file's folder is fsynced before the write is acknowledged",
		file: "internal/objstore/files.go", from: "\t\t\terr = s.fs.syncDir(dir)\n\t\t\t// Best effort", to: "\t\t\t// Best effort",
		pkg: "internal/sim", run: pairs,
	},
	{
		rule: "contents are fsynced before they get their name",
		file: "internal/objstore/files.go", from: "err = f.Sync()\n", to: "err = nil\n",
		pkg: "internal/objstore", run: "TestPowerLoss|TestCreateOnceNames",
	},
	{
		rule: "what is already there counts only once it is durable",
		file: "internal/objstore/files.go", from: "if err := s.fs.syncDir(path.Dir(key)); err != nil && !errors.Is(err, syscall.EROFS) {", to: "if err := error(nil); err != nil {",
		pkg: "internal/objstore", run: "TestAlreadyThere|TestSettle",
	},
	{
		rule: "a table's file is fsynced before it gets its name",
		file: "internal/lake/io.go", from: "\tw.io.traced(\"sync\", w.path)\n\tif err := w.file.Sync(); err != nil {", to: "\tif err := error(nil); err != nil {",
		pkg: "internal/lake", run: "TestAFileIsSynced",
	},
	{
		rule: "offsets/N is durable before the batch is read",
		file: "internal/checkpoint/store.go", from: "\tkey := OffsetsKey(p.BatchID)\n", to: "\tkey := OffsetsKey(p.BatchID)\n\tif len(b) > 0 {\n\t\treturn PlanWritten{Plan: p, Hash: PlanHash(p), Created: true, Ours: true}, nil\n\t}\n",
		pkg: "internal/engine", run: "TestTheDurableWritesOfABatch|TestAKillAtEveryStorageOperation",
	},
	{
		rule: "offsets/N is written once: the first plan stands",
		file: "internal/checkpoint/store.go", from: "created, existing, err := l.store.CreateOnce(ctx, key, b)\n\tif err != nil {\n\t\treturn PlanWritten{}", to: "created, existing, err := true, []byte(nil), l.store.Put(ctx, key, b)\n\tif err != nil {\n\t\treturn PlanWritten{}",
		pkg: "internal/checkpoint", run: "TestAPlanIsWrittenOnce",
	},
	{
		rule: "commits/N comes after the sink's commit, never before",
		file: "internal/engine/batch.go", from: "func (r *run) commitSinks(ctx context.Context, a *attempt) error {\n", to: "func (r *run) commitSinks(ctx context.Context, a *attempt) error {\n\tif err := r.log.WriteCommit(ctx, checkpoint.CommitEntry{QueryID: r.id.queryID, BatchID: a.plan.BatchID, Marker: &a.marker}); err != nil {\n\t\treturn err\n\t}\n",
		pkg: "internal/sim", run: pairs,
	},
	{
		rule: "what every sink will commit is written down before the first one commits",
		file: "internal/engine/batch.go", from: "if len(r.sinks) > 1 {", to: "if len(r.sinks) > 99 {",
		pkg: "internal/engine", run: "TestTheDurableWritesOfABatch|TestStagedFilesAreCommitted",
	},
	{
		rule: "the counts of a batch must add up before anything is visible",
		file: "internal/engine/steps.go", from: "if !c.Balanced() {", to: "if false {",
		pkg: "internal/engine", run: "TestCountsThatDoNotAddUp",
	},
	{
		rule: "a column that the query wrote does not go without a word",
		file: "internal/lake/evolve.go", from: "\tcase keep || !p.declared:\n", to: "\tcase true:\n",
		pkg: "internal/sink/iceberg", run: "TestAnOlderFileOnANewerTableStops",
	},
	{
		rule: "the operators' state is that of the marker after a restart",
		file: "internal/engine/start.go", from: "\trebuilt := false\n", to: "\trebuilt := false\n\tif m.BatchID >= 0 {\n\t\treturn nil\n\t}\n",
		pkg: "internal/sim", run: random,
	},
	{
		rule: "a lost checkpoint is adopted from the marker in the table",
		file: "internal/engine/query.go", from: "q.Options.OnLostCheckpoint = checkpoint.Adopt", to: "q.Options.OnLostCheckpoint = checkpoint.Restart",
		pkg: "internal/sim", run: random,
	},
	{
		rule: "a run that was overtaken writes nothing into the logs",
		file: "internal/checkpoint/store.go", from: "if e := l.claimed(); e.Number > 0 && (", to: "if e := l.claimed(); e.Number < 0 && (",
		pkg: "internal/engine", run: "TestAZombie",
	},
	{
		rule: "every try of a commit reads the marker again: it may have landed",
		file: "internal/sink/iceberg/commit.go", from: "found, err := c.judge(t)\n", to: "var found *marker.Marker\n",
		pkg: "internal/sim", run: random, args: []string{"-sim.schedules", "400"},
	},
	{
		rule: "offsets decide whether a batch follows, not its id alone",
		file: "internal/sink/iceberg/commit.go", from: "case !c.prev.Position.SameOffsets(cur.Position):", to: "case false:",
		pkg: "internal/sink/iceberg", run: "TestABatchThatBeginsElsewhere",
	},
	{
		rule: "a newer epoch in the marker fences an older run",
		file: "internal/sink/iceberg/commit.go", from: "case cur.Epoch.Newer(c.permit.Epoch()) ||", to: "case false && cur.Epoch.Newer(c.permit.Epoch()) ||",
		pkg: "internal/sink/iceberg", run: "TestConformance$",
	},
	{
		rule: "the marker stands in the table's properties, which outlive expiry",
		file: "internal/lake/commit.go", from: "txn.SetProperties(ch.Properties)", to: "txn.SetProperties(nil)",
		pkg: "internal/sim", run: pairs,
	},
	{
		rule: "a commit is made only on the head that it was built on",
		file: "internal/lake/catalog.go", from: "if err := r.Validate(current.Metadata()); err != nil {", to: "if err := r.Validate(current.Metadata()); err != nil && false {",
		pkg: "internal/lake", run: "TestCommitFromAStaleTable",
	},
	{
		rule: "the catalog's pointer moves only from where the commit found it",
		file: "internal/lake/sqlite.go", from: " AND metadata_location = ?`,\n\t\tto, from, p.name, ns, name, from)", to: "`,\n\t\tto, from, p.name, ns, name)",
		pkg: "internal/lake", run: "TestRacingCommits|TestSQLiteConformance",
	},
	{
		rule: "a claim moves the head, so that a commit prepared before it fails",
		file: "internal/lake/commit.go", from: "\t// AddDataFiles without files does nothing;", to: "\tif ch.Summary != nil {\n\t\treturn nil\n\t}\n\t// AddDataFiles without files does nothing;",
		pkg: "internal/lake", run: "TestZeroFileCommit",
	},
	{
		rule: "rows are read from where the table's marker stands",
		file: "internal/engine/start.go", from: "r.pos, r.mark, r.last, r.next = m.Position.Clone(),", to: "r.pos, r.mark, r.last, r.next = obs.initial.Clone(),",
		pkg: "internal/sim", run: pairs,
	},
	{
		rule: "the consumer never resets an offset by itself",
		file: "internal/source/kafka/reader.go", from: "kgo.ConsumeResetOffset(kgo.NoResetOffset())", to: "kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd())",
		pkg: "internal/sim", run: broker, args: []string{"-sim.schedules", "200"},
	},
	{
		rule: "records of aborted transactions do not count",
		file: "internal/source/kafka/reader.go", from: "kgo.FetchIsolationLevel(kgo.ReadCommitted())", to: "kgo.FetchIsolationLevel(kgo.ReadUncommitted())",
		pkg: "internal/sim", run: broker,
	},
	{
		rule: "a transaction's marker is no row",
		file: "internal/source/kafka/reader.go", from: "\t\tif r.Attrs.IsControl() {\n\t\t\tcontinue\n\t\t}\n\t\tif err := w.append", to: "\t\tif err := w.append",
		pkg: "internal/sim", run: broker,
	},
	{
		rule: "what was fetched beyond a batch's end is kept for the next one",
		file: "internal/source/kafka/reader.go", from: "\t\t\tp.keep(slices.Clone(records[i:])) // the rest of the array may go\n", to: "\t\t\t_ = slices.Clone(records[i:])\n",
		pkg: "internal/sim", run: broker,
	},
	{
		rule: "a plan ends at the last stable offset, before what may still be aborted",
		file: "internal/source/kafka/admin.go", from: "s.list(ctx, \"list last stable offsets\", 1,", to: "s.list(ctx, \"list last stable offsets\", 0,",
		pkg: "internal/source/kafka", run: "TestAPlanStopsBeforeAnOpenTransaction",
	},
	{
		rule: "a range is at its end only where a probe finds no record in it",
		file: "internal/source/kafka/probe.go", from: "fp.Records[0].Offset < p.end:\n\t\t\treturn true, nil", to: "fp.Records[0].Offset < 0:\n\t\t\treturn true, nil",
		pkg: "internal/sim", run: broker,
	},
	{
		rule: "a part of a batch is no proof that a range is empty",
		file: "internal/source/kafka/probe.go", from: "len(rp.RecordBatches) > 0:", to: "len(rp.RecordBatches) < 0:",
		pkg: "internal/source/kafka", run: "TestAPartOfABatch",
	},
	{
		rule: "a probe's way past control records is no repetition",
		file: "internal/source/kafka/reader.go", from: "if r.Offset < p.fetched && r.Attrs.IsControl() {", to: "if r.Offset < 0 && r.Attrs.IsControl() {",
		pkg: "internal/sim", run: broker, args: []string{"-sim.schedules", "150"},
	},
	{
		rule: "an error of a fetch is settled by what the log holds, not by the error",
		file: "internal/source/kafka/read.go", from: "\t\treturn rd.contradicted(ctx, p, err)\n", to: "\t\treturn failure.Wrap(failure.SourceChanged, err, \"fetch %s\", p.tp)\n",
		pkg: "internal/source/kafka", run: "TestAnErrorOfAFetch",
	},
	{
		rule: "a partition's leader epoch that moved is compared before more is planned",
		file: "internal/source/kafka/plan.go", from: "return known != epoch", to: "return false && known != epoch",
		pkg: "internal/source/kafka", run: "Epoch|Truncat|Leader",
	},
	{
		rule: "markers that another instance moves meanwhile are looked at again",
		file: "internal/engine/start.go", from: "if !contradict || look == looksMax ||", to: "if look > 0 || !contradict || look == looksMax ||",
		pkg: "internal/engine", run: "TestMarkersThat",
	},
}

// buildMax bounds one mutant; a broken rule may also show as a run without end.
const buildMax = 5 * time.Minute

func TestEveryRuleThatIsBrokenOnPurposeIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the tests anew for every mutant: make mutants")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.rule, " ", "_"), func(t *testing.T) {
			out, err := m.test(t, root)
			var exit *exec.ExitError
			switch {
			case err == nil:
				t.Fatalf("nobody noticed: %s passed in %s\n%s", m.run, m.pkg, out)
			case !errors.As(err, &exit):
				t.Fatalf("%v\n%s", err, out)
			}
			failed := regexp.MustCompile(`(?m)^--- FAIL: (\S+)`).FindSubmatch(out)
			if failed == nil && !bytes.Contains(out, []byte("panic: test timed out")) && !bytes.Contains(out, []byte("panic: ")) {
				t.Fatalf("the mutant does not build, or the test did not run:\n%s", out)
			}
			if failed != nil {
				t.Logf("noticed by %s", failed[1])
			} else {
				t.Log("noticed: the test did not come to an end")
			}
		})
	}
}

// test runs the mutant's test over the changed source.
func (m mutant) test(t *testing.T, root string) ([]byte, error) {
	t.Helper()
	path := filepath.Join(root, m.file)
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), m.from); n != 1 {
		t.Fatalf("%s has changed: %q stands there %d times, the mutant must be brought up to date", m.file, m.from, n)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.from, m.to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildMax)
	defer cancel()
	args := append([]string{"test", "-overlay", file, "-vet=off", "-count=1", "-short", "-timeout=2m", "-run", m.run, "./" + m.pkg}, m.args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	return cmd.CombinedOutput()
}
