package tests

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/weirlake/weir/internal/cassandratest"
	"github.com/weirlake/weir/internal/failure"
)

// toCassandra lets a lab's silver query write to a real Cassandra.
func toCassandra(t *testing.T, records int) (*lab, *cassandratest.Node, *gocql.Session) {
	t.Helper()
	realStores(t)
	l, n := newLab(t, records), cassandratest.Start(t)
	session := n.Session()
	n.NewKeyspace(session, "wiki")
	l.edit(`iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}`,
		fmt.Sprintf("cassandra: {hosts: [%q], keyspace: wiki, table: edits, keys: [event_id]}", n.Host()))
	return l, n, session
}

// exactInCassandra: every id is there, with what one of its records says.
func (l *lab) exactInCassandra(session *gocql.Session) {
	l.t.Helper()
	want := l.wantIDs()
	rows := session.Query("SELECT event_id, kind, kafka_partition, kafka_offset FROM wiki.edits").Iter()
	var id, kind string
	var partition int32
	var offset, n int64
	for rows.Scan(&id, &kind, &partition, &offset) {
		n++
		i := offset*l.partitions + int64(partition)
		if i%7 == 6 {
			i--
		}
		if id != fmt.Sprintf("e-%d", i) || kind != "edit" || !want[i] {
			l.t.Fatalf("row %s (%s) of partition %d offset %d, a record of e-%d", id, kind, partition, offset, i)
		}
	}
	if err := rows.Close(); err != nil {
		l.t.Fatal(err)
	}
	if n != int64(len(want)) {
		l.t.Fatalf("%d ids, want %d", n, len(want))
	}
}

func TestStoreCassandraKilledAtEveryStepIsExact(t *testing.T) {
	l, _, session := toCassandra(t, 1000)
	for _, point := range []string{
		"silver/claim.before:1", "silver/claim.done:1", "silver/stage.done:1", "silver/commit.before:2", "silver/commit.side:1",
		"silver/commit.prepared:1", "silver/commit.prepared:2", "silver/commit.metadata:2", "silver/commit.swapped:1", "silver/done.written:2",
	} {
		l.produce(300)
		l.crash(point)
	}
	l.run(exitOK)
	l.exactInCassandra(session)
}

// TestStoreCassandraThatIsKilledInTheMiddleOfACommitLosesNothing kills the node
// when rows are written and the marker is not, and right before the marker is.
func TestStoreCassandraThatIsKilledInTheMiddleOfACommitLosesNothing(t *testing.T) {
	l, n, session := toCassandra(t, 1000)
	l.run(exitOK)
	for _, point := range []string{"silver/commit.prepared:1", "silver/commit.metadata:2"} {
		l.produce(500)
		p := start(t, []string{"WEIR_CRASH_AT=" + point + ":stop"}, "run", l.file, "--once")
		waitFor(t, point, func() bool { return strings.Contains(p.errs.String(), "crash point") || !p.running() })
		n.Kill9()
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatalf("%s was not reached: %v\n%s", point, err, tail(p.errs.String()))
		}
		n.Restart()
		// It may have waited for the node, or have given up before it was back.
		code := p.wait()
		if c := failure.Class(code); code != exitOK && c != failure.CommitUnknown && c != failure.Unreachable {
			t.Fatalf("exit %d\n%s", code, tail(p.errs.String()))
		}
		t.Logf("%s: the node was killed; exit %d", point, code)
		l.run(exitOK)
		l.exactInCassandra(session)
	}
}

// TestStoreCassandraHoldsTheLastChangeOfEveryKeyThroughKills: a change stream with
// deletes, in its order.
func TestStoreCassandraHoldsTheLastChangeOfEveryKeyThroughKills(t *testing.T) {
	realStores(t)
	b, n := newBank(t, 6), cassandratest.Start(t)
	b.ordered = true
	session := n.Session()
	n.NewKeyspace(session, "bank")
	b.edit("iceberg: {table: bank.accounts, mode: upsert, keys: [id], orderBy: [lsn], changes: debezium}",
		fmt.Sprintf("cassandra: {hosts: [%q], keyspace: bank, table: accounts, keys: [id], changes: debezium}", n.Host()))
	// Nothing is ordered by it there, and a delete need not have it.
	b.edit(`path: $.__source.lsn, type: long, required: true`, `path: $.__source.lsn, type: long`)
	b.edit(`mode: upsert, keys: [id], orderBy: [lsn], changes: debezium`, `mode: upsert, keys: [id], changes: debezium`)
	b.changes(300)
	for _, step := range []string{"commit.before:2", "commit.prepared:1", "commit.metadata:2", "commit.swapped:1"} {
		b.crash("iceberg/"+step, "--query", "iceberg")
		b.changes(150)
	}
	b.run(exitOK, "--query", "iceberg")
	held := map[int64]account{}
	rows := session.Query("SELECT id, lsn, owner, balance FROM bank.accounts").Iter()
	var id int64
	var got account
	for rows.Scan(&id, &got.lsn, &got.owner, &got.balance) {
		held[id] = got
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	b.heldBy(held)
}
