package iceberg

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
	"github.com/weirlake/weir/internal/source/sourcetest"
)

const day0 = 20_000

// upstream is a bronze table for the conformance suite.
type upstream struct {
	*bronzetest.Table
	next map[int32]int64
	lost map[int32]int64
}

func newUpstream(t *testing.T, partitions int32) sourcetest.Upstream {
	return &upstream{bronzetest.New(t, partitions), map[int32]int64{}, map[int32]int64{}}
}

func (u *upstream) Open(t *testing.T) source.Source { return open(t, u.Table, Config{}) }

func (u *upstream) Produce(_ *testing.T, p int32, n int) {
	u.Commit(bronzetest.Rows(p, u.next[p], n, day0)...)
	u.next[p] += int64(n)
}

func (u *upstream) AddPartition(*testing.T) int32 {
	p := int32(len(u.Vector().Topics[bronzetest.Topic].Partitions))
	u.Table.AddPartition(p)
	u.Commit()
	return p
}

func (u *upstream) Lose(_ *testing.T, p int32, n int) {
	from := u.lost[p]
	u.lost[p] += int64(n)
	u.Delete(iceberg.NewAnd(iceberg.EqualTo(iceberg.Reference("partition"), p), iceberg.GreaterThanEqual(iceberg.Reference("offset"), from),
		iceberg.LessThan(iceberg.Reference("offset"), from+int64(n))))
}

func (u *upstream) Recreate(*testing.T) { u.Table.Recreate() }

