package duck

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/lake"
)

// Pin is a table at one snapshot. Snapshot 0 is the table without rows.
type Pin struct {
	Table    *table.Table
	Snapshot int64
}

// Head pins the table as it was loaded.
func Head(t *table.Table) Pin { return Pin{Table: t, Snapshot: lake.HeadOf(t).ID} }

// Schema is the schema that the pinned rows are read with: the current one at
// the head, so that a column that was just added is there, and that of its time
// for an older snapshot.
func (p Pin) Schema() *iceberg.Schema {
	if p.Snapshot == lake.HeadOf(p.Table).ID {
		return p.Table.Schema()
	}
	if snap := p.Table.SnapshotByID(p.Snapshot); snap != nil && snap.SchemaID != nil {
		if sc, ok := p.Table.Schemas()[*snap.SchemaID]; ok {
			return sc
		}
	}
	return p.Table.Schema()
}

// Mounted says what a view was made from.
type Mounted struct {
	// Files are the locations of the data files at the pinned snapshot, by the
	// local path that DuckDB knows a file by (its filename column).
	Files map[string]iceberg.DataFile
	// Copied is set where some rows are not read from the table's own files.
	Copied bool
}

// Mount makes schema.name a view of the pinned rows.
func (s *Session) Mount(ctx context.Context, schema, name string, p Pin) (Mounted, error) {
	sc := p.Schema()
	query, m, err := s.Scan(ctx, p, sc)
	if err != nil {
		return m, fmt.Errorf("table %s: %w", lake.Name(p.Table.Identifier()), err)
	}
	if err := s.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+Ident(schema)); err != nil {
		return m, err
	}
	return m, s.Exec(ctx, "CREATE OR REPLACE VIEW "+Relation(schema, name)+" AS "+query)
}

// FileColumn is the column of ScanFiles that names the file of a row.
const FileColumn = "weir_file"

// ScanFiles is Scan with the column FileColumn, for a table whose rows all come
// from its own data files (Mounted.Copied says if not).
func (s *Session) ScanFiles(ctx context.Context, p Pin, sc *iceberg.Schema) (string, Mounted, error) {
	q, m, err := s.Scan(ctx, p, sc)
	if err != nil || len(m.Files) == 0 {
		//nolint:unqueryvet // all columns of the schema, and one more
		return "SELECT *, '' AS " + FileColumn + " FROM (" + q + ")", m, err
	}
	return strings.Replace(q, fileOption, "filename = "+Quote(FileColumn)+", "+fileOption, 1), m, nil
}

// Scan is a SELECT of the pinned rows, read with the given schema.
func (s *Session) Scan(ctx context.Context, p Pin, sc *iceberg.Schema) (string, Mounted, error) {
	m := Mounted{Files: map[string]iceberg.DataFile{}}
	if p.Snapshot == 0 {
		q, err := Empty(sc)
		return q, m, err
	}
	if p.Table.SnapshotByID(p.Snapshot) == nil {
		return "", m, fmt.Errorf("snapshot %d is not in the table (any more)", p.Snapshot)
	}
	scan := p.Table.Scan(table.WithSnapshotID(p.Snapshot))
	defer scan.Close()
	tasks, err := scan.PlanFiles(ctx)
	if err != nil {
		return "", m, fmt.Errorf("plan the files of snapshot %d: %w", p.Snapshot, err)
	}
	var paths []string
	var deleted []table.FileScanTask
	for _, t := range tasks {
		if len(t.DeleteFiles)+len(t.EqualityDeleteFiles)+len(t.DeletionVectorFiles) > 0 {
			deleted = append(deleted, t)
			continue
		}
		local, err := s.local(ctx, p.Table, t.File.FilePath())
		if err != nil {
			return "", m, err
		}
		m.Copied = m.Copied || strings.HasPrefix(local, s.folder)
		// Large files are planned in parts; each is read whole, once.
		if _, ok := m.Files[local]; !ok {
			m.Files[local] = t.File
			paths = append(paths, local)
		}
	}
	var parts []string
	if len(paths) > 0 {
		slices.Sort(paths)
		q, err := readParquet(paths, sc)
		if err != nil {
			return "", m, err
		}
		parts = append(parts, q)
	}
	if len(deleted) > 0 {
		m.Copied = true
		q, err := s.withDeletes(ctx, scan, deleted, sc)
		if err != nil {
			return "", m, err
		}
		parts = append(parts, q...)
	}
	if len(parts) == 0 {
		q, err := Empty(sc)
		return q, m, err
	}
	return strings.Join(parts, " UNION ALL "), m, nil
}

