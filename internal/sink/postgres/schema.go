package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirlake/weir/internal/failure"
)

// column is one column of the rows and of the target.
type column struct {
	name     string
	index    int
	typ      arrow.DataType
	nullable bool
	// natural is the type that the column has in a table that this sink makes, and
	// in the staging table. COPY sends its binary form.
	natural string
	// same are the types of a target that take that binary form as it is; any
	// other gets its values by a cast in the database.
	same []string
}

func columnsOf(o Options) ([]column, error) {
	var out []column
	for i, f := range o.Arrow.Fields() {
		if o.DeleteColumn == f.Name && f.Type.ID() == arrow.BOOL {
			continue
		}
		c := column{name: f.Name, index: i, typ: f.Type, nullable: f.Nullable}
		switch f.Type.ID() {
		case arrow.STRING:
			c.natural, c.same = "text", []string{"text", "varchar", "bpchar", "json"}
			if slices.Contains(o.JSONB, f.Name) {
				c.natural, c.same = "jsonb", []string{"jsonb"}
			}
		case arrow.INT32:
			c.natural, c.same = "integer", []string{"int4"}
		case arrow.INT64:
			c.natural, c.same = "bigint", []string{"int8"}
		case arrow.FLOAT32:
			c.natural, c.same = "real", []string{"float4"}
		case arrow.FLOAT64:
			c.natural, c.same = "double precision", []string{"float8"}
		case arrow.DECIMAL128:
			d := f.Type.(*arrow.Decimal128Type)
			c.natural, c.same = fmt.Sprintf("numeric(%d,%d)", d.Precision, d.Scale), []string{"numeric"}
		case arrow.DATE32:
			c.natural, c.same = "date", []string{"date"}
		case arrow.BOOL:
			c.natural, c.same = "boolean", []string{"bool"}
		case arrow.TIMESTAMP:
			c.natural, c.same = "timestamptz", []string{"timestamptz", "timestamp"} // in UTC
			if f.Type.(*arrow.TimestampType).TimeZone == "" {
				c.natural, c.same = "timestamp", []string{"timestamp"}
			}
		case arrow.BINARY:
			c.natural, c.same = "bytea", []string{"bytea"}
		case arrow.LIST, arrow.STRUCT:
			c.natural, c.same = "jsonb", []string{"jsonb"}
		default:
			return nil, fmt.Errorf("column %s: no type of Postgres for %s", f.Name, f.Type)
		}
		out = append(out, c)
	}
	named := func(what string, names []string) error {
		for _, n := range names {
			if !slices.ContainsFunc(out, func(c column) bool { return c.name == n }) {
				return fmt.Errorf("%s: the rows have no column %q", what, n)
			}
		}
		return nil
	}
	switch {
	case len(out) == 0:
		return nil, errors.New("the rows have no columns")
	case o.Upsert && len(o.Keys) == 0:
		return nil, errors.New("an upsert needs keys, the columns that name a row")
	case o.DeleteColumn != "" && len(out) != o.Arrow.NumFields()-1:
		return nil, fmt.Errorf("the rows have no boolean column %q that says what is deleted", o.DeleteColumn)
	case !o.Upsert && o.DeleteColumn != "":
		return nil, errors.New("rows that delete their key are for an upsert")
	case !o.Upsert && len(o.Keys)+len(o.OrderBy) > 0:
		return nil, errors.New("keys and the order are for an upsert")
	}
	return out, errors.Join(named("keys", o.Keys), named("orderBy", o.OrderBy), named("jsonb", o.JSONB))
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = quote(n)
	}
	return strings.Join(out, ", ")
}

func (s *Sink) names() []string {
	out := make([]string, len(s.cols))
	for i, c := range s.cols {
		out[i] = c.name
	}
	return out
}

