package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// A Delta table is read here by a second, plain implementation of its log: the
// newest checkpoint that _last_checkpoint names, then every commit after it. It
// becomes the same pseudo metadata that an Iceberg table has: a version stands
// for a snapshot.

const (
	deltaScheme = "delta:"
	deltaLog    = "/_delta_log/"
	// deltaVersionsMax bounds the commits that are read one by one.
	deltaVersionsMax = 1_000_000
	// deltaHistory is how many commits below a checkpoint are looked at for what
	// their writer said of them.
	deltaHistory = 500
	maxLineBytes = 64 << 20
)

// DeltaCatalog finds Delta tables by their folder.
type DeltaCatalog struct {
	// Store reads the log; nil is local files.
	Store Store
}

// MetadataLocation implements Locator: the folder and its newest version.
func (c DeltaCatalog) MetadataLocation(ctx context.Context, table string) (string, error) {
	store, dir := orLocal(c.Store), strings.TrimSuffix(table, "/")
	h, err := readHint(ctx, store, dir)
	if err != nil {
		return "", err
	}
	v := h.Version
	for n := 0; ; n++ {
		if n > deltaVersionsMax {
			return "", failure.New(failure.Runtime, "table %s has more than %d commits after its last checkpoint", table, deltaVersionsMax)
		}
		ok, err := exists(ctx, store, commitPath(dir, v+1))
		if err != nil {
			return "", failure.Wrap(failure.Unreachable, err, "log of table %s", table)
		}
		if !ok {
			break
		}
		v++
	}
	if v < 0 {
		return "", &NoTableError{Table: table, Catalog: "the file system"}
	}
	return deltaScheme + dir + "#" + strconv.FormatInt(v, 10), nil
}

func commitPath(dir string, version int64) string {
	return fmt.Sprintf("%s%s%020d.json", dir, deltaLog, version)
}

func exists(ctx context.Context, store Store, location string) (bool, error) {
	f, err := store.Open(ctx, location)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, f.Close()
}

// hint is _last_checkpoint.
type hint struct {
	Version int64 `json:"version"`
	Parts   int   `json:"parts"`
}

func readHint(ctx context.Context, store Store, dir string) (hint, error) {
	h := hint{Version: -1}
	raw, err := readAll(ctx, store, dir+deltaLog+"_last_checkpoint")
	if errors.Is(err, os.ErrNotExist) {
		return h, nil
	}
	if err != nil {
		return h, failure.Wrap(failure.Unreachable, err, "last checkpoint of table %s", dir)
	}
	if err := json.Unmarshal(raw, &h); err != nil {
		return h, fmt.Errorf("last checkpoint of table %s is not readable: %w", dir, err)
	}
	return h, nil
}

// deltaAction is one line of a commit, the parts that an audit needs.
type deltaAction struct {
	Add        *deltaAdd        `json:"add"`
	Remove     *deltaRemove     `json:"remove"`
	Txn        *deltaTxn        `json:"txn"`
	MetaData   *deltaMetaData   `json:"metaData"`
	Protocol   *deltaProtocol   `json:"protocol"`
	CommitInfo *deltaCommitInfo `json:"commitInfo"`
}

type deltaAdd struct {
	Path            string             `json:"path"`
	PartitionValues map[string]*string `json:"partitionValues"`
	Stats           string             `json:"stats"`
	DeletionVector  json.RawMessage    `json:"deletionVector"`
}

type deltaRemove struct {
	Path string `json:"path"`
}

type deltaTxn struct {
	AppID   string `json:"appId"`
	Version int64  `json:"version"`
}

type deltaMetaData struct {
	ID            string            `json:"id"`
	SchemaString  string            `json:"schemaString"`
	Configuration map[string]string `json:"configuration"`
}

type deltaProtocol struct {
	MinReaderVersion int      `json:"minReaderVersion"`
	ReaderFeatures   []string `json:"readerFeatures"`
}

type deltaCommitInfo struct {
	Timestamp        int64                      `json:"timestamp"`
	Operation        string                     `json:"operation"`
	OperationMetrics map[string]json.RawMessage `json:"operationMetrics"`
	Weir             map[string]string          `json:"weir"`
}

// deltaTable is the state of a table at one version.
type deltaTable struct {
	dir     string
	version int64
	files   map[string]*deltaAdd
	order   []string
	txns    map[string]int64
	meta    *deltaMetaData
	infos   []snapshot
	// deletes is set where a live file has row-level deletes.
	deletes map[string]bool
}

