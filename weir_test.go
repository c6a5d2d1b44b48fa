package weir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/objstore"
)

func mustRun(t *testing.T, q *Query) {
	t.Helper()
	if err := q.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, err error, code int, text string) {
	t.Helper()
	if ExitCode(err) != code || (err != nil && !strings.Contains(err.Error(), text)) {
		t.Fatalf("want exit code %d with %q, got %d: %v", code, text, ExitCode(err), err)
	}
}

func TestAQueryWritesATableAndGoesOnFromIt(t *testing.T) {
	k := newKafka(t, 2)
	k.send(25)
	tables := map[string]Table{
		"delta":   Delta{Path: k.path("delta")},
		"iceberg": Iceberg{Catalog: Catalog{URI: k.path("catalog.db"), Warehouse: k.path("warehouse")}, Table: "lake.ids"},
	}
	var rows int64
	for name, table := range tables {
		build := func() *Query {
			q := k.query(name, 10).To(table)
			q.settings.OnProgress = func(p Progress) { rows += p.OutputRows }
			return q
		}
		rows = 0
		mustRun(t, build())
		if rows != int64(k.sent) {
			t.Fatalf("%s: %d rows of %d", name, rows, k.sent)
		}
		k.send(5)
		// Without its checkpoint it goes on from what the table remembers.
		if err := os.RemoveAll(k.path("checkpoints", name)); err != nil {
			t.Fatal(err)
		}
		rows = 0
		mustRun(t, build())
		if rows != 5 {
			t.Fatalf("%s: %d rows after the checkpoint was lost, want 5", name, rows)
		}
	}
	d, err := OpenDelta(t.Context(), k.path("delta"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Rows(t.Context()); err != nil || n < 30 {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestAHandlerGetsEveryRowOnceInOrderWithItsIds(t *testing.T) {
	k := newKafka(t, 1)
	k.send(10)
	s := newKeyed(t)
	var got []Batch
	r, err := k.query("orders", 4).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		got = append(got, b)
		return s.write(ctx, b)
	}).Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err != nil {
		t.Fatal(err)
	}
	s.exactly(10)
	if len(got) != 3 || got[1].BatchID != 1 || got[1].QueryName != "orders" || got[1].QueryID != got[0].QueryID || got[1].Epoch != 1 ||
		got[1].Position.Start["t"][0] != 4 || got[1].Position.End["t"][0] != 8 || got[1].Schema().Field(0).Name != "id" || got[1].Redelivered {
		t.Fatalf("%+v", got)
	}
	p := r.Progress()
	if len(p) != 3 || p[2].BatchID != 2 || p[2].InputRows != 2 || p[2].OutputRows != 2 {
		t.Fatalf("%+v", p)
	}
	// Another start has nothing to do.
	mustRun(t, k.query("orders", 4).ForeachBatch(s.write))
	if s.calls != 3 {
		t.Fatalf("%d calls", s.calls)
	}
}

// TestAProcessThatDiesAtAnyWriteHandsTheSameBatchesOver kills the query at its
// n-th durable write, for every n, and starts it again.
func TestAProcessThatDiesAtAnyWriteHandsTheSameBatchesOver(t *testing.T) {
	k := newKafka(t, 2)
	k.send(9)
	deaths, redelivered := 0, 0
	for n := 0; n < 200; n++ {
		disks, s := map[string]*objstore.Memory{}, newKeyed(t)
		query := func(p *power) *Query {
			q := plugged(k.query("q", 3), disks, p).ForeachBatch(s.write)
			q.settings.InstanceID = "one"
			q.checkpoint = "checkpoint" // no folder of that name is made
			return q
		}
		if err := query(&power{left: n}).runInMemory(t.Context()); err == nil {
			if deaths < 15 || redelivered == 0 {
				t.Fatalf("the query makes only %d durable writes, %d of which leave a batch to be handed over again", deaths, redelivered)
			}
			t.Logf("%d deaths, %d of them with a batch handed over twice", deaths, redelivered)
			return
		}
		deaths++
		if err := query(&power{left: -1}).runInMemory(t.Context()); err != nil {
			t.Fatalf("after a death at write %d: %v", n, err)
		}
		s.exactly(9)
		if s.calls > len(s.applied) {
			redelivered++
		}
	}
	t.Fatal("the query never ends")
}

// runInMemory is Run without a lock file.
func (q *Query) runInMemory(ctx context.Context) error {
	o, err := q.open(ctx, ctx.Done())
	if err != nil {
		return err
	}
	o.query.LockDir = ""
	return errors.Join(o.query.Run(ctx), o.close())
}

func TestABatchWithoutRowsIsNotHandedOverAndIsDone(t *testing.T) {
	k := newKafka(t, 1)
	k.send(6)
	calls := 0
	query := func() *Query {
		q := k.query("q", 3).ForeachBatch(func(_ context.Context, b Batch) (int64, error) {
			calls++
			return b.NumRows(), nil
		})
		q.parse.Filter = "id >= 3"
		return q
	}
	r, err := query().Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err != nil || calls != 1 || len(r.Progress()) != 2 || r.Progress()[0].RowsFiltered != 3 {
		t.Fatalf("%v, %d calls, %+v", err, calls, r.Progress())
	}
	mustRun(t, query())
	if calls != 1 {
		t.Fatalf("%d calls", calls)
	}
}

func TestAHandlersErrorStopsTheQueryAndTheSameBatchComesAgain(t *testing.T) {
	k := newKafka(t, 1)
	k.send(6)
	s := newKeyed(t)
	fail := errors.New("the database says no")
	var before Batch
	err := k.query("q", 3).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		if b.BatchID == 1 {
			before = b
			return 0, fail
		}
		return s.write(ctx, b)
	}).Run(t.Context())
	wantCode(t, err, 1, "batch 1")
	if !errors.Is(err, fail) || !CanRetry(err) {
		t.Fatal(err)
	}
	k.send(3) // what arrives meanwhile is not in it
	var after Batch
	mustRun(t, k.query("q", 3).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		if b.BatchID == 1 {
			after = b
		}
		return s.write(ctx, b)
	}))
	if after.Key() != before.Key() || after.NumRows() != 3 || !after.Redelivered || after.Epoch <= before.Epoch || !after.BatchTime.Equal(before.BatchTime) {
		t.Fatalf("%+v then %+v", before, after)
	}
	s.exactly(9)
}

