package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostileFrame is one thing that a stream sends, and where it must end: a place
// of samples_test.go, or dead + reason for what passes the contract and is a
// dead letter of silver.
type hostileFrame struct {
	name  string
	frame []byte
	data  []byte // what a record must hold; nil for no event
	place string
}

// event is a frame of one line of data.
func event(name string, data []byte, place string) hostileFrame {
	return hostileFrame{name: name, frame: slices.Concat([]byte("event: message\ndata: "), data, []byte("\n\n")), data: data, place: place}
}

// hostileEvents are events whose data fits in one line.
func hostileEvents(now time.Time) []hostileFrame {
	at := now.UTC().Format(time.RFC3339)
	n := 1000
	next := func(extra string) []byte { n++; return edit(n, at, extra) }
	timed := func(dt string) []byte { n++; return edit(n, dt, "") }
	deep := func(open, inside, end string) []byte {
		return next(`"x":` + strings.Repeat(open, 10_000) + inside + strings.Repeat(end, 10_000))
	}
	return []hostileFrame{
		event("an ordinary edit", next(""), silver),
		event("invalid UTF-8", next("\"title\":\"\xff\xfe\""), dlq+"invalid_utf8"),
		event("a surrogate in UTF-8", next("\"title\":\"\xed\xa0\x80\""), dlq+"invalid_utf8"),
		event("a lone surrogate", next(`"title":"\ud800x"`), dlq+"lone_surrogate"),
		event("a NUL byte", next("\"title\":\"a\x00b\""), dlq+"invalid_json"),
		event("an escaped NUL", next(`"title":"a\u0000b"`), silver),
		event("a NUL in the id, which is no UUID then", next(`"meta":{"id":"a\u0000b","dt":"`+at+`"}`), dlq+"bad_format"),
		event("duplicate keys", next(`"title":"a","title":"b"`), dlq+"duplicate_key"),
		event("two domains, one of them a canary's", next(`"meta":{"id":"`+hostileID(1900)+`","dt":"`+at+`","domain":"a","domain":"canary"}`), dlq+"duplicate_key"),
		event("half a document", next("")[:40], dlq+"invalid_json"),
		event("two documents", append(next(""), "{}"...), dlq+"invalid_json"),
		event("10,000 arrays deep", deep("[", "", "]"), dlq+"too_deep"),
		event("10,000 objects deep", deep(`{"a":`, "1", "}"), dlq+"too_deep"),
		event("2^53+1", next(`"id":9007199254740993`), silver),
		event("2^63-1", next(`"revision":{"new":9223372036854775807}`), silver),
		event("2^63", next(`"revision":{"new":9223372036854775808}`), dlq+"out_of_range"),
		event("20 digits", next(`"id":12345678901234567890`), dlq+"out_of_range"),
		event("20 digits where nothing is said", next(`"x":12345678901234567890`), silver),
		event("a namespace beyond 32 bits", next(`"namespace":2147483648`), dlq+"out_of_range"),
		event("a number in a text", next(`"namespace":"1"`), dlq+"wrong_type"),
		event("an array", []byte("[]"), dlq+"wrong_type"),
		event("an object without anything", []byte("{}"), dlq+"missing_field"),
		event("meta without an id", []byte(`{"meta":{"dt":"`+at+`"},"type":"edit"}`), dlq+"missing_field"),
		event("an id that is no UUID", next(`"meta":{"id":"7","dt":"`+at+`"}`), dlq+"bad_format"),
		event("an unknown major version", next(`"$schema":"/mediawiki/recentchange/2.0.0"`), dlq+"bad_format"),
		event("a canary with everything else wrong", []byte(`{"$schema":7,"meta":{"domain":"canary"},"type":[]}`), canary),
		event("1969", timed("1969-12-31T23:59:59Z"), silver),
		event("9999", timed("9999-12-31T23:59:59Z"), dead+"future_event"),
		event("next week", timed(now.Add(7*24*time.Hour).UTC().Format(time.RFC3339)), dead+"future_event"),
		event("a leap second", timed("2016-12-31T23:59:60Z"), silver),
		event("a 60th second that is none", timed("2026-03-03T11:15:60Z"), dlq+"bad_format"),
		event("an offset", timed("2026-03-03T16:45:25+05:30"), silver),
		event("no offset", timed("2026-03-03T11:15:25"), dlq+"bad_format"),
		event("February 29th of 2025", timed("2025-02-29T00:00:00Z"), dlq+"bad_format"),
		event("1 MiB", next(`"comment":"`+strings.Repeat("ü", 1<<19)+`"`), silver),
		event("20 MiB, more than a record may have", next(`"comment":"`+strings.Repeat("x", wide)+`"`), dlq+"too_large"),
		event("the last ordinary edit", next(""), silver),
	}
}

