package pipeline

import (
	"fmt"
	"strings"
	"testing"
)

const columnsFile = `name: p
catalog: {type: sql, uri: "sqlite:./c.db"}
warehouse: ./w
checkpointLocation: ./c
kafka: {bootstrapServers: [localhost:9092]}
queries:
  - name: q
    from: {kafka: {topics: [t]}}
    parse:
      columns:
        - {name: id, path: $.id, type: string, required: true%s}
        - {name: at, path: $.at, type: timestamptz, required: true}
        - {name: user, path: $.user, type: string%s}
    watermark: {column: at, delay: 1m}
    dropDuplicatesWithinWatermark: [id]
    deadLetter: {table: a.dead}
    to: {%s}
`

func TestWhatAFileSaysOfItsColumnsPastIsChecked(t *testing.T) {
	const iceberg = "iceberg: {table: a.b%s}"
	for _, c := range []struct {
		id, user, sink string
		want           string // empty for none
	}{
		{"", ", renamedFrom: editor", fmt.Sprintf(iceberg, ", dropColumns: [x], keepColumns: [y]"), ""},
		{", renamedFrom: key", "", fmt.Sprintf(iceberg, ""), `"id" keeps its name: dropDuplicatesWithinWatermark knows rows by it`},
		{"", ", renamedFrom: at", fmt.Sprintf(iceberg, ""), `"at" is declared too`},
		{"", ", renamedFrom: x", fmt.Sprintf(iceberg, ", keepColumns: [x]"), `"x" is renamed, and the sink drops or keeps it`},
		{"", "", fmt.Sprintf(iceberg, ", dropColumns: [user]"), `dropColumns: the query writes column "user"`},
		{"", "", fmt.Sprintf(iceberg, ", dropColumns: [x], keepColumns: [x]"), `"x" is in dropColumns too`},
		{"", ", renamedFrom: x", "delta: {table: a.b}", `renamedFrom is for Iceberg tables`},
		{"", "", "delta: {table: a.b, dropColumns: [x]}", `unknown key "dropColumns"`},
		{"", "", "delta: {table: a.b, keepColumns: [x]}", ""},
	} {
		text := fmt.Sprintf(columnsFile, c.id, c.user, c.sink)
		p, faults := LoadBytes("p.yaml", t.TempDir(), []byte(text), testEnv)
		got := fmt.Sprint(faults)
		switch {
		case c.want == "" && len(faults) > 0, c.want != "" && !strings.Contains(got, c.want):
			t.Errorf("%s%s %s: %s", c.id, c.user, c.sink, got)
		case c.want == "" && c.user != "" && p.Queries[0].Renamed()["user"] != "editor":
			t.Errorf("%v", p.Queries[0].Renamed())
		}
	}
}