// open makes a source over the table.
func open(t *testing.T, b *bronzetest.Table, cfg Config) *Source {
	t.Helper()
	cfg.Name, cfg.Clock = lake.Name(bronzetest.Ident), clock.System{}
	if cfg.Load == nil {
		cfg.Load = func(ctx context.Context) (*table.Table, error) { return b.Cat.LoadTable(ctx, bronzetest.Ident) }
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheTableSourceConforms(t *testing.T) {
	sourcetest.Run(t, sourcetest.Harness{New: newUpstream, Overrun: overrunMax})
}

func initialOf(t *testing.T, s *Source) batch.Position {
	t.Helper()
	p, err := s.Initial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func planOf(t *testing.T, s *Source, start batch.Position, limit int64) source.Planned {
	t.Helper()
	p, err := s.Plan(t.Context(), start, limit)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func readOf(t *testing.T, s *Source, start, end batch.Position) (int64, batch.Position, error) {
	t.Helper()
	n := int64(0)
	res, err := s.Read(t.Context(), start, end, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
		n += rec.NumRows()
		rec.Release()
		return nil
	})
	return n, res.End, err
}

func TestEarliestStartsAtTheUpstreamsFirstClaim(t *testing.T) {
	b := bronzetest.Open(t, t.TempDir())
	b.Create()
	b.Begin(map[int32]int64{0: 1000, 1: 7})
	b.Commit(bronzetest.Rows(0, 1000, 20, day0)...)
	pos := initialOf(t, open(t, b, Config{}))
	p0, _ := pos.Vector().Get(bronzetest.Topic, 0)
	p1, _ := pos.Vector().Get(bronzetest.Topic, 1)
	if p0.NextOffset != 1000 || p1.NextOffset != 7 || pos.Vector().Topics[bronzetest.Topic].ID != bronzetest.TopicID {
		t.Fatalf("starts at %s", pos)
	}
	b.ExpireAllButHead()
	s := open(t, b, Config{})
	pos = initialOf(t, s)
	if p0, _ := pos.Vector().Get(bronzetest.Topic, 0); p0.NextOffset != 0 || p0.Rows != 0 {
		t.Fatalf("without the first claim it starts at %s, want 0", pos)
	}
	p := planOf(t, s, pos, 0)
	if n, _, err := readOf(t, s, p.Start, p.End); n != 20 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestLatestStartsAtTheHead(t *testing.T) {
	b := bronzetest.New(t, 1)
	b.Commit(bronzetest.Rows(0, 0, 20, day0)...)
	s := open(t, b, Config{StartingOffsets: Latest})
	b.Commit(bronzetest.Rows(0, 20, 5, day0)...)
	pos := initialOf(t, s)
	if p := planOf(t, s, pos, 0); p.Start.Offsets(p.End) != 0 {
		t.Fatalf("latest plans %s to %s", p.Start, p.End)
	}
	b.Commit(bronzetest.Rows(0, 25, 3, day0)...)
	p := planOf(t, s, pos, 0)
	if n, _, err := readOf(t, s, p.Start, p.End); n != 3 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestAFreshQueryWaitsForItsUpstreamAndThenSaysSo(t *testing.T) {
	b := bronzetest.Open(t, t.TempDir())
	s := open(t, b, Config{InitialWait: time.Millisecond})
	if _, err := s.Initial(t.Context()); !failure.Is(err, failure.Unreachable) || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("no table: %v", err)
	}
	b.Create()
	if _, err := s.Initial(t.Context()); !failure.Is(err, failure.Unreachable) || !strings.Contains(err.Error(), "feeds") {
		t.Fatalf("no claim: %v", err)
	}
}

// After keep-1 expiry and somebody's compaction the only snapshot has no
// offsets; the marker in the properties has.
func TestCompactionAndExpiryDownToOneSnapshotLoseAndRepeatNothing(t *testing.T) {
	b := bronzetest.New(t, 2)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	rows := append(bronzetest.Rows(0, 0, 30, day0), bronzetest.Rows(1, 0, 11, day0)...)
	b.Commit(rows[:30]...)
	p := planOf(t, s, pos, 0)
	n, at, err := readOf(t, s, p.Start, p.End)
	if n != 30 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
	b.Commit(rows[30:]...)
	b.Compact(rows)
	b.ExpireAllButHead()
	p = planOf(t, s, at, 0)
	n, at, err = readOf(t, s, p.Start, p.End)
	if n != 11 || err != nil {
		t.Fatalf("after compaction and expiry %d rows, want the other 11: %v", n, err)
	}
	b.Commit(bronzetest.Rows(0, 30, 4, day0)...)
	p = planOf(t, s, at, 0)
	if n, _, err = readOf(t, s, p.Start, p.End); n != 4 || err != nil {
		t.Fatalf("%d rows, want the 4 new ones: %v", n, err)
	}
}

func TestATableRolledBackBelowThePositionIsAViolation(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	old := b.Commit(bronzetest.Rows(0, 0, 10, day0)...).CurrentSnapshot().SnapshotID
	b.Commit(bronzetest.Rows(0, 10, 10, day0)...)
	p := planOf(t, s, initialOf(t, s), 0)
	_, at, err := readOf(t, s, p.Start, p.End)
	if err != nil {
		t.Fatal(err)
	}
	b.Rollback(old)
	vs, err := s.Verify(t.Context(), at)
	if err != nil || len(vs) != 1 || !vs[0].Lost || vs[0].From != 10 || vs[0].To != 20 {
		t.Fatalf("%+v %v", vs, err)
	}
	if _, err := s.Plan(t.Context(), at, 0); !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("plan: %v", err)
	}
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("read: %v", err)
	}
}

// The property is not rolled back with the table: a head older than the marker
// must not be read as if it held what the marker says.
func TestAPropertyNewerThanTheHeadIsNotBelieved(t *testing.T) {
	b := bronzetest.Open(t, t.TempDir())
	b.Create()
	b.ForeignAppend(bronzetest.Rows(0, 0, 1, day0)...)
	foreign := b.Load().CurrentSnapshot().SnapshotID
	b.Begin(map[int32]int64{0: 1})
	b.Commit(bronzetest.Rows(0, 1, 10, day0)...)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	b.Rollback(foreign)
	if _, err := s.Plan(t.Context(), pos, 0); !failure.Is(err, failure.Checkpoint) || !strings.Contains(err.Error(), "rewound") {
		t.Fatalf("plan: %v", err)
	}
	if vs, err := s.Verify(t.Context(), pos); err != nil || len(vs) == 0 {
		t.Fatalf("verify: %v %v", vs, err)
	}
}

func TestMissingRowsAreNamedUnlessTheirDeletionWasDeclared(t *testing.T) {
	b := bronzetest.New(t, 2)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	b.Commit(append(bronzetest.Rows(0, 0, 20, day0), bronzetest.Rows(1, 0, 20, day0)...)...)
	p := planOf(t, s, pos, 0)
	b.Delete(iceberg.NewAnd(iceberg.EqualTo(iceberg.Reference("partition"), int32(1)), iceberg.LessThan(iceberg.Reference("offset"), int64(3))))
	_, _, err := readOf(t, s, p.Start, p.End)
	if !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "rows missing upstream: "+bronzetest.Topic+"-1 [0, 20)") {
		t.Fatalf("got %v", err)
	}
	b.SetProperty(marker.DeclaredDeletesKey, []marker.DeclaredDelete{{Topic: bronzetest.Topic, Partition: 1, From: 0, To: 3, Rows: 3}})
	n, end, err := readOf(t, s, p.Start, p.End)
	if n != 37 || err != nil {
		t.Fatalf("declared: %d rows, %v", n, err)
	}
	// The upstream's count goes on as it was, so later batches still add up.
	b.Commit(bronzetest.Rows(1, 20, 5, day0)...)
	p = planOf(t, s, end, 0)
	if n, _, err = readOf(t, s, p.Start, p.End); n != 5 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestErasedRowsMayBeMissingAndNoOthersAndMustNotComeBack(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	b.Commit(bronzetest.Rows(0, 0, 20, day0)...)
	p := planOf(t, s, pos, 0)
	places := marker.PlacesOf(map[batch.TopicPartition][]int64{{Topic: bronzetest.Topic}: {3, 4, 11}})
	b.SetProperty(marker.DeclaredDeletesKey, places.Declare("e"))
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "3 rows that were erased are there again") {
		t.Fatalf("got %v", err)
	}
	for _, o := range []int64{3, 4, 11} {
		b.Delete(iceberg.EqualTo(iceberg.Reference("offset"), o))
	}
	n, end, err := readOf(t, s, p.Start, p.End)
	if last, _ := end.Vector().Get(bronzetest.Topic, 0); n != 17 || err != nil || last.Rows != 20 {
		t.Fatalf("%d rows, %v, %+v", n, err, last)
	}
	if name, err := s.Erasures(t.Context()); !strings.HasPrefix(name, "1-") || err != nil {
		t.Fatalf("erasures %q, %v", name, err)
	}
	b.Delete(iceberg.EqualTo(iceberg.Reference("offset"), int64(12)))
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "rows missing upstream") {
		t.Fatalf("got %v", err)
	}
}

