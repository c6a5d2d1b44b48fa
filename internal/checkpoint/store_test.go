package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
)

func TestTheWritesOfOneBatchAreDurableInTheProtocolsOrder(t *testing.T) {
	l, m := newLog(t)
	var ops []string
	m.Trace(func(op string) error {
		ops = append(ops, op)
		return nil
	})
	fill := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := l.WritePlan(t.Context(), planOf(0))
	fill(err)
	fill(l.WriteStaged(t.Context(), StagedManifest{QueryID: lineage, BatchID: 0, Marker: markerOf(0)}))
	fill(l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 0, Marker: markerOf(0)}))
	want := []string{
		"mkdir offsets", "syncdir .",
		"create offsets/~temp", "write offsets/~temp", "sync offsets/~temp", "link offsets/~temp offsets/0", "syncdir offsets", "remove offsets/~temp",
		"mkdir staged", "syncdir .",
		"create staged/~temp", "write staged/~temp", "sync staged/~temp", "rename staged/~temp staged/0", "syncdir staged",
		"mkdir commits", "syncdir .",
		"create commits/~temp", "write commits/~temp", "sync commits/~temp", "link commits/~temp commits/0", "syncdir commits", "remove commits/~temp",
	}
	if !slices.Equal(ops, want) {
		t.Fatalf("operations:\n  %s\nwant:\n  %s", strings.Join(ops, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestTheLogsComeBackAsTheyWereWritten(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 4)
	if _, err := l.WritePlan(t.Context(), planOf(5)); err != nil {
		t.Fatal(err)
	}
	f := gather(t, Open(m.Reopen(), query))
	if f.Corrupt != "" || !f.Exists || f.Metadata.QueryID != lineage || f.Metadata.QueryName != query {
		t.Fatalf("%+v", f)
	}
	if f.Plan.BatchID != 5 || f.Commit.BatchID != 4 || f.PlanHash != PlanHash(planOf(5)) || PlanHash(*f.Plan) != f.PlanHash {
		t.Fatalf("plan %+v, commit %+v", f.Plan, f.Commit)
	}
	if f.Commit.Marker.PlanHash != PlanHash(planOf(4)) || !samePlace(f.Commit.Marker.Position, at(4)) {
		t.Fatalf("marker %+v", f.Commit.Marker)
	}
}

func TestAPlanIsWrittenOnceAndTheFirstOneStands(t *testing.T) {
	l, _ := newLog(t)
	first := planOf(0)
	w, err := l.WritePlan(t.Context(), first)
	if err != nil || !w.Created || !w.Ours || w.Hash != PlanHash(first) {
		t.Fatalf("%+v, %v", w, err)
	}
	// The answer got lost, and meanwhile the source has more to offer.
	longer := first
	longer.End = pos(99, 99)
	w, err = l.WritePlan(t.Context(), longer)
	if err != nil || w.Created || !w.Ours || w.Hash != PlanHash(first) || !samePlace(w.Plan.End, first.End) {
		t.Fatalf("a second proposal of our own: %+v, %v; the first must stand", w, err)
	}
	rival := longer
	rival.Epoch = marker.Epoch{Number: 4, Nonce: "four"}
	w, err = l.WritePlan(t.Context(), rival)
	if err != nil || w.Created || w.Ours || w.Plan.Epoch != first.Epoch {
		t.Fatalf("a rival's proposal: %+v, %v", w, err)
	}
}

func TestACommitIsWrittenOnceAndAContradictingOneIsRefused(t *testing.T) {
	l, _ := newLog(t)
	fill(t, l, 0, 0)
	claim := markerOf(0) // found by a later start, under its own claim
	claim.Claim, claim.Epoch.Number, claim.Attempt = true, 9, "claim"
	if err := l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 0, Marker: claim}); err != nil {
		t.Fatal(err)
	}
	other := markerOf(0)
	other.Position = pos(10, 9)
	err := l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 0, Marker: other})
	if !failure.Is(err, failure.Checkpoint) {
		t.Fatal(err)
	}
}

