package cli

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/weirlake/weir/internal/app"
	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
)

// Bounds of what is shown.
const (
	// tableRowsMax is how many rows a table shows; the formats for programs have
	// no such bound.
	tableRowsMax = 1_000
	cellWidthMax = 80
	// statementBytesMax bounds a statement that is read from a terminal or a pipe.
	statementBytesMax = 1 << 20
)

// Formats of rows.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatCSV   = "csv"
)

func newSQL(g *globals) *cobra.Command {
	var s sqlShell
	cmd := &cobra.Command{
		Use:   "sql FILE [STATEMENT]",
		Short: "Ask the tables in SQL, all of them at one moment, or at an earlier one",
		Long: `Reads every table of the pipeline's catalog as namespace.table, with DuckDB. All
tables are pinned when the command starts; nothing is ever written.

  weir sql pipeline.yaml "SELECT wiki, count(*) FROM silver.edits GROUP BY 1"
  weir sql pipeline.yaml                           statements from the terminal, each to its ;
  weir sql pipeline.yaml < report.sql

An earlier state, of everything or of one table:

  --as-of 2026-01-31T12:00:00Z  |  --as-of SNAPSHOT
  … FROM silver.edits AT (VERSION => SNAPSHOT)  |  AT (TIMESTAMP => '2026-01-31 12:00')
  … FROM silver.edits FOR VERSION AS OF SNAPSHOT  |  FOR SYSTEM_TIME AS OF '2026-01-31 12:00'`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.g = g
			if err := s.setUp(); err != nil {
				return err
			}
			p, err := g.load(args[0])
			if err != nil {
				return err
			}
			return s.run(cmd.Context(), p, args[1:])
		},
	}
	cmd.Flags().StringVar(&s.asOf, "as-of", "", "read all tables as they were: a snapshot `id` or a time")
	cmd.Flags().StringVar(&s.format, "format", "", "rows as `table|json|csv` (default: table, with --output json one object a line)")
	return cmd
}

// sqlShell runs statements and prints their rows.
type sqlShell struct {
	g            *globals
	asOf, format string
	at           duck.AsOf
	sql          *app.SQL
	p            *pipeline.Pipeline
}

func (s *sqlShell) setUp() (err error) {
	if s.format == "" {
		s.format = formatTable
		if s.g.json() {
			s.format = formatJSON
		}
	}
	if s.format != formatTable && s.format != formatJSON && s.format != formatCSV {
		return failure.New(failure.Config, "--format %q: want table, json or csv", s.format)
	}
	if s.asOf != "" {
		s.at, err = duck.ParseAsOf(s.asOf)
	}
	return err
}

func (s *sqlShell) run(ctx context.Context, p *pipeline.Pipeline, args []string) (err error) {
	s.p = p
	if s.sql, err = app.OpenSQL(ctx, p, s.at, s.g.log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.sql.Close()) }()
	if len(args) == 1 {
		all := duck.Statements(args[0])
		if len(all) == 0 {
			return failure.New(failure.Config, "the statement is empty")
		}
		for _, st := range all {
			if err := s.statement(ctx, st); err != nil {
				return err
			}
		}
		return nil
	}
	return s.shell(ctx, os.Stdin)
}

// shell reads statements, from a terminal with a prompt. There an error ends its
// statement, in a script the command.
func (s *sqlShell) shell(ctx context.Context, in *os.File) error {
	fi, err := in.Stat()
	terminal := err == nil && fi.Mode()&os.ModeCharDevice != 0
	prompt := func(text string) {
		if terminal {
			fmt.Fprintf(s.g.stderr, "%s", text)
		}
	}
	if terminal {
		fmt.Fprintf(s.g.stderr, "%d tables, pinned. A statement ends with a semicolon; .tables, .refresh, .quit\n", len(s.sql.Tables()))
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, statementBytesMax)
	var pending strings.Builder
	flush := func() error {
		text := pending.String()
		pending.Reset()
		for _, st := range duck.Statements(text) {
			if err := s.statement(ctx, st); err != nil {
				return err
			}
		}
		return nil
	}
	prompt("weir> ")
	for lines.Scan() {
		line := lines.Text()
		if trimmed := strings.TrimSpace(line); pending.Len() == 0 && strings.HasPrefix(trimmed, ".") {
			done, err := s.meta(ctx, trimmed)
			if done || (err != nil && !terminal) {
				return err
			}
			s.say(err)
			prompt("weir> ")
			continue
		}
		if pending.Len()+len(line) > statementBytesMax {
			return failure.New(failure.Config, "a statement is longer than %d bytes", statementBytesMax)
		}
		pending.WriteString(line + "\n")
		if !duck.Complete(pending.String()) {
			prompt("  ... ")
			continue
		}
		if err := flush(); err != nil {
			if !terminal || ctx.Err() != nil {
				return err
			}
			s.say(err)
		}
		prompt("weir> ")
	}
	if err := lines.Err(); err != nil {
		return failure.Wrap(failure.Config, err, "read statements")
	}
	prompt("\n")
	return flush()
}

