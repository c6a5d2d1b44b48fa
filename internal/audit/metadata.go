package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/twmb/avro/ocf"
)

// metadata is the part of an Iceberg table metadata file that an audit needs.
type metadata struct {
	FormatVersion     int               `json:"format-version"`
	TableUUID         string            `json:"table-uuid"`
	Location          string            `json:"location"`
	LastSequence      int64             `json:"last-sequence-number"`
	LastUpdatedMillis int64             `json:"last-updated-ms"`
	Properties        map[string]string `json:"properties"`
	CurrentSchemaID   int               `json:"current-schema-id"`
	Schemas           []tableSchema     `json:"schemas"`
	Schema            *tableSchema      `json:"schema"` // format version 1
	CurrentSnapshotID *int64            `json:"current-snapshot-id"`
	Snapshots         []snapshot        `json:"snapshots"`

	path string
	// delta is set where this stands for a version of a Delta table; faults are
	// what its log contradicts itself in.
	delta  bool
	faults []string
}

type tableSchema struct {
	SchemaID int           `json:"schema-id"`
	Fields   []schemaField `json:"fields"`
}

type schemaField struct {
	ID   int             `json:"id"`
	Name string          `json:"name"`
	Type json.RawMessage `json:"type"` // a string, or an object for nested types
}

type snapshot struct {
	ID           int64             `json:"snapshot-id"`
	ParentID     *int64            `json:"parent-snapshot-id"`
	Sequence     int64             `json:"sequence-number"`
	Timestamp    int64             `json:"timestamp-ms"`
	Summary      map[string]string `json:"summary"`
	ManifestList string            `json:"manifest-list"`
	Manifests    []string          `json:"manifests"` // format version 1 without a list

	// files are those of a Delta table's version, where it was read; deletes is
	// set where one of them has row-level deletes.
	files   []*dataFile
	deletes *deleteFileError
}

// readMetadata reads one metadata file, gzip-compressed or not.
func readMetadata(ctx context.Context, store Store, location string) (*metadata, error) {
	if strings.HasPrefix(location, deltaScheme) {
		return readDelta(ctx, store, location)
	}
	raw, err := readAll(ctx, store, location)
	if err != nil {
		return nil, fmt.Errorf("read table metadata %s: %w", location, err)
	}
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		zr, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return nil, fmt.Errorf("read table metadata %s: %w", location, err)
		}
		if raw, err = io.ReadAll(io.LimitReader(zr, maxMetadataBytes)); err != nil {
			return nil, fmt.Errorf("read table metadata %s: %w", location, err)
		}
	}
	m := &metadata{path: location}
	if err := json.Unmarshal(raw, m); err != nil {
		return nil, fmt.Errorf("table metadata %s is not readable: %w", location, err)
	}
	if m.FormatVersion < 1 || m.FormatVersion > 3 {
		return nil, fmt.Errorf("table metadata %s has format version %d; this audit knows 1 to 3", location, m.FormatVersion)
	}
	return m, nil
}

// current is the current snapshot, nil on an empty table.
func (m *metadata) current() *snapshot {
	if m.CurrentSnapshotID == nil || *m.CurrentSnapshotID < 0 {
		return nil
	}
	return m.snapshot(*m.CurrentSnapshotID)
}

func (m *metadata) snapshot(id int64) *snapshot {
	for i := range m.Snapshots {
		if m.Snapshots[i].ID == id {
			return &m.Snapshots[i]
		}
	}
	return nil
}

// descends reports whether the current snapshot of m has id among its
// ancestors (or is it). A chain that was cut by expiry answers false.
func (m *metadata) descends(id int64) bool {
	if m.delta {
		return m.CurrentSnapshotID != nil && *m.CurrentSnapshotID >= id // a log has one line of versions
	}
	for s, hops := m.current(), 0; s != nil && hops <= len(m.Snapshots); hops++ {
		if s.ID == id {
			return true
		}
		if s.ParentID == nil {
			return false
		}
		s = m.snapshot(*s.ParentID)
	}
	return false
}