func TestAFolderThatVanishedUnderARunStopsIt(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 2)
	files, err := m.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, remove := range map[string]func(){
		"folder":        m.Wipe,
		"metadata only": func() { delete(files, metadataKey); _ = m.SetFiles(t.Context(), files) },
	} {
		remove()
		if _, err := l.WritePlan(t.Context(), planOf(3)); !failure.Is(err, failure.Checkpoint) {
			t.Errorf("%s: %v", name, err)
		}
		if err := l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 3, Marker: markerOf(3)}); !failure.Is(err, failure.Checkpoint) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := m.Get(t.Context(), OffsetsKey(3)); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("%s: the plan was written", name)
		}
	}
}

func TestAnotherRunsRestartFencesThisOne(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 0)
	if err := Open(m.Reopen(), query).Restart(t.Context(), Metadata{QueryID: fresh, Predecessor: lineage}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.WritePlan(t.Context(), planOf(1)); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	if _, err := Open(m.Reopen(), query).CreateMetadata(t.Context(), Metadata{QueryID: lineage}); !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
}

// change gives the facts after files of a sound folder (batches 0 to 5 done, 6
// planned) were changed.
func change(t *testing.T, f func(files map[string][]byte)) Facts {
	t.Helper()
	l, m := newLog(t)
	fill(t, l, 0, 5)
	if _, err := l.WritePlan(t.Context(), planOf(6)); err != nil {
		t.Fatal(err)
	}
	files, err := m.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f(files)
	if err := m.SetFiles(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	return gather(t, Open(m.Reopen(), query))
}

func TestAGapOrAContradictionInTheLogsIsRefused(t *testing.T) {
	rewrite := func(key, from, to string) func(map[string][]byte) {
		return func(files map[string][]byte) {
			s := strings.Replace(string(files[key]), from, to, 1)
			if s == string(files[key]) {
				t.Fatalf("%s has no %q", key, from)
			}
			files[key] = []byte(s)
		}
	}
	for name, f := range map[string]func(map[string][]byte){
		"gap in offsets":      func(m map[string][]byte) { delete(m, "offsets/3"); delete(m, "commits/3") },
		"gap in commits":      func(m map[string][]byte) { delete(m, "commits/3") },
		"commit without plan": func(m map[string][]byte) { delete(m, "offsets/6"); delete(m, "offsets/5") },
		"plans two ahead":     func(m map[string][]byte) { delete(m, "commits/5") },
		"all commits gone": func(m map[string][]byte) {
			maps.DeleteFunc(m, func(k string, _ []byte) bool { return strings.HasPrefix(k, "commits/") })
		},
		"empty plan":              func(m map[string][]byte) { m["offsets/6"] = nil },
		"torn plan":               func(m map[string][]byte) { m["offsets/6"] = m["offsets/6"][:len(m["offsets/6"])/2] },
		"zeros after the plan":    func(m map[string][]byte) { m["offsets/6"] = append(m["offsets/6"], 0, 0, 0) },
		"plan under another id":   func(m map[string][]byte) { m["offsets/6"] = m["offsets/5"] },
		"torn commit":             func(m map[string][]byte) { m["commits/5"] = m["commits/5"][:20] },
		"torn metadata":           func(m map[string][]byte) { m["metadata"] = []byte("v1\n{") },
		"future version":          rewrite("offsets/6", "v1\n", "v2\n"),
		"no version":              rewrite("offsets/6", "v1\n", "1\n"),
		"future metadata":         rewrite("metadata", "v1\n", "v7\n"),
		"plan of another lineage": rewrite("offsets/6", lineage, foreign),
		"commit of another lineage": func(m map[string][]byte) {
			m["commits/5"] = []byte(strings.ReplaceAll(string(m["commits/5"]), lineage, foreign))
		},
		"commit of another plan": rewrite("commits/5", `"plan_hash":"`, `"plan_hash":"00`),
		"another query's folder": rewrite("metadata", `"bronze"`, `"silver"`),
	} {
		if got := change(t, f); got.Corrupt == "" || !got.Exists {
			t.Errorf("%s: not found corrupt: plan %v, commit %v", name, got.Plan, got.Commit)
		}
	}
}

func TestWhatPeopleRemoveFromASoundFolderIsNoCorruption(t *testing.T) {
	for name, f := range map[string]func(map[string][]byte){
		"nothing":            func(map[string][]byte) {},
		"newest plan":        func(m map[string][]byte) { delete(m, "offsets/6") },
		"oldest entries":     func(m map[string][]byte) { delete(m, "offsets/0"); delete(m, "commits/0") },
		"half-purged entry":  func(m map[string][]byte) { delete(m, "commits/0") },
		"metadata":           func(m map[string][]byte) { delete(m, "metadata") },
		"an editor's backup": func(m map[string][]byte) { m["offsets/6~"] = nil; m["commits/.DS_Store"] = nil; m["offsets/006"] = nil },
		"a lock and a probe": func(m map[string][]byte) { m["lock"] = nil; m["probe-1"] = nil },
		"newest commit":      func(m map[string][]byte) { delete(m, "commits/5"); delete(m, "offsets/6") },
		"a torn staged/6":    func(m map[string][]byte) { m["staged/6"] = []byte("v1\n{") },
		"another lineage's too": func(m map[string][]byte) {
			m["staged/6"] = []byte("v1\n{\"query_id\":\"x\",\"batch_id\":6,\"marker\":{}}")
		},
	} {
		if got := change(t, f); got.Corrupt != "" || !got.Exists || got.Staged != nil {
			t.Errorf("%s: %q, staged %v", name, got.Corrupt, got.Staged)
		}
	}
	if got := change(t, func(m map[string][]byte) { clear(m); m["lock"], m["probe-1"] = nil, nil }); got.Exists {
		t.Error("a lock file is not a checkpoint")
	}
	if got := change(t, func(m map[string][]byte) { clear(m); m[StateKey("dedup", 6, "a", "delta")] = nil }); !got.Exists || got.Metadata != nil {
		t.Error("remains of the state are remains of a checkpoint")
	}
}

// interleaved is a store on which somebody else writes after the first listing.
type interleaved struct {
	objstore.Store
	then func()
}

func (s *interleaved) List(ctx context.Context, prefix string) ([]objstore.Info, error) {
	out, err := s.Store.List(ctx, prefix)
	if s.then != nil {
		f := s.then
		s.then = nil
		f()
	}
	return out, err
}

func TestLogsThatGrowWhileTheyAreReadAreNoContradiction(t *testing.T) {
	disk := objstore.NewMemory(clock.System{})
	writer := Open(disk, query)
	if _, err := writer.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
		t.Fatal(err)
	}
	reader := &interleaved{Store: disk, then: func() {
		if _, err := writer.WritePlan(t.Context(), planOf(0)); err != nil {
			t.Error(err)
		}
		if err := writer.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 0, Marker: markerOf(0)}); err != nil {
			t.Error(err)
		}
	}}
	f, err := Open(reader, query).Gather(t.Context())
	if err != nil || f.Corrupt != "" || f.Commit == nil || f.Commit.BatchID != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestReadingAnAbsentCheckpointIsNoError(t *testing.T) {
	m := objstore.NewMemory(still{})
	f := gather(t, Open(m, query))
	if f.Exists || f.Corrupt != "" || f.Metadata != nil {
		t.Fatalf("%+v", f)
	}
}

