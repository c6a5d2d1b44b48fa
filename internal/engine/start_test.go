package engine_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/source"
)

func TestACheckpointThatVanishesUnderARunIsNotMadeAgainByIt(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	reads := 0
	err := w.run(func(_ *engine.Query, s *fakeSource) {
		s.onRead = func() {
			if reads++; reads == 2 {
				w.disk.Wipe()
			}
		}
	})
	wantClass(t, err, failure.Checkpoint)
	if files, err := w.disk.Files(t.Context()); err != nil || len(files) != 0 {
		t.Fatalf("the run made the folder again: %v %v", slices.Collect(maps.Keys(files)), err)
	}
	w.reboot(false)
	w.must()
	w.exactRaw()
	if len(w.alerts) != 1 || !strings.Contains(w.alerts[0], "the checkpoint is gone") {
		t.Fatalf("alerts %q", w.alerts)
	}
}

func TestALostCheckpointIsAdoptedAndNoRowIsRepeated(t *testing.T) {
	for name, remove := range map[string]func(key string) bool{
		"everything":  func(string) bool { return true },
		"metadata":    func(k string) bool { return k == checkpoint.MetadataKey() },
		"last commit": func(k string) bool { return k == "commits/3" },
		"both logs":   func(k string) bool { return strings.HasPrefix(k, "commits/") || strings.HasPrefix(k, "offsets/") },
		"state":       func(k string) bool { return strings.HasPrefix(k, "state/") },
		"last two batches": func(k string) bool {
			return slices.Contains([]string{"commits/3", "offsets/3", "commits/2", "offsets/2"}, k)
		},
	} {
		ref := newWorld(t, 100).withDeadLetters()
		w := newWorld(t, 100).withDeadLetters()
		for _, x := range []*world{ref, w} {
			x.limit = 40
			x.kafka.parts[0].end, x.kafka.parts[1].end = 80, 80
			x.must()
			x.kafka.produce(0, 20)
			x.kafka.produce(1, 20)
		}
		files, err := w.disk.Files(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(files, func(k string, _ []byte) bool { return remove(k) })
		if err := w.disk.SetFiles(t.Context(), files); err != nil {
			t.Fatal(err)
		}
		ref.must()
		w.reboot(false)
		if err := w.run(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantRows(t, name+": main", w.main.keys(place), ref.main.keys(place))
		wantRows(t, name+": side", w.side.keys(place), ref.side.keys(place))
		if got, want := w.main.marker(queryName), ref.main.marker(queryName); got.BatchID != want.BatchID || got.QueryID == "" {
			t.Fatalf("%s: at batch %d, undisturbed %d", name, got.BatchID, want.BatchID)
		}
	}
}

func TestACopyOfTheFolderFromEarlierIsAdoptedAndNothingRunsTwice(t *testing.T) {
	w := newWorld(t, 40).withDeadLetters()
	w.limit = 40
	w.must()
	old, err := w.disk.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ref := newWorld(t, 40).withDeadLetters()
	ref.limit = 40
	ref.must()
	for _, x := range []*world{w, ref} {
		x.kafka.produce(0, 100)
		x.kafka.produce(1, 100)
		x.must()
	}
	if err := w.disk.SetFiles(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	w.reboot(false)
	for _, x := range []*world{w, ref} {
		x.kafka.produce(0, 30)
		x.must()
	}
	wantRows(t, "main", w.main.keys(place), ref.main.keys(place))
	wantRows(t, "side", w.side.keys(place), ref.side.keys(place))
}

func TestOnLostCheckpointFailStopsAndRestartRepeatsRowsWithAnAlert(t *testing.T) {
	w := newWorld(t, 30)
	w.must()
	was := w.main.marker(queryName)
	w.disk.Wipe()
	w.reboot(false)
	wantClass(t, w.run(func(q *engine.Query, _ *fakeSource) { q.Options.OnLostCheckpoint = checkpoint.Fail }), failure.Checkpoint)
	w.must(func(q *engine.Query, _ *fakeSource) { q.Options.OnLostCheckpoint = checkpoint.Restart })
	for k, n := range w.main.keys(place) {
		if n != 2 {
			t.Fatalf("row %s is there %d times: the boundary is that a restart repeats rows", k, n)
		}
	}
	now := w.main.marker(queryName)
	if now.QueryID == was.QueryID || now.Predecessor != was.QueryID || now.BatchID <= was.BatchID {
		t.Fatalf("from %s batch %d to %s (before: %s) batch %d", was.QueryID, was.BatchID, now.QueryID, now.Predecessor, now.BatchID)
	}
	if len(w.alerts) != 1 || !strings.Contains(w.alerts[0], "delivered again") {
		t.Fatalf("alerts %q", w.alerts)
	}
}

func TestAfterAnAdoptionTheFirstBatchEndsWhereTheSideSinkStands(t *testing.T) {
	for name, grow := range map[string]bool{"plan rebuilt from the markers": false, "partition added in it": true} {
		ref, w := newWorld(t, 60).withDeadLetters(), newWorld(t, 60).withDeadLetters()
		for _, x := range []*world{ref, w} {
			x.limit = 40
			x.kafka.parts[0].end, x.kafka.parts[1].end = 20, 20
			x.must()
			x.kafka.produce(0, 40)
			x.kafka.produce(1, 40)
			if grow {
				x.kafka.addPartition(30)
			}
		}
		ref.must()
		w.killedAt("lake.main commit 1", 1)
		end := w.side.marker(queryName)
		if end.BatchID != 1 {
			t.Fatalf("side sink at batch %d", end.BatchID)
		}
		w.disk.Wipe()
		w.reboot(false)
		w.limit = 3 // another limit would cut elsewhere
		w.must()
		wantRows(t, name+": main", w.main.keys(place), ref.main.keys(place))
		wantRows(t, name+": side", w.side.keys(place), ref.side.keys(place))
		for _, c := range w.commits() {
			if c.BatchID == 1 && (!c.Marker.Position.SameOffsets(end.Position) || !c.Marker.BatchTime.Equal(end.BatchTime)) {
				t.Fatalf("%s: batch 1 ended at %s, the side sink at %s", name, c.Marker.Position, end.Position)
			}
		}
	}
}

// snapshotOf is the state of a query's operators, by what they would write.
func keysOf(tr operator.Transform) string {
	var out []string
	for _, op := range tr.State() {
		out = append(out, fmt.Sprintf("%s: %d keys", op.Name(), op.Keys()))
	}
	return strings.Join(out, ", ")
}

func TestStateThatIsMissingOrCorruptIsRebuiltFromTheTableAndEqual(t *testing.T) {
	damage := map[string]func(w *world, key string, b []byte){
		"as it was": nil,
		"missing":   func(w *world, key string, _ []byte) { _ = w.disk.Delete(t.Context(), key) },
		"torn":      func(w *world, key string, b []byte) { _ = w.disk.Put(t.Context(), key, b[:len(b)/2]) },
		"of zeros":  func(w *world, key string, b []byte) { _ = w.disk.Put(t.Context(), key, make([]byte, len(b))) },
	}
	var loaded string
	for _, name := range []string{"as it was", "missing", "torn", "of zeros"} {
		w := newWorld(t, 80).withDeadLetters()
		w.limit = 40
		w.must()
		files, err := w.disk.Files(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hurt := 0
		for key, b := range files {
			if f := damage[name]; f != nil && strings.HasPrefix(key, "state/") {
				f(w, key, b)
				hurt++
			}
		}
		if hurt == 0 && name != "as it was" {
			t.Fatal("there is no state file")
		}
		var tr operator.Transform
		w.must(func(q *engine.Query, _ *fakeSource) { tr = q.Transform })
		state := keysOf(tr)
		if name == "as it was" {
			if loaded = state; !strings.Contains(state, " keys") || strings.Contains(state, " 0 keys") {
				t.Fatalf("state %q", state)
			}
			continue
		}
		if state != loaded || len(w.alerts) != 1 {
			t.Fatalf("%s: rebuilt %q, loaded %q; alerts %q", name, state, loaded, w.alerts)
		}
		// What was delivered is recognised: the same events again are duplicates.
		w.again()
	}
}

// again delivers the last ten edits of each partition once more, which must
// all be recognised, and nothing else.
func (w *world) again() {
	w.t.Helper()
	old, before := w.kafka.value, len(w.main.keys(place))
	ends := []int64{w.kafka.parts[0].end, w.kafka.parts[1].end}
	w.kafka.value = func(p int32, off int64) string {
		if off >= ends[p] {
			return old(p, off-10)
		}
		return old(p, off)
	}
	w.kafka.produce(0, 10)
	w.kafka.produce(1, 10)
	w.must()
	if got := len(w.main.keys(place)); got != before {
		w.t.Fatalf("%d of 20 repeated events were taken for new ones", got-before)
	}
}

func TestStateIsRebuiltWhenTheTransformHasChanged(t *testing.T) {
	w := newWorld(t, 80).withDeadLetters()
	w.limit = 40
	w.must()
	w.transform = func() operator.Transform {
		return w.parsing(operator.Config{}, operator.Column{Name: "again", Path: "$.kind", Type: "string"})
	}
	w.again()
}

func TestProgressRowsThatDiedInTheQueueAreAppendedAgainExactlyOnce(t *testing.T) {
	w := newWorld(t, 50).withDeadLetters()
	w.limit = 20
	w.killedAt("link offsets/~temp offsets/3", 1) // batches 0 to 2 are committed, their rows queued
	if got := w.progress.ids(); len(got) != 0 {
		t.Fatalf("rows %v are visible", got)
	}
	w.killedAt("lake.main commit 4", 1) // batch 3 too; 0 to 2 queued again and lost again
	w.must()
	if got := w.progress.ids(); !slices.Equal(got, []int64{0, 1, 2, 3, 4}) {
		t.Fatalf("progress rows %v", got)
	}
	seen := map[int64]engine.Progress{}
	for _, p := range w.rows {
		seen[p.BatchID] = p
	}
	for _, row := range w.progress.table {
		live := seen[row.BatchID]
		if row.BatchID != 4 && (row.InputRows != live.InputRows || !row.CommittedAt.Equal(live.CommittedAt) || len(row.DurationMs) == 0) {
			t.Fatalf("batch %d: appended %+v, was %+v", row.BatchID, row, live)
		}
		if row.InputRows != 20 && row.BatchID < 4 {
			t.Fatalf("batch %d: %+v", row.BatchID, row)
		}
	}
}

func TestABatchThatLandedAndDiedHasAProgressRowFromItsMarker(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.killedAt("link commits/~temp commits/1", 1)
	w.must()
	if got := w.progress.ids(); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Fatalf("progress rows %v", got)
	}
	if row := w.progress.table[1]; row.InputRows != 20 || row.OutputRows != 20 {
		t.Fatalf("%+v", row)
	}
	w.completeLog(2)
	w.exactRaw()
}

func TestExpiredRecordsStopTheQueryUnlessItMaySkipThem(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.killedAt("lake.main commit 1", 1) // a plan is pending on what expires
	w.kafka.lose(0, 25)
	wantClass(t, w.run(), failure.SourceChanged)
	tolerant := func(q *engine.Query, _ *fakeSource) { q.Options.FailOnDataLoss = false }
	w.must(tolerant)
	rows := w.main.keys(place)
	for k, n := range rows {
		if n != 1 {
			t.Fatalf("row %s is there %d times", k, n)
		}
	}
	if len(rows) != 10+5+30 { // batch 0 had ten of partition 0
		t.Fatalf("%d rows", len(rows))
	}
	if len(w.alerts) == 0 || !strings.Contains(strings.Join(w.alerts, "\n"), "gone") {
		t.Fatalf("alerts %q", w.alerts)
	}
	// The restart after it resumes; strict again, since nothing is missing now.
	w.kafka.produce(0, 5)
	w.alerts = nil
	w.must()
	if got := len(w.main.keys(place)); got != 50 || len(w.alerts) != 0 {
		t.Fatalf("%d rows, alerts %q", got, w.alerts)
	}
	// And a lost checkpoint after a skip is adopted like any other.
	w.disk.Wipe()
	w.reboot(false)
	w.kafka.produce(1, 5)
	w.must()
	if got := len(w.main.keys(place)); got != 55 {
		t.Fatalf("%d rows", got)
	}
}

func TestAChangedSourceStopsTheQuery(t *testing.T) {
	for name, change := range map[string]func(k *fakeKafka){
		"topic recreated": func(k *fakeKafka) { k.recreate() },
		"another cluster": func(k *fakeKafka) { k.cluster = "cluster-2" },
		"log truncated":   func(k *fakeKafka) { k.parts[1].end = 12 },
	} {
		w := newWorld(t, 30)
		w.must()
		log := len(w.main.log)
		change(w.kafka)
		if err := w.run(); !failure.Is(err, failure.SourceChanged) {
			t.Fatalf("%s: %v", name, err)
		}
		if len(w.main.log) != log {
			t.Fatalf("%s: the table was written to: %v", name, w.main.log[log:])
		}
	}
}

// named gives the query another name and a folder of its own.
func named(w *world, name string) setup {
	disk := objstore.NewMemory(w.clock)
	return func(q *engine.Query, _ *fakeSource) {
		q.Name, q.Checkpoint = name, disk
		q.Outputs[0].Sink = &memSink{t: w.main, query: name}
	}
}

func TestARenamedOrSplitQueryIsRefusedInsteadOfDoublingItsRows(t *testing.T) {
	w := newWorld(t, 30)
	w.must()
	wantClass(t, w.run(named(w, "edits-v2")), failure.Config)
	// A split: the new query reads one of the two partitions only.
	half := &fakeKafka{cluster: w.kafka.cluster, topicID: w.kafka.topicID, parts: w.kafka.parts[:1], value: event, news: make(chan struct{})}
	wantClass(t, w.run(named(w, "left"), func(_ *engine.Query, s *fakeSource) { s.k = half }), failure.Config)
	w.exactRaw()
}

func TestAPartitionThatAnotherQueryFeedsIsRefusedWhenAPlanAddsIt(t *testing.T) {
	w := newWorld(t, 30)
	other := &fakeKafka{cluster: w.kafka.cluster, topicID: w.kafka.topicID, value: event, news: make(chan struct{})}
	// The other query has partition 2, which the first one does not see yet.
	other.parts = append(slices.Clone(w.kafka.parts), fakePart{0, 10})
	w.must(named(w, "third"), func(q *engine.Query, s *fakeSource) {
		q.Source = onlyPartition{&fakeSource{k: other}, 2}
	})
	w.must()
	w.kafka.addPartition(10)
	wantClass(t, w.run(), failure.Config)
	w.exactRaw()
}

// onlyPartition is a source of one partition of its topic.
type onlyPartition struct {
	*fakeSource
	part int32
}

func (o onlyPartition) only(p batch.Position) batch.Position {
	out := p.Clone()
	maps.DeleteFunc(out.Kafka.Topics[fakeTopic].Partitions, func(n int32, _ batch.PartitionPosition) bool { return n != o.part })
	return out
}

func (o onlyPartition) Initial(ctx context.Context) (batch.Position, error) {
	p, err := o.fakeSource.Initial(ctx)
	return o.only(p), err
}

func (o onlyPartition) Plan(ctx context.Context, start batch.Position, limit int64) (source.Planned, error) {
	p, err := o.fakeSource.Plan(ctx, start, limit)
	if err != nil {
		return p, err
	}
	return source.Planned{Start: o.only(p.Start), End: o.only(p.End), Latest: o.only(p.Latest)}, nil
}

func TestPartitionsAddedWhileRunningAreReadFromTheirStart(t *testing.T) {
	w := newWorld(t, 30).withDeadLetters()
	w.limit = 20
	plans := 0
	grow := func(_ *engine.Query, s *fakeSource) {
		s.onPlan = func() {
			if plans++; plans == 3 {
				w.kafka.addPartition(30)
			}
		}
	}
	w.killedAt("lake.main commit 1", 1, grow) // with the partition in the plan, and a side sink that has it
	w.must()
	w.must()
	ref := newWorld(t, 30).withDeadLetters()
	ref.kafka.addPartition(30)
	ref.must()
	if got, want := w.counters().Read, int64(90); got != want {
		t.Fatalf("%d rows read, want %d", got, want)
	}
	wantRows(t, "side", w.side.keys(place), ref.side.keys(place)) // what is not JSON does not depend on batches
}

func TestATableThatWentBackwardsOrWasDroppedIsNotFilledTwice(t *testing.T) {
	for name, hurt := range map[string]func(m *memTable){
		"rolled back": func(m *memTable) { m.rollBack(1) },
		"dropped":     func(m *memTable) { m.drop() },
	} {
		w := newWorld(t, 30)
		w.limit = 20
		w.must()
		hurt(w.main)
		if err := w.run(); !failure.Is(err, failure.Checkpoint) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// Expiry by others is neither.
	w := newWorld(t, 30)
	w.limit = 20
	w.must()
	w.main.expire()
	w.kafka.produce(0, 10)
	w.must()
	w.exactRaw()
}

func TestAnotherInstanceIsWaitedOutOnceAndRefusedWhileItRenews(t *testing.T) {
	other := func(q *engine.Query, _ *fakeSource) {
		q.Options.InstanceID, q.Options.Lease = "there", 10*time.Second
		q.Checkpoint = objstore.NewMemory(q.Clock)
	}
	w := newWorld(t, 30)
	w.must()
	start := w.clock.Now()
	w.must(other) // the first one is silent: after one lease the query is taken over
	if waited := w.clock.Now().Sub(start); waited < 9*time.Second {
		t.Fatalf("waited %s of a lease of 10s", waited)
	}
	w.exactRaw()

	w = newWorld(t, 30)
	w.must()
	q := w.query(other)
	q.Clock = renewing{w.clock, func() { w.main.renew(queryName, w.clock.Now().Add(9*time.Second)) }}
	start = w.clock.Now()
	wantClass(t, q.Run(t.Context()), failure.Fenced)
	if waited := w.clock.Now().Sub(start); waited > 15*time.Second {
		t.Fatalf("waited %s of a lease of 10s", waited)
	}
	q = w.query(other, func(q *engine.Query, _ *fakeSource) { q.Options.TakeOver = true })
	if err := q.Run(t.Context()); err != nil {
		t.Fatalf("--take-over: %v", err)
	}
}

// TestAnInstanceWhoseClockWasAheadIsTakenOverAfterOneLease: its last renewal
// lies in the future, and no other one comes.
func TestAnInstanceWhoseClockWasAheadIsTakenOverAfterOneLease(t *testing.T) {
	w := newWorld(t, 30)
	w.must()
	w.main.renew(queryName, w.clock.Now().Add(36*time.Hour))
	start := w.clock.Now()
	w.must(func(q *engine.Query, _ *fakeSource) {
		q.Options.InstanceID, q.Options.Lease = "there", 10*time.Second
		q.Checkpoint = objstore.NewMemory(q.Clock)
	})
	if waited := w.clock.Now().Sub(start); waited < 9*time.Second || waited > time.Minute {
		t.Fatalf("waited %s of a lease of 10s", waited)
	}
	w.exactRaw()
}

// renew is a sign of life of the instance that holds the query.
func (m *memTable) renew(query string, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mk := copyOf(m.markers[query])
	mk.RenewedAt = at
	m.markers[query] = mk
}

// renewing is a clock during whose sleep somebody else is at work.
type renewing struct {
	*testClock
	f func()
}

func (r renewing) Sleep(ctx context.Context, d time.Duration) error {
	err := r.testClock.Sleep(ctx, d)
	r.f()
	return err
}

func TestAStartKilledAtAnyOperationLeavesAQueryThatStarts(t *testing.T) {
	ops := 0
	for k := 0; ; k++ {
		w := newWorld(t, 10).withDeadLetters()
		w.power.restart(k)
		if err := w.query().Claim(t.Context()); err == nil {
			ops = k
			break
		}
		w.reboot(k%2 == 0)
		w.must()
		ids := map[string]bool{}
		for _, m := range []*marker.Marker{w.main.marker(queryName), w.side.marker(queryName)} {
			ids[m.QueryID] = true
		}
		if len(ids) != 1 || w.counters().Read != 20 {
			t.Fatalf("killed at operation %d: %v", k, ids)
		}
	}
	if ops < 5 {
		t.Fatalf("a start of only %d operations", ops)
	}
}

func TestACommitLogThatIsGoneAloneStopsAndItsWayOutIsExact(t *testing.T) {
	w := newWorld(t, 30)
	w.limit = 20
	w.must()
	files, err := w.disk.Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(files, func(k string, _ []byte) bool { return strings.HasPrefix(k, "commits/") })
	if err := w.disk.SetFiles(t.Context(), files); err != nil {
		t.Fatal(err)
	}
	w.reboot(false)
	err = w.run()
	wantClass(t, err, failure.Checkpoint)
	if !strings.Contains(err.Error(), "move the checkpoint folder away") {
		t.Fatalf("no way out: %v", err)
	}
	w.disk.Wipe()
	w.reboot(false)
	w.kafka.produce(0, 10)
	w.must()
	w.exactRaw()
}