const fileOption = "hive_partitioning = false"

// readParquet reads files by the field ids of the schema. The folders' names are
// not columns: Iceberg keeps a partition's values in the files.
func readParquet(paths []string, sc *iceberg.Schema) (string, error) {
	files := make([]string, len(paths))
	for i, p := range paths {
		files[i] = Quote(p)
	}
	fields := make([]string, 0, sc.NumFields())
	for _, f := range sc.Fields() {
		t, err := TypeOf(f.Type)
		if err != nil {
			return "", fmt.Errorf("column %s: %w", f.Name, err)
		}
		fields = append(fields, fmt.Sprintf("%d: {name: %s, type: %s, default_value: NULL}", f.ID, Quote(f.Name), Quote(t)))
	}
	//nolint:unqueryvet // the schema names the columns
	return fmt.Sprintf("SELECT * FROM read_parquet([%s], schema = MAP {%s}, "+fileOption+")",
		strings.Join(files, ", "), strings.Join(fields, ", ")), nil
}

// Empty is a SELECT of no rows with the schema's columns.
func Empty(sc *iceberg.Schema) (string, error) {
	cols := make([]string, 0, sc.NumFields())
	for _, f := range sc.Fields() {
		t, err := TypeOf(f.Type)
		if err != nil {
			return "", fmt.Errorf("column %s: %w", f.Name, err)
		}
		cols = append(cols, "CAST(NULL AS "+t+") AS "+Ident(f.Name))
	}
	return "SELECT " + strings.Join(cols, ", ") + " WHERE false", nil
}

// local is the path of a data file on this machine: where it is, or a copy.
func (s *Session) local(ctx context.Context, t *table.Table, location string) (string, error) {
	if p, err := lake.LocalPath(location); err == nil {
		return p, nil
	}
	fio, err := t.FS(ctx)
	if err != nil {
		return "", err
	}
	in, err := fio.Open(location)
	if err != nil {
		return "", fmt.Errorf("open data file %s: %w", location, err)
	}
	defer in.Close()
	s.files++
	path := filepath.Join(s.folder, fmt.Sprintf("fetched-%06d.parquet", s.files))
	out, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(out, in); err != nil {
		return "", errors.Join(fmt.Errorf("fetch data file %s: %w", location, err), out.Close())
	}
	return path, out.Close()
}

// withDeletes lets the Iceberg library read the files to which deletes apply,
// and keeps what is left of them in the session's folder.
func (s *Session) withDeletes(ctx context.Context, scan *table.Scan, tasks []table.FileScanTask, sc *iceberg.Schema) (parts []string, err error) {
	have, records, err := scan.ReadTasks(ctx, tasks)
	if err != nil {
		return nil, fmt.Errorf("read files with deletes: %w", err)
	}
	s.files++
	path := filepath.Join(s.folder, fmt.Sprintf("deleted-%06d.parquet", s.files))
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	var w *pqarrow.FileWriter
	for rec, err := range records {
		if err == nil && w == nil {
			w, err = pqarrow.NewFileWriter(rec.Schema(), f, nil, pqarrow.DefaultWriterProps())
			have = rec.Schema()
		}
		if err == nil {
			err = w.Write(rec)
		}
		if rec != nil {
			rec.Release()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("read files with deletes: %w", err), f.Close())
		}
	}
	if w == nil { // every row is deleted
		return nil, f.Close()
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	cols, err := namedColumns(have, sc)
	return []string{"SELECT " + cols + " FROM read_parquet(" + Quote(path) + ")"}, err
}

// namedColumns are the schema's columns out of a file that has them by name.
func namedColumns(have *arrow.Schema, sc *iceberg.Schema) (string, error) {
	cols := make([]string, 0, sc.NumFields())
	for _, f := range sc.Fields() {
		t, err := TypeOf(f.Type)
		if err != nil {
			return "", fmt.Errorf("column %s: %w", f.Name, err)
		}
		from := Ident(f.Name)
		if len(have.FieldIndices(f.Name)) == 0 {
			from = "NULL"
		}
		cols = append(cols, "CAST("+from+" AS "+t+") AS "+Ident(f.Name))
	}
	return strings.Join(cols, ", "), nil
}
