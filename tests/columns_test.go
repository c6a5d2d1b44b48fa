package tests

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

const exitSchema = 9

const (
	columnKind   = "        - {name: kind, path: $.kind, type: string}\n"
	columnType   = "        - {name: timestamp_type, source: timestampType, type: int}\n"
	columnAt     = "        - {name: processed_at, source: batchTime, type: timestamptz}\n"
	silverTable  = `iceberg: {table: silver.edits, partitionBy: ["day(event_time)"]}`
	silverDrops  = `iceberg: {table: silver.edits, partitionBy: ["day(event_time)"], dropColumns: [comment]}`
	columnAdded  = "        - {name: comment, path: $.comment, type: string}\n"
	columnWiden  = "        - {name: timestamp_type, source: timestampType, type: long}\n"
	columnRename = "        - {name: written_at, renamedFrom: processed_at, source: batchTime, type: timestamptz}\n"
)

// TestColumnsOfSilverChangeWithTheFileAlsoWhenKilledInTheMiddleOfIt: a batch that
// was begun under the old file is finished under the new one, whichever of its
// tables has it already.
func TestColumnsOfSilverChangeWithTheFileAlsoWhenKilledInTheMiddleOfIt(t *testing.T) {
	l := newLab(t, 300)
	l.edit(columnKind, columnKind+columnType)
	l.run(exitOK)
	old, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	l.produce(150)
	l.crash("silver/commit.side:1") // the dead letters of the batch are there, its rows are not

	l.edit(columnKind, columnKind+columnAdded)
	l.edit(columnType, columnWiden)
	l.edit(columnAt, columnRename)
	l.crash("silver/claim.before:1")
	l.crash("silver/claim.done:1")
	l.produce(150)
	l.crash("silver/stage.done:1")
	l.run(exitOK)
	// DuckDB reads the files of both definitions under the names and types of now.
	var n struct{ All, Comments, Written, Typed int64 }
	l.askSilver(&n, `SELECT count(*) AS "all", count(comment) AS comments, count(written_at) AS written,
		count(*) FILTER (timestamp_type = 0 AND typeof(timestamp_type) = 'BIGINT') AS typed FROM silver.edits`)
	if n.Comments == 0 || n.Comments >= n.All || n.Written != n.All || n.Typed != n.All {
		t.Errorf("%+v", n)
	}

	// What would lose something stops, and changes nothing.
	now, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	restore := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(l.file, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := l.pointer(labSilver)
	restore(old)
	_, errs := l.run(exitSchema)
	for _, want := range []string{`column "comment"`, "dropColumns", "if this file is older than the table, use the newer one", `column "timestamp_type"`, "writes int", "has long"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q is not in\n%s", want, tail(errs))
		}
	}
	if l.pointer(labSilver) != at {
		t.Error("a refused change has touched silver")
	}
	restore(now)
	l.edit(columnAdded, "")
	l.edit(silverTable, silverDrops)
	l.produce(60)
	l.run(exitOK)
	l.exact()
	l.exactByOthers()
}

// askSilver asks for one row, through DuckDB.
func (l *lab) askSilver(into any, query string) {
	l.t.Helper()
	out, errs, code := weir(l.t, nil, "sql", l.file, query, "--output", "json")
	if code != exitOK {
		l.t.Fatalf("weir sql: exit %d\n%s", code, tail(errs))
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(out)), into); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
}
