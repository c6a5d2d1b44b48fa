package http

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/foreachbatch"
	"github.com/weirlake/weir/internal/sink/rowjson"
)

// rig delivers batches to a receiver as foreachbatch would.
type rig struct {
	t     *testing.T
	r     *receiver
	o     Options
	clock *testClock
	note  json.RawMessage // of the batch under way, as the record keeps it
	kept  int
	out   []sink.Rejection
}

func newRig(t *testing.T) *rig {
	r := newReceiver(t)
	c := &testClock{now: noon}
	return &rig{t: t, r: r, clock: c, o: Options{Query: "q", URL: r.srv.URL + "/events?token=hidden", Shape: shape, Clock: c, Logger: slog.New(slog.DiscardHandler)}}
}

func at(n int64) batch.Position {
	k := &batch.KafkaPosition{ClusterID: "c"}
	k.Set("t", "id", 0, batch.PartitionPosition{NextOffset: n, LastOffset: n - 1})
	return batch.Position{Kafka: k}
}

// deliver hands over batch 7 with ids 0 to n-1 in records of 4 rows.
func (g *rig) deliver(ctx context.Context, n int) (int64, error) {
	g.t.Helper()
	g.o.defaults()
	if err := g.o.validate(); err != nil {
		g.t.Fatal(err)
	}
	s := &sender{o: g.o, client: &nethttp.Client{CheckRedirect: func(*nethttp.Request, []*nethttp.Request) error { return nethttp.ErrUseLastResponse }}}
	if g.o.TLS != nil {
		s.client.Transport = &nethttp.Transport{TLSClientConfig: g.o.TLS}
	}
	var records []arrow.RecordBatch
	for from := 0; from < n; from += 4 {
		var ids []int64
		for i := from; i < min(n, from+4); i++ {
			ids = append(ids, int64(i))
		}
		records = append(records, recordOf(ids))
	}
	if g.note == nil {
		g.note = note{Format: noteFormat, Body: g.o.Format, Rows: g.o.ChunkRows, Bytes: g.o.ChunkBytes}.encode()
	}
	g.out = nil
	return s.deliver(ctx, foreachbatch.Delivery{
		QueryID: "id-1", QueryName: "q", BatchID: 7, Epoch: marker.Epoch{Number: 3}, Attempt: clock.Nonce(),
		Position: at(int64(n)), Records: records, Rows: int64(n), Note: g.note,
		Keep: func(_ context.Context, n json.RawMessage) error { g.note = n; g.kept++; return nil },
		Refuse: func(r []sink.Rejection) {
			g.out = r
		},
	})
}

func (g *rig) wantAll(n int) {
	g.t.Helper()
	g.wantIDs(func(int64) bool { return true }, n)
}

// wantIDs checks that the receiver has applied each wanted id of 0..n-1 once.
func (g *rig) wantIDs(want func(int64) bool, n int) {
	g.t.Helper()
	var ids []int64
	for i := range int64(n) {
		if want(i) {
			ids = append(ids, i)
		}
	}
	got := slices.Sorted(slices.Values(g.r.ids))
	if !slices.Equal(got, ids) {
		g.t.Fatalf("applied %v, want %v", got, ids)
	}
}

func wantClass(t *testing.T, err error, c failure.Class, texts ...string) {
	t.Helper()
	if !failure.Is(err, c) {
		t.Fatalf("want a failure of class %s, got %v", c, err)
	}
	for _, x := range texts {
		if !strings.Contains(err.Error(), x) {
			t.Fatalf("%q is not in: %v", x, err)
		}
	}
	if strings.Contains(err.Error(), "hidden") {
		t.Fatalf("a secret is in: %v", err)
	}
}

