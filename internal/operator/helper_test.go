package operator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// record is one Kafka record of a test; a nil value is a null one.
type record struct {
	key, value []byte
	topic      string
	partition  int32
	timestamp  int64
}

// values makes records of values alone.
func values(docs ...string) []record {
	out := make([]record, len(docs))
	for i, d := range docs {
		out[i] = record{value: []byte(d)}
	}
	return out
}

// rows makes an Arrow record of batch.KafkaSchema; offsets count from first.
func rows(mem memory.Allocator, first int64, recs []record) arrow.RecordBatch {
	b := array.NewRecordBuilder(mem, batch.KafkaSchema)
	defer b.Release()
	for i, r := range recs {
		topic := r.topic
		if topic == "" {
			topic = "t"
		}
		b.Field(batch.ColTopic).(*array.StringBuilder).Append(topic)
		b.Field(batch.ColPartition).(*array.Int32Builder).Append(r.partition)
		b.Field(batch.ColOffset).(*array.Int64Builder).Append(first + int64(i))
		b.Field(batch.ColTimestamp).(*array.TimestampBuilder).Append(arrow.Timestamp(r.timestamp))
		b.Field(batch.ColTimestampType).(*array.Int32Builder).Append(0)
		for col, v := range map[int][]byte{batch.ColKey: r.key, batch.ColValue: r.value} {
			if v == nil {
				b.Field(col).AppendNull()
			} else {
				b.Field(col).(*array.BinaryBuilder).Append(v)
			}
		}
		b.Field(batch.ColHeaders).AppendNull()
		b.Field(batch.ColIngestedAt).(*array.TimestampBuilder).Append(arrow.Timestamp(now))
		b.Field(batch.ColTopicID).AppendNull()
	}
	return b.NewRecordBatch()
}

// now is the batch time of tests.
var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixMicro()

// at is a time of day of the tests' date, in RFC 3339.
func at(micros int64) string {
	return time.UnixMicro(micros).UTC().Format("2006-01-02T15:04:05.000000Z")
}

// run is a transform under test with what it has emitted.
type run struct {
	t     testing.TB
	tr    Transform
	mem   *memory.CheckedAllocator
	batch int64
	mark  marker.Watermark
	main  []map[string]any
	dead  []map[string]any
	next  int64
}

func newRun(t testing.TB, cfg Config) *run {
	t.Helper()
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	cfg.Allocator = mem
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	kept(t, tr, t.TempDir())
	t.Cleanup(func() { mem.AssertSize(t, 0) })
	return &run{t: t, tr: tr, mem: mem, mark: marker.Watermark{Micros: marker.MinTime}}
}

func (r *run) emit(output string, rec arrow.RecordBatch) error {
	defer rec.Release()
	if want := r.tr.Outputs()[output]; want == nil || !rec.Schema().Equal(want) {
		return fmt.Errorf("output %s has another schema: %s", output, rec.Schema())
	}
	for row := range int(rec.NumRows()) {
		m := map[string]any{}
		for i, f := range rec.Schema().Fields() {
			if rec.Column(i).IsNull(row) {
				if !f.Nullable {
					return fmt.Errorf("column %s is null and is not nullable", f.Name)
				}
				m[f.Name] = nil
				continue
			}
			switch a := rec.Column(i).(type) {
			case *array.String:
				m[f.Name] = strings.Clone(a.Value(row))
			case *array.Binary:
				m[f.Name] = "0x" + fmt.Sprintf("%x", a.Value(row))
			case *array.Int32:
				m[f.Name] = int64(a.Value(row))
			case *array.Int64:
				m[f.Name] = a.Value(row)
			case *array.Float64:
				m[f.Name] = a.Value(row)
			case *array.Float32:
				m[f.Name] = a.Value(row)
			case *array.Decimal128:
				m[f.Name] = a.Value(row).ToString(f.Type.(*arrow.Decimal128Type).Scale)
			case *array.Date32:
				m[f.Name] = a.Value(row).FormattedString()
			case *array.Boolean:
				m[f.Name] = a.Value(row)
			case *array.Timestamp:
				m[f.Name] = at(int64(a.Value(row)))
				if f.Type.(*arrow.TimestampType).TimeZone == "" {
					m[f.Name] = strings.TrimSuffix(at(int64(a.Value(row))), "Z")
				}
			}
		}
		if output == Main {
			r.main = append(r.main, m)
		} else {
			r.dead = append(r.dead, m)
		}
	}
	return nil
}