func TestAStoreThatCannotBeReadIsAnErrorNotALostCheckpoint(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 1)
	broken := errors.New("connection refused")
	for _, at := range []string{metadataKey, offsetsPrefix, commitsPrefix, OffsetsKey(1), CommitsKey(1), stagedPrefix} {
		m.Fault(func(_, key string, _ bool) error {
			if key == at {
				return broken
			}
			return nil
		})
		if f, err := l.Gather(t.Context()); !errors.Is(err, broken) {
			t.Errorf("%s unreadable: %+v, %v", at, f, err)
		}
	}
}

func TestWhatRecoveryBuildsOnIsMadeDurableFirst(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 0)
	// The process is killed between link and fsync of the directory.
	m.CrashAfter(4)
	if _, err := l.WritePlan(t.Context(), planOf(1)); !errors.Is(err, objstore.ErrCrashed) {
		t.Fatal(err)
	}
	m.CrashAfter(-1)
	if f := gather(t, Open(m.Reopen(), query)); f.Plan.BatchID != 1 {
		t.Fatalf("plan %d", f.Plan.BatchID)
	}
	m.Crash(0)
	if f := gather(t, Open(m.Reopen(), query)); f.Plan.BatchID != 1 {
		t.Fatal("a plan that a start has built on was lost with the power")
	}
}

