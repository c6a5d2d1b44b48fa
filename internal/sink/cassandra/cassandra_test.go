package cassandra

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"gopkg.in/inf.v0"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/cassandratest"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

var idSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

// TestValuesAreMarshalledExactly needs no server: the driver's own bytes are read back.
func TestValuesAreMarshalledExactly(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "m", Type: &arrow.Decimal128Type{Precision: 38, Scale: 18}}, {Name: "f", Type: arrow.PrimitiveTypes.Float32}, {Name: "d", Type: arrow.FixedWidthTypes.Date32},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	if err := b.UnmarshalJSON([]byte(`{"m": "-12345678901234567890.123456789012345678", "f": 0.1, "d": "1969-12-31"}`)); err != nil {
		t.Fatal(err)
	}
	rec := b.NewRecordBatch()
	kinds := map[string]gocql.Type{"decimal": gocql.TypeDecimal, "float": gocql.TypeFloat, "date": gocql.TypeDate}
	var dec inf.Dec
	var ratio float32
	var day time.Time
	for i, into := range []any{&dec, &ratio, &day} {
		info := gocql.NewNativeType(4, kinds[cqlType(s.Field(i).Type)], "")
		raw, err := gocql.Marshal(info, valueOf(rec.Column(i), 0))
		if err == nil {
			err = gocql.Unmarshal(info, raw, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", s.Field(i).Type, err)
		}
	}
	if dec.String() != "-12345678901234567890.123456789012345678" || ratio != 0.1 || day.Format(time.DateOnly) != "1969-12-31" {
		t.Errorf("%s %v %s", &dec, ratio, day)
	}
	if _, err := New(Options{Hosts: []string{"h"}, Keyspace: "k", Table: "b", Clock: clock.System{}, Query: "q", Arrow: arrow.NewSchema([]arrow.Field{{Name: "local", Type: batch.LocalTimestamp}}, nil), Keys: []string{"local"}}); err == nil || !strings.Contains(err.Error(), "column local") {
		t.Errorf("a time without a zone: %v", err)
	}
}

func records(ids, bad []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idSchema)
	defer b.Release()
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		note := "fine"
		for _, x := range bad {
			if x == id {
				note = "not UTF-8 \xff"
			}
		}
		b.Field(1).(*array.StringBuilder).Append(note)
	}
	return b.NewRecordBatch()
}

func ids(t *testing.T, s *gocql.Session, table string) (out []int64) {
	t.Helper()
	it := s.Query("SELECT id FROM " + table).Iter()
	var id int64
	for it.Scan(&id) {
		out = append(out, id)
	}
	if err := it.Close(); err != nil && !strings.Contains(err.Error(), "does not exist") && !strings.Contains(err.Error(), "unconfigured table") {
		t.Fatal(err)
	}
	return out
}

func open(t *testing.T, n *cassandratest.Node, space, query string, policy sink.OnRejected) *Sink {
	t.Helper()
	s, err := New(Options{Hosts: []string{n.Host()}, Keyspace: space, Table: "edits", Query: query, Arrow: idSchema, Keys: []string{"id"},
		OnRejected: policy, Clock: clock.System{}, Limits: Limits{BackoffMin: time.Millisecond, RequestTimeout: time.Minute, Concurrency: 8}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformanceOnApacheCassandra(t *testing.T) {
	n := cassandratest.Start(t)
	session := n.Session()
	count := 0
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		count++
		space := fmt.Sprintf("ks%d", count)
		n.NewKeyspace(session, space)
		var sinks []*Sink
		with := func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
			s := open(t, n, space, query, policy)
			sinks = append(sinks, s)
			return sinktest.Opened{Sink: s,
				BeforeNext: func(f func() error) { s.hooks.before = f },
				AfterNext:  func(f func() error) { s.hooks.after = f }}
		}
		calls := func(*testing.T) (n int) {
			for _, s := range sinks {
				n += s.calls
			}
			return n
		}
		return sinktest.External{
			Harness: sinktest.Harness{
				InMemory: true,
				Open:     func(t *testing.T, query string) sinktest.Opened { return with(t, query, sink.RejectFail) },
				Record:   func(ids []int64) arrow.RecordBatch { return records(ids, nil) },
				IDs:      func(t *testing.T) []int64 { return ids(t, session, space+".edits") },
				Files:    calls,
				Drop: func(t *testing.T) {
					if err := session.Query("DROP TABLE " + space + ".edits").Exec(); err != nil {
						t.Fatal(err)
					}
				},
			},
			OpenWith: with, Refused: records, Calls: calls, Piecewise: true,
		}
	})
}