// begin starts the next batch.
func (r *run) begin() {
	r.t.Helper()
	r.batch++
	r.main, r.dead = nil, nil
	if err := r.tr.Begin(Env{BatchID: r.batch, BatchTimeMicros: now, Watermark: r.mark}); err != nil {
		r.t.Fatal(err)
	}
}

// batchOf runs one batch over the given records and takes its watermark on.
func (r *run) batchOf(chunks ...[]record) Result {
	r.t.Helper()
	r.begin()
	for _, c := range chunks {
		if err := r.tr.Process(rows(r.mem, r.next, c), r.emit); err != nil {
			r.t.Fatal(err)
		}
		r.next += int64(len(c))
	}
	res, err := r.tr.Finish(r.emit)
	if err != nil {
		r.t.Fatal(err)
	}
	if !res.Counters.Balanced() || res.Counters.Emitted != int64(len(r.main)) {
		r.t.Fatalf("counts do not add up: %+v, %d rows emitted", res.Counters, len(r.main))
	}
	r.mark = res.Watermark
	return res
}

// column lists one column of the emitted rows.
func column1(rows []map[string]any, name string) []any {
	out := make([]any, len(rows))
	for i, r := range rows {
		out[i] = r[name]
	}
	return out
}

// reasons counts the dead letters of a batch.
func (r *run) reasons() map[string]int {
	out := map[string]int{}
	for _, d := range r.dead {
		out[d["reason"].(string)]++
	}
	return out
}

func equalStrings(t testing.TB, what string, got []any, want ...string) {
	t.Helper()
	var g []string
	for _, v := range got {
		g = append(g, fmt.Sprint(v))
	}
	if !slices.Equal(g, want) {
		t.Errorf("%s: %q, want %q", what, g, want)
	}
}

func equalCounts(t testing.TB, got marker.Counters, want marker.Counters) {
	t.Helper()
	if got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// edits is the configuration of silver.edits.
func edits() Config {
	return Config{
		Columns: []Column{
			{Name: "event_id", Path: "$.meta.id", Type: "string", Required: true},
			{Name: "event_time", Path: "$.meta.dt", Type: "timestamptz", Required: true},
			{Name: "type", Path: "$.type", Type: "string", Required: true},
			{Name: "wiki", Path: "$.wiki", Type: "string", Required: true},
			{Name: "title", Path: "$.title", Type: "string"},
			{Name: "namespace", Path: "$.namespace", Type: "int"},
			{Name: "user", Path: "$.user", Type: "string"},
			{Name: "bot", Path: "$.bot", Type: "boolean"},
			{Name: "minor", Path: "$.minor", Type: "boolean", Required: true},
			{Name: "comment", Path: "$.comment", Type: "string"},
			{Name: "length_old", Path: "$.length.old", Type: "long"},
			{Name: "length_new", Path: "$.length.new", Type: "long"},
			{Name: "revision_old", Path: "$.revision.old", Type: "long"},
			{Name: "revision_new", Path: "$.revision.new", Type: "long"},
			{Name: "kafka_partition", Source: "partition", Type: "int", Required: true},
			{Name: "kafka_offset", Source: "offset", Type: "long", Required: true},
			{Name: "processed_at", Source: "$batchTime", Type: "timestamptz", Required: true},
		},
		Filter:     "type IN ('edit', 'new')",
		Watermark:  &Watermark{Column: "event_time", Delay: 10 * time.Minute, MaxFutureSkew: 5 * time.Minute},
		Dedup:      []string{"event_id"},
		DeadLetter: true,
		Seed:       7,
	}
}

// small is a configuration for tests of watermark and dedup.
func small() Config {
	return Config{
		Columns: []Column{
			{Name: "id", Path: "$.id", Type: "string", Required: true},
			{Name: "at", Path: "$.at", Type: "timestamptz", Required: true},
			{Name: "n", Path: "$.n", Type: "long"},
		},
		Watermark:  &Watermark{Column: "at", Delay: 10 * time.Minute, MaxFutureSkew: 5 * time.Minute},
		Dedup:      []string{"id"},
		DeadLetter: true,
	}
}

func minutes(n float64) int64 { return int64(n * 60_000_000) }

// ev is an event of small, minutes before (or after) now.
func ev(id string, offset float64) string {
	return fmt.Sprintf(`{"id":%q,"at":%q}`, id, at(now+minutes(offset)))
}