func TestPowerLossWhileWritingABatchNeverLooksLikeCorruption(t *testing.T) {
	// Counting the operations of a batch on a folder with one batch in it.
	one := func(l *Log) error {
		if _, err := l.WritePlan(t.Context(), planOf(1)); err != nil {
			return err
		}
		if err := l.WriteStaged(t.Context(), StagedManifest{QueryID: lineage, BatchID: 1, Marker: markerOf(1)}); err != nil {
			return err
		}
		return l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 1, Marker: markerOf(1)})
	}
	for cut := 0; ; cut++ {
		finished := false
		for seed := range uint64(16) {
			l, m := newLog(t)
			fill(t, l, 0, 0)
			m.CrashAfter(cut)
			err := one(l)
			m.Crash(seed)
			f := gather(t, Open(m.Reopen(), query))
			if f.Corrupt != "" || f.Metadata == nil || f.Commit == nil {
				t.Fatalf("cut %d, seed %d: %s\n%s", cut, seed, f.Corrupt, m)
			}
			if err == nil && f.Commit.BatchID != 1 {
				t.Fatalf("cut %d, seed %d: the commit was acknowledged and lost", cut, seed)
			}
			finished = err == nil
		}
		if finished {
			return
		}
	}
}

func adopted(t *testing.T, f Facts, sinks ...SinkFacts) Decision {
	t.Helper()
	d := Decide(f, sinks, source(), Adopt, self())
	wantOutcome(t, d, OutcomeAdopt)
	return d
}

func TestAnAdoptionKilledAnywhereIsFinishedByTheNextStart(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, m *objstore.Memory){
		"folder gone": func(*testing.T, *objstore.Memory) {},
		"older copy": func(t *testing.T, m *objstore.Memory) {
			l := Open(m, query)
			if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 0, 2)
		},
		"superseded plan": func(t *testing.T, m *objstore.Memory) {
			l := Open(m, query)
			if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 0, 6)
			p := planOf(7)
			p.End = pos(81, 82)
			if _, err := l.WritePlan(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		},
		"superseded commit": func(t *testing.T, m *objstore.Memory) {
			l := Open(m, query)
			if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 0, 6)
			p, mk := planOf(7), markerOf(7)
			p.End, mk.Position = pos(81, 82), pos(81, 82)
			mk.PlanHash = PlanHash(p)
			if _, err := l.WritePlan(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if err := l.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 7, Marker: mk}); err != nil {
				t.Fatal(err)
			}
		},
		"metadata gone": func(t *testing.T, m *objstore.Memory) {
			l := Open(m, query)
			if _, err := l.CreateMetadata(t.Context(), Metadata{QueryID: lineage}); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 0, 7)
			if err := m.Delete(t.Context(), metadataKey); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for cut := 0; ; cut++ {
				m := objstore.NewMemory(still{})
				prepare(t, m)
				l := Open(m.Reopen(), query)
				d := adopted(t, gather(t, l), mainSink(markerOf(7)))
				m.CrashAfter(cut)
				err := l.Adopt(t.Context(), d, "instance-1", noon)
				m.Crash(uint64(cut))
				finishAdoption(t, Open(m.Reopen(), query), cut)
				if strings.HasPrefix(name, "superseded") {
					if infos, err := m.List(t.Context(), supersededPrefix); err != nil || len(infos) == 0 {
						t.Fatalf("cut %d: the superseded plan was not kept (%v, %v)", cut, infos, err)
					}
				}
				if err == nil {
					return
				}
			}
		})
	}
}

