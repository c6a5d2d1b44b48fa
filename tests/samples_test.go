package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// sample is a file of the recorded events.
func sample(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(repo(t), "..", "shared", "samples")
	if v := os.Getenv("WEIR_SAMPLES"); v != "" {
		dir = v
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the recorded events are not at hand (WEIR_SAMPLES names their folder): %v", err)
	}
	return path
}

// The places that a frame of the stream ends in.
const (
	nowhere   = "nowhere"   // it is no event: a comment, a position, a frame without its end
	canary    = "canary"    // dropped and counted before the contract
	silver    = "silver"    // topic, bronze, silver
	filtered  = "filtered"  // topic, bronze, counted as filtered by silver
	duplicate = "duplicate" // topic, bronze, counted as duplicate by silver
	dlq       = "dlq "      // + reason: dead-letter topic
)

// What becomes of each frame of sse-frames.txt, by hand: silver takes types
// edit and new.
var recordedFrames = []string{
	silver,   // edit of 2017, without $schema
	filtered, // categorize, fa.wikipedia.org
	silver,   // edit, ru.wikipedia.org, minor
	filtered, // categorize, en.wikipedia.org
	silver,   // edit, Natus Vincere
	filtered, // log, an IP user's page, ru.wikipedia.org
	silver,   // edit, Summer camp
	filtered, // log without id: abusefilter, 立花道雪
	silver,   // new, Commons category
	filtered, // type "142"
	filtered, // log, an upload
	filtered, // log, Q51880989
	filtered, // log, Q78902990 of 2019
	silver,   // new of 2025, arponeaban
	filtered, // categorize of 2026, id beyond 2^31
}

// The same for injected-frames.txt.
var injectedFrames = []string{
	nowhere,            // a comment
	canary,             // $schema and meta without id only
	canary,             // a full one, of type edit
	silver,             // data in three lines, no event field
	filtered,           // type external
	dlq + "wrong_type", // null
	dlq + "wrong_type", // "type":null
	silver,             // nulls where the schema takes them, 2^63-1
	dlq + "wrong_type", // "minor":null
	dlq + "wrong_type", // "dt":null
	dlq + "wrong_type", // "meta":null
	dlq + "empty",      // data without a value: an event with an empty text
	dlq + "event_type", // event: error
	nowhere,            // an id without data: a position
	duplicate,          // the id of the three lines once more
	silver,             // characters beyond U+FFFF, raw and escaped
	nowhere,            // the stream ends within it
}

// eventOfFrame is the data of a frame by the WHATWG rules, nil for none.
func eventOfFrame(frame string) []byte {
	var lines []string
	for _, l := range strings.Split(frame, "\n") {
		name, value, _ := strings.Cut(l, ":")
		if name == "data" {
			lines = append(lines, strings.TrimPrefix(value, " "))
		}
	}
	if lines == nil || !strings.HasSuffix(frame, "\n\n") {
		return nil
	}
	return []byte(strings.Join(lines, "\n"))
}

var frameEnd = regexp.MustCompile(`(?s).*?\n\n|.+\z`)

func framesOf(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return frameEnd.FindAllString(string(b), -1)
}

// ingestStats is what `weir ingest --output json` prints.
type ingestStats struct {
	Received    int64            `json:"received"`
	Canaries    int64            `json:"canaries"`
	Published   int64            `json:"published"`
	DeadLetters int64            `json:"dead_letters"`
	Violations  map[string]int64 `json:"violations"`
	Dropped     int64            `json:"dropped"`
	InFlight    int64            `json:"in_flight"`
}

func TestEveryFrameOfAServerThatIsNotOursEndsInItsPlace(t *testing.T) {
	frames := framesOf(t, sample(t, "sse-frames.txt"))
	if frames[0] != ":ok\n\n" || len(frames) != len(recordedFrames)+1 {
		t.Fatalf("sse-frames.txt has %d blocks, this test knows %d", len(frames), len(recordedFrames)+1)
	}
	frames = frames[1:]
	injected := filepath.Join("testdata", "injected-frames.txt")
	frames = append(frames, framesOf(t, injected)...)
	expected := slices.Concat(recordedFrames, injectedFrames)
	if len(frames) != len(expected) {
		t.Fatalf("%d frames, %d expectations", len(frames), len(expected))
	}
	for _, delivery := range []string{"at-least-once", "exactly-once"} {
		t.Run(delivery, func(t *testing.T) {
			url := sseServer(t, sample(t, "sse-frames.txt"), injected)
			r := newRig(t, "WEIR_SSE_URL="+url, "WEIR_DELIVERY="+delivery)
			checkFrames(t, r, frames, expected)
		})
	}
}