func TestAPositionInRowsThatWereExchangedIsRefused(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	b.Commit(bronzetest.Rows(0, 0, 20, day0)...)
	p := planOf(t, s, pos, 0)
	b.SetProperty(marker.RebuiltKey, marker.Rebuilt{ID: "rebuild-1", Since: map[string]int64{bronzetest.Query: 1}})
	if vs, err := s.Verify(t.Context(), pos); err != nil || len(vs) != 1 || !strings.Contains(vs[0].Text, "exchanged by rebuild-1") || vs[0].Lost {
		t.Fatalf("verify: %v %v", vs, err)
	}
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) {
		t.Fatalf("read: %v", err)
	}
	if p = planOf(t, s, initialOf(t, s), 0); p.End.Table.Rebuilt != "rebuild-1" {
		t.Fatalf("a new position is %+v", p.End.Table)
	}
	if n, _, err := readOf(t, s, p.Start, p.End); n != 20 || err != nil {
		t.Fatalf("%d rows, %v", n, err)
	}
}

func TestRowsThatSomebodyAddedTwiceAreRefused(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	pos := initialOf(t, s)
	rows := bronzetest.Rows(0, 0, 20, day0)
	b.Commit(rows...)
	b.ForeignAppend(rows[3:5]...)
	b.Commit(bronzetest.Rows(0, 20, 1, day0)...)
	p := planOf(t, s, pos, 0)
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "2 rows too many") {
		t.Fatalf("got %v", err)
	}
}