// finishAdoption starts again and again until there is nothing left to do.
func finishAdoption(t *testing.T, l *Log, cut int) {
	t.Helper()
	for range 3 {
		d := Decide(gather(t, l), []SinkFacts{mainSink(markerOf(7))}, source(), Adopt, self())
		switch d.Outcome {
		case OutcomeAdopt:
			if err := l.Adopt(t.Context(), d, "instance-1", noon); err != nil {
				t.Fatalf("cut %d: %v", cut, err)
			}
		case OutcomeAlreadyCommitted:
			if err := l.WriteCommit(t.Context(), CommitEntry{QueryID: d.QueryID, BatchID: d.BatchID, Marker: d.Marker}); err != nil {
				t.Fatalf("cut %d: %v", cut, err)
			}
		case OutcomeResume:
			if d.BatchID != 8 {
				t.Fatalf("cut %d: resumes at batch %d", cut, d.BatchID)
			}
			fill(t, l, 8, 9) // and the logs go on from there
			if f := gather(t, l); f.Corrupt != "" {
				t.Fatalf("cut %d: %s", cut, f.Corrupt)
			}
			return
		default:
			t.Fatalf("cut %d: %s: %s", cut, d.Outcome, d.Reason)
		}
	}
	t.Fatalf("cut %d: the adoption never ends", cut)
}

func TestAGapIsLegalOnlyBelowAnAdoptedBatch(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 2)
	d := adopted(t, gather(t, l), mainSink(markerOf(7)))
	if err := l.Adopt(t.Context(), d, "instance-1", noon); err != nil {
		t.Fatal(err)
	}
	fill(t, l, 8, 9)
	if f := gather(t, Open(m.Reopen(), query)); f.Corrupt != "" || f.Commit.BatchID != 9 {
		t.Fatalf("%+v", f)
	}
	for _, key := range []string{"offsets/8", "commits/8"} {
		files, err := m.Files(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		delete(files, key)
		next := objstore.NewMemory(still{})
		if err := next.SetFiles(t.Context(), files); err != nil {
			t.Fatal(err)
		}
		if f := gather(t, Open(next, query)); f.Corrupt == "" {
			t.Errorf("a gap at %s above the adopted batch was let pass", key)
		}
	}
}

func TestARestartKilledAnywhereIsFinishedByTheNextStart(t *testing.T) {
	for cut := 0; ; cut++ {
		l, m := newLog(t)
		fill(t, l, 0, 3)
		if _, err := l.WritePlan(t.Context(), planOf(4)); err != nil {
			t.Fatal(err)
		}
		m.CrashAfter(cut)
		err := l.Restart(t.Context(), Metadata{QueryID: fresh, Predecessor: lineage})
		m.Crash(uint64(cut))
		again := Open(m.Reopen(), query)
		f := gather(t, again)
		if f.Corrupt != "" {
			t.Fatalf("cut %d: %s", cut, f.Corrupt)
		}
		if f.Metadata.QueryID == fresh {
			d := Decide(f, []SinkFacts{mainSink(markerOf(4))}, source(), Adopt, self())
			wantOutcome(t, d, OutcomeRestart)
			if d.QueryID != fresh || d.Predecessor != lineage || d.NextBatchID != 5 {
				t.Fatalf("cut %d: %+v", cut, d)
			}
			if err := again.Restart(t.Context(), Metadata{QueryID: d.QueryID, Predecessor: d.Predecessor}); err != nil {
				t.Fatal(err)
			}
			if f := gather(t, again); f.Leftovers || f.Plan != nil || f.Commit != nil || f.Metadata.QueryName != query {
				t.Fatalf("cut %d: %+v", cut, f)
			}
		}
		if err == nil {
			return
		}
	}
}

