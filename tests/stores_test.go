package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/lake/catalogtest"
)

const rejectedTable = "ops.rejected"

// realStores skips a test of a store outside where `make stores` does not run it.
func realStores(t *testing.T) {
	t.Helper()
	if os.Getenv("WEIR_STORES") == "" {
		t.Skip("starts real stores outside: run by `make stores` (WEIR_STORES=1)")
	}
}

// pgLab is a lab whose silver query writes to a real Postgres, which refuses some
// of its rows.
type pgLab struct {
	*lab
	server   *catalogtest.Server
	database string
}

func newPGLab(t *testing.T, records int, options string) *pgLab {
	t.Helper()
	realStores(t)
	python(t)
	l := &pgLab{lab: newLab(t, records), server: catalogtest.StartPostgres(t)}
	l.database = l.server.NewDatabase()
	l.edit(`iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}`,
		fmt.Sprintf("postgres: {url: %q, table: edits, onRejected: deadLetter, rejectedTable: %s%s}", l.url(), rejectedTable, options))
	return l
}

func (l *pgLab) url() string { return l.server.URI(l.server.Addr(), l.database) }

// refuse makes the table, which refuses every row whose offset is 3 modulo 50.
func (l *pgLab) refuse(more string) {
	l.t.Helper()
	l.server.Exec(l.database, `CREATE TABLE edits (event_id text NOT NULL`+more+`, event_time timestamptz, kind text, kafka_partition int,
		kafka_offset bigint CHECK (kafka_offset % 50 <> 3), processed_at timestamptz)`)
}

// ids reads the table's ids, how often each is there.
func (l *pgLab) ids() map[string]int {
	l.t.Helper()
	conn, err := pgx.Connect(context.Background(), l.url())
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(context.Background(), "SELECT event_id FROM edits")
	if err != nil {
		l.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		l.t.Fatal(err)
	}
	out := map[string]int{}
	for _, id := range all {
		out[id]++
	}
	return out
}

// dump reads a whole Iceberg table with PyIceberg.
func (l *lab) dump(table string, args ...string) (rows []row) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args = append([]string{filepath.Join(repo(l.t), "tests", "readers", "dump_table.py"), "--catalog", l.catalog(), "--table", table}, args...)
	cmd := exec.CommandContext(ctx, python(l.t), args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		l.t.Fatalf("dump %s: %v\n%s", table, err, tail(errs.String()))
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	dec.UseNumber()
	for dec.More() {
		var one row
		if err := dec.Decode(&one); err != nil {
			l.t.Fatalf("dump %s: %v", table, err)
		}
		rows = append(rows, one)
	}
	return rows
}

// exactInPostgres: every id is once in the table or once among the rejected rows,
// where exactly those are that the table refuses, and the counts of
// ops.stream_progress say so.
func (l *pgLab) exactInPostgres() {
	l.t.Helper()
	got := l.ids()
	refused := 0
	for _, r := range l.dump(rejectedTable) {
		var value struct {
			ID     string `json:"event_id"`
			Offset int64  `json:"kafka_offset"`
		}
		if err := json.Unmarshal([]byte(r.text("value")), &value); err != nil {
			l.t.Fatal(err)
		}
		if value.Offset%50 != 3 || r.text("reason") != "23514" {
			l.t.Fatalf("rejected: %v", r)
		}
		got[value.ID]++
		refused++
	}
	if refused == 0 {
		l.t.Fatal("the table refused nothing")
	}
	want := l.wantIDs()
	if len(got) != len(want) {
		l.t.Fatalf("%d ids, want %d", len(got), len(want))
	}
	for id := range want {
		if n := got[fmt.Sprintf("e-%d", id)]; n != 1 {
			l.t.Fatalf("id e-%d is there %d times", id, n)
		}
	}
	var in, out, dead int64
	for _, p := range l.dump("ops.stream_progress") {
		if p.text("query_name") != "silver" {
			continue
		}
		places := p.int("output_rows") + p.int("rows_filtered") + p.int("rows_duplicate") + p.int("rows_dropped_by_watermark") + p.int("rows_dead_lettered")
		if places != p.int("input_rows") {
			l.t.Errorf("batch %d: %d rows read, %d accounted for", p.int("batch_id"), p.int("input_rows"), places)
		}
		in, out, dead = in+p.int("input_rows"), out+p.int("output_rows"), dead+p.int("rows_dead_lettered")
	}
	parsed := int64(len(l.dump(labDead)))
	if in != l.sent || out != int64(len(want)-refused) || dead != parsed+int64(refused) {
		l.t.Fatalf("progress: %d in, %d out, %d dead; sent %d, written %d, not parsed %d, refused %d", in, out, dead, l.sent, len(want)-refused, parsed, refused)
	}
}