func TestALimitEndsAtAnUpstreamCommitAndCutsOnlyWhatIsFarTooLarge(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	at := initialOf(t, s)
	next := int64(0)
	for _, n := range []int{10, 10, 10, 35, 90} {
		b.Commit(bronzetest.Rows(0, next, n, day0)...)
		next += int64(n)
	}
	var sizes []int64
	for {
		p := planOf(t, s, at, 20)
		if p.Start.Offsets(p.End) == 0 {
			break
		}
		n, end, err := readOf(t, s, p.Start, p.End)
		if err != nil {
			t.Fatal(err)
		}
		sizes, at = append(sizes, n), end
	}
	// 10+10, 10, 35 (within four limits), and 90 cut down until a step fits.
	want := []int64{20, 10, 35, 20, 70}
	if len(sizes) != len(want) {
		t.Fatalf("batches of %v, want %v", sizes, want)
	}
	for i := range want {
		if sizes[i] != want[i] {
			t.Fatalf("batches of %v, want %v", sizes, want)
		}
	}
}

func TestALossInsideACutBatchIsFoundAtTheNextKnownCount(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	at := initialOf(t, s)
	b.Commit(bronzetest.Rows(0, 0, 200, day0)...)
	b.Delete(iceberg.LessThan(iceberg.Reference("offset"), int64(2)))
	for range 20 {
		p := planOf(t, s, at, 20)
		_, end, err := readOf(t, s, p.Start, p.End)
		if err != nil {
			if !failure.Is(err, failure.SourceChanged) {
				t.Fatal(err)
			}
			return
		}
		at = end
	}
	t.Fatal("two rows are missing and nobody noticed")
}

func TestARecreatedTopicUnderTheSameTableIsAViolation(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{})
	b.Commit(bronzetest.Rows(0, 0, 5, day0)...)
	p := planOf(t, s, initialOf(t, s), 0)
	v := b.Vector()
	topic := v.Topics[bronzetest.Topic]
	topic.ID = "another"
	v.Topics[bronzetest.Topic] = topic
	b.CommitAs(nil, v)
	vs, err := s.Verify(t.Context(), p.End)
	if err != nil || len(vs) != 1 || !strings.Contains(vs[0].Text, "another") {
		t.Fatalf("%v %v", vs, err)
	}
}

func TestOnlyTheWantedColumnsAreEmitted(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, Config{Columns: []string{"offset", "value"}})
	b.Commit(bronzetest.Rows(0, 0, 5, day0)...)
	p := planOf(t, s, initialOf(t, s), 0)
	_, err := s.Read(t.Context(), p.Start, p.End, source.ReadEnv{}, func(rec arrow.RecordBatch) error {
		defer rec.Release()
		if rec.NumCols() != 2 || !rec.Schema().Equal(s.Schema()) {
			t.Errorf("schema %s", rec.Schema())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

type hot struct{ rec func() arrow.RecordBatch }

func (h hot) Rows(_ context.Context, _, _ batch.Position, emit func(arrow.RecordBatch) error) (bool, error) {
	if h.rec == nil {
		return false, nil
	}
	return true, emit(h.rec())
}

func TestRowsFromMemoryAreCountedLikeRowsFromTheTable(t *testing.T) {
	b := bronzetest.New(t, 1)
	rows := bronzetest.Rows(0, 0, 5, day0)
	b.Commit(rows...)
	for n, want := range map[int]bool{5: true, 4: false} {
		s := open(t, b, Config{Hot: hot{func() arrow.RecordBatch { return bronzetest.Record(rows[:n]...) }}})
		p := planOf(t, s, initialOf(t, s), 0)
		if _, _, err := readOf(t, s, p.Start, p.End); (err == nil) != want {
			t.Errorf("%d rows from memory: %v", n, err)
		}
	}
	s := open(t, b, Config{Hot: hot{}})
	p := planOf(t, s, initialOf(t, s), 0)
	if n, _, err := readOf(t, s, p.Start, p.End); n != 5 || err != nil {
		t.Errorf("not in memory: %d rows, %v", n, err)
	}
}

func TestANotificationWakesTheWait(t *testing.T) {
	b := bronzetest.New(t, 1)
	wake := make(chan struct{}, 1)
	s := open(t, b, Config{Notify: wake, Pointer: func(context.Context) (string, error) {
		return b.Load().MetadataLocation(), nil
	}})
	pos := initialOf(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Wait(t.Context(), pos) }()
	b.Commit(bronzetest.Rows(0, 0, 1, day0)...)
	wake <- struct{}{}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