func TestPurgeKeepsTheNewestHundredAndWhatIsNotRecorded(t *testing.T) {
	l, m := newLog(t)
	fill(t, l, 0, 149)
	if err := l.WriteStaged(t.Context(), StagedManifest{QueryID: lineage, BatchID: 149, Marker: markerOf(149)}); err != nil {
		t.Fatal(err)
	}
	oldest := func() (int64, int64) {
		offsets, err := l.ids(t.Context(), offsetsPrefix)
		if err != nil {
			t.Fatal(err)
		}
		commits, err := l.ids(t.Context(), commitsPrefix)
		if err != nil {
			t.Fatal(err)
		}
		return offsets[0], commits[0]
	}
	for _, step := range []struct{ keepFrom, want int64 }{{20, 20}, {10, 20}, {1000, 50}} {
		if err := l.Purge(t.Context(), step.keepFrom); err != nil {
			t.Fatal(err)
		}
		if o, c := oldest(); o != step.want || c != step.want {
			t.Fatalf("keep from %d: oldest offsets/%d and commits/%d, want %d", step.keepFrom, o, c, step.want)
		}
	}
	if f := gather(t, l); f.Corrupt != "" || f.Commit.BatchID != 149 || f.Staged != nil {
		t.Fatalf("%+v", f)
	}
	// Killed between the two removals of a batch.
	fill(t, l, 150, 150)
	m.CrashAfter(2)
	if err := l.Purge(t.Context(), 1000); !errors.Is(err, objstore.ErrCrashed) {
		t.Fatal(err)
	}
	m.Crash(0)
	if f := gather(t, Open(m.Reopen(), query)); f.Corrupt != "" {
		t.Fatal(f.Corrupt)
	}
}

func TestSinkIdentitiesAreRememberedAndNotReplaced(t *testing.T) {
	l, m := newLog(t)
	if err := l.RecordClaim(t.Context(), marker.Epoch{Number: 1, Nonce: "n"}, map[string]string{"a": "1"}); err != nil {
		t.Fatal(err)
	}
	if err := l.RecordClaim(t.Context(), marker.Epoch{Number: 1, Nonce: "n"}, map[string]string{"a": "1", "b": "2"}); err != nil {
		t.Fatal(err)
	}
	if f := gather(t, Open(m.Reopen(), query)); !maps.Equal(f.Metadata.Sinks, map[string]string{"a": "1", "b": "2"}) {
		t.Fatalf("%v", f.Metadata.Sinks)
	}
	if err := l.RecordClaim(t.Context(), marker.Epoch{Number: 1, Nonce: "n"}, map[string]string{"a": "3"}); !failure.Is(err, failure.Checkpoint) {
		t.Fatal(err)
	}
}

