package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/lake/catalogtest"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

var idSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "note", Type: arrow.BinaryTypes.String, Nullable: true},
}, nil)

func records(ids, bad []int64) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, idSchema)
	defer b.Release()
	for _, id := range ids {
		b.Field(0).(*array.Int64Builder).Append(id)
		note := "fine"
		for _, x := range bad {
			switch {
			case x == id && x%2 == 0:
				note = "bad" // a constraint of the table
			case x == id:
				note = "NUL \x00" // what no text of a Postgres can hold
			}
		}
		b.Field(1).(*array.StringBuilder).Append(note)
	}
	return b.NewRecordBatch()
}

// database is a database of the test's own on the server.
type database struct {
	server *catalogtest.Server
	name   string
}

func (d database) url() string { return d.server.URI(d.server.Addr(), d.name) }

func (d database) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), d.url())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (d database) exec(t *testing.T, statements ...string) {
	t.Helper()
	conn := d.connect(t)
	for _, s := range statements {
		if _, err := conn.Exec(context.Background(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// ask is one value of a query.
func ask[T any](t *testing.T, d database, query string) (out T) {
	t.Helper()
	if err := d.connect(t).QueryRow(context.Background(), query).Scan(&out); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return out
}

func (d database) ids(t *testing.T) []int64 {
	t.Helper()
	rows, err := d.connect(t).Query(context.Background(), "SELECT id FROM edits ORDER BY id")
	if err != nil {
		return nil // there is no table yet, or none any more
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil
	}
	return out
}

// open makes a sink, closed when the test ends.
func (d database) open(t *testing.T, query string, change func(*Options)) *Sink {
	t.Helper()
	o := Options{URL: d.url(), Name: "edits", Table: "edits", Query: query, Arrow: idSchema, Clock: clock.System{},
		Limits: Limits{BackoffMin: time.Millisecond, CommitDeadline: time.Minute, LockWait: 300 * time.Millisecond}}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func opened(s *Sink) sinktest.Opened {
	return sinktest.Opened{Sink: s,
		BeforeNext: func(f func() error) { s.hooks.before = f },
		AfterNext:  func(f func() error) { s.hooks.after = f }}
}

func harness(server *catalogtest.Server, options func(*Options)) func(t *testing.T) sinktest.External {
	return func(t *testing.T) sinktest.External {
		d := database{server, server.NewDatabase()}
		var sinks []*Sink
		open := func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
			s := d.open(t, query, func(o *Options) {
				o.OnRejected = policy
				if options != nil {
					options(o)
				}
			})
			sinks = append(sinks, s)
			return opened(s)
		}
		h := sinktest.External{
			Harness: sinktest.Harness{
				InMemory: true,
				Open:     func(t *testing.T, query string) sinktest.Opened { return open(t, query, sink.RejectFail) },
				Record:   func(ids []int64) arrow.RecordBatch { return records(ids, nil) },
				IDs:      d.ids,
				Files:    func(t *testing.T) int { return copies(sinks) },
				Drop:     func(t *testing.T) { d.exec(t, "DROP TABLE edits") },
			},
			OpenWith: func(t *testing.T, query string, policy sink.OnRejected) sinktest.Opened {
				if ask[*string](t, d, "SELECT to_regclass('edits')::text") == nil {
					d.exec(t, "CREATE TABLE edits (id bigint PRIMARY KEY, note text CHECK (note <> 'bad'))")
				}
				return open(t, query, policy)
			},
			Refused: records,
			Calls:   func(*testing.T) int { return copies(sinks) },
		}
		return h
	}
}

func copies(sinks []*Sink) (n int) {
	for _, s := range sinks {
		n += s.copies
	}
	return n
}

func TestConformance(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	sinktest.RunExternal(t, harness(server, nil))
}

func TestConformanceOfUpserts(t *testing.T) {
	server := catalogtest.StartPostgres(t)
	sinktest.RunExternal(t, harness(server, func(o *Options) { o.Upsert, o.Keys = true, []string{"id"} }))
}
