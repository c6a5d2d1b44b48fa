package cassandra

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/sink"
	"github.com/weirlake/weir/internal/sink/sinktest"
)

// node is a real Cassandra that the project's own script runs.
type node struct {
	t    *testing.T
	dir  string
	port int
}

func (n *node) run(verb string) ([]byte, error) {
	_, file, _, _ := runtime.Caller(0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, filepath.Join(filepath.Dir(file), "..", "..", "..", "scripts", "cassandra.sh"), verb, n.dir, fmt.Sprint(n.port)).CombinedOutput()
}

func (n *node) must(verb string) {
	n.t.Helper()
	out, err := n.run(verb)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 5 {
		n.t.Skipf("needs a real Cassandra: %s", out)
	}
	if err != nil {
		n.t.Fatalf("cassandra.sh %s: %v\n%s", verb, err, out)
	}
}

// startNode starts a node and stops it when the test ends.
func startNode(t *testing.T) *node {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Cassandra: skipped under -short")
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("needs a real Cassandra, and java is missing")
	}
	n := &node{t: t, dir: t.TempDir()}
	for n.port == 0 {
		a, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := a.Addr().(*net.TCPAddr).Port
		if b, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1)); err == nil {
			_ = b.Close()
			n.port = port
		}
		_ = a.Close()
	}
	t.Cleanup(func() { _, _ = n.run("kill") })
	n.must("start")
	return n
}

func (n *node) host() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

func (n *node) session(t *testing.T) *gocql.Session {
	t.Helper()
	c := gocql.NewCluster(n.host())
	c.Timeout, c.ConnectTimeout = time.Minute, time.Minute
	s, err := c.CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func keyspace(t *testing.T, s *gocql.Session, name string) {
	t.Helper()
	if err := s.Query("CREATE KEYSPACE " + name + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}").Exec(); err != nil {
		t.Fatal(err)
	}
}

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

func open(t *testing.T, n *node, space, query string, policy sink.OnRejected) *Sink {
	t.Helper()
	s, err := New(Options{Hosts: []string{n.host()}, Keyspace: space, Table: "edits", Query: query, Arrow: idSchema, Keys: []string{"id"},
		OnRejected: policy, Clock: clock.System{}, Limits: Limits{BackoffMin: time.Millisecond, RequestTimeout: time.Minute, Concurrency: 8}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformanceOnApacheCassandra(t *testing.T) {
	n := startNode(t)
	session := n.session(t)
	count := 0
	sinktest.RunExternal(t, func(t *testing.T) sinktest.External {
		count++
		space := fmt.Sprintf("ks%d", count)
		keyspace(t, session, space)
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