// readDelta reads a table at the version that a location names.
func readDelta(ctx context.Context, store Store, location string) (*metadata, error) {
	dir, text, _ := strings.Cut(strings.TrimPrefix(location, deltaScheme), "#")
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("location %s names no version", location)
	}
	t := &deltaTable{dir: dir, version: version, files: map[string]*deltaAdd{}, txns: map[string]int64{}, deletes: map[string]bool{}}
	h, err := readHint(ctx, store, dir)
	if err != nil {
		return nil, err
	}
	from := int64(0)
	if h.Version >= 0 && h.Version <= version {
		if err := t.readCheckpoint(ctx, store, h); err != nil {
			return nil, err
		}
		from = h.Version + 1
		t.readHistory(ctx, store, max(0, h.Version-deltaHistory), h.Version)
	}
	for v := from; v <= version; v++ {
		if err := t.readCommit(ctx, store, v, true); err != nil {
			return nil, err
		}
	}
	if t.meta == nil {
		return nil, fmt.Errorf("the log of %s has no metadata up to version %d", dir, version)
	}
	return t.metadata(ctx, store, location)
}

// readHistory reads what commits below a checkpoint said of themselves; those
// that are cleaned up are left out.
func (t *deltaTable) readHistory(ctx context.Context, store Store, from, to int64) {
	for v := to; v >= from; v-- {
		if t.readCommit(ctx, store, v, false) != nil {
			break
		}
	}
	slices.Reverse(t.infos)
}