func TestARowCountThatDoesNotMatchFailsTheBatchWithItsOwnExitCode(t *testing.T) {
	k := newKafka(t, 1)
	k.send(3)
	s := newKeyed(t)
	err := k.query("q", 3).ForeachBatch(func(_ context.Context, b Batch) (int64, error) {
		return b.NumRows() - 1, nil // one insert failed, and nobody said so
	}).Run(t.Context())
	wantCode(t, err, 4, "2 rows, the batch has 3")
	if CanRetry(err) {
		t.Fatal("a handler that swallows errors is no case for another try")
	}
	mustRun(t, k.query("q", 3).ForeachBatch(s.write))
	s.exactly(3)
}

func TestALostCheckpointStopsAQueryWithForeachBatch(t *testing.T) {
	k := newKafka(t, 1)
	k.send(6)
	s := newKeyed(t)
	mustRun(t, k.query("q", 3).ForeachBatch(s.write))
	if err := os.RemoveAll(k.path("checkpoints", "q")); err != nil {
		t.Fatal(err)
	}
	err := k.query("q", 3).ForeachBatch(s.write).Run(t.Context())
	wantCode(t, err, 7, "the checkpoint is lost")
	// A restart is a new lineage whose ids are above all that were seen.
	mustRun(t, k.query("q", 3).OnLostCheckpoint(Restart).ForeachBatch(s.write))
	if len(s.order) != 4 || !strings.HasSuffix(s.order[2], "/2") || !strings.HasSuffix(s.order[3], "/3") || s.order[2][:36] == s.order[1][:36] {
		t.Fatalf("%v", s.order)
	}
	for id, n := range s.counts() {
		if n != 2 {
			t.Fatalf("id %d: %d times; a restart delivers again, once", id, n)
		}
	}
	mustRun(t, k.query("q", 3).ForeachBatch(s.write))
}

func TestAnOlderCopyOfTheCheckpointStopsAQueryWithForeachBatch(t *testing.T) {
	k := newKafka(t, 1)
	s := newKeyed(t)
	k.send(3)
	mustRun(t, k.query("q", 3).ForeachBatch(s.write))
	if err := os.CopyFS(k.path("copy"), os.DirFS(k.path("checkpoints", "q"))); err != nil {
		t.Fatal(err)
	}
	k.send(3)
	mustRun(t, k.query("q", 3).ForeachBatch(s.write))
	if err := errors.Join(os.RemoveAll(k.path("checkpoints", "q")), os.Rename(k.path("copy"), k.path("checkpoints", "q"))); err != nil {
		t.Fatal(err)
	}
	k.send(3)
	wantCode(t, k.query("q", 100).ForeachBatch(s.write).Run(t.Context()), 7, "older copy")
	s.exactly(6)
}

