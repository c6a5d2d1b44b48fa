package tests

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// send produces values into partition 0, which the next ids do not count.
func (l *lab) sendValues(values ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, v := range values {
		if err := l.client.ProduceSync(ctx, &kgo.Record{Topic: labTopic, Partition: 0, Value: []byte(v)}).FirstErr(); err != nil {
			l.t.Fatal(err)
		}
	}
}

func editOf(id string, at time.Time) string {
	return fmt.Sprintf(`{"id":%q,"kind":"edit","dt":%q}`, id, at.UTC().Format(time.RFC3339Nano))
}

type replayed struct {
	Queries []struct {
		Query    string
		Read     int64
		Found    int64
		Replayed int64
		Failed   map[string]int64
	}
}

func (l *lab) replay(args ...string) (found, brought int64) {
	l.t.Helper()
	var r replayed
	mustJSON(l.t, &r, append(args, l.file)...)
	if len(r.Queries) != 1 || r.Queries[0].Query != "silver" {
		l.t.Fatalf("%v: %+v", args, r)
	}
	return r.Queries[0].Found, r.Queries[0].Replayed
}

// silverRows checks silver by the audit: exact, and that many rows, all distinct.
func (l *lab) silverRows(want int64) {
	l.t.Helper()
	s := l.audit(exitOK)[labSilver]
	if !s.Exact || s.Rows != want || s.Silver == nil || s.Silver.DistinctIDs != want {
		l.t.Fatalf("silver has %d rows (%+v), want %d", s.Rows, s.Silver, want)
	}
}

// crashes runs a command until the crash point, where the process kills itself.
func (l *lab) crashes(point string, args ...string) {
	l.t.Helper()
	p := start(l.t, []string{"WEIR_CRASH_AT=" + point}, args...)
	if code := p.wait(); code != -1 || !strings.Contains(p.errs.String(), "crash point") {
		l.t.Fatalf("%s was not reached: exit %d\n%s", point, code, tail(p.errs.String()))
	}
}

func TestLateRowsAreBroughtOnceThroughKillsAndRepeats(t *testing.T) {
	l := newLab(t, 0)
	now := time.Now()
	for i := range 30 {
		l.sendValues(editOf(fmt.Sprintf("a-%d", i), now))
	}
	l.run(exitOK)
	// An hour behind a watermark of ten minutes; one id twice, one that is in
	// silver, one that is not JSON, one of another kind.
	for i := range 20 {
		l.sendValues(editOf(fmt.Sprintf("late-%d", i), now.Add(-time.Hour)))
	}
	l.sendValues(editOf("late-3", now.Add(-time.Hour)), editOf("a-7", now.Add(-time.Hour)), "{ not JSON",
		`{"id":"x","kind":"log","dt":"2020-01-01T00:00:00Z"}`, editOf("b", now))
	l.run(exitOK)
	l.silverRows(31)
	if found, brought := l.replay("late", "list"); found != 20 || brought != 0 {
		t.Fatalf("%d late rows, %d brought", found, brought)
	}
	l.silverRows(31)
	for _, point := range []string{"stage.file:1", "commit.metadata:1"} {
		l.crashes("silver.late/"+point, "late", "replay", l.file)
		l.silverRows(31)
	}
	// Killed when the rows are in and nothing else is written down.
	l.crashes("silver.late/commit.swapped:1", "late", "replay", l.file)
	l.silverRows(51)
	if found, brought := l.replay("late", "replay"); found != 0 || brought != 0 {
		t.Fatalf("%d late rows after the replay, %d brought", found, brought)
	}
	// Beside the running query, again and again; and silver goes on as before.
	p := start(t, nil, "run", l.file)
	for i := range 3 {
		l.sendValues(editOf(fmt.Sprintf("later-%d", i), now.Add(-2*time.Hour)), editOf(fmt.Sprintf("c-%d", i), now))
		l.replay("late", "replay")
	}
	_ = p.cmd.Process.Signal(os.Interrupt)
	p.wait()
	l.run(exitOK)
	l.replay("late", "replay")
	l.silverRows(57)
	if found, _ := l.replay("late", "list"); found != 0 {
		t.Fatalf("%d late rows at the end", found)
	}
}