func TestStorePostgresKilledAtEveryStepIsExactAndRefusedRowsAreSetAsideOnce(t *testing.T) {
	l := newPGLab(t, 1000, "")
	l.refuse("")
	for _, point := range []string{
		"silver/claim.before:1", "silver/claim.done:1", "silver/stage.done:1", "silver/commit.before:1", "silver/commit.prepared:2",
		"silver/commit.side:1", "silver/commit.side:2", "silver/commit.metadata:2", "silver/commit.swapped:1", "silver/done.written:2",
	} {
		l.produce(300)
		l.crash(point)
	}
	l.run(exitOK)
	l.exactInPostgres()
	// A checkpoint that is gone is adopted from the marker in the database, and the
	// state of dedup is read back from the table.
	l.remove(l.checkpoint("silver"))
	l.produce(200)
	l.run(exitOK)
	l.exactInPostgres()
}

func TestStorePostgresThatIsKilledWhileAPipelineWritesLosesAndDoublesNothing(t *testing.T) {
	l := newPGLab(t, 1000, ", mode: upsert, keys: [event_id], orderBy: [kafka_offset]")
	l.refuse(" PRIMARY KEY")
	p := start(t, nil, "run", l.file)
	for range 3 {
		before := l.committed("silver")
		l.produce(1000)
		waitFor(t, "a batch", func() bool { return l.committed("silver") > before })
		l.server.Kill9()
		l.produce(500)
		l.server.Restart()
	}
	waitFor(t, "the end", func() bool { return l.committed("silver") == l.sent })
	p.stop(exitOK)
	l.exactInPostgres()
	l.exact()
}

// TestStorePostgresHoldsTheLastChangeOfEveryKeyThroughKills: a change stream with
// deletes, late and resent changes.
func TestStorePostgresHoldsTheLastChangeOfEveryKeyThroughKills(t *testing.T) {
	realStores(t)
	b := newBank(t, 5)
	l := &pgLab{lab: b.lab, server: catalogtest.StartPostgres(t)}
	l.database = l.server.NewDatabase()
	l.edit("iceberg: {table: bank.accounts,", fmt.Sprintf("postgres: {url: %q, table: accounts,", l.url()))
	b.changes(300)
	for _, step := range []string{"claim.done:1", "commit.before:2", "commit.prepared:1", "commit.metadata:2", "commit.swapped:1", "done.written:2"} {
		b.crash("iceberg/"+step, "--query", "iceberg")
		b.changes(150)
	}
	b.run(exitOK, "--query", "iceberg")
	conn, err := pgx.Connect(context.Background(), l.url())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(context.Background(), "SELECT id, lsn, owner, balance FROM accounts")
	if err != nil {
		t.Fatal(err)
	}
	held := map[int64]account{}
	var id int64
	var got account
	if _, err = pgx.ForEachRow(rows, []any{&id, &got.lsn, &got.owner, &got.balance}, func() error { held[id] = got; return nil }); err != nil {
		t.Fatal(err)
	}
	b.heldBy(held)
}

// landingQuery is a query that lands the records as they came, over the topic itself.
const landingQuery = `  - name: landing
    from:
      kafka: {topics: [edits], startingOffsets: earliest, maxOffsetsPerTrigger: 200}
    trigger: {processingTime: 20ms}
    to:
      postgres: {url: %q, table: landing}
`

func TestStoreThatIsDownNeitherHoldsUpNorDoublesTheOthers(t *testing.T) {
	realStores(t)
	python(t)
	l := &pgLab{lab: newLab(t, 500), server: catalogtest.StartPostgres(t)}
	l.database = l.server.NewDatabase()
	l.edit("queries:\n", "queries:\n"+fmt.Sprintf(landingQuery, l.url()))
	count := func() (n, distinct int64) {
		conn, err := pgx.Connect(context.Background(), l.url())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if err := conn.QueryRow(context.Background(), "SELECT count(*), count(DISTINCT (partition, \"offset\")) FROM landing").Scan(&n, &distinct); err != nil {
			t.Fatal(err)
		}
		return n, distinct
	}
	l.run(exitOK)
	if n, distinct := count(); n != 500 || distinct != 500 {
		t.Fatalf("%d rows, %d records", n, distinct)
	}
	// The database is away. A run that ends by itself does the rest, and says so
	// with the code of what is missing.
	l.server.Kill9()
	l.produce(500)
	p := start(t, nil, "run", l.file)
	waitFor(t, "the tables of the lakehouse, while the database is away", func() bool { return l.committed("silver") == 1000 })
	if got := l.committed("landing"); got != 500 {
		t.Fatalf("landing has committed %d records into a database that is away", got)
	}
	l.server.Restart()
	waitFor(t, "the database to catch up", func() bool { return l.committed("landing") == 1000 })
	p.stop(exitOK)
	if n, distinct := count(); n != 1000 || distinct != 1000 {
		t.Fatalf("%d rows, %d records", n, distinct)
	}
	l.exact()
	l.exactByOthers()
}
