package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/marker"
)

// parsedSessions parses, deduplicates and groups in one query.
func parsedSessions(t *testing.T) *aggregated {
	t.Helper()
	inner, err := New(Config{
		Columns: []Column{
			{Name: "id", Path: "$.id", Type: "string", Required: true},
			{Name: "at", Path: "$.at", Type: "timestamptz", TimeFormat: "epochSeconds", Required: true},
			{Name: "user", Path: "$.user", Type: "string"},
			{Name: "bot", Path: "$.bot", Type: "boolean"},
		},
		Filter:    "NOT bot",
		Watermark: &Watermark{Column: "at", Delay: 10 * time.Second, MaxFutureSkew: time.Hour},
		Dedup:     []string{"id"}, DeadLetter: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := NewAggregated(inner, "at", []Aggregation{{
		Session: &SessionWindow{Gap: 5 * time.Second}, Keys: []string{"user"}, Columns: []Aggregate{{Name: "n", Function: Count}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	kept(t, tr, t.TempDir())
	return tr.(*aggregated)
}

func TestSessionsBehindParsingCountEveryRowOnceWhateverBecameOfIt(t *testing.T) {
	tr := parsedSessions(t)
	event := func(id string, at int64, more string) string {
		return fmt.Sprintf(`{"id":%q,"at":%d,"user":"u","bot":false%s}`, id, now/second+at, more)
	}
	mark := marker.Watermark{Micros: marker.MinTime}
	var main []string
	dead := int64(0)
	play := func(batchID int64, docs ...string) marker.Counters {
		t.Helper()
		emit := func(output string, rec arrow.RecordBatch) error {
			defer rec.Release()
			if output == DeadLetter {
				dead += rec.NumRows()
				return nil
			}
			main = append(main, rowTexts(rec)...)
			return nil
		}
		if err := tr.Begin(Env{BatchID: batchID, BatchTimeMicros: now, Watermark: mark}); err != nil {
			t.Fatal(err)
		}
		if err := tr.Process(rows(memory.DefaultAllocator, 0, values(docs...)), emit); err != nil {
			t.Fatal(err)
		}
		res, err := tr.Finish(emit)
		if err != nil {
			t.Fatal(err)
		}
		mark = res.Watermark
		return res.Counters
	}
	c := play(1, event("a", 0, ""), event("b", 3, ""), event("a", 0, ""), "no JSON", strings.Replace(event("c", 1, ""), "false", "true", 1), event("d", 3*3600, ""))
	if want := (marker.Counters{Read: 6, Aggregated: 2, Duplicate: 1, Filtered: 1, DeadLettered: 2}); c != want || dead != 2 {
		t.Fatalf("%+v, must be %+v; %d dead letters", c, want, dead)
	}
	// The event that closes the session is itself in one that is open, and one
	// that is late in none.
	c = play(2, event("e", 30, ""))
	if want := (marker.Counters{Read: 1, Aggregated: 1, Emitted: 1, Results: 1}); c != want {
		t.Fatalf("%+v, must be %+v", c, want)
	}
	if want := fmt.Sprintf("user=u session_start=%d session_end=%d n=2", now, now+8*second); len(main) != 1 || main[0] != want {
		t.Fatalf("got %v, want %s", main, want)
	}
	if c = play(3, event("f", 19, "")); c.Late != 1 || c.Aggregated != 0 {
		t.Fatalf("%+v", c)
	}
	if names := []string{tr.State()[0].Name(), tr.State()[1].Name()}; fmt.Sprint(names) != "[dedup session-1]" {
		t.Fatalf("the state is of %v", names)
	}
	if tr.CanRebuild() {
		t.Error("the rows of Kafka do not say which of them were late: the state cannot be read from them")
	}
}

func TestTheDifferenceBetweenTwoDefinitionsIsSpelledOut(t *testing.T) {
	a := newAggregated(t, sessionStage(30*time.Second)).Definitions()[0]
	b := newAggregated(t, sessionStage(90*time.Minute)).Definitions()[0]
	if got := fmt.Sprint(Differences(a, b)); got != "[gap was 30s, is 1h30m]" {
		t.Error(got)
	}
	other := sessionStage(30 * time.Second)
	other.Keys = other.Keys[:1]
	other.Columns = append(other.Columns[1:len(other.Columns):len(other.Columns)], Aggregate{Name: "n", Function: Count})
	got := fmt.Sprint(Differences(a, newAggregated(t, other).Definitions()[0]))
	for _, want := range []string{"keys was wiki string, user string, is wiki string", "no longer: edits = count()", "new: n = count()"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if a.Fingerprint() == b.Fingerprint() || Migrates(a, b) {
		t.Error("another gap is the same definition, or goes on by itself")
	}
	if !strings.HasPrefix(a.String(), "session over event_time: gap 30s; keys wiki string, user string; edits = count()") {
		t.Error(a.String())
	}
	more := sessionStage(30 * time.Second)
	more.Columns = append(slices.Clone(more.Columns), Aggregate{Name: "n", Function: Count})
	redefined := sessionStage(30 * time.Second)
	redefined.Columns = append([]Aggregate{{Name: "edits", Function: Count, Column: "user"}}, redefined.Columns[1:]...)
	for _, c := range []struct {
		what string
		to   Aggregation
		want bool
	}{{"a column more", more, true}, {"a column under the same name", redefined, false}, {"other keys", other, false}} {
		if got := Migrates(a, newAggregated(t, c.to).Definitions()[0]); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
	short, long := parsedSessions(t).Definitions()[0], parsedSessions(t).Definitions()[0]
	long.Settings = map[string]string{"delay": "1h"}
	if !Migrates(short, long) {
		t.Error("another delay of dropDuplicatesWithinWatermark does not go on")
	}
}
