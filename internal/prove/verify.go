package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirlake/weir/internal/audit"
)

// verify audits tables against the topic and keeps the figures.
func (e *Env) verify(ctx context.Context, topic string, tables ...string) (*audit.Report, error) {
	cfg := audit.Config{Catalog: e.catalog, Brokers: e.broker.bootstrap, ProgressTable: progressTable, RequireStill: true, Clock: e.o.Clock}
	for _, name := range tables {
		t := audit.TableConfig{Name: name, Topic: topic}
		if name == silverTable {
			t = audit.TableConfig{Name: name, Upstream: bronzeTable, DeadLetterTable: deadLetterTable}
		}
		if name == sessionsTable {
			t = sessionsConfig(e.sessionsGapMicros)
		}
		cfg.Tables = append(cfg.Tables, t)
	}
	rep, err := audit.Run(ctx, cfg)
	if err != nil {
		return nil, err
	}
	e.audited = rep
	bronze := rep.Table(bronzeTable)
	e.observed["bronze_rows"] = bronze.Rows
	e.observed["bronze_distinct_offsets"] = bronze.DistinctOffsets
	if n := bronze.RowsOfOtherTopics; n > 0 {
		e.observed["bronze_rows_of_other_topics"] = n
	}
	if silver := rep.Table(silverTable); silver != nil {
		e.observed["silver_rows"] = silver.Rows
		if silver.Silver != nil {
			e.silverFigures(silver.Silver)
		}
	}
	e.observed["audit"] = audit.Exact
	for _, t := range rep.Tables {
		if t.Outcome != audit.Exact && e.observed["audit"] != audit.Mismatch {
			e.observed["audit"] = t.Outcome
		}
		if t.Outcome != audit.Exact {
			e.observed["audit_of_"+t.Table] = findings(t)
		}
	}
	n, err := e.messages(ctx, topic)
	if err != nil {
		return nil, err
	}
	e.observed["kafka_messages"] = n
	return rep, nil
}

// answerMax bounds a command whose answer is read.
const answerMax = 5 * time.Minute

// auditPipeline lets the binary audit the scenario's pipeline file, which knows
// where its tables lie.
func (e *Env) auditPipeline(ctx context.Context) (*audit.Report, error) {
	var report audit.Report
	if err := e.answer(ctx, &report, "audit", e.path(queriesFileName)); err != nil && len(report.Tables) == 0 {
		return nil, err // a mismatch has an exit code of its own, and a report
	}
	e.audited = &report
	return &report, nil
}

// answer runs a command of the binary and reads its JSON, also where it ends with an
// error.
func (e *Env) answer(ctx context.Context, into any, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.o.Binary, append(args, "--output", "json")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err = errors.Join(err, json.Unmarshal(out, into)); err != nil {
		return fmt.Errorf("weir %s: %w\n%s", args[0], err, stderr.String())
	}
	return nil
}

// rangesShown bounds how much of each kind of finding a result quotes; the
// evidence has all.
const rangesShown = 5

// findings say where a table differs: offsets and files to look at.
func findings(t *audit.TableReport) string {
	out := append([]string{}, t.Reasons...)
	list := func(what string, n int, one func(int) string) {
		for i := range min(n, rangesShown) {
			out = append(out, what+" "+one(i))
		}
		if n > rangesShown {
			out = append(out, fmt.Sprintf("%d more %s", n-rangesShown, what))
		}
	}
	offsets := func(r audit.Range) string {
		return fmt.Sprintf("partition %d offsets %d to %d %s", r.Partition, r.From, r.To-1, r.Reason)
	}
	list("missing", len(t.Missing), func(i int) string { return offsets(t.Missing[i]) })
	list("extra", len(t.Extra), func(i int) string { return offsets(t.Extra[i]) })
	list("live twice", len(t.FilesLiveTwice), func(i int) string { return t.FilesLiveTwice[i] })
	list("gone", len(t.FilesMissing), func(i int) string { return t.FilesMissing[i] })
	return strings.Join(out, ", ")
}

// silverFigures keeps what silver's batches say became of the rows.
func (e *Env) silverFigures(s *audit.SilverReport) {
	e.observed["silver_distinct_event_ids"] = s.DistinctEventIDs
	if b := s.Balance; b != nil {
		e.observed["silver_rows_late"] = b.Late
		e.observed["silver_rows_duplicate"] = b.Duplicate
		e.observed["silver_rows_filtered"] = b.Filtered
		e.observed["silver_rows_dead_lettered"] = b.DeadLettered
	}
}

// silverIDs compares the ids in silver with those that must be there.
func (e *Env) silverIDs(ctx context.Context, want map[string]bool) error {
	seen := map[string]bool{}
	var unexpected int64
	err := audit.Strings(ctx, e.catalog, nil, silverTable, "event_id", func(id string) {
		if !want[id] {
			unexpected++
		}
		seen[id] = true
	})
	if err != nil {
		return err
	}
	var missing int64
	for id := range want {
		if !seen[id] {
			missing++
		}
	}
	e.observed["silver_ids_missing"], e.observed["silver_ids_unexpected"] = missing, unexpected
	return nil
}

// foreignReaders reports whether PyIceberg and DuckDB count too.
func (o *Options) foreignReaders() bool { return o.Python != "" && o.Readers != "" }

// foreignCount lets PyIceberg and DuckDB count too, where they are to be had.
func (e *Env) foreignCount(ctx context.Context) error {
	if !e.o.foreignReaders() {
		return nil
	}
	for _, f := range foreign {
		for _, t := range []struct{ key, table string }{{"bronze", bronzeTable}, {"silver", silverTable}} {
			var got struct {
				Rows    int64 `json:"rows"`
				Offsets int64 `json:"distinct_offsets"`
				IDs     int64 `json:"distinct_event_ids"`
			}
			script := filepath.Join(e.o.Readers, "count_"+f.prefix+".py")
			cmd := exec.CommandContext(ctx, e.o.Python, script, "--catalog", e.catalogFile, "--table", t.table)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", script, err, bytes.TrimSpace(errs.Bytes()))
			}
			if err := json.Unmarshal(out, &got); err != nil {
				return fmt.Errorf("%s: %w", script, err)
			}
			e.observed[f.prefix+"_"+t.key+"_rows"] = got.Rows
			if t.key == "bronze" {
				e.observed[f.prefix+"_bronze_distinct_offsets"] = got.Offsets
			} else {
				e.observed[f.prefix+"_silver_distinct_event_ids"] = got.IDs
			}
		}
	}
	return nil
}

// foreignChecks are what the two must have counted.
func (e *Env) foreignChecks(bronze, silver int64) []Check {
	if !e.o.foreignReaders() {
		return nil
	}
	var out []Check
	for _, f := range foreign {
		out = append(out,
			Check{f.prefix + "_bronze_rows", f.name + ": bronze rows", bronze},
			Check{f.prefix + "_bronze_distinct_offsets", f.name + ": distinct (partition, offset)", bronze},
			Check{f.prefix + "_silver_rows", f.name + ": silver rows", silver},
			Check{f.prefix + "_silver_distinct_event_ids", f.name + ": distinct event ids", silver})
	}
	return out
}