// ensure makes what is missing: our two tables, and the target under a new
// identity where it is not the table that the present one was given to. The
// caller's transaction holds the target's advisory lock.
func (s *Sink) ensure(ctx context.Context, conn *pgx.Conn, st *stored) error {
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended('weir:ddl', 0))"); err != nil {
		return err // two sessions that make one table would fail each other
	}
	for _, ddl := range []string{
		"CREATE TABLE IF NOT EXISTS " + s.own("weir_tables") + ` (
			table_name text PRIMARY KEY, identity text NOT NULL, table_oid oid NOT NULL)`,
		"CREATE TABLE IF NOT EXISTS " + s.own("weir_markers") + ` (
			table_name text NOT NULL, query_name text NOT NULL, query_id text NOT NULL, epoch bigint NOT NULL, batch_id bigint NOT NULL,
			position text NOT NULL, marker text NOT NULL, version bigint NOT NULL, written_at timestamptz NOT NULL,
			PRIMARY KEY (table_name, query_name)) WITH (fillfactor = 50)`,
	} {
		if _, err := conn.Exec(ctx, ddl); err != nil {
			return fmt.Errorf("make the table of markers: %w", err)
		}
	}
	if !st.exists {
		if _, err := conn.Exec(ctx, s.createTarget()); err != nil {
			return fmt.Errorf("make the table: %w", err)
		}
		if err := conn.QueryRow(ctx, "SELECT to_regclass($1)::oid", s.target()).Scan(&st.oid); err != nil {
			return err
		}
	}
	if err := s.checkTarget(ctx, conn, st.oid); err != nil {
		return err
	}
	if st.live {
		return nil
	}
	// A table that was dropped and made again holds nothing of what its markers
	// say; the queries find another identity.
	if _, err := conn.Exec(ctx, "DELETE FROM "+s.own("weir_markers")+" WHERE table_name = $1", s.table); err != nil {
		return err
	}
	st.identity = uuid.NewString()
	clear(st.markers)
	clear(st.version)
	_, err := conn.Exec(ctx, "INSERT INTO "+s.own("weir_tables")+` (table_name, identity, table_oid) VALUES ($1, $2, $3)
		ON CONFLICT (table_name) DO UPDATE SET identity = excluded.identity, table_oid = excluded.table_oid`, s.table, st.identity, st.oid)
	return err
}

func (s *Sink) createTarget() string {
	var defs []string
	for _, c := range s.cols {
		d := quote(c.name) + " " + c.natural
		if !c.nullable {
			d += " NOT NULL"
		}
		defs = append(defs, d)
	}
	if s.opts.Upsert {
		defs = append(defs, "PRIMARY KEY ("+quoted(s.opts.Keys)+")")
	}
	return "CREATE TABLE " + s.target() + " (" + strings.Join(defs, ", ") + ")"
}

// found is a column of the target as the catalog has it.
type found struct {
	typ       string
	needed    bool // NOT NULL without a default
	generated bool
}

// checkTarget compares the target with the rows, and decides how they are loaded.
func (s *Sink) checkTarget(ctx context.Context, conn *pgx.Conn, oid uint32) error {
	have, err := s.readColumns(ctx, conn, oid)
	if err != nil {
		return err
	}
	var faults []string
	plan := loadPlan{direct: !s.opts.Upsert, casts: make([]string, len(s.cols))}
	for i, c := range s.cols {
		f, ok := have[c.name]
		delete(have, c.name)
		switch {
		case !ok:
			faults = append(faults, fmt.Sprintf("column %q (%s) is missing", c.name, c.natural))
			continue
		case f.generated:
			faults = append(faults, fmt.Sprintf("column %q is generated by the database and cannot be written", c.name))
			continue
		case !slices.Contains(c.same, baseType(f.typ)):
			if c.natural != "text" && !castable(c.natural, baseType(f.typ)) {
				faults = append(faults, fmt.Sprintf("column %q is %s, the rows have %s", c.name, f.typ, c.natural))
				continue
			}
			plan.direct = false
		case roundsNumeric(c.typ, f.typ):
			faults = append(faults, fmt.Sprintf("column %q is %s, which would round the %s of the rows", c.name, f.typ, c.natural))
			continue
		}
		plan.casts[i] = f.typ
	}
	for name, f := range have {
		if f.needed {
			faults = append(faults, fmt.Sprintf("column %q is NOT NULL without a default, and the rows do not have it", name))
		}
	}
	if len(faults) > 0 {
		slices.Sort(faults)
		return failure.New(failure.SchemaConflict, "%s does not fit the query: %s", s.who(), strings.Join(faults, "; ")).
			WithHint("alter the table, or the query's columns; a table that is missing is made")
	}
	if s.opts.Upsert {
		if err := s.checkUnique(ctx, conn, oid); err != nil {
			return err
		}
	}
	s.plan = plan
	return nil
}

