// Package cassandratest starts a real Apache Cassandra for a test, by the
// project's own script, and kills it.
package cassandratest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weirlake/weir/internal/freeport"
)

const (
	// scriptTimeout has the fetching of the jars in it.
	scriptTimeout = 10 * time.Minute
	// missing is the script's exit code where java or mvn are.
	missing = 5
)

// Node is a cluster of one node. Methods fail the test that started it.
type Node struct {
	t    testing.TB
	dir  string
	port int
}

// Start starts a node and stops it when the test ends. The test is skipped under
// -short and where java, or mvn and the jars, are missing.
func Start(t testing.TB) *Node {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Cassandra: skipped under -short")
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("needs a real Cassandra, and java is missing")
	}
	port, err := freeport.Find(2) // the second is the node's own
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{t: t, dir: t.TempDir(), port: port}
	t.Cleanup(func() { _, _ = n.script("kill") })
	n.must("start")
	return n
}

func (n *Node) script(verb string) ([]byte, error) {
	_, file, _, _ := runtime.Caller(0)
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	return exec.CommandContext(ctx, filepath.Join(filepath.Dir(file), "..", "..", "scripts", "cassandra.sh"), verb, n.dir, strconv.Itoa(n.port)).CombinedOutput()
}

func (n *Node) must(verb string) {
	n.t.Helper()
	out, err := n.script(verb)
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == missing {
		n.t.Skipf("needs a real Cassandra: %s", out)
	}
	if err != nil {
		n.t.Fatalf("cassandra.sh %s: %v\n%s", verb, err, out)
	}
}

// Host is the node's address, host:port.
func (n *Node) Host() string { return fmt.Sprintf("127.0.0.1:%d", n.port) }

// Kill9 kills the node as a power cut of the process would.
func (n *Node) Kill9() { n.t.Helper(); n.must("kill") }

// Restart starts the node again on its folder and address.
func (n *Node) Restart() { n.t.Helper(); n.must("start") }

// Session is a patient connection that is closed with the test.
func (n *Node) Session() *gocql.Session {
	n.t.Helper()
	c := gocql.NewCluster(n.Host())
	c.Timeout, c.ConnectTimeout = time.Minute, time.Minute
	s, err := c.CreateSession()
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(s.Close)
	return s
}

// NewKeyspace makes an empty keyspace.
func (n *Node) NewKeyspace(s *gocql.Session, name string) {
	n.t.Helper()
	if err := s.Query("CREATE KEYSPACE " + name + " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}").Exec(); err != nil {
		n.t.Fatal(err)
	}
}
