package gold

import (
	"context"
	"fmt"
	"strings"

	"github.com/apache/iceberg-go"

	"github.com/weirlake/weir/internal/duck"
	"github.com/weirlake/weir/internal/failure"
)

// newSuffix makes the schema of the rows that an incremental model adds.
const newSuffix = "@new"

// makeIncremental runs the incremental text of a model and lays the result over
// its table: rows with a key of the new ones give way. It reports false where
// the columns are not the table's.
func (r *run) makeIncremental(ctx context.Context, j *job) (bool, error) {
	this, add := duck.Relation(r.g.Schema+incrementalSuffix, j.m.Name), duck.Relation(r.g.Schema+newSuffix, j.m.Name)
	if _, err := r.session.Mount(ctx, r.g.Schema+incrementalSuffix, j.m.Name, duck.Head(j.target.table)); err != nil {
		return false, err
	}
	if err := r.session.Exec(ctx, "CREATE OR REPLACE TABLE "+add+" AS "+j.m.delta); err != nil {
		return false, err
	}
	_, same, err := r.columns(ctx, "FROM "+add, j.target.table.Schema())
	if err != nil || !same {
		return false, err
	}
	kept := "FROM " + this
	if len(j.m.Config.UniqueKey) > 0 {
		kept += " AS t WHERE NOT " + j.m.matches(add)
	}
	j.result.Mode = "incremental"
	return true, r.session.Exec(ctx, "CREATE OR REPLACE VIEW "+duck.Relation(r.g.Schema, j.m.Name)+" AS "+kept+" UNION ALL BY NAME FROM "+add)
}

// matches is the condition that a row t has the key of one of the new rows. Keys
// with a null match nothing, as in dbt.
func (m *Model) matches(added string) string {
	conds := make([]string, len(m.Config.UniqueKey))
	for i, k := range m.Config.UniqueKey {
		conds[i] = "n." + duck.Ident(k) + " = t." + duck.Ident(k)
	}
	return "EXISTS (SELECT 1 FROM " + added + " AS n WHERE " + strings.Join(conds, " AND ") + ")"
}

// replaced says which files of the table hold rows that give way, and what
// stands in for all of them: the rest of their rows, and the new rows.
func (r *run) replaced(ctx context.Context, j *job, base duck.Pin) (remove []iceberg.DataFile, rows string, err error) {
	add := duck.Relation(r.g.Schema+newSuffix, j.m.Name)
	if len(j.m.Config.UniqueKey) == 0 {
		return nil, "FROM " + add, nil
	}
	this, mounted, err := r.session.ScanFiles(ctx, base, base.Table.Schema())
	if err != nil {
		return nil, "", err
	}
	if mounted.Copied && len(mounted.Files) == 0 {
		return nil, "", failure.New(failure.Runtime, "table %s has deletes that its record does not know", j.result.Table)
	}
	files, err := r.strings(ctx, "SELECT DISTINCT "+duck.FileColumn+" FROM ("+this+") AS t WHERE "+j.m.matches(add))
	if err != nil {
		return nil, "", err
	}
	if len(files) == 0 {
		return nil, "FROM " + add, nil
	}
	quoted := make([]string, len(files))
	for i, f := range files {
		df, ok := mounted.Files[f]
		if !ok {
			return nil, "", fmt.Errorf("file %s is not one of table %s", f, j.result.Table)
		}
		remove = append(remove, df)
		quoted[i] = duck.Quote(f)
	}
	//nolint:unqueryvet // all columns but the one that was added here
	return remove, "SELECT * EXCLUDE (" + duck.FileColumn + ") FROM (" + this + ") AS t WHERE " + duck.FileColumn + " IN (" + strings.Join(quoted, ", ") +
		") AND NOT " + j.m.matches(add) + " UNION ALL BY NAME FROM " + add, nil
}

// strings are the values of a query's first column.
func (r *run) strings(ctx context.Context, query string) ([]string, error) {
	rows, err := r.session.DB.QueryContext(ctx, query)
	if err != nil {
		return nil, duck.Classified(ctx, err)
	}
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, duck.Classified(ctx, err)
		}
		out = append(out, s)
	}
	return out, duck.Classified(ctx, rows.Err())
}