func (s *sqlShell) say(err error) {
	if err != nil {
		fmt.Fprintln(s.g.stderr, err)
	}
}

// meta runs a command of the shell itself.
func (s *sqlShell) meta(ctx context.Context, line string) (done bool, err error) {
	switch line {
	case ".quit", ".exit":
		return true, nil
	case ".tables":
		for _, t := range s.sql.Tables() {
			fmt.Fprintf(s.g.stdout, "%-32s %12d rows  snapshot %d\n", t.Name, t.Rows, t.SnapshotID)
		}
		return false, nil
	case ".refresh":
		fresh, err := app.OpenSQL(ctx, s.p, s.at, s.g.log)
		if err != nil {
			return false, err
		}
		old := s.sql
		s.sql = fresh
		return false, old.Close()
	}
	return false, failure.New(failure.Config, "%s is not known: .tables, .refresh (pin the newest snapshots), .quit", line)
}

func (s *sqlShell) statement(ctx context.Context, text string) (err error) {
	form := duck.Text
	if s.format == formatJSON {
		form = duck.JSON
	}
	rows, err := s.sql.Run(ctx, text, form)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	w := bufio.NewWriter(s.g.stdout)
	switch {
	case form == duck.JSON:
		err = writeLines(w, rows)
	case s.format == formatCSV:
		err = writeCSV(w, rows)
	default:
		err = writeTable(w, rows)
	}
	return errors.Join(err, w.Flush())
}

func writeLines(w io.Writer, rows *duck.Rows) error {
	for {
		row, err := rows.Next()
		if err != nil || row == nil {
			return err
		}
		if _, err := fmt.Fprintln(w, row[len(row)-1].String); err != nil {
			return err
		}
	}
}

// writeCSV writes RFC 4180 with a head line; a null is an empty field.
func writeCSV(w io.Writer, rows *duck.Rows) error {
	out := csv.NewWriter(w)
	if err := out.Write(rows.Columns); err != nil {
		return err
	}
	for {
		row, err := rows.Next()
		if err != nil {
			return err
		}
		if row == nil {
			out.Flush()
			return out.Error()
		}
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = c.String
		}
		if err := out.Write(cells); err != nil {
			return err
		}
	}
}

func writeTable(w io.Writer, rows *duck.Rows) error {
	var all [][]string
	width := make([]int, len(rows.Columns))
	add := func(cells []string) {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
		all = append(all, cells)
	}
	add(rows.Columns)
	more := 0
	for {
		row, err := rows.Next()
		if err != nil {
			return err
		}
		if row == nil {
			break
		}
		if len(all) > tableRowsMax {
			more++
			continue
		}
		cells := make([]string, len(row))
		for i, c := range row {
			cells[i] = shown(c.String, len(row))
			if !c.Valid {
				cells[i] = "NULL"
			}
		}
		add(cells)
	}
	for n, cells := range all {
		for i, c := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i == len(cells)-1 {
				pad = "\n"
			} else {
				pad += "  "
			}
			fmt.Fprintf(w, "%s%s", c, pad)
		}
		if n == 0 {
			rule := make([]string, len(width))
			for i, n := range width {
				rule[i] = strings.Repeat("─", n)
			}
			fmt.Fprintln(w, strings.Join(rule, "  "))
		}
	}
	if more > 0 {
		fmt.Fprintf(w, "… %d more rows; --format csv or json gives all\n", more)
	}
	return nil
}

// shown is a cell of a table: on one line, and not too wide where there are
// others.
func shown(s string, columns int) string {
	if columns == 1 {
		return s
	}
	s = strings.NewReplacer("\n", "⏎", "\r", "", "\t", " ").Replace(s)
	if utf8.RuneCountInString(s) > cellWidthMax {
		s = string([]rune(s)[:cellWidthMax-1]) + "…"
	}
	return s
}
