package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink/external"
)

// rowColumn is the staging table's column of the row's place in the batch.
const rowColumn = "weir#row"

// deletedColumn is the staging table's column of what the row says of its key.
const deletedColumn = "weir#deleted"

// stagingTable is a temporary table of our session.
const stagingTable = "pg_temp.weir_staging"

// loadPlan is how rows get into the target.
type loadPlan struct {
	// direct: COPY into the target itself. Otherwise into the staging table, and
	// from there by INSERT.
	direct bool
	// casts are the target's types, by column.
	casts []string
}

// makeStaging makes the staging table, once a session.
func (s *Sink) makeStaging(ctx context.Context, conn *pgx.Conn) error {
	var defs []string
	for _, c := range s.cols {
		defs = append(defs, quote(c.name)+" "+c.natural)
	}
	defs = append(defs, quote(rowColumn)+" bigint")
	if s.deleteAt >= 0 {
		defs = append(defs, quote(deletedColumn)+" boolean")
	}
	_, err := conn.Exec(ctx, "CREATE TEMPORARY TABLE IF NOT EXISTS weir_staging ("+strings.Join(defs, ", ")+") ON COMMIT DELETE ROWS")
	if err != nil {
		return fmt.Errorf("make the staging table: %w", err)
	}
	return nil
}

// load puts the batch's rows into the target, within the open transaction, and
// tells r of those that are refused.
func (s *Sink) load(ctx context.Context, conn *pgx.Conn, m *marker.Marker, rows *external.Rows, r *external.Rejections) error {
	if rows.Rows == 0 {
		return nil
	}
	l := &loading{s: s, conn: conn, m: m, rows: rows, r: r, out: make([]bool, rows.Rows)}
	for _, d := range r.Decided {
		if d.Row < 0 || d.Row >= rows.Rows {
			return fmt.Errorf("row %d of batch %d was rejected, the batch has %d", d.Row, m.BatchID, rows.Rows)
		}
		l.out[d.Row] = true
	}
	if err := l.look(); err != nil {
		return err
	}
	if s.deleteAt < 0 {
		return l.span(ctx, 0, rows.Rows)
	}
	return l.whole(ctx)
}

// loading is the load of one batch.
type loading struct {
	s    *Sink
	conn *pgx.Conn
	m    *marker.Marker
	rows *external.Rows
	r    *external.Rejections
	out  []bool // by row: left out
}

func (l *loading) refuse(row int64, reason, detail string) error {
	if err := l.r.Add(l.m, row, reason, detail); err != nil {
		return err
	}
	l.out[row] = true
	return nil
}

// look refuses what is certain to be refused, before anything is sent: a NUL
// character or bytes that are not UTF-8 in text, a key without a value.
func (l *loading) look() error {
	var base int64
	for _, rec := range l.rows.Records {
		for _, c := range l.s.cols {
			if err := l.lookAt(base, c, rec); err != nil {
				return err
			}
		}
		base += rec.NumRows()
	}
	return nil
}