// hostileFrames are the events and what only frames can do.
func hostileFrames(now time.Time) []hostileFrame {
	at := now.UTC().Format(time.RFC3339)
	frame := func(name, text string, data []byte, place string) hostileFrame {
		return hostileFrame{name: name, frame: []byte(text), data: data, place: place}
	}
	a, b, c := edit(2001, at, ""), edit(2002, at, ""), edit(2003, at, "")
	noisy := edit(2004, at, `"comment":"`+strings.Repeat("y", 33<<20)+`"`)
	frames := []hostileFrame{
		frame("a byte order mark opens the stream", "\ufeff:ok\n\n", nil, nowhere),
		frame("carriage returns", "data: "+string(a)+"\r\r", a, silver),
		frame("both line ends", "event: message\r\ndata: "+string(b)+"\r\n\r\n", b, silver),
		frame("unknown fields, a broken retry, a field without a name", "retry: soon\nx: y\n: c\ndata: "+string(c)+"\nretry:-1\n\n", c, silver),
		frame("an empty event", "data\n\n", []byte{}, dlq+"empty"),
		frame("two empty lines of data", "data\ndata:\n\n", []byte("\n"), dlq+"empty"),
		frame("an id with a NUL, which is no id", "id: a\x00b\n\n", nil, nowhere),
		frame("an event type without data", "event: message\n\n", nil, nowhere),
		frame("an event of another type", "event: error\ndata: {}\n\n", []byte("{}"), dlq+"event_type"),
		frame("a comment of 1 MiB", ":"+strings.Repeat("c", 1<<20)+"\n\n", nil, nowhere),
		event("33 MiB, more than an event may have", noisy, dlq+"too_large"),
	}
	frames = append(frames, hostileEvents(now)...)
	return append(frames, frame("no end of the line", "data: "+string(edit(2005, at, "")), nil, nowhere))
}

func TestHostileEventsOverSSEEndInACountedPlace(t *testing.T) {
	frames := hostileFrames(time.Now())
	var body []byte
	for _, f := range frames {
		body = append(body, f.frame...)
	}
	file := filepath.Join(t.TempDir(), "frames")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, delivery := range []string{"at-least-once", "exactly-once"} {
		t.Run(delivery, func(t *testing.T) {
			r := newRig(t, "WEIR_SSE_URL="+sseServer(t, file), "WEIR_DELIVERY="+delivery)
			var got ingestStats
			r.runJSON(&got, "ingest", r.file)
			if got.Dropped != 0 || got.InFlight != 0 {
				t.Errorf("ingestion: %+v", got)
			}
			want := ingestStats{Violations: map[string]int64{}}
			for _, f := range frames {
				switch reason, isDLQ := strings.CutPrefix(f.place, dlq); {
				case f.place == nowhere:
					continue
				case isDLQ:
					want.DeadLetters++
					want.Violations[reason]++
				case f.place == canary:
					want.Canaries++
				default:
					want.Published++
				}
				want.Received++
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("ingestion:\n got %+v\nwant %+v", got, want)
			}
			r.once()
			checkHostileStream(t, r, frames)
		})
	}
}

