package scan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/batch"
	"github.com/weirlake/weir/internal/marker"
)

// filterRangesMax is how many ranges become a filter of their own. With more,
// one range over all of them prunes nearly as well, and the library's cost of
// evaluating the filter stays flat.
const filterRangesMax = 64

// chain lists the snapshots after since up to head, oldest first, where they
// are all appends or compactions and since is known to hold no wanted row.
// Otherwise the reason says what is in the way.
func chain(t *table.Table, head *table.Snapshot, since int64, want []batch.Range) ([]*table.Snapshot, string) {
	if since == 0 {
		return nil, "no starting snapshot is known"
	}
	start := t.SnapshotByID(since)
	if start == nil {
		return nil, fmt.Sprintf("the starting snapshot %d is expired", since)
	}
	if why := holdsWanted(start, want); why != "" {
		return nil, why
	}
	var out []*table.Snapshot
	for s := head; s.SnapshotID != since; {
		if s.Summary == nil {
			return nil, fmt.Sprintf("snapshot %d has no summary", s.SnapshotID)
		}
		switch s.Summary.Operation {
		case table.OpAppend:
			out = append(out, s)
		case table.OpReplace: // a compaction adds no rows
		default:
			return nil, fmt.Sprintf("snapshot %d is of the kind %q", s.SnapshotID, string(s.Summary.Operation))
		}
		if s.ParentSnapshotID == nil {
			return nil, "the starting snapshot is not an ancestor of the pinned one"
		}
		parent := t.SnapshotByID(*s.ParentSnapshotID)
		if parent == nil || parent.SequenceNumber >= s.SequenceNumber {
			return nil, fmt.Sprintf("the parent of snapshot %d is expired", s.SnapshotID)
		}
		s = parent
	}
	slices.Reverse(out)
	return out, ""
}

// holdsWanted says why rows of want may be in snapshot s already, "" where the
// offset vector in its summary rules that out.
func holdsWanted(s *table.Snapshot, want []batch.Range) string {
	v, err := Offsets(s)
	if err != nil {
		return err.Error()
	}
	if v == nil {
		return fmt.Sprintf("snapshot %d records no offsets", s.SnapshotID)
	}
	for _, r := range want {
		if p, ok := v.Get(r.Topic, r.Partition); ok && p.NextOffset > r.From {
			return fmt.Sprintf("snapshot %d is past offset %d of %s-%d", s.SnapshotID, r.From, r.Topic, r.Partition)
		}
	}
	return ""
}

// Offsets is the merged offset vector that a snapshot's summary records, nil
// where it records none.
func Offsets(s *table.Snapshot) (*batch.KafkaPosition, error) {
	if s == nil || s.Summary == nil {
		return nil, nil
	}
	raw, ok := s.Summary.Properties[marker.KeyOffsets]
	if !ok {
		return nil, nil
	}
	v := &batch.KafkaPosition{}
	if err := json.Unmarshal([]byte(raw), v); err != nil {
		return nil, fmt.Errorf("snapshot %d: %s is not an offset vector: %w", s.SnapshotID, marker.KeyOffsets, err)
	}
	return v, nil
}

// incremental reads the files that the snapshots added. A reason means that
// they cannot be read this way.
func (r *reader) incremental(ctx context.Context, snaps []*table.Snapshot) (string, error) {
	var paths []string
	for _, s := range snaps {
		added, reason, err := r.addedFiles(s)
		if err != nil || reason != "" {
			return reason, err
		}
		paths = append(paths, added...)
	}
	return "", r.readFiles(ctx, paths)
}

func (r *reader) addedFiles(s *table.Snapshot) (paths []string, reason string, err error) {
	manifests, err := s.Manifests(r.fio)
	if err != nil {
		return nil, "", fmt.Errorf("read the manifest list of snapshot %d: %w", s.SnapshotID, err)
	}
	for _, m := range manifests {
		if m.SnapshotID() != s.SnapshotID {
			continue // written by an earlier snapshot: it adds nothing in this one
		}
		if m.ManifestContent() != iceberg.ManifestContentData {
			return nil, fmt.Sprintf("snapshot %d adds delete files", s.SnapshotID), nil
		}
		for e, err := range m.Entries(r.fio, true) {
			if err != nil {
				return nil, "", fmt.Errorf("read manifest %s: %w", m.FilePath(), err)
			}
			// A merged manifest carries older files along as existing.
			if e.Status() != iceberg.EntryStatusADDED || e.SnapshotID() != s.SnapshotID {
				continue
			}
			if r.want.mayHold(r.fileSpan(e.DataFile())) {
				paths = append(paths, e.DataFile().FilePath())
			}
		}
	}
	return paths, "", nil
}