// readCommit reads one commit; without apply only its commitInfo counts.
func (t *deltaTable) readCommit(ctx context.Context, store Store, version int64, apply bool) error {
	raw, err := readAll(ctx, store, commitPath(t.dir, version))
	if err != nil {
		return fmt.Errorf("commit %d of table %s: %w", version, t.dir, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(make([]byte, 64<<10), maxLineBytes)
	info := snapshot{ID: version, Sequence: version, Summary: map[string]string{}}
	if version > 0 {
		parent := version - 1
		info.ParentID = &parent
	}
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var a deltaAction
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return fmt.Errorf("commit %d of table %s is not readable: %w", version, t.dir, err)
		}
		if x := a.Txn; x != nil && !strings.HasPrefix(x.AppID, "weir/") {
			info.Summary[deltaApp+x.AppID] = strconv.FormatInt(x.Version, 10)
		}
		if i := a.CommitInfo; i != nil {
			info.Timestamp = i.Timestamp
			for k, v := range i.Weir {
				info.Summary[k] = v
			}
			info.Summary["operation"] = i.Operation
			info.Summary["added-records"] = strings.Trim(string(i.OperationMetrics["numOutputRows"]), `"`)
		}
		if apply {
			if err := t.apply(a); err != nil {
				return fmt.Errorf("commit %d of table %s: %w", version, t.dir, err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("commit %d of table %s: %w", version, t.dir, err)
	}
	t.infos = append(t.infos, info)
	return nil
}

func (t *deltaTable) apply(a deltaAction) error {
	switch {
	case a.Add != nil:
		t.deletes[a.Add.Path] = len(a.Add.DeletionVector) > 0 && string(a.Add.DeletionVector) != "null"
		if t.files[a.Add.Path] == nil {
			t.order = append(t.order, a.Add.Path)
		}
		t.files[a.Add.Path] = a.Add
	case a.Remove != nil:
		delete(t.files, a.Remove.Path)
	case a.Txn != nil:
		t.txns[a.Txn.AppID] = a.Txn.Version
	case a.Protocol != nil:
		return a.Protocol.check()
	case a.MetaData != nil:
		t.meta = a.MetaData
		if mode := t.meta.Configuration["delta.columnMapping.mode"]; mode != "" && mode != "none" {
			return errors.New("its columns are mapped to other names, which this audit does not follow")
		}
	}
	return nil
}

// check refuses what would make a plain reading wrong.
func (p *deltaProtocol) check() error {
	if p.MinReaderVersion > 3 {
		return fmt.Errorf("it needs reader version %d; this audit knows up to 3", p.MinReaderVersion)
	}
	for _, f := range p.ReaderFeatures {
		// Deletion vectors are refused where a file has one.
		if !slices.Contains([]string{"deletionVectors", "columnMapping", "timestampNtz", "vacuumProtocolCheck"}, f) {
			return fmt.Errorf("it needs the reader feature %q, which this audit does not know", f)
		}
	}
	return nil
}

// metadata gives the table the shape of the others.
func (t *deltaTable) metadata(ctx context.Context, store Store, location string) (*metadata, error) {
	var sc struct {
		Fields []schemaField `json:"fields"`
	}
	if err := json.Unmarshal([]byte(t.meta.SchemaString), &sc); err != nil {
		return nil, fmt.Errorf("schema of table %s: %w", t.dir, err)
	}
	m := &metadata{
		path: location, delta: true, TableUUID: t.meta.ID, Location: t.dir, LastSequence: t.version, CurrentSnapshotID: &t.version,
		Schemas: []tableSchema{{Fields: sc.Fields}}, Properties: map[string]string{}, Snapshots: t.infos,
	}
	head := m.snapshot(t.version)
	if head == nil {
		m.Snapshots = append(m.Snapshots, snapshot{ID: t.version, Sequence: t.version, Summary: map[string]string{}})
		head = m.snapshot(t.version)
	}
	head.files = []*dataFile{}
	for _, p := range t.order {
		if a := t.files[p]; a != nil {
			f, err := a.dataFile(t.dir)
			if err != nil {
				return nil, err
			}
			head.files = append(head.files, f)
			if t.deletes[p] {
				head.deletes = &deleteFileError{manifest: location, file: p}
			}
			delete(t.files, p) // a path that was removed and added again is listed once
		}
	}
	return m, t.markers(ctx, store, m)
}

func (a *deltaAdd) dataFile(dir string) (*dataFile, error) {
	name, err := url.PathUnescape(a.Path)
	if err != nil {
		return nil, fmt.Errorf("data file %q of table %s: %w", a.Path, dir, err)
	}
	if !strings.Contains(name, "://") && !strings.HasPrefix(name, "file:") && !strings.HasPrefix(name, "/") {
		name = dir + "/" + name
	}
	f := &dataFile{Path: name, Format: "PARQUET", Rows: -1, Listed: 1, Partition: a.PartitionValues}
	var stats struct {
		Rows *int64 `json:"numRecords"`
	}
	if json.Unmarshal([]byte(a.Stats), &stats) == nil && stats.Rows != nil {
		f.Rows = *stats.Rows
	}
	return f, nil
}

// markers finds the marker of every query in the txn actions: the lineage of the
// greatest epoch of each name, its JSON by its hash, held against the numbers.
func (t *deltaTable) markers(ctx context.Context, store Store, m *metadata) error {
	type lineage struct {
		id    string
		epoch int64
	}
	current := map[string]lineage{}
	for app, epoch := range t.txns {
		rest, ok := strings.CutPrefix(app, "weir/")
		id, what, _ := strings.Cut(rest, "/")
		if name, named := strings.CutPrefix(what, "name/"); ok && named {
			if had, known := current[name]; !known || epoch > had.epoch {
				current[name] = lineage{id, epoch}
			}
		}
	}
	for name, l := range current {
		text, err := t.marker(ctx, store, l.id)
		if err != nil {
			return err
		}
		if text == "" {
			m.faults = append(m.faults, fmt.Sprintf("the marker of query %s (%s) is gone", name, l.id))
			continue
		}
		m.Properties[propertyPrefix+name] = text
		if why := t.contradiction(l.id, text); why != "" {
			m.faults = append(m.faults, fmt.Sprintf("query %s: %s", name, why))
		}
	}
	return nil
}

// marker is the JSON whose hash the table's txn action names: beside the table,
// or in the commit that wrote it.
func (t *deltaTable) marker(ctx context.Context, store Store, id string) (string, error) {
	hash := t.txns["weir/"+id+"/marker"]
	is := func(text string) bool {
		sum := sha256.Sum256([]byte(text))
		return int64(binary.BigEndian.Uint64(sum[:8])) == hash
	}
	raw, err := readAll(ctx, store, fmt.Sprintf("%s/_weir/%s/%d-%016x.json", t.dir, id, t.txns["weir/"+id], uint64(hash)))
	if err == nil && is(string(raw)) {
		return string(raw), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", failure.Wrap(failure.Unreachable, err, "marker of query id %s in table %s", id, t.dir)
	}
	for _, s := range t.infos {
		if text := s.Summary[keyMarker]; text != "" && is(text) {
			return text, nil
		}
	}
	return "", nil
}

// contradiction compares a marker with the table's own numbers.
func (t *deltaTable) contradiction(id, text string) string {
	var mk marker
	if err := json.Unmarshal([]byte(text), &mk); err != nil {
		return "its marker is not readable: " + err.Error()
	}
	if n := t.txns["weir/"+id]; mk.BatchID != n || mk.QueryID != id {
		return fmt.Sprintf("its marker is of batch %d of %s, the log says batch %d of %s", mk.BatchID, mk.QueryID, n, id)
	}
	v := mk.Position.vector()
	if v == nil {
		return ""
	}
	for topic, tv := range v.Topics {
		for p, o := range tv.Partitions {
			key := tv.ID
			if key == "" {
				key = topic
			}
			if n, ok := t.txns[fmt.Sprintf("weir/%s/pos/%s/%d", id, key, p)]; !ok || n != o.NextOffset {
				return fmt.Sprintf("its marker stands at offset %d of %s-%d, the log says %d", o.NextOffset, topic, p, n)
			}
		}
	}
	return ""
}
