package pipeline

import (
	"fmt"
	"strings"
	"testing"
)

func TestTypesOfColumnsHaveOneSpellingAndThoseThatAreNoneAWayOut(t *testing.T) {
	const iceberg, delta, cassandra = "iceberg: {table: a.b}", "delta: {table: a.b}", `cassandra: {hosts: ["h:9042"], keyspace: k, table: b, keys: [id]}`
	for _, c := range []struct{ typ, sink, kept, want string }{
		{"decimal( 18, 2 )", iceberg, "decimal(18,2)", ""},
		{"decimal(38,38)", delta, "decimal(38,38)", ""},
		{"float", cassandra, "float", ""},
		{"date", delta, "date", ""},
		{"timestamp", iceberg, "timestamp", ""},
		{"timestamp", delta, "", `column "c" is a timestamp: a Delta table`},
		{"timestamp", cassandra, "", `column "c" is a timestamp: Cassandra has no time without a zone; declare it timestamptz`},
		{"decimal", iceberg, "", "needs its digits: decimal(P,S)"},
		{"decimal(39,2)", iceberg, "", "precision that is not between 1 and 38"},
		{"decimal(5,6)", iceberg, "", "scale that is not between 0 and its precision, 5"},
		{"decimal(5)", iceberg, "", "is not decimal(P,S)"},
		{"uuid", iceberg, "", "string keeps the id as it was sent"},
		{"bigint", iceberg, "", "is called long here"},
		{"timestamp_ntz", iceberg, "", "is called timestamp here"},
		{"flaot", iceberg, "", `did you mean "float"?`},
	} {
		text := strings.Replace(fmt.Sprintf(columnsFile, "", "", c.sink), "    watermark:", fmt.Sprintf("        - {name: c, path: $.c, type: %q}\n    watermark:", c.typ), 1)
		p, faults := LoadBytes("p.yaml", t.TempDir(), []byte(text), testEnv)
		got := fmt.Sprint(faults)
		switch {
		case c.want == "" && len(faults) > 0, c.want != "" && !strings.Contains(got, c.want):
			t.Errorf("%s, %s: %s, want %q", c.typ, c.sink, got, c.want)
		case c.want == "" && p.Queries[0].Parse.Columns[3].Type != c.kept:
			t.Errorf("%s is kept as %s", c.typ, p.Queries[0].Parse.Columns[3].Type)
		}
	}
}

func TestAFloatIsNoKeyAndASumOfDecimalsHasTenDigitsMore(t *testing.T) {
	in := []Column{{Name: "k", Type: TypeString}, {Name: "m", Type: "decimal(18,2)"}, {Name: "w", Type: "decimal(35,4)"}}
	got := Aggregation{Keys: []string{"k"}, Columns: []Aggregate{
		{Name: "a", Function: "sum", Column: "m"}, {Name: "b", Function: "sum", Column: "w"}, {Name: "c", Function: "max", Column: "m"}}}.results(in)
	if types := fmt.Sprint(got[3].Type, got[4].Type, got[5].Type); types != "decimal(28,2)decimal(38,4)decimal(18,2)" {
		t.Errorf("sums and a maximum of decimals are %s", types)
	}
	text := strings.Replace(fmt.Sprintf(columnsFile, "", "", "iceberg: {table: a.b, mode: upsert, keys: [user]}"), "user, path: $.user, type: string", "user, path: $.user, type: float, required: true", 1)
	text = strings.Replace(text, "Watermark: [id]", "Watermark: [user]", 1)
	_, faults := LoadBytes("p.yaml", t.TempDir(), []byte(text), testEnv)
	for _, want := range []string{`dropDuplicatesWithinWatermark: "user" is a float, which has no exact equality`, `keys: "user" is a float, which has no exact order`} {
		if !strings.Contains(fmt.Sprint(faults), want) {
			t.Errorf("%q is not in %v", want, faults)
		}
	}
}