func checkFrames(t *testing.T, r *rig, frames, expected []string) {
	t.Helper()
	want := ingestStats{Violations: map[string]int64{}}
	wantTopic, wantDead, wantSilver := map[string]int{}, map[string]int{}, map[string]int{}
	var wantFiltered, wantDuplicate int64
	for i, place := range expected {
		data := string(eventOfFrame(frames[i]))
		if place != nowhere {
			want.Received++
		}
		switch reason, dead := strings.CutPrefix(place, dlq); {
		case dead:
			want.DeadLetters++
			want.Violations[reason]++
			wantDead[reason+" "+data]++
		case place == canary:
			want.Canaries++
		case place != nowhere:
			want.Published++
			wantTopic[data]++
		}
		switch place {
		case silver:
			wantSilver[idOf(t, data)]++
		case filtered:
			wantFiltered++
		case duplicate:
			wantDuplicate++
		}
	}

	var got ingestStats
	r.runJSON(&got, "ingest", r.file)
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("ingestion:\n got %+v\nwant %+v", got, want)
	}
	dead := map[string]int{}
	for _, rec := range r.topic("wiki.recentchange.dlq") {
		dead[header(rec, "weir-reason")+" "+string(rec.Value)]++
	}
	sameTally(t, "the dead-letter topic", dead, wantDead)

	batches := r.once()
	if len(batches) != 3 {
		t.Fatalf("%d batches, one each was expected", len(batches))
	}
	bronze := map[string]int{}
	for _, row := range r.rows("bronze.recentchange") {
		bronze[string(row.bytes(t, "value"))]++
	}
	sameTally(t, "bronze", bronze, wantTopic)
	ids := map[string]int{}
	for _, row := range r.rows("silver.edits") {
		ids[row.text("event_id")]++
		switch row.text("event_id") {
		case "00000000-0000-4000-8000-000000000004":
			if row["length_old"] != nil || row["revision_old"] != nil || row.int("length_new") != 7 || row.int("revision_new") != 1<<63-1 {
				t.Errorf("nulls in the event: %v", row)
			}
		case "00000000-0000-4000-8000-000000000001":
			if row.text("title") != "An edit in three data lines, without an event field" {
				t.Errorf("of two events with one id the first was expected: %v", row)
			}
		case "00000000-0000-4000-8000-000000000008":
			if row.text("title") != "😀 beyond U+FFFF" || row.text("user") != "😀" {
				t.Errorf("characters beyond U+FFFF: %v", row)
			}
		}
	}
	sameTally(t, "silver", ids, wantSilver)
	if dead := r.rows("silver.edits_dead_letter"); len(dead) != 0 {
		t.Errorf("%d dead letters of silver: %v", len(dead), dead)
	}
	s := r.progressBalances("silver")
	if s.Input != want.Published || s.Filtered != wantFiltered || s.Duplicate != wantDuplicate || s.Late != 0 || s.DeadLettered != 0 {
		t.Errorf("ops.stream_progress of silver: %+v; want %d filtered, %d duplicate", s, wantFiltered, wantDuplicate)
	}
	r.auditIsExact()
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func idOf(t *testing.T, data string) string {
	t.Helper()
	var e wikiEvent
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		t.Fatal(err)
	}
	return e.Meta.ID
}

// sameTally compares two multisets.
func sameTally(t *testing.T, where string, got, want map[string]int) {
	t.Helper()
	keys := maps.Clone(got)
	maps.Copy(keys, want)
	for k := range keys {
		if got[k] != want[k] {
			t.Errorf("%s has %d times, not %d times: %.200s", where, got[k], want[k], k)
		}
	}
}