func TestChunksCarryTheBatchsIdsAndTheirOwnRange(t *testing.T) {
	for _, format := range []string{NDJSON, JSON} {
		g := newRig(t)
		g.o.Format, g.o.ChunkRows, g.o.Gzip = format, 4, true
		g.o.Headers = map[string]string{"Authorization": "Bearer hidden"}
		if n, err := g.deliver(t.Context(), 10); err != nil || n != 10 {
			t.Fatal(n, err)
		}
		g.wantAll(10)
		var keys []string
		for _, a := range g.r.asked {
			keys = append(keys, a.key)
		}
		if want := []string{"id-1-7-0-4", "id-1-7-4-8", "id-1-7-8-10"}; !slices.Equal(keys, want) {
			t.Fatalf("keys %v", keys)
		}
		h := g.r.asked[2].header
		if h.Get("Weir-Query-Id") != "id-1" || h.Get("Weir-Batch-Id") != "7" || h.Get("Weir-Epoch") != "3" || h.Get("Weir-First-Row") != "8" ||
			h.Get("Weir-Rows") != "2" || h.Get("Authorization") != "Bearer hidden" || !strings.Contains(h.Get("Weir-Position"), `"next_offset":10`) {
			t.Fatalf("%v", h)
		}
	}
}

func TestAChunkEndsBeforeItGrowsOverItsBytes(t *testing.T) {
	g := newRig(t)
	g.o.ChunkBytes = 20 // {"id":0} and a line end are 9
	if _, err := g.deliver(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	g.wantAll(5)
	if len(g.r.asked) != 3 {
		t.Fatalf("%d requests", len(g.r.asked))
	}
}

func TestAChunkThatWasAppliedAndItsConnectionCutIsNotAppliedAgain(t *testing.T) {
	g := newRig(t)
	g.o.ChunkRows = 3
	g.r.after = func(w nethttp.ResponseWriter, r request) bool { return r.nth == 1 && kill(w) }
	if _, err := g.deliver(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	g.wantAll(10)
}

func TestAnErrorAfterApplyingIsSentAgainAndFoundApplied(t *testing.T) {
	g := newRig(t)
	g.o.ChunkRows = 5
	g.r.after = func(w nethttp.ResponseWriter, r request) bool {
		if r.nth > 1 {
			return false
		}
		w.WriteHeader(nethttp.StatusInternalServerError)
		return true
	}
	if _, err := g.deliver(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	g.wantAll(10)
	if len(g.r.asked) != 4 {
		t.Fatalf("%d requests", len(g.r.asked))
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	for _, header := range []string{"70", noon.Add(70 * time.Second).Format(nethttp.TimeFormat)} {
		g := newRig(t)
		g.r.before = func(w nethttp.ResponseWriter, r request) bool {
			if r.nth > 1 {
				return false
			}
			w.Header().Set("Retry-After", header)
			w.WriteHeader(nethttp.StatusTooManyRequests)
			return true
		}
		if _, err := g.deliver(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if waited := g.clock.Now().Sub(noon); waited != 70*time.Second {
			t.Fatalf("waited %s", waited)
		}
	}
}

func TestAReceiverThatStaysAwayEndsInUnreachableWithinTheDeadline(t *testing.T) {
	g := newRig(t)
	g.o.Deadline = 30 * time.Second
	g.r.before = func(w nethttp.ResponseWriter, _ request) bool {
		w.WriteHeader(nethttp.StatusServiceUnavailable)
		return true
	}
	_, err := g.deliver(t.Context(), 3)
	wantClass(t, err, failure.Unreachable, "status 503", "/events")
	if waited := g.clock.Now().Sub(noon); waited > 30*time.Second || len(g.r.asked) < 3 {
		t.Fatalf("%d requests in %s", len(g.r.asked), waited)
	}
	// A Retry-After beyond the deadline is not waited for in vain.
	g.r.before = func(w nethttp.ResponseWriter, _ request) bool {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(nethttp.StatusServiceUnavailable)
		return true
	}
	_, err = g.deliver(t.Context(), 3)
	wantClass(t, err, failure.Unreachable)
	g.r.srv.Close()
	_, err = g.deliver(t.Context(), 3)
	wantClass(t, err, failure.Unreachable, "refused")
}

func TestASlowReceiverRunsIntoTheTimeOutAndIsAskedAgain(t *testing.T) {
	g := newRig(t)
	g.o.RequestTimeout = 100 * time.Millisecond
	hang := make(chan struct{})
	g.r.before = func(_ nethttp.ResponseWriter, r request) bool {
		if r.nth == 1 {
			<-hang
		}
		return false // applied late, when the client is gone
	}
	time.AfterFunc(0, func() {
		for g.clock.Now().Equal(noon) { // until the client has given up once
			time.Sleep(time.Millisecond)
		}
		close(hang)
	})
	if _, err := g.deliver(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	g.wantAll(3)
}

func TestAStopEndsTheWaitForAnotherTry(t *testing.T) {
	g := newRig(t)
	stop := make(chan struct{})
	g.o.Stopping, g.o.Clock = stop, clock.System{}
	g.r.before = func(w nethttp.ResponseWriter, _ request) bool {
		close(stop)
		w.Header().Set("Retry-After", "100")
		w.WriteHeader(nethttp.StatusServiceUnavailable)
		return true
	}
	if _, err := g.deliver(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "because of a stop") {
		t.Fatal(err)
	}
}

func TestRedirectsAndWrongCredentialsStopAndPutNoRowAside(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308, 401, 403, 404, 405} {
		g := newRig(t)
		g.o.OnRejected = sink.RejectDeadLetter
		g.o.Headers = map[string]string{"Authorization": "Bearer hidden"}
		g.r.before = func(w nethttp.ResponseWriter, _ request) bool {
			w.Header().Set("Location", "http://other.example/x?token=hidden")
			w.WriteHeader(status)
			_, _ = fmt.Fprint(w, "you sent hidden")
			return true
		}
		_, err := g.deliver(t.Context(), 3)
		wantClass(t, err, failure.Config, fmt.Sprint(status))
		if len(g.r.asked) != 1 || len(g.out) != 0 {
			t.Fatalf("status %d: %d requests, %d rows put aside", status, len(g.r.asked), len(g.out))
		}
	}
}

// tooLarge refuses chunks of more than n rows.
func tooLarge(n int) func(nethttp.ResponseWriter, request) bool {
	return func(w nethttp.ResponseWriter, r request) bool {
		if len(r.ids) > n {
			w.WriteHeader(nethttp.StatusRequestEntityTooLarge)
			return true
		}
		return false
	}
}

func TestChunksThatAreTooLargeAreHalvedAndTheCutIsKeptForARedelivery(t *testing.T) {
	g := newRig(t)
	g.r.before = tooLarge(3)
	// The second half's last part fails for good in the first delivery.
	g.r.after = func(w nethttp.ResponseWriter, r request) bool {
		if slices.Contains(r.ids, 9) {
			w.WriteHeader(nethttp.StatusNotFound)
			return true
		}
		return false
	}
	_, err := g.deliver(t.Context(), 10)
	wantClass(t, err, failure.Config)
	// By the next start the receiver takes more and the file says other sizes:
	// the batch is cut as it was, or its keys would be new ones.
	g.r.before, g.r.after, g.o.ChunkRows = nil, nil, 4
	if _, err := g.deliver(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	g.wantAll(10)
}

// refuses says no to chunks with one of the ids.
func refuses(ids ...int64) func(nethttp.ResponseWriter, request) bool {
	return func(w nethttp.ResponseWriter, r request) bool {
		for _, id := range r.ids {
			if slices.Contains(ids, id) {
				w.WriteHeader(nethttp.StatusUnprocessableEntity)
				_, _ = fmt.Fprintf(w, "id %d is not for us", id)
				return true
			}
		}
		return false
	}
}

func TestRefusedRowsStopTheQueryByDefault(t *testing.T) {
	g := newRig(t)
	g.r.before = refuses(2)
	_, err := g.deliver(t.Context(), 3)
	wantClass(t, err, failure.SchemaConflict, "id 2 is not for us", "422", "onRejected")
}

func TestRefusedRowsAreFoundByBisectionAndTheOthersApplied(t *testing.T) {
	g := newRig(t)
	g.o.OnRejected, g.o.ChunkRows = sink.RejectDeadLetter, 16
	bad := []int64{5, 6, 31}
	g.r.before = refuses(bad...)
	if n, err := g.deliver(t.Context(), 40); err != nil || n != 40 {
		t.Fatal(n, err)
	}
	g.wantIDs(func(id int64) bool { return !slices.Contains(bad, id) }, 40)
	var rows []int64
	for _, r := range g.out {
		rows = append(rows, r.Row)
	}
	if !slices.Equal(rows, bad) || g.out[0].Reason != "http-422" || g.out[0].Detail != "id 5 is not for us" {
		t.Fatalf("%+v", g.out)
	}
	// Redelivered to a receiver that would take them now: the decision stands.
	g.r.before = nil
	if _, err := g.deliver(t.Context(), 40); err != nil || len(g.out) != 3 {
		t.Fatal(err, g.out)
	}
	g.wantIDs(func(id int64) bool { return !slices.Contains(bad, id) }, 40)
}

func TestAReceiverThatRefusesEverythingStopsTheQuery(t *testing.T) {
	g := newRig(t)
	g.o.OnRejected, g.o.RejectedMax = sink.RejectDeadLetter, 5
	g.r.before = refuses(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	_, err := g.deliver(t.Context(), 10)
	wantClass(t, err, failure.SchemaConflict, "more than 5 rows")
}

func TestAnswersThatNameRefusedRows(t *testing.T) {
	g := newRig(t)
	g.o.OnRejected, g.o.RowResults, g.o.ChunkRows = sink.RejectDeadLetter, true, 4
	g.r.after = func(w nethttp.ResponseWriter, r request) bool {
		if r.nth == 1 && slices.Contains(r.ids, 6) {
			return kill(w) // the result is lost; the repeated answer must carry it
		}
		if r.nth > 1 {
			w.WriteHeader(nethttp.StatusConflict)
		}
		if slices.Contains(r.ids, 6) {
			_, _ = fmt.Fprint(w, `{"rejected":[{"row":2,"error":"odd"}]}`)
		} else {
			_, _ = fmt.Fprint(w, `{}`)
		}
		return true
	}
	if _, err := g.deliver(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if len(g.out) != 1 || g.out[0].Row != 6 || g.out[0].Detail != "odd" {
		t.Fatalf("%+v", g.out)
	}
	for _, body := range []string{``, `no`, `{"rejected":[{"row":9}]}`, `{"rejected":[{}]}`} {
		g.r.after = func(w nethttp.ResponseWriter, _ request) bool { _, _ = fmt.Fprint(w, body); return true }
		g.note = nil
		_, err := g.deliver(t.Context(), 4)
		wantClass(t, err, failure.Mismatch, "rowResults")
	}
}

func TestChunksAreSentSideBySideUpToTheLimit(t *testing.T) {
	g := newRig(t)
	g.o.ChunkRows, g.o.Concurrency, g.o.Clock = 1, 3, clock.System{}
	together := make(chan struct{})
	var n int
	g.r.before = func(nethttp.ResponseWriter, request) bool {
		g.r.mu.Lock()
		if n++; n == 3 {
			close(together)
		}
		g.r.mu.Unlock()
		<-together // none is answered before three are there
		return false
	}
	if _, err := g.deliver(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	g.wantAll(30)
	if g.r.most != 3 {
		t.Fatalf("%d requests at once", g.r.most)
	}
}

func TestRowsCarryTheirRecordKeyWhereAsked(t *testing.T) {
	g := newRig(t)
	g.o.Key = &rowjson.Key{Partition: "id", Offset: "id", Field: "k"}
	if _, err := g.deliver(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := g.r.asked[0].rows[1]["k"]; got != "c/id/1/1" {
		t.Fatal(got)
	}
}

func TestACertificateOfTheGivenAuthorityIsAcceptedAndOthersAreNot(t *testing.T) {
	g := newRig(t)
	srv := httptest.NewTLSServer(g.r)
	defer srv.Close()
	srv.Config.ErrorLog = nil
	g.o.URL, g.o.Deadline = srv.URL, time.Second
	pool := x509.NewCertPool()
	g.o.TLS = &tls.Config{RootCAs: pool}
	_, err := g.deliver(t.Context(), 1)
	wantClass(t, err, failure.Unreachable, "certificate")
	pool.AddCert(srv.Certificate())
	if _, err := g.deliver(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
}

func TestWrongOptionsAreNamedAtOnce(t *testing.T) {
	_, err := New(Options{Query: "q", URL: "ftp://x", Format: "xml", Concurrency: 1000, OnRejected: "drop", Headers: map[string]string{"idempotency-key": "x"}})
	wantClass(t, err, failure.Config, "url", "format", "concurrency", "onRejected", "idempotency-key")
}