func TestDeadLettersThatParseAfterACorrectionAreBroughtOnce(t *testing.T) {
	l := newLab(t, 0)
	now := time.Now().UTC()
	millis := func(id string) string {
		return fmt.Sprintf(`{"id":%q,"kind":"edit","dt":%d}`, id, now.UnixMilli())
	}
	l.sendValues(editOf("a", now), millis("m-1"), millis("m-2"), millis("m-2"), millis("a"), "{ not JSON")
	l.run(exitOK)
	l.silverRows(1)
	var dead struct {
		Queries []struct {
			Rows    int64
			Reasons map[string]int64
			Letters []struct{ Value []byte }
		}
	}
	mustJSON(t, &dead, "dlq", "list", l.file)
	if q := dead.Queries[0]; q.Rows != 5 || len(q.Reasons) != 2 {
		t.Fatalf("%+v", q)
	}
	mustJSON(t, &dead, "dlq", "show", l.file, "--limit", "1")
	if q := dead.Queries[0]; len(q.Letters) != 1 || string(q.Letters[0].Value) != millis("m-1") {
		t.Fatalf("%+v", q)
	}
	if found, brought := l.replay("dlq", "replay"); found != 0 || brought != 0 {
		t.Fatalf("%d letters parse before the correction, %d brought", found, brought)
	}
	l.edit("path: $.dt, type: timestamptz,", "path: $.dt, type: timestamptz, timeFormat: epochMillis,")
	if found, brought := l.replay("dlq", "replay", "--dry-run"); found != 2 || brought != 0 {
		t.Fatalf("%d letters parse, %d brought by a dry run", found, brought)
	}
	for _, point := range []string{"stage.file:1", "commit.metadata:1"} {
		l.crashes("silver.dlq/"+point, "dlq", "replay", l.file)
		l.silverRows(1)
	}
	l.crashes("silver.dlq/commit.swapped:1", "dlq", "replay", l.file)
	l.silverRows(3)
	if found, brought := l.replay("dlq", "replay"); found != 0 || brought != 0 {
		t.Fatalf("%d letters after the replay, %d brought", found, brought)
	}
	// Dead letters are not late rows.
	if found, _ := l.replay("late", "list"); found != 0 {
		t.Fatalf("%d dead letters are taken for late rows", found)
	}
	l.silverRows(3)
}

func TestLettersOfTheDeadLetterTopicArePublishedOnceThroughKills(t *testing.T) {
	l := newLab(t, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := l.admin().CreateTopic(ctx, 2, 1, nil, "edits.dlq"); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 12 {
		value := editOf(fmt.Sprintf("d-%d", i), now)
		if i >= 10 {
			value = "{ not JSON"
		}
		r := &kgo.Record{Topic: "edits.dlq", Partition: int32(i % 2), Value: []byte(value)}
		if err := l.client.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	l.edit("queries:", "ingest:\n  - {name: web, sse: {url: \"http://127.0.0.1:1/\"}, topic: edits, key: $.id}\nqueries:")
	var r struct {
		Letters  int64
		Before   int64 `json:"replayed_before"`
		Replayed int64
		Failed   map[string]int64
	}
	replay := []string{"dlq", "replay", l.file, "--topic", "web"}
	l.crashes("dlq/ingest.txn-begin:1", replay...)  // written, not committed
	l.crashes("dlq/ingest.txn-commit:1", replay...) // committed, and nobody knows
	mustJSON(t, &r, replay...)
	if r.Letters != 12 || r.Before != 10 || r.Replayed != 0 || len(r.Failed) != 1 {
		t.Fatalf("%+v", r)
	}
	l.run(exitOK)
	l.silverRows(10)
}
