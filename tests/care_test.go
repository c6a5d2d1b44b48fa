package tests

import (
	"encoding/json"
	"strings"
	"testing"
)

// Batches of ten offsets, so that a run goes past a multiple of fifty batches,
// where the engine looks after its tables: there the process is killed.
func TestAPipelineKilledInTheCareOfItsTablesIsExact(t *testing.T) {
	l := newLab(t, 0)
	l.write(10)
	l.edit(`iceberg: {table: bronze.events, partitionBy: ["day(timestamp)"]}`,
		`iceberg: {table: bronze.events, partitionBy: ["day(timestamp)"]}`+"\n    care: {expiry: {keepSnapshots: 20}, orphans: {grace: 1m}}")
	for _, point := range []string{"bronze/care.staged:1", "bronze/care.compacted:1", "silver/care.compacted:1"} {
		l.produce(600)
		l.crash(point)
	}
	l.run(exitOK)
	l.exact()
	l.produce(200)
	for _, args := range [][]string{{"compact"}, {"expire", "--keep", "2"}, {"orphans", "--older-than", "1h"}} {
		out, errs, code := weir(t, nil, append([]string{args[0], l.file, "--output", "json"}, args[1:]...)...)
		var doc struct {
			Tables []struct {
				Table     string `json:"table"`
				Compacted *struct {
					FilesAdded int `json:"files_added"`
				} `json:"compacted"`
				Snapshots *int `json:"snapshots"`
			} `json:"tables"`
		}
		if err := json.Unmarshal([]byte(out), &doc); code != exitOK || err != nil || len(doc.Tables) < 3 {
			t.Fatalf("weir %s: exit %d, %v\n%s\n%s", strings.Join(args, " "), code, err, out, tail(errs))
		}
		if d := doc.Tables[0]; args[0] == "compact" && (d.Table != labBronze || d.Compacted.FilesAdded == 0) ||
			args[0] == "expire" && *d.Snapshots > 4 {
			t.Errorf("weir %s: %s", args[0], out)
		}
	}
	// Silver goes on from where it was, over an upstream whose history is gone.
	l.run(exitOK)
	l.exact()
	l.exactByOthers()
}