// TestHostileStreamKilledAtEveryTurnEndsInTheSamePlaces has the shipped server
// play the events while everything runs in one process, which is killed in
// ingestion, bronze and silver. Exactly-once, so that every tally is exact.
func TestHostileStreamKilledAtEveryTurnEndsInTheSamePlaces(t *testing.T) {
	frames := hostileEvents(time.Now())
	var body []byte
	for _, f := range frames {
		body = append(append(body, f.data...), '\n')
	}
	file := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, "WEIR_SSE_URL="+replay(t, file), "WEIR_DELIVERY=exactly-once")
	for _, point := range []string{
		"ingest/ingest.received:10", "ingest/ingest.produced:20", "ingest/ingest.txn-begin:1", "ingest/ingest.txn-commit:1",
		"bronze/commit.metadata:1", "bronze/commit.swapped:1", "silver/stage.done:1", "silver/commit.side:1",
	} {
		p := start(t, append(r.env, "WEIR_CRASH_AT="+point), "run", r.file)
		select {
		case <-p.exited:
		case <-time.After(patience):
			t.Fatalf("%s was never reached\n%s", point, tail(p.errs.String()))
		}
		if !strings.Contains(p.errs.String(), "crash point") || p.cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("%s: the process ended by itself: exit %d\n%s", point, p.cmd.ProcessState.ExitCode(), tail(p.errs.String()))
		}
	}
	r.run("ingest", r.file)
	r.once()
	checkHostileStream(t, r, frames)
}

// checkHostileStream holds topics and tables against the frames.
func checkHostileStream(t *testing.T, r *rig, frames []hostileFrame) {
	t.Helper()
	bronze, deadTopic := map[string]int{}, map[string]int{}
	for _, b := range r.rows("bronze.recentchange") {
		bronze[string(b.bytes(t, "value"))]++
	}
	for _, rec := range r.topic("wiki.recentchange.dlq") {
		value := rec.Value
		if n := header(rec, "weir-truncated"); n != "" {
			// Its beginning, and how long it was.
			value = fmt.Appendf(nil, "%s… %s", value[:60], n)
		}
		deadTopic[header(rec, "weir-reason")+" "+string(value)]++
	}
	wantBronze, wantTopic, wantIDs, wantDead := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, f := range frames {
		switch reason, isDLQ := strings.CutPrefix(f.place, dlq); {
		case isDLQ:
			value := f.data
			if reason == "too_large" {
				value = fmt.Appendf(nil, "%s… %d", value[:60], len(value))
			}
			wantTopic[reason+" "+string(value)]++
		case f.place == silver:
			wantBronze[string(f.data)]++
			wantIDs[idOf(t, string(f.data))]++
		case strings.HasPrefix(f.place, dead):
			wantBronze[string(f.data)]++
			wantDead[f.place+" "+string(f.data)]++
		}
	}
	sameTally(t, "bronze", bronze, wantBronze)
	sameTally(t, "the dead-letter topic", deadTopic, wantTopic)
	ids, deadRows := map[string]int{}, map[string]int{}
	for _, s := range r.rows("silver.edits") {
		ids[s.text("event_id")]++
	}
	for _, d := range r.rows("silver.edits_dead_letter") {
		deadRows[dead+d.text("reason")+" "+string(d.bytes(t, "value"))]++
	}
	s := r.progressBalances("silver")
	if s.Late == 0 {
		sameTally(t, "silver", ids, wantIDs)
	} else if int64(len(ids))+s.Late != int64(len(wantIDs)) {
		t.Errorf("silver has %d ids, %d were late, %d were expected", len(ids), s.Late, len(wantIDs))
	}
	sameTally(t, "silver's dead letters", deadRows, wantDead)
	r.auditIsExact()
}
