package audit

import (
	"fmt"
	"io"
	"strings"
)

// Outcomes of one table's audit.
const (
	Exact        = "exact"
	Mismatch     = "mismatch"
	Inconclusive = "inconclusive"
)

// Reasons why rows are extra.
const (
	ReasonDoubled    = "doubled"         // the offset is in the table more than once
	ReasonNotInKafka = "not-in-kafka"    // no read_committed reader gets this offset
	ReasonBeyondEnd  = "beyond-end"      // at or after the end that the table claims
	ReasonNotAbove   = "not-in-upstream" // silver: no such row in the upstream table
	ReasonErased     = "erased"          // it was erased on purpose, and is there again
)

// Range is a half-open run of offsets of one partition, [From, To).
type Range struct {
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Reason    string `json:"reason,omitempty"`
}

// Report is what an audit found. Its JSON is part of the public contract.
type Report struct {
	Tables []*TableReport `json:"tables"`
}

// TableReport is what was found of one table.
type TableReport struct {
	Table string `json:"table"`
	Topic string `json:"topic"`
	Exact bool   `json:"exact"`
	// Outcome is exact, mismatch or inconclusive; Reasons says why not exact.
	Outcome string   `json:"outcome"`
	Reasons []string `json:"reasons,omitempty"`
	// Notes are observations that do not change the outcome.
	Notes []string `json:"notes,omitempty"`

	Rows            int64 `json:"rows"`
	DistinctOffsets int64 `json:"distinct_offsets"`
	// KafkaRecords is what a read_committed reader gets in [log start, end).
	KafkaRecords int64 `json:"kafka_records"`
	// DoubledRows counts rows beyond the first of each offset.
	DoubledRows int64 `json:"doubled_rows"`
	// RowsBelowLogStart cannot be compared with Kafka any more.
	RowsBelowLogStart int64 `json:"rows_below_log_start,omitempty"`
	// RowsOfOtherTopics are in the table and not part of this audit.
	RowsOfOtherTopics int64 `json:"rows_of_other_topics,omitempty"`

	Missing []Range `json:"missing"`
	Extra   []Range `json:"extra"`
	// ErasedRows were deleted on purpose and are declared in the table; Erased are
	// their offsets. They are not missing.
	ErasedRows int64   `json:"erased_rows"`
	Erased     []Range `json:"erased,omitempty"`
	// Unverifiable are gaps below the log start.
	Unverifiable []Range `json:"unverifiable,omitempty"`

	Files          int      `json:"files"`
	FilesLiveTwice []string `json:"files_live_twice"`
	FilesMissing   []string `json:"files_missing"`

	SnapshotID       int64  `json:"snapshot_id"`
	Sequence         int64  `json:"sequence_number"`
	MetadataLocation string `json:"metadata_location"`
	// End is the offset vector that the table was judged by, and EndSource
	// where it came from: snapshot, table-property, explicit or log-end.
	End       map[int32]int64 `json:"end"`
	EndSource string          `json:"end_source"`

	// Writers are the streaming writers whose marks stand in the history.
	Writers []Writer `json:"writers,omitempty"`

	Silver *SilverReport `json:"silver,omitempty"`
	Groups *GroupsReport `json:"groups,omitempty"`
}

// SilverReport is what was found of a table that is fed by another table.
type SilverReport struct {
	Upstream         string `json:"upstream"`
	DistinctEventIDs int64  `json:"distinct_event_ids"`
	// DoubledEventIDs counts rows beyond the first of each id.
	DoubledEventIDs int64    `json:"doubled_event_ids"`
	Examples        []string `json:"doubled_event_id_examples,omitempty"`
	NullEventIDs    int64    `json:"null_event_ids,omitempty"`
	DeadLetterRows  *int64   `json:"dead_letter_rows,omitempty"`
	Balance         *Balance `json:"balance,omitempty"`
}

// Balance adds up what the batches of a table's queries say became of the rows.
type Balance struct {
	Queries      []string `json:"queries"`
	Batches      int64    `json:"batches"`
	Input        int64    `json:"input_rows"`
	Output       int64    `json:"output_rows"`
	Filtered     int64    `json:"rows_filtered"`
	Duplicate    int64    `json:"rows_duplicate"`
	Late         int64    `json:"rows_late"`
	DeadLettered int64    `json:"rows_dead_lettered"`
	// ExpectedInput is what the upstream holds below this table's position.
	ExpectedInput int64 `json:"expected_input_rows"`
	// Complete is false where some batch's counts could be found nowhere: then
	// the sums are not judged.
	Complete bool `json:"complete"`
	Balanced bool `json:"balanced"`
}

// Exact reports whether every table is exact.
func (r *Report) Exact() bool {
	for _, t := range r.Tables {
		if !t.Exact {
			return false
		}
	}
	return len(r.Tables) > 0
}

// Mismatched reports whether some table differs from its truth; it outranks
// what is inconclusive.
func (r *Report) Mismatched() bool {
	for _, t := range r.Tables {
		if t.Outcome == Mismatch {
			return true
		}
	}
	return false
}

// Table is the report of one table, nil where it was not audited.
func (r *Report) Table(name string) *TableReport {
	for _, t := range r.Tables {
		if t.Table == name {
			return t
		}
	}
	return nil
}