// field finds a column of the current schema by its path, "a" or "a.b".
func (m *metadata) field(name string) (schemaField, bool) {
	fields := m.fields()
	parts := strings.Split(name, ".")
	for i, part := range parts {
		var found *schemaField
		for j := range fields {
			if fields[j].Name == part {
				found = &fields[j]
			}
		}
		if found == nil {
			return schemaField{}, false
		}
		if i == len(parts)-1 {
			return *found, true
		}
		var nested struct {
			Fields []schemaField `json:"fields"`
		}
		if json.Unmarshal(found.Type, &nested) != nil {
			return schemaField{}, false
		}
		fields = nested.Fields
	}
	return schemaField{}, false
}

func (m *metadata) fields() []schemaField {
	for _, s := range m.Schemas {
		if s.SchemaID == m.CurrentSchemaID {
			return s.Fields
		}
	}
	if m.Schema != nil {
		return m.Schema.Fields
	}
	return nil
}

// dataFile is one live data file.
type dataFile struct {
	Path   string
	Format string
	// Rows is what the table says that the file has, -1 where it does not say.
	Rows int64
	// Listed is how often the live manifests name the file: 1 where all is well.
	Listed int
	// Partition are values that stand beside the file and not in it (Delta).
	Partition map[string]*string
}

// liveFiles follows the snapshot's manifests. Files are in the order of the
// manifests; a file that is listed twice is there once, with Listed 2.
func liveFiles(ctx context.Context, store Store, s *snapshot) ([]*dataFile, error) {
	if s == nil {
		return nil, nil
	}
	switch {
	case s.deletes != nil:
		return nil, s.deletes
	case s.files != nil:
		return s.files, nil
	}
	manifests, err := manifestPaths(ctx, store, s)
	if err != nil {
		return nil, err
	}
	var out []*dataFile
	byPath := map[string]*dataFile{}
	for _, manifest := range manifests {
		err := readAvro(ctx, store, manifest, func(rec map[string]any) error {
			return addEntry(rec, manifest, byPath, &out)
		})
		if err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", manifest, err)
		}
	}
	return out, nil
}

// Status of a manifest entry; deleted entries are not live.
const entryDeleted = 2

func addEntry(rec map[string]any, manifest string, byPath map[string]*dataFile, out *[]*dataFile) error {
	status, ok := asInt(rec["status"])
	if !ok {
		return fmt.Errorf("an entry has no status")
	}
	if status == entryDeleted {
		return nil
	}
	df, ok := rec["data_file"].(map[string]any)
	if !ok {
		return fmt.Errorf("an entry has no data_file")
	}
	location, _ := df["file_path"].(string)
	if location == "" {
		return fmt.Errorf("an entry has no file_path")
	}
	if content, _ := asInt(df["content"]); content != 0 {
		return &deleteFileError{manifest: manifest, file: location}
	}
	rows, _ := asInt(df["record_count"])
	format, _ := df["file_format"].(string)
	if f := byPath[location]; f != nil {
		f.Listed++
		return nil
	}
	f := &dataFile{Path: location, Format: strings.ToUpper(format), Rows: rows, Listed: 1}
	byPath[location] = f
	*out = append(*out, f)
	return nil
}

// deleteFileError says that a table has row-level deletes, which this audit
// does not apply: its count would be wrong, so it gives none.
type deleteFileError struct{ manifest, file string }

func (e *deleteFileError) Error() string {
	return fmt.Sprintf("the table has row-level deletes (%s), which the audit does not apply", path.Base(e.file))
}

func manifestPaths(ctx context.Context, store Store, s *snapshot) ([]string, error) {
	if s.ManifestList == "" {
		return s.Manifests, nil
	}
	var out []string
	err := readAvro(ctx, store, s.ManifestList, func(rec map[string]any) error {
		p, _ := rec["manifest_path"].(string)
		if p == "" {
			return fmt.Errorf("an entry has no manifest_path")
		}
		out = append(out, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifest list %s: %w", s.ManifestList, err)
	}
	return out, nil
}

// readAvro calls f for every record of an Avro file.
func readAvro(ctx context.Context, store Store, location string, f func(map[string]any) error) error {
	raw, err := readAll(ctx, store, location)
	if err != nil {
		return err
	}
	r, err := ocf.NewReader(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		var rec map[string]any
		if err := r.Decode(&rec); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := f(rec); err != nil {
			return err
		}
	}
}

func asInt(v any) (int64, bool) {
	switch n := v.(type) {
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case int:
		return int64(n), true
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	case string:
		i, err := strconv.ParseInt(n, 10, 64)
		return i, err == nil
	}
	return 0, false
}