func (s *Sink) readColumns(ctx context.Context, conn *pgx.Conn, oid uint32) (map[string]found, error) {
	rows, err := conn.Query(ctx, `SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a'
		FROM pg_attribute a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped`, oid)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]found{}
	for rows.Next() {
		var name string
		var f found
		if err := rows.Scan(&name, &f.typ, &f.needed, &f.generated); err != nil {
			return nil, err
		}
		out[name] = f
	}
	return out, rows.Err()
}

// roundsNumeric reports whether a numeric column of the target has less room than a
// decimal of the rows, before or behind the point: Postgres rounds to its scale
// without a word.
func roundsNumeric(t arrow.DataType, target string) bool {
	d, ok := t.(*arrow.Decimal128Type)
	var precision, scale int32
	if n, err := fmt.Sscanf(target, "numeric(%d,%d)", &precision, &scale); !ok || err != nil || n != 2 {
		return false // numeric alone takes every digit
	}
	return scale < d.Scale || precision-scale < d.Precision-d.Scale
}

// baseType is a type's short name without its modifiers.
func baseType(t string) string {
	if strings.HasPrefix(t, "timestamp") {
		if t == "timestamptz" || strings.HasSuffix(t, " with time zone") {
			return "timestamptz"
		}
		return "timestamp"
	}
	t, _, _ = strings.Cut(t, "(")
	switch t = strings.TrimSpace(t); t {
	case "character varying":
		return "varchar"
	case "character":
		return "bpchar"
	case "integer":
		return "int4"
	case "bigint":
		return "int8"
	case "smallint":
		return "int2"
	case "double precision":
		return "float8"
	case "real":
		return "float4"
	case "boolean":
		return "bool"
	}
	return t
}

// castable reports whether the database can turn the one into the other without
// losing anything in silence: a value that does not fit is refused. Text can
// become anything.
func castable(natural, target string) bool {
	return slices.Contains(map[string][]string{
		"integer":          {"int2", "int4", "int8", "numeric", "float8", "text", "varchar"},
		"bigint":           {"int2", "int4", "int8", "numeric", "text", "varchar"},
		"real":             {"float4", "float8"},
		"double precision": {"float8", "numeric"},
		"boolean":          {"bool", "text"},
		"bytea":            {"bytea"},
		"jsonb":            {"json", "jsonb", "text"},
	}[natural], target)
}

// checkUnique: ON CONFLICT needs a unique index on exactly the keys.
func (s *Sink) checkUnique(ctx context.Context, conn *pgx.Conn, oid uint32) error {
	rows, err := conn.Query(ctx, `SELECT array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[]))
		FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
		AND i.indnkeyatts = i.indnatts`, oid)
	if err != nil {
		return err
	}
	defer rows.Close()
	want := slices.Sorted(slices.Values(s.opts.Keys))
	for rows.Next() {
		var cols []string
		if err := rows.Scan(&cols); err != nil {
			return err
		}
		slices.Sort(cols)
		if slices.Equal(cols, want) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return failure.New(failure.SchemaConflict, "%s has no unique index on (%s), which an upsert by these keys needs", s.who(), strings.Join(s.opts.Keys, ", ")).
		WithHint("CREATE UNIQUE INDEX ON %s (%s)", s.target(), quoted(s.opts.Keys))
}
