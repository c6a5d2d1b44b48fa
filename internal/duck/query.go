package duck

import (
	"context"
	"database/sql"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// reads are the statements that only read, by their first word.
var reads = map[string]bool{
	"SELECT": true, "WITH": true, "FROM": true, "VALUES": true, "TABLE": true, "(": true,
	"DESCRIBE": true, "DESC": true, "SHOW": true, "SUMMARIZE": true, "PIVOT": true, "UNPIVOT": true, "EXPLAIN": true,
}

// CheckReads refuses a statement that is not a read.
func CheckReads(statement string) error {
	k := Keyword(statement)
	if k == "EXPLAIN" {
		rest := statement[strings.Index(strings.ToUpper(statement), "EXPLAIN")+len("EXPLAIN"):]
		if inner := Keyword(rest); inner == "ANALYZE" {
			rest = rest[strings.Index(strings.ToUpper(rest), "ANALYZE")+len("ANALYZE"):]
		}
		k = Keyword(rest)
		if k == "EXPLAIN" {
			k = ""
		}
	}
	if reads[k] {
		return nil
	}
	return failure.New(failure.Config, "weir sql only reads, and %s does not begin a query", strings.ToUpper(firstWord(statement))).
		WithHint("write tables with the queries of a pipeline file, or with gold models")
}

func firstWord(statement string) string {
	if k := Keyword(statement); k != "" {
		return k
	}
	return "this"
}

// Form is how the rows of a query are given.
type Form int

// The forms of rows.
const (
	// Text has a column each, as DuckDB writes the value; a null is not valid.
	Text Form = iota
	// JSON has one column, an object per row.
	JSON
)

// Rows are the rows of a query, as text.
type Rows struct {
	Columns []string
	rows    *sql.Rows
	ctx     context.Context
}

// Query runs one statement that reads. DuckDB itself turns the values into text,
// so that numbers, times and nested values come out as in its own shell.
func (s *Session) Query(ctx context.Context, statement string, form Form) (*Rows, error) {
	plain := Keyword(statement) == "EXPLAIN"
	query := statement
	switch {
	case plain:
	case form == JSON:
		query = "SELECT to_json(weir_row)::VARCHAR FROM (" + statement + "\n) AS weir_row"
	default:
		query = "SELECT CAST(COLUMNS(*) AS VARCHAR) FROM (" + statement + "\n)"
	}
	if !plain {
		// The statement alone first: what is wrong with it is said of it, not of
		// what was put around it.
		if err := s.check(ctx, statement); err != nil {
			return nil, err
		}
	}
	rows, err := s.DB.QueryContext(ctx, query) //nolint:rowserrcheck // Rows.Next looks at it
	if err != nil {
		return nil, Classified(ctx, err)
	}
	cols, err := rows.Columns()
	if err != nil {
		_ = rows.Close() //nolint:sqlclosecheck // otherwise the caller closes
		return nil, Classified(ctx, err)
	}
	return &Rows{Columns: cols, rows: rows, ctx: ctx}, nil
}

func (s *Session) check(ctx context.Context, statement string) error {
	st, err := s.DB.PrepareContext(ctx, statement)
	if err != nil {
		return Classified(ctx, err)
	}
	return Classified(ctx, st.Close()) //nolint:sqlclosecheck // this is the close
}

// Next gives the next row, nil after the last.
func (r *Rows) Next() ([]sql.NullString, error) {
	if !r.rows.Next() {
		return nil, Classified(r.ctx, r.rows.Err())
	}
	out := make([]sql.NullString, len(r.Columns))
	at := make([]any, len(out))
	for i := range out {
		at[i] = &out[i]
	}
	if err := r.rows.Scan(at...); err != nil {
		return nil, Classified(r.ctx, err)
	}
	return out, nil
}

// Close ends the query.
func (r *Rows) Close() error { return Classified(r.ctx, r.rows.Close()) }

// Columns describes the result of a query without running it.
func (s *Session) Columns(ctx context.Context, query string) ([]Column, error) {
	rows, err := s.DB.QueryContext(ctx, "SELECT column_name, column_type FROM (DESCRIBE "+query+"\n)")
	if err != nil {
		return nil, Classified(ctx, err)
	}
	defer rows.Close()
	var out []Column
	for rows.Next() {
		var c Column
		if err := rows.Scan(&c.Name, &c.Type); err != nil {
			return nil, Classified(ctx, err)
		}
		out = append(out, c)
	}
	return out, Classified(ctx, rows.Err())
}
