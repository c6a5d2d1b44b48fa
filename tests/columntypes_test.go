package tests

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const (
	moneyColumns = `        - {name: amount, path: $.amount, type: "decimal(9,2)"}
        - {name: exact, path: $.exact, type: "decimal(38,18)"}
        - {name: rate, path: $.rate, type: float}
        - {name: day, path: $.day, type: date}
`
	moneyDelta = `  - name: lake
    from:
      table: {name: bronze.events}
    trigger: {processingTime: 20ms}
    parse:
      format: json
      columns:
        - {name: event_id, path: $.id, type: string, required: true}
%s        - {name: kafka_partition, source: partition, type: int}
        - {name: kafka_offset, source: offset, type: long}
    filter: "amount <> 13.37"
    deadLetter: {table: lake.dead, format: delta}
    to:
      delta: {table: lake.money, partitionBy: [day]}
ops: {`
	moneyOld = `        - {name: amount, path: $.amount, type: "decimal(9,2)"}
        - {name: exact, path: $.exact, type: "decimal(38,18)"}
        - {name: rate, path: $.rate, type: float}
`
	moneyNew = `        - {name: amount, path: $.amount, type: "decimal(20,2)"}
        - {name: exact, path: $.exact, type: "decimal(38,18)"}
        - {name: rate, path: $.rate, type: double}
`
)

func paid(id, fields string) string {
	return fmt.Sprintf(`{"id":%q,"kind":"edit","dt":%q,%s}`, id, time.Now().UTC().Format(time.RFC3339Nano), fields)
}

// money compares the rows of Iceberg's and Delta's table, as three readers that are
// not ours have them.
func (l *lab) money(iceberg, delta [][]any) {
	l.t.Helper()
	got := map[string][][]any{}
	reader(l.t, &got, "rows_by_key.py", "--catalog", l.catalog(), "--table", labSilver, "--delta", filepath.Join(l.dir, "warehouse", "lake", "money"),
		"--column", "event_id", "--column", "amount", "--column", "exact", "--column", "rate", "--column", "day")
	for name, want := range map[string][][]any{"pyiceberg": iceberg, "duckdb": iceberg, "delta-rs": delta} {
		if !reflect.DeepEqual(got[name], want) {
			l.t.Errorf("%s:\n got %v\nwant %v", name, got[name], want)
		}
	}
	if l.t.Failed() {
		l.t.FailNow()
	}
}

// TestDecimalsFloatsAndDatesAreExactInIcebergAndDeltaAndWiden: what does not fit is
// a dead letter, and a type is made wider, never narrower, by the file.
func TestDecimalsFloatsAndDatesAreExactInIcebergAndDeltaAndWiden(t *testing.T) {
	python(t)
	l := newLab(t, 0)
	l.edit(columnKind, columnKind+moneyColumns+"        - {name: local, path: $.local, type: timestamp}\n")
	l.edit(silverTable, "iceberg: {table: silver.edits, partitionBy: [day]}")
	l.edit("ops: {", fmt.Sprintf(moneyDelta, moneyColumns))
	l.sendValues(
		paid("a", `"amount":19.90,"exact":12345678901234567890.123456789012345678,"rate":0.25,"day":"2024-02-29","local":"2024-02-29T12:00:00"`),
		paid("b", `"amount":"-0.05","exact":-1e-18,"rate":-3.4028235e38,"day":"1969-12-31"`),
		paid("c", `"amount":13.37`),
		paid("d", `"amount":9999999.99,"exact":"-99999999999999999999.999999999999999999"`),
		paid("x", `"amount":0.001`),
		paid("y", `"amount":10000000`),
		paid("z", `"amount":1,"rate":1e39`),
	)
	l.crash("silver/commit.metadata:1")
	l.run(exitOK)
	a := []any{"a", "19.90", "12345678901234567890.123456789012345678", 0.25, "2024-02-29"}
	b := []any{"b", "-0.05", "-1E-18", -3.4028234663852886e+38, "1969-12-31"}
	c := []any{"c", "13.37", nil, nil, nil}
	d := []any{"d", "9999999.99", "-99999999999999999999.999999999999999999", nil, nil}
	l.money([][]any{a, b, c, d}, [][]any{a, b, d})
	if dead := l.audit(exitOK)[labSilver]; !dead.Exact || dead.Rows != 4 {
		t.Fatalf("%+v", dead)
	}

	// The file makes two types wider, of Iceberg's table.
	l.edit("        - {name: kind, path: $.kind, type: string}\n"+moneyOld, "        - {name: kind, path: $.kind, type: string}\n"+moneyNew)
	plan := fmt.Sprint(l.planned(exitChanges).Queries[1].Tables[0].Columns)
	for _, want := range []string{"{widen amount decimal(9, 2) decimal(20, 2)}", "{widen rate float double}"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %s: %s", want, plan)
		}
	}
	l.sendValues(paid("e", `"amount":123456789012345678.90,"rate":0.1`))
	l.run(exitOK)
	l.money([][]any{a, b, c, d, {"e", "123456789012345678.90", nil, 0.1, nil}}, [][]any{a, b, d})

	// What would lose digits is refused, and says so.
	for typ, part := range map[string]string{"decimal(9,2)": "is not made narrower", "decimal(22,3)": "no lossless way", "double": "no lossless way"} {
		l.edit(`path: $.amount, type: "decimal(20,2)"`, fmt.Sprintf(`path: $.amount, type: "%s"`, typ))
		if _, errs := l.run(exitSchema); !strings.Contains(errs, `column "amount"`) || !strings.Contains(errs, part) {
			t.Errorf("%s: %q is not in\n%s", typ, part, tail(errs))
		}
		l.edit(fmt.Sprintf("        - {name: kind, path: $.kind, type: string}\n        - {name: amount, path: $.amount, type: \"%s\"}", typ),
			"        - {name: kind, path: $.kind, type: string}\n        - {name: amount, path: $.amount, type: \"decimal(20,2)\"}")
	}
	l.edit("        - {name: event_id, path: $.id, type: string, required: true}\n"+moneyOld, "        - {name: event_id, path: $.id, type: string, required: true}\n"+moneyNew)
	if _, errs := l.run(exitSchema); !strings.Contains(errs, "lake.money") || !strings.Contains(errs, `"amount"`) {
		t.Errorf("a wider decimal in Delta:\n%s", tail(errs))
	}
}