// fileSpan reads the bounds of partition and offset of a manifest entry.
func (r *reader) fileSpan(f iceberg.DataFile) span {
	bound := func(values map[int][]byte, at int) *int64 {
		id := r.cols[at].id
		raw, ok := values[id]
		if !ok {
			return nil
		}
		field, ok := r.req.Table.Schema().FindFieldByID(id)
		if !ok {
			return nil
		}
		switch len(raw) { // an int may have been widened to a long since
		case 4:
			field.Type = iceberg.PrimitiveTypes.Int32
		case 8:
			field.Type = iceberg.PrimitiveTypes.Int64
		default:
			return nil
		}
		lit, err := iceberg.LiteralFromBytes(field.Type, raw)
		if err != nil {
			return nil
		}
		switch v := lit.Any().(type) {
		case int32:
			n := int64(v)
			return &n
		case int64:
			return &v
		}
		return nil
	}
	return span{
		partitionMin: bound(f.LowerBoundValues(), r.atPartition), partitionMax: bound(f.UpperBoundValues(), r.atPartition),
		offsetMin: bound(f.LowerBoundValues(), r.atOffset), offsetMax: bound(f.UpperBoundValues(), r.atOffset),
	}
}

// full reads the files of the pinned snapshot that can hold wanted rows.
func (r *reader) full(ctx context.Context, snap *table.Snapshot) error {
	sc := r.req.Table.Scan(
		table.WithSnapshotID(snap.SnapshotID),
		table.WithRowFilter(r.filter()),
		table.WithSelectedFields(r.selected(snap)...),
		table.WithMaxConcurrency(r.req.Parallel),
	)
	defer sc.Close()
	tasks, err := sc.PlanFiles(ctx)
	if err != nil {
		return fmt.Errorf("plan the files of snapshot %d of table %s: %w", snap.SnapshotID, name(r.req.Table), err)
	}
	var paths []string
	var deleted []table.FileScanTask
	for _, t := range tasks {
		if len(t.DeleteFiles)+len(t.EqualityDeleteFiles)+len(t.DeletionVectorFiles) > 0 {
			deleted = append(deleted, t)
			continue
		}
		// Large files are planned in several parts; each is read whole, once.
		if p := t.File.FilePath(); len(paths) == 0 || paths[len(paths)-1] != p {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	if err := r.readFiles(ctx, slices.Compact(paths)); err != nil {
		return err
	}
	if len(deleted) == 0 {
		return nil
	}
	return r.readWithDeletes(ctx, sc, deleted)
}

// filter is the wanted ranges as a row filter, for pruning and for the files
// that the library reads.
func (r *reader) filter() iceberg.BooleanExpression {
	partition, offset := iceberg.Reference(r.req.Place.Partition), iceberg.Reference(r.req.Place.Offset)
	var all iceberg.BooleanExpression
	lo, hi, n := int64(-1), int64(0), 0
	for tp, ranges := range r.want {
		for _, w := range ranges {
			e := iceberg.NewAnd(iceberg.EqualTo(partition, tp.Partition),
				iceberg.GreaterThanEqual(offset, w.From), iceberg.LessThan(offset, w.To))
			if all == nil {
				all = e
			} else {
				all = iceberg.NewOr(all, e)
			}
			if lo < 0 || w.From < lo {
				lo = w.From
			}
			hi, n = max(hi, w.To), n+1
		}
	}
	if n > filterRangesMax {
		return iceberg.NewAnd(iceberg.GreaterThanEqual(offset, lo), iceberg.LessThan(offset, hi))
	}
	return all
}

// selected are the read columns that the schema of the pinned snapshot has.
func (r *reader) selected(snap *table.Snapshot) []string {
	sc := r.req.Table.Schema()
	if snap.SchemaID != nil {
		if s, ok := r.req.Table.Schemas()[*snap.SchemaID]; ok {
			sc = s
		}
	}
	var out []string
	for _, c := range r.cols {
		if f, ok := sc.FindFieldByID(c.id); ok {
			out = append(out, f.Name)
		}
	}
	return out
}

// readWithDeletes lets the library read files to which deletes apply.
func (r *reader) readWithDeletes(ctx context.Context, sc *table.Scan, tasks []table.FileScanTask) error {
	_, recs, err := sc.ReadTasks(ctx, tasks)
	if err != nil {
		return fmt.Errorf("read files with deletes: %w", err)
	}
	r.files += len(tasks)
	for rec, err := range recs {
		if err != nil {
			return fmt.Errorf("read files with deletes: %w", err)
		}
		shaped, err := r.shape(ctx, rec.Schema(), func(i int) []arrow.Array { return []arrow.Array{rec.Column(i)} }, rec.NumRows())
		rec.Release()
		if err != nil {
			return err
		}
		for _, s := range shaped {
			r.runs = append(r.runs, r.cut(s)...)
			s.Release()
		}
	}
	return nil
}