func (l *loading) lookAt(base int64, c column, rec arrow.RecordBatch) error {
	a, key := rec.Column(c.index), contains(l.s.opts.Keys, c.name)
	text, isText := a.(*array.String)
	if !isText && !key {
		return nil
	}
	for i := range a.Len() {
		row := base + int64(i)
		var err error
		switch {
		case l.out[row]:
		case l.s.deletes(rec, i) && !l.s.identifies(c): // is not written
		case a.IsNull(i):
			if key {
				err = l.refuse(row, "23502", fmt.Sprintf("key column %q is null", c.name))
			}
		case !isText:
		case strings.IndexByte(text.Value(i), 0) >= 0:
			err = l.refuse(row, "22021", fmt.Sprintf("column %q: text with a NUL character", c.name))
		case !utf8.ValidString(text.Value(i)):
			err = l.refuse(row, "22021", fmt.Sprintf("column %q: text that is not UTF-8", c.name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// whole loads all rows at once, without those that are refused: in parts, as span
// does, a row would come back that is older than its delete in an earlier part.
func (l *loading) whole(ctx context.Context) error {
	for {
		left := l.left(0, l.rows.Rows)
		if left == 0 {
			return nil
		}
		if _, err := l.conn.Exec(ctx, "SAVEPOINT weir_whole"); err != nil {
			return err
		}
		refused := l.send(ctx, 0, l.rows.Rows)
		if refused == nil {
			_, err := l.conn.Exec(ctx, "RELEASE SAVEPOINT weir_whole")
			return err
		}
		if !refuses(refused) {
			return refused
		}
		if _, err := l.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT weir_whole"); err != nil {
			return err
		}
		// Only to find them.
		if err := l.span(ctx, 0, l.rows.Rows); err != nil {
			return err
		}
		if l.left(0, l.rows.Rows) == left {
			return refused // together, and no row by itself
		}
		if _, err := l.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT weir_whole; RELEASE SAVEPOINT weir_whole"); err != nil {
			return err
		}
	}
}

// deletes reports whether a row deletes its key.
func (s *Sink) deletes(rec arrow.RecordBatch, i int) bool {
	if s.deleteAt < 0 {
		return false
	}
	d, ok := rec.Column(s.deleteAt).(*array.Boolean)
	return ok && d.IsValid(i) && d.Value(i)
}

// identifies reports whether a delete needs the column.
func (s *Sink) identifies(c column) bool {
	return contains(s.opts.Keys, c.name) || contains(s.opts.OrderBy, c.name)
}

// span loads the rows [from, to). Where the database refuses them, each half is
// tried by itself, down to the row that is at fault.
func (l *loading) span(ctx context.Context, from, to int64) error {
	left := l.left(from, to)
	if left == 0 {
		return nil
	}
	if _, err := l.conn.Exec(ctx, "SAVEPOINT weir"); err != nil {
		return err
	}
	err := l.send(ctx, from, to)
	if err == nil {
		_, err = l.conn.Exec(ctx, "RELEASE SAVEPOINT weir")
		return err
	}
	if !refuses(err) {
		return err
	}
	if _, err := l.conn.Exec(ctx, "ROLLBACK TO SAVEPOINT weir; RELEASE SAVEPOINT weir"); err != nil {
		return err
	}
	if left == 1 {
		for row := from; row < to; row++ {
			if !l.out[row] {
				return l.refuse(row, codeOf(err), textOf(err))
			}
		}
	}
	mid := l.middle(from, to, left/2)
	if err := l.span(ctx, from, mid); err != nil {
		return err
	}
	return l.span(ctx, mid, to)
}

func (l *loading) left(from, to int64) (n int64) {
	for row := from; row < to; row++ {
		if !l.out[row] {
			n++
		}
	}
	return n
}

// middle is the row before which n rows are left.
func (l *loading) middle(from, to, n int64) int64 {
	for row := from; row < to; row++ {
		if n == 0 {
			return row
		}
		if !l.out[row] {
			n--
		}
	}
	return to
}

// textOf is what the server says of a refused row.
func textOf(err error) string {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err.Error()
	}
	parts := []string{pg.Message}
	for _, p := range []string{pg.Detail, pg.ColumnName, pg.ConstraintName} {
		if p != "" && !strings.Contains(strings.Join(parts, " "), p) {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, "; ")
}

// send loads [from, to) in one COPY, and one INSERT where that is needed.
func (l *loading) send(ctx context.Context, from, to int64) error {
	s := l.s
	into, columns := s.target(), quoted(s.names())
	if !s.plan.direct {
		into, columns = stagingTable, columns+", "+quote(rowColumn)
	}
	if s.deleteAt >= 0 {
		columns += ", " + quote(deletedColumn)
	}
	s.copies++
	src := &copyReader{l: l, from: from, to: to, number: !s.plan.direct}
	tag, err := l.conn.PgConn().CopyFrom(ctx, src, "COPY "+into+" ("+columns+") FROM STDIN (FORMAT binary)")
	if src.err != nil {
		return src.err
	}
	if err != nil {
		return err
	}
	if want := l.left(from, to); tag.RowsAffected() != want {
		return fmt.Errorf("COPY took %d of %d rows", tag.RowsAffected(), want)
	}
	if s.plan.direct {
		return nil
	}
	if s.deleteAt >= 0 {
		if _, err := l.conn.Exec(ctx, s.deleteSQL()); err != nil {
			return err
		}
	}
	if _, err := l.conn.Exec(ctx, s.insertSQL()); err != nil {
		return err
	}
	_, err = l.conn.Exec(ctx, "DELETE FROM "+stagingTable)
	return err
}

// insertSQL moves the staging table's rows into the target. Values get the type
// of their column without its length: an explicit cast to varchar(10) would cut
// in silence what the assignment refuses.
func (s *Sink) insertSQL() string {
	var b bytes.Buffer
	names := quoted(s.names())
	fmt.Fprintf(&b, "INSERT INTO %s AS t (%s) SELECT %s FROM ", s.target(), names, names)
	if !s.opts.Upsert {
		fmt.Fprintf(&b, "%s ORDER BY %s", s.staged(), quote(rowColumn))
		return b.String()
	}
	b.WriteString(s.lastOfEachKey())
	if s.deleteAt >= 0 {
		fmt.Fprintf(&b, " WHERE NOT %s", quote(deletedColumn))
	}
	fmt.Fprintf(&b, " ON CONFLICT (%s) DO ", quoted(s.opts.Keys))
	var sets []string
	for _, c := range s.cols {
		if !contains(s.opts.Keys, c.name) {
			sets = append(sets, quote(c.name)+" = excluded."+quote(c.name))
		}
	}
	if len(sets) == 0 {
		b.WriteString("NOTHING")
		return b.String()
	}
	b.WriteString("UPDATE SET " + strings.Join(sets, ", "))
	if len(s.opts.OrderBy) > 0 {
		b.WriteString(" WHERE NOT coalesce(" + newer(s.opts.OrderBy, "excluded") + ", false)")
	}
	return b.String()
}

// deleteSQL deletes the keys whose last row says so, unless the table has a newer
// one.
func (s *Sink) deleteSQL() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "DELETE FROM %s AS t USING %s WHERE s.%s", s.target(), s.lastOfEachKey(), quote(deletedColumn))
	for _, k := range s.opts.Keys {
		fmt.Fprintf(&b, " AND t.%s = s.%s", quote(k), quote(k))
	}
	if len(s.opts.OrderBy) > 0 {
		b.WriteString(" AND NOT coalesce(" + newer(s.opts.OrderBy, "s") + ", false)")
	}
	return b.String()
}

// staged is the staging table, its values in the types of the target.
func (s *Sink) staged() string {
	var columns []string
	for i, c := range s.cols {
		columns = append(columns, quote(c.name)+"::"+withoutLength(s.plan.casts[i])+" AS "+quote(c.name))
	}
	columns = append(columns, quote(rowColumn))
	if s.deleteAt >= 0 {
		columns = append(columns, quote(deletedColumn))
	}
	return "(SELECT " + strings.Join(columns, ", ") + " FROM " + stagingTable + ") s"
}

// lastOfEachKey is the staging table with one row for each key.
func (s *Sink) lastOfEachKey() string {
	order := []string{quoted(s.opts.Keys)}
	for _, o := range s.opts.OrderBy {
		order = append(order, quote(o)+" DESC NULLS LAST")
	}
	return fmt.Sprintf("(SELECT DISTINCT ON (%s) * FROM %s ORDER BY %s, %s DESC) s", quoted(s.opts.Keys), s.staged(), strings.Join(order, ", "), quote(rowColumn))
}

// newer is the condition that the table's row comes after the one to be written,
// which is called by the name: greater by the first column that tells them apart; a
// null comes first.
func newer(order []string, written string) string {
	t, e := "t."+quote(order[0]), written+"."+quote(order[0])
	greater := fmt.Sprintf("coalesce(%s > %s, %s IS NOT NULL AND %s IS NULL)", t, e, t, e)
	if len(order) == 1 {
		return greater
	}
	return fmt.Sprintf("(%s OR (%s IS NOT DISTINCT FROM %s AND %s))", greater, t, e, newer(order[1:], written))
}

func withoutLength(t string) string {
	open, end := strings.Index(t, "("), strings.LastIndex(t, ")")
	if open < 0 || end < open {
		return t
	}
	return strings.TrimSpace(t[:open]) + t[end+1:]
}