// wikiEvent is what silver takes of an event, read by the standard library.
type wikiEvent struct {
	Meta struct {
		ID string `json:"id"`
		DT string `json:"dt"`
	} `json:"meta"`
	Type      string  `json:"type"`
	Wiki      *string `json:"wiki"`
	Title     *string `json:"title"`
	Namespace *int64  `json:"namespace"`
	User      *string `json:"user"`
	Bot       *bool   `json:"bot"`
	Minor     *bool   `json:"minor"`
	Comment   *string `json:"comment"`
	Length    *pair   `json:"length"`
	Revision  *pair   `json:"revision"`
}

type pair struct {
	Old *int64 `json:"old"`
	New *int64 `json:"new"`
}

func (e *wikiEvent) kept() bool { return e.Type == "edit" || e.Type == "new" }

func (e *wikiEvent) micros(t *testing.T) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, e.Meta.DT)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

// columns is the row of silver.edits that the event must have become.
func (e *wikiEvent) columns(t *testing.T) row {
	t.Helper()
	old := func(p *pair) *int64 {
		if p == nil {
			return nil
		}
		return p.Old
	}
	fresh := func(p *pair) *int64 {
		if p == nil {
			return nil
		}
		return p.New
	}
	return row{
		"event_id": e.Meta.ID, "event_time": e.micros(t), "type": e.Type, "wiki": deref(e.Wiki), "title": deref(e.Title),
		"namespace": deref(e.Namespace), "user": deref(e.User), "bot": deref(e.Bot), "minor": deref(e.Minor),
		"comment": deref(e.Comment), "length_old": deref(old(e.Length)), "length_new": deref(fresh(e.Length)),
		"revision_old": deref(old(e.Revision)), "revision_new": deref(fresh(e.Revision)),
	}
}

