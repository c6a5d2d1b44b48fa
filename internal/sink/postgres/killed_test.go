package postgres

import (
	"context"
	"errors"
	"testing"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/marker"
)

func numbers(from, to int64) (out []int64) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

func TestAServerThatIsKilledAroundACommitLosesAndDoublesNothing(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	w := mustClaim(t, d.open(t, "q", nil))
	kill := func() error {
		server.Kill9()
		server.Restart()
		return errLost
	}
	if err := w.put(t, records(numbers(0, 100), nil)); err != nil {
		t.Fatal(err)
	}
	w.s.hooks.before = kill // within the transaction, before it has written
	if err := w.put(t, records(numbers(100, 200), nil)); err != nil {
		t.Fatal(err)
	}
	w.s.hooks.after = kill // the server has committed, and dies before it says so
	if err := w.put(t, records(numbers(200, 300), nil)); err != nil {
		t.Fatal(err)
	}
	// Rows are in, nothing is committed: prepared, and then the server dies.
	staged, m := w.stage(t, records(numbers(300, 400), nil))
	if _, err := w.s.Prepare(context.Background(), w.permit, w.cur, staged, m, nil); err != nil {
		t.Fatal(err)
	}
	_ = kill()
	c, err := w.s.Commit(context.Background(), w.permit, w.cur, staged, m)
	if err != nil {
		t.Fatal(err)
	}
	w.cur = c.Marker
	if n := ask[int](t, d, "SELECT count(*) FROM edits"); n != 400 {
		t.Fatalf("%d rows", n)
	}
	if n := ask[int](t, d, "SELECT count(DISTINCT id) FROM edits"); n != 400 {
		t.Fatalf("%d ids", n)
	}
	again := mustClaim(t, d.open(t, "q", nil))
	if again.cur.BatchID != 3 {
		t.Fatalf("the marker stands at batch %d", again.cur.BatchID)
	}
}

func TestAServerThatStaysAwayAfterACommitWasSentLeavesTheOutcomeUnknown(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	w := mustClaim(t, d.open(t, "q", func(o *Options) { o.Limits.Tries = 3 }))
	w.s.hooks.after = func() error { server.Kill9(); return errLost }
	err := w.put(t, records(numbers(0, 10), nil))
	if !failure.Is(err, failure.CommitUnknown) {
		t.Fatal(err)
	}
	server.Restart()
	if again := mustClaim(t, d.open(t, "q", nil)); again.cur.BatchID != 0 || len(d.ids(t)) != 10 {
		t.Fatalf("batch %d, %d rows", again.cur.BatchID, len(d.ids(t)))
	}
	server.Kill9()
	err = w.put(t, records(numbers(10, 20), nil))
	if !failure.Is(err, failure.Unreachable) {
		t.Fatal(err)
	}
	server.Restart()
}

func TestAPredecessorThatStandsStillInATransactionIsEndedByTheClaim(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	old := mustClaim(t, d.open(t, "q", nil))
	staged, m := old.stage(t, records(numbers(0, 10), nil))
	// It holds the marker's row, and never comes back to it.
	if _, err := old.s.Prepare(context.Background(), old.permit, old.cur, staged, m, nil); err != nil {
		t.Fatal(err)
	}
	young := mustClaim(t, d.open(t, "q", nil))
	if err := young.put(t, records(numbers(0, 10), nil)); err != nil {
		t.Fatal(err)
	}
	_, err := old.s.Commit(context.Background(), old.permit, old.cur, staged, m)
	if !failure.Is(err, failure.Fenced) {
		t.Fatal(err)
	}
	if got := d.ids(t); len(got) != 10 {
		t.Fatalf("%d rows", len(got))
	}
}

func TestTwoClaimsAtOnceLeaveOneEpochInPossession(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	d := database{server, server.NewDatabase()}
	ctx := context.Background()
	a, b := d.open(t, "q", nil), d.open(t, "q", nil)
	fa, err := a.Facts(ctx, "q")
	if err != nil {
		t.Fatal(err)
	}
	fb, err := b.Facts(ctx, "q")
	if err != nil {
		t.Fatal(err)
	}
	mark := func(nonce string) *marker.Marker {
		return &marker.Marker{Format: marker.Format, Kind: marker.KindStream, QueryName: "q", QueryID: nonce, BatchID: -1,
			Position: at(0), Claim: true, Attempt: nonce, Epoch: marker.Epoch{Number: 1, Nonce: nonce}}
	}
	type answer struct {
		moved bool
		err   error
	}
	answers := make(chan answer, 2)
	go func() { _, moved, err := a.Claim(ctx, fa, mark("a")); answers <- answer{moved, err} }()
	go func() { _, moved, err := b.Claim(ctx, fb, mark("b")); answers <- answer{moved, err} }()
	x, y := <-answers, <-answers
	if errors.Join(x.err, y.err) != nil || x.moved == y.moved {
		t.Fatalf("%+v %+v", x, y)
	}
}
