package audit

import (
	"context"
	"errors"
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// Commit is one snapshot of a table's history.
type Commit struct {
	SnapshotID int64     `json:"snapshot_id"`
	Sequence   int64     `json:"sequence_number"`
	At         time.Time `json:"at"`
	Operation  string    `json:"operation"`
	// Added is what the writer says that it added; Total what it says is there.
	Added int64 `json:"added_records"`
	Total int64 `json:"total_records"`
	// QueryID, BatchID and Epoch are the marker's, empty where there is none.
	QueryID string `json:"query_id,omitempty"`
	BatchID string `json:"batch_id,omitempty"`
	Epoch   string `json:"epoch,omitempty"`
}

// Head is what a table says of itself right now, without its data files.
type Head struct {
	Exists           bool
	MetadataLocation string
	SnapshotID       int64
	Sequence         int64
	// Rows is the sum over the live manifests, not the writer's summary.
	Rows    int64
	Commits []Commit
	meta    *metadata
}

// Offsets is how far the table says that it has come with a topic.
func (h *Head) Offsets(topic string) (map[int32]int64, error) {
	if h.meta == nil {
		return map[int32]int64{}, nil
	}
	e, err := h.meta.end(topic)
	return e.offsets, err
}

// Peek asks the catalog and reads metadata and manifests, nothing else: cheap
// enough to be called many times a second. A table that does not exist yet
// gives a Head with Exists false.
func Peek(ctx context.Context, catalog Locator, store Store, table string) (*Head, error) {
	return look(ctx, catalog, store, table, true)
}

// Glance is Peek without the manifests: Rows stays 0. One small file is read,
// however many commits the table has.
func Glance(ctx context.Context, catalog Locator, store Store, table string) (*Head, error) {
	return look(ctx, catalog, store, table, false)
}

func look(ctx context.Context, catalog Locator, store Store, table string, count bool) (*Head, error) {
	r := &run{cfg: Config{Catalog: catalog, Store: orLocal(store)}, pinned: map[string]*metadata{}}
	for try := 1; ; try++ {
		h, err := r.peek(ctx, table, count)
		// A running writer may clean up a file between two of our questions.
		if err == nil || try == attemptsMax || ctx.Err() != nil {
			return h, err
		}
	}
}

func (r *run) peek(ctx context.Context, table string, count bool) (*Head, error) {
	if err := r.pin(ctx, table); err != nil {
		return nil, err
	}
	m := r.pinned[table]
	if m == nil {
		return &Head{}, nil
	}
	h := &Head{Exists: true, MetadataLocation: m.path, meta: m}
	for i := range m.Snapshots {
		h.Commits = append(h.Commits, commitOf(&m.Snapshots[i]))
	}
	s := m.current()
	if s == nil {
		return h, nil
	}
	h.SnapshotID, h.Sequence = s.ID, s.Sequence
	if !count {
		return h, nil
	}
	files, err := liveFiles(ctx, r.cfg.Store, s)
	if err != nil {
		return nil, wrapTable(err, table)
	}
	for _, f := range files {
		h.Rows += max(f.Rows, 0) * int64(f.Listed)
	}
	return h, nil
}

func commitOf(s *snapshot) Commit {
	added, _ := asInt(s.Summary["added-records"])
	total, _ := asInt(s.Summary["total-records"])
	return Commit{
		SnapshotID: s.ID, Sequence: s.Sequence, At: time.UnixMilli(s.Timestamp).UTC(),
		Operation: s.Summary["operation"], Added: added, Total: total,
		QueryID: s.Summary["weir.query-id"], BatchID: s.Summary["weir.batch-id"], Epoch: s.Summary["weir.epoch"],
	}
}

// Strings calls f for every value of a text column at the table's newest
// snapshot; nulls are left out.
func Strings(ctx context.Context, catalog Locator, store Store, table, name string, f func(string)) error {
	r := &run{cfg: Config{Catalog: catalog, Store: orLocal(store)}, pinned: map[string]*metadata{}}
	if err := r.pin(ctx, table); err != nil {
		return err
	}
	m := r.pinned[table]
	if m == nil || m.current() == nil {
		return nil
	}
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		return wrapTable(err, table)
	}
	want, err := wantedColumns(m, []string{name}, nil)
	if err != nil {
		return failure.Wrap(failure.Config, err, "table %s", table)
	}
	rep := &TableReport{Table: table}
	err = r.eachFile(ctx, files, want, rep, func(b *rowBatch) error {
		for row := range b.Rows {
			if !b.Columns[0].Null[row] {
				f(b.text(0, row))
			}
		}
		return nil
	})
	if err == nil && len(rep.Reasons) > 0 {
		err = errors.New(rep.Reasons[0])
	}
	if err != nil {
		return failure.Wrap(failure.Runtime, err, "read column %s of table %s", name, table)
	}
	return nil
}

func orLocal(s Store) Store {
	if s == nil {
		return LocalStore{}
	}
	return s
}