func TestARunThatWasOvertakenWritesNothingIntoTheLogs(t *testing.T) {
	for _, e := range []marker.Epoch{{Number: 2, Nonce: "young"}, {Number: 1, Nonce: "twin"}} {
		// Twins raced for one number; whoever recorded last goes on, and the
		// table has let only one of them through.
		fresh, m := newLog(t)
		if err := fresh.RecordClaim(t.Context(), marker.Epoch{Number: 1, Nonce: "old"}, nil); err != nil {
			t.Fatal(err)
		}
		other := Open(m, query)
		gather(t, other)
		err := other.RecordClaim(t.Context(), e, nil)
		if e.Number == 1 {
			if !failure.Is(err, failure.Fenced) {
				t.Fatalf("a twin: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fresh.WritePlan(t.Context(), planOf(0)); !failure.Is(err, failure.Fenced) {
			t.Fatalf("plan: %v", err)
		}
		if err := fresh.WriteCommit(t.Context(), CommitEntry{QueryID: lineage, BatchID: 0, Marker: markerOf(0)}); !failure.Is(err, failure.Fenced) {
			t.Fatalf("commit: %v", err)
		}
		if err := fresh.RecordClaim(t.Context(), marker.Epoch{Number: 1, Nonce: "old"}, nil); !failure.Is(err, failure.Fenced) {
			t.Fatalf("claim: %v", err)
		}
		if _, err := other.WritePlan(t.Context(), planOf(0)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCommitsWhoseProgressIsNotRecordedCanBeReadAgain(t *testing.T) {
	l, _ := newLog(t)
	fill(t, l, 0, 5)
	got, err := l.Commits(t.Context(), 3)
	if err != nil || len(got) != 3 || got[0].BatchID != 3 || got[2].BatchID != 5 {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestAStateFileWithAnotherChecksumCountsAsMissing(t *testing.T) {
	l, m := newLog(t)
	key := StateKey("dedup", 7, "attempt", "delta")
	if err := m.Put(t.Context(), key, []byte("state")); err != nil {
		t.Fatal(err)
	}
	good := marker.StateFile{Operator: "dedup", Path: key, SHA256: marker.Hash([]byte("state"))}
	bad := good
	bad.SHA256 = marker.Hash([]byte("other"))
	gone := marker.StateFile{Path: StateKey("dedup", 8, "attempt", "delta")}
	has, err := l.StatePresence(t.Context(), &marker.Marker{State: []marker.StateFile{good, gone}}, nil, &marker.Marker{State: []marker.StateFile{bad}})
	if err != nil {
		t.Fatal(err)
	}
	if !has(good) || has(bad) || has(gone) || has(marker.StateFile{Path: "never asked"}) {
		t.Fatal(fmt.Sprint(has(good), has(bad), has(gone)))
	}
}

// TestAFolderOfFormatV1StaysReadable reads a folder as version 1 wrote it. The
// folder is never written again: a format that cannot read it needs another
// version number and a reader for this one.
func TestAFolderOfFormatV1StaysReadable(t *testing.T) {
	s, err := objstore.OpenLocal("testdata/v1", objstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := gather(t, Open(s, query))
	if f.Corrupt != "" || f.Metadata == nil || f.Plan == nil || f.Commit == nil || f.Staged == nil {
		t.Fatalf("%+v", f)
	}
	if f.Metadata.QueryID != lineage || f.Metadata.InstanceID != "instance-1" || f.Metadata.Sinks["lake.dead"] != "uuid-dead" || !f.Metadata.CreatedAt.Equal(noon) {
		t.Errorf("metadata %+v", f.Metadata)
	}
	if f.PlanHash != PlanHash(planOf(9)) || f.Plan.Epoch != planOf(9).Epoch {
		t.Errorf("plan %+v", f.Plan)
	}
	// The hash itself is part of the format: markers in tables carry it.
	const hash = "154a16eecaeedcdee61a64b7c6b319f411226fe0e5cb5e1c3ce3399b26856056"
	if f.PlanHash != hash {
		t.Errorf("hash of the plan %s, was %s", f.PlanHash, hash)
	}
	m := f.Commit.Marker
	if f.Commit.BatchID != 8 || !sameCommit(m, markerOf(8)) || m.Watermark.Micros != 9000 || m.State[0].Path != "state/dedup/8-a.delta" || string(f.Commit.Progress) == "" {
		t.Errorf("commit %+v, marker %+v", f.Commit, m)
	}
	if f.Staged.BatchID != 9 || f.Staged.Sinks["lake.dead"][0].Rows != 12 || string(f.Staged.Sinks["lake.dead"][0].Encoded) != "entry" {
		t.Errorf("staged %+v", f.Staged)
	}
	p, err := Open(s, query).ReadPlan(t.Context(), 7)
	if err != nil || !p.Adopted {
		t.Errorf("adopted plan %+v, %v", p, err)
	}
}

func TestTheNextEpochIsAboveTheRecordedOneWhereTheTableWentBackToAnOlderClaim(t *testing.T) {
	f := after(7)
	f.Metadata.Epoch = marker.Epoch{Number: 40, Nonce: "n"}
	if d := decideWith(f, mainSink(markerOf(7)), sideSink(markerOf(7))); d.NextEpoch != 41 {
		t.Fatalf("next epoch %d", d.NextEpoch)
	}
}