func deref[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// recorded are the events of recentchange.jsonl by id, and the lines.
func recorded(t *testing.T) (lines []string, events map[string]*wikiEvent) {
	t.Helper()
	b, err := os.ReadFile(sample(t, "recentchange.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	events = map[string]*wikiEvent{}
	for l := range bytes.Lines(b) {
		l = bytes.TrimSuffix(l, []byte("\n"))
		lines = append(lines, string(l))
		var e wikiEvent
		if err := json.Unmarshal(l, &e); err != nil {
			t.Fatal(err)
		}
		events[e.Meta.ID] = &e
	}
	if len(lines) != 729 || len(events) != 729 {
		t.Fatalf("%d lines, %d ids: this test knows the file with 729 of both", len(lines), len(events))
	}
	return lines, events
}

// TestRecordedEventsLandFieldByField takes the recorded events from a stream to
// silver, in one batch, in batches of 100, and in batches of 100 with the newest
// first, and holds every field against the JSON as the standard library reads
// it. How many are late differs; silver + late does not.
func TestRecordedEventsLandFieldByField(t *testing.T) {
	for _, c := range []struct {
		name, perBatch string
		newestFirst    bool
		late           bool
	}{
		{"in one batch", "100000", false, false},
		{"in batches of 100", "100", false, false},
		{"in batches of 100, newest first", "100", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines, events := recorded(t)
			file := sample(t, "recentchange.jsonl")
			if c.newestFirst {
				slices.Reverse(lines)
				file = filepath.Join(t.TempDir(), "reversed.jsonl")
				if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r := newRig(t, "WEIR_SSE_URL="+replay(t, file), "WEIR_MAX_OFFSETS="+c.perBatch)
			var in ingestStats
			r.runJSON(&in, "ingest", r.file)
			if in.Published != 729 || in.DeadLetters+in.Canaries+in.InFlight != 0 || in.Received != 729+in.Dropped {
				t.Fatalf("ingestion: %+v", in)
			}
			batches := r.once()
			if one := c.perBatch == "100000"; one != (len(batches) == 3) {
				t.Fatalf("%d batches", len(batches))
			}
			bronze := r.rows("bronze.recentchange")
			got, want := map[string]int{}, map[string]int{}
			for _, l := range lines {
				want[l]++
			}
			for _, row := range bronze {
				got[string(row.bytes(t, "value"))]++
			}
			sameTally(t, "bronze", got, want)
			if late := checkSilver(t, r, bronze, batches, events); (late > 0) != c.late {
				t.Errorf("%d rows were late", late)
			}
			r.auditIsExact()
		})
	}
}

// checkSilver computes what silver must hold from bronze and the ends of its
// batches, by the documented rules, and compares rows and counts.
func checkSilver(t *testing.T, r *rig, bronze []row, batches []batchLine, events map[string]*wikiEvent) (late int64) {
	t.Helper()
	var runs []batchLine
	for _, b := range batches {
		if b.Query == "silver" {
			runs = append(runs, b)
		}
	}
	want := map[string]row{}
	var dropped int64
	watermark, greatest := int64(-1<<63), int64(-1<<63)
	done := map[int64]int64{} // next offset by partition
	for _, b := range runs {
		ends := endsOf(t, b)
		for _, rec := range bronze {
			p, o := rec.int("partition"), rec.int("offset")
			if o < done[p] || o >= ends[p] {
				continue
			}
			e := events[idOf(t, string(rec.bytes(t, "value")))]
			switch at := e.micros(t); {
			case !e.kept():
				dropped++
			case at < watermark:
				late++
				greatest = max(greatest, at)
			default:
				cols := e.columns(t)
				cols["kafka_partition"], cols["kafka_offset"] = p, o
				cols["processed_at"] = b.StartedAt.UnixMicro()
				want[e.Meta.ID] = cols
				greatest = max(greatest, at)
			}
		}
		done = ends
		// Rows of this batch were measured against the watermark before it.
		watermark = max(watermark, greatest-(10*time.Minute).Microseconds())
	}
	if int64(len(want))+late != 445 || dropped != 284 {
		t.Fatalf("by the rules: %d on time, %d late, %d filtered; the file has 445 edits and new pages, 284 others", len(want), late, dropped)
	}
	if len(runs) == 1 && late != 0 {
		t.Fatalf("one batch, and %d rows late because of others in it", late)
	}
	t.Logf("%d batches: %d on time, %d late", len(runs), len(want), late)

	rows := r.rows("silver.edits")
	if len(rows) != len(want) {
		t.Errorf("silver has %d rows, by the rules %d", len(rows), len(want))
	}
	for _, row := range rows {
		cols, ok := want[row.text("event_id")]
		if !ok {
			t.Errorf("silver has %q, which is late, filtered or twice there", row.text("event_id"))
			continue
		}
		delete(want, row.text("event_id"))
		for name, v := range cols {
			if fmt.Sprint(row[name]) != fmt.Sprint(v) {
				t.Errorf("%s %s: silver has %#v, the event %#v", row.text("event_id"), name, row[name], v)
			}
		}
		for name := range row {
			if _, ok := cols[name]; !ok {
				t.Errorf("silver has a column %s that this test does not know", name)
			}
		}
	}
	s := r.progressBalances("silver")
	if s.Input != 729 || s.Filtered != dropped || s.Late != late || s.Duplicate != 0 || s.DeadLettered != 0 || s.Output != 445-late {
		t.Errorf("ops.stream_progress: %+v", s)
	}
	return late
}

// endsOf are the next offsets by partition that a batch of silver reached.
func endsOf(t *testing.T, b batchLine) map[int64]int64 {
	t.Helper()
	var p struct {
		Table struct {
			Upstream struct {
				Topics map[string]struct {
					Partitions map[int64]struct {
						NextOffset int64 `json:"next_offset"`
					} `json:"partitions"`
				} `json:"topics"`
			} `json:"upstream"`
		} `json:"table"`
	}
	if err := json.Unmarshal(b.Position, &p); err != nil {
		t.Fatalf("%v: %s", err, b.Position)
	}
	ends := map[int64]int64{}
	for _, topic := range p.Table.Upstream.Topics {
		for n, part := range topic.Partitions {
			ends[n] = part.NextOffset
		}
	}
	return ends
}

// replay serves a file with `weir replay-sse` and returns its address.
func replay(t *testing.T, file string) string {
	t.Helper()
	p := start(t, nil, "replay-sse", "--file", file, "--listen", "127.0.0.1:0", "--output", "json")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !p.running() {
			break
		}
		var served struct {
			URL string `json:"url"`
		}
		if json.Unmarshal([]byte(p.out.String()), &served) == nil {
			return served.URL
		}
	}
	t.Fatalf("replay-sse does not serve: %s", p.errs.String())
	return ""
}