// rangesShown bounds the ranges that the text form prints of each kind; JSON
// always has them all.
const rangesShown = 20

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) {
	rows := [][]string{{"table", "outcome", "rows", "distinct", "truth", "missing", "extra", "files"}}
	for _, t := range r.Tables {
		mark := "= " + t.Outcome
		if t.Outcome == Mismatch {
			mark = "! " + t.Outcome
		} else if t.Outcome == Inconclusive {
			mark = "? " + t.Outcome
		}
		truth := fmt.Sprintf("%s in Kafka", group(t.KafkaRecords))
		distinct := group(t.DistinctOffsets) + " offsets"
		if t.Silver != nil {
			if t.Silver.DistinctEventIDs > 0 {
				distinct = group(t.Silver.DistinctEventIDs) + " ids"
			}
			truth = "of " + t.Silver.Upstream
			if b := t.Silver.Balance; b != nil {
				truth = fmt.Sprintf("%s put out", group(b.Output))
			}
		}
		if g := t.Groups; g != nil {
			distinct, truth = group(g.Open)+" open", fmt.Sprintf("%s of %s", group(g.Expected), g.Upstream)
		}
		rows = append(rows, []string{t.Table, mark, group(t.Rows), distinct, truth,
			group(span(t.Missing)), group(t.extraRows()), fmt.Sprint(t.Files)})
	}
	writeTable(w, rows)
	for _, t := range r.Tables {
		t.writeDetails(w)
	}
}

// MissingRecords and ExtraRows are the sums of the ranges.
func (t *TableReport) MissingRecords() int64 { return span(t.Missing) }

// ExtraRows are the rows beyond what Kafka has, doubled ones among them.
func (t *TableReport) ExtraRows() int64 { return t.extraRows() }

func (t *TableReport) extraRows() int64 {
	n := t.DoubledRows
	for _, r := range t.Extra {
		if r.Reason != ReasonDoubled {
			n += r.To - r.From
		}
	}
	return n
}

func (t *TableReport) writeDetails(w io.Writer) {
	fmt.Fprintf(w, "\n%s", t.Table)
	if t.SnapshotID != 0 {
		fmt.Fprintf(w, "  snapshot %d, judged up to %s (%s)", t.SnapshotID, endText(t.End), t.EndSource)
	}
	fmt.Fprintln(w)
	for _, s := range t.Reasons {
		fmt.Fprintln(w, "  !", s)
	}
	for _, by := range t.Writers {
		fmt.Fprintln(w, "  "+by.String())
	}
	writeRanges(w, "missing", t.Missing)
	writeRanges(w, "extra", t.Extra)
	writeErased(w, t.Erased)
	writeRanges(w, "unverifiable, below the log start", t.Unverifiable)
	for _, f := range t.FilesLiveTwice {
		fmt.Fprintln(w, "  ! live twice:", f)
	}
	for _, f := range t.FilesMissing {
		fmt.Fprintln(w, "  ! live but gone:", f)
	}
	if t.Silver != nil && t.Silver.Balance != nil {
		b := t.Silver.Balance
		sign := "="
		if !b.Balanced {
			sign = "!="
		}
		fmt.Fprintf(w, "  read %s %s written %s + filtered %s + duplicate %s + late %s + dead letters %s  (%d batches)\n",
			group(b.Input), sign, group(b.Output), group(b.Filtered), group(b.Duplicate), group(b.Late), group(b.DeadLettered), b.Batches)
	}
	if g := t.Groups; g != nil {
		fmt.Fprintf(w, "  %s rows of %s make %s complete groups, %s are open with %s rows; missing %s, extra %s\n",
			group(g.UpstreamRows), g.Upstream, group(g.Expected), group(g.Open), group(g.OpenRows), group(g.Missing), group(g.Extra))
		for _, e := range g.Examples {
			fmt.Fprintln(w, "  !", e)
		}
	}
	for _, s := range t.Notes {
		fmt.Fprintln(w, "  .", s)
	}
}

func writeRanges(w io.Writer, what string, ranges []Range) {
	for i, r := range ranges {
		if i == rangesShown {
			fmt.Fprintf(w, "  ! %s: %d more ranges (all in --output json)\n", what, len(ranges)-i)
			return
		}
		reason := ""
		if r.Reason != "" {
			reason = "  (" + r.Reason + ")"
		}
		fmt.Fprintf(w, "  ! %s: partition %d, offsets %d to %d%s\n", what, r.Partition, r.From, r.To-1, reason)
	}
}

// writeErased names offsets that are rightly not there.
func writeErased(w io.Writer, ranges []Range) {
	for i, r := range ranges {
		if i == rangesShown {
			fmt.Fprintf(w, "  . erased: %d more ranges (all in --output json)\n", len(ranges)-i)
			return
		}
		fmt.Fprintf(w, "  . erased: partition %d, offsets %d to %d\n", r.Partition, r.From, r.To-1)
	}
}

func endText(end map[int32]int64) string {
	parts := make([]string, 0, len(end))
	for _, p := range sortedKeys(end) {
		parts = append(parts, fmt.Sprintf("%d:%d", p, end[p]))
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func span(ranges []Range) int64 {
	var n int64
	for _, r := range ranges {
		n += r.To - r.From
	}
	return n
}

// group writes a count with a comma every three digits.
func group(n int64) string {
	s := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// writeTable prints rows with a line under the first; columns of numbers are
// set to the right.
func writeTable(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	right := make([]bool, len(rows[0]))
	for i, row := range rows {
		for c, cell := range row {
			widths[c] = max(widths[c], len([]rune(cell)))
			if i == 1 {
				right[c] = cell != "" && cell[0] >= '0' && cell[0] <= '9'
			}
		}
	}
	for i, row := range rows {
		var b strings.Builder
		for c, cell := range row {
			pad := strings.Repeat(" ", widths[c]-len([]rune(cell)))
			if right[c] {
				cell = pad + cell
			} else if c < len(row)-1 {
				cell += pad
			}
			if c > 0 {
				b.WriteString("  ")
			}
			b.WriteString(cell)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
		if i == 0 {
			total := -2
			for _, n := range widths {
				total += n + 2
			}
			fmt.Fprintln(w, strings.Repeat("─", total))
		}
	}
}