func TestDeadLettersAreWrittenBesideAHandler(t *testing.T) {
	k := newKafka(t, 1)
	k.send(4)
	if err := k.client.ProduceSync(t.Context(), kafkaText("not JSON"), kafkaText(`{"id":4}`)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	s := newKeyed(t)
	boom := true
	query := func() *Query {
		return k.query("q", 100).DeadLetters(Delta{Path: k.path("dead")}).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
			if boom {
				return 0, errors.New("after the side table has the batch")
			}
			return s.write(ctx, b)
		})
	}
	if err := query().Run(t.Context()); err == nil {
		t.Fatal("no error")
	}
	boom = false
	mustRun(t, query())
	s.exactly(5)
	d, err := OpenDelta(t.Context(), k.path("dead"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Rows(t.Context()); err != nil || n != 1 {
		t.Fatalf("%d dead letters, %v", n, err)
	}
}

func TestAStopFinishesTheBatchUnderWay(t *testing.T) {
	k := newKafka(t, 1)
	k.send(2)
	s := newKeyed(t)
	begun, goOn := make(chan struct{}), make(chan struct{})
	r, err := k.query("q", 1).Trigger(ProcessingTime(0)).ForeachBatch(func(ctx context.Context, b Batch) (int64, error) {
		if b.BatchID == 0 {
			close(begun)
			<-goOn
			if ctx.Err() != nil {
				t.Error("the stop tore the batch")
			}
		}
		return s.write(ctx, b)
	}).Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	r.cancel()
	close(goOn)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if s.calls != 1 {
		t.Fatalf("%d calls", s.calls)
	}
	mustRun(t, k.query("q", 1).ForeachBatch(s.write))
	s.exactly(2)
}

func TestEverythingThatIsWrongIsSaidAtOnce(t *testing.T) {
	handler := func(context.Context, Batch) (int64, error) { return 0, nil }
	err := NewQuery("../q").Trigger(Continuous(time.Second)).ForeachBatch(handler).To(Delta{Path: "x"}).
		DeadLetters(Delta{Path: "y"}).OnLostCheckpoint("ignore").Run(t.Context())
	wantCode(t, err, 2, "")
	for _, want := range []string{"is not a name", "From is missing", "Checkpoint is missing", "exclude each other", "continuous processing has no batches",
		"DeadLetters without Parse", `"ignore" is not one of`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not said: %s\n%v", want, err)
		}
	}
	k := Kafka{Topics: []string{"t"}}
	wantCode(t, NewQuery("q").From(k).Checkpoint("c").ForeachBatch(handler).Trigger(Continuous(time.Second)).Validate(), 2, "no batch id that a redelivery could be known by")
	wantCode(t, NewQuery("q").From(k).Checkpoint("c").ForeachBatch(handler).Deliveries("c/d").Validate(), 2, "has to outlive")
	if err := NewQuery("q").From(k).Checkpoint("c").ForeachBatch(handler).Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestRowsThatATransformLeavesOutAreCountedAsFiltered(t *testing.T) {
	k := newKafka(t, 1)
	k.send(10)
	var got []int64
	query := func(apply func(arrow.RecordBatch) (arrow.RecordBatch, error)) *Query {
		return k.query("q", 100).Transform(Transform{Version: "1", Apply: apply}).ForeachBatch(func(_ context.Context, b Batch) (int64, error) {
			got = append(got, ids(b.Records)...)
			return b.NumRows(), nil
		})
	}
	for text, apply := range map[string]func(arrow.RecordBatch) (arrow.RecordBatch, error){
		"not add some": func(rec arrow.RecordBatch) (arrow.RecordBatch, error) { return doubled(rec), nil },
		"panicked":     func(arrow.RecordBatch) (arrow.RecordBatch, error) { panic("oh") },
		"no rows":      func(arrow.RecordBatch) (arrow.RecordBatch, error) { return nil, nil },
	} {
		if err := query(apply).Run(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("%s: %v", text, err)
		}
	}
	r, err := query(func(rec arrow.RecordBatch) (arrow.RecordBatch, error) { return rec.NewSlice(0, 4), nil }).Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(); err != nil {
		t.Fatal(err)
	}
	if p := r.Progress()[0]; fmt.Sprint(got) != "[0 1 2 3]" || p.RowsFiltered != 6 || p.OutputRows != 4 || p.InputRows != 10 {
		t.Fatalf("%v %+v", got, p)
	}
}
