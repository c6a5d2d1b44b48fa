package iceberg

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/source/iceberg/bronzetest"
	"github.com/weirlake/weir/internal/source/sourcetest"
)

// typed describes the test table by what a typed table would say of itself;
// rows of one topic need no column for it.
func typed() Config {
	var fields []arrow.Field
	for _, n := range []string{"timestamp", "partition", "offset", "value"} {
		f, _ := batch.KafkaSchema.FieldsByName(n)
		fields = append(fields, f[0])
	}
	return Config{Rows: &Rows{Schema: arrow.NewSchema(fields, nil), Partition: "partition", Offset: "offset"}}
}

// typedUpstream is the table for the conformance suite.
type typedUpstream struct{ *upstream }

func (u *typedUpstream) Open(t *testing.T) source.Source {
	cfg := typed()
	cfg.Rows.Topic, cfg.Rows.Schema = "topic", batch.KafkaSchema
	return open(t, u.Table, cfg)
}

func TestASourceOverTypedColumnsConforms(t *testing.T) {
	sourcetest.Run(t, sourcetest.Harness{Overrun: overrunMax, New: func(t *testing.T, partitions int32) sourcetest.Upstream {
		return &typedUpstream{newUpstream(t, partitions).(*upstream)}
	}})
}

// endWatermark plans everything from start and gives the watermark of its end,
// 0 where it has none.
func endWatermark(t *testing.T, s *Source, start batch.Position, limit int64) (source.Planned, int64) {
	t.Helper()
	p := planOf(t, s, start, limit)
	if p.End.Table.WatermarkMicros == nil {
		return p, 0
	}
	return p, *p.End.Table.WatermarkMicros
}

func TestThePlanTakesTheTablesWatermarkAtItsEnd(t *testing.T) {
	b := bronzetest.New(t, 2)
	s := open(t, b, typed())
	start := initialOf(t, s)
	if _, w := endWatermark(t, s, start, 0); w != 0 {
		t.Fatalf("a table without rows has the watermark %d", w)
	}
	for i, w := range []int64{100, 200, 300} {
		b.Watermark = w
		b.Commit(bronzetest.Rows(0, int64(10*i), 10, day0)...)
	}
	if _, w := endWatermark(t, s, start, 0); w != 300 {
		t.Fatalf("watermark %d at the head", w)
	}
	p, w := endWatermark(t, s, start, 10)
	if w != 100 {
		t.Fatalf("watermark %d after the first commit", w)
	}
	// In the middle of a commit it is still that of the one before.
	mid := p.End.Clone()
	v, _ := mid.Vector().Get(bronzetest.Topic, 0)
	v.NextOffset, v.Rows = 15, -1
	mid.Vector().Set(bronzetest.Topic, "", 0, v)
	if got, err := s.watermark(b.Load(), mid.Vector()); err != nil || got == nil || *got != 100 {
		t.Fatalf("watermark %v in mid-commit, %v", got, err)
	}
	// Expiry takes the words of the past; what is known is not given back.
	b.ExpireAllButHead()
	if p, w := endWatermark(t, s, p.End, 2); w != 100 || p.Start.Offsets(p.End) == 0 {
		t.Fatalf("watermark %d after expiry", w)
	}
	if _, w := endWatermark(t, s, p.End, 0); w != 300 {
		t.Fatalf("watermark %d at the head after expiry", w)
	}
}

func TestTheLeastWatermarkOfTheQueriesThatFeedTheTableCounts(t *testing.T) {
	b := bronzetest.New(t, 2)
	s := open(t, b, typed())
	start := initialOf(t, s)
	b.Watermark = 500
	b.Commit(bronzetest.Rows(0, 0, 10, day0)...)
	b.As, b.Watermark = "other", 200
	b.Commit(bronzetest.Rows(1, 0, 10, day0)...)
	b.As, b.Watermark = "", 900
	b.Commit(bronzetest.Rows(0, 10, 10, day0)...)
	if _, w := endWatermark(t, s, start, 0); w != 200 {
		t.Fatalf("watermark %d", w)
	}
}

func TestAWatermarkThatMovesWithoutRowsIsNews(t *testing.T) {
	b := bronzetest.New(t, 1)
	b.Watermark = 100
	b.Commit(bronzetest.Rows(0, 0, 10, day0)...)
	s := open(t, b, typed())
	p, _ := endWatermark(t, s, initialOf(t, s), 0)
	location := ""
	if s.news(t.Context(), p.End, &location) {
		t.Fatal("nothing is new, and it was news")
	}
	b.Watermark = 700
	b.Commit()
	if !s.news(t.Context(), p.End, &location) {
		t.Fatal("the watermark has moved, and it was no news")
	}
	if p, w := endWatermark(t, s, p.End, 0); w != 700 || p.Start.Offsets(p.End) != 0 {
		t.Fatalf("watermark %d, %d offsets", w, p.Start.Offsets(p.End))
	}
	if s.news(t.Context(), p.End, &location) {
		t.Fatal("what was planned is news again")
	}
}

func TestRowsThatTheUpstreamPutOutAndThatAreGoneStopTheRead(t *testing.T) {
	b := bronzetest.New(t, 1)
	s := open(t, b, typed())
	start := initialOf(t, s)
	rows := bronzetest.Rows(0, 0, 20, day0)
	b.Commit(rows...)
	p := planOf(t, s, start, 0)
	b.Delete(iceberg.EqualTo(iceberg.Reference("offset"), int64(7)))
	_, _, err := readOf(t, s, p.Start, p.End)
	if !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "holds 19 rows between two places, its query put out 20") {
		t.Fatalf("got %v", err)
	}
	b.SetProperty(marker.DeclaredDeletesKey, []marker.DeclaredDelete{{Topic: bronzetest.Topic, To: 20, Rows: 1}})
	if n, _, err := readOf(t, s, p.Start, p.End); n != 19 || err != nil {
		t.Fatalf("declared: %d rows, %v", n, err)
	}
	twice := bronzetest.New(t, 1)
	s = open(t, twice, typed())
	start = initialOf(t, s)
	twice.ForeignAppend(rows[3])
	twice.Commit(rows...)
	p = planOf(t, s, start, 0)
	if _, _, err := readOf(t, s, p.Start, p.End); !failure.Is(err, failure.SourceChanged) || !strings.Contains(err.Error(), "1 rows too many") {
		t.Fatalf("got %v", err)
	}
}

func TestARescanGivesTheRowsBetweenTwoPlacesFromATimeOn(t *testing.T) {
	b := bronzetest.New(t, 2)
	s := open(t, b, typed())
	start := initialOf(t, s)
	rows := append(bronzetest.Rows(0, 0, 10, day0), bronzetest.Rows(1, 0, 5, day0+1)...)
	b.Commit(rows...)
	late, from2 := 0, rows[5].Micros
	for _, r := range rows {
		if r.Micros >= from2 {
			late++
		}
	}
	p := planOf(t, s, start, 0)
	b.Commit(bronzetest.Rows(0, 10, 10, day0)...) // after the place
	count := func(from *batch.KafkaPosition, minMicros int64) (n int) {
		t.Helper()
		err := s.Rescan(t.Context(), from, p.End, []string{"timestamp", "value"}, "timestamp", minMicros, func(rec arrow.RecordBatch) error {
			defer rec.Release()
			if _, ok := rec.Column(0).(*array.Timestamp); !ok || rec.NumCols() != 2 {
				t.Errorf("columns %s", rec.Schema())
			}
			n += int(rec.NumRows())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(nil, marker.MinTime); n != 15 {
		t.Errorf("%d rows before the place, 15 were expected", n)
	}
	if n := count(nil, from2); n != late || late == len(rows) {
		t.Errorf("%d rows from a time on, %d of %d were expected", n, late, len(rows))
	}
	from := start.Vector().Clone()
	from.Set(bronzetest.Topic, "", 0, batch.PartitionPosition{NextOffset: 4})
	if n := count(from, marker.MinTime); n != 11 {
		t.Errorf("%d rows from the fourth on, 11 were expected", n)
	}
}
