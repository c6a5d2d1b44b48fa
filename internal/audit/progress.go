package audit

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/weirlake/weir/internal/failure"
)

// progressColumns are those of ops.stream_progress that the sums need, in the
// order in which they are read.
var progressColumns = []string{
	"query_name", "query_id", "batch_id", "input_rows", "output_rows",
	"rows_filtered", "rows_duplicate", "rows_dropped_by_watermark", "rows_dead_lettered",
}

// queryCounts are the sums of one query's batches.
type queryCounts struct {
	batches  int
	sum      counters
	complete bool
}

type batchKey struct {
	query string
	batch int64
}

// batchCounts gathers the counts of every batch of the table's queries: from
// the progress table, then, for the last ones that it does not have yet, from
// the markers in the snapshots and in the properties.
func (r *run) batchCounts(ctx context.Context, m *metadata, byName map[string]marker, rep *TableReport) (map[string]queryCounts, error) {
	counts := map[batchKey]counters{}
	if r.cfg.ProgressTable != "" {
		doubled, err := r.readProgress(ctx, byName, counts)
		if err != nil {
			return nil, err
		}
		if doubled > 0 {
			rep.mismatch("%s holds %d batches more than once", r.cfg.ProgressTable, doubled)
		}
	}
	take := func(mk marker) {
		if mk.Claim || mk.BatchID < 0 {
			return
		}
		k := batchKey{mk.QueryName, mk.BatchID}
		if _, ok := counts[k]; !ok {
			counts[k] = mk.Counters
		}
	}
	for i := range m.Snapshots {
		if raw := m.Snapshots[i].Summary[keyMarker]; raw != "" {
			var mk marker
			if err := json.Unmarshal([]byte(raw), &mk); err != nil {
				return nil, failure.Wrap(failure.Checkpoint, err, "table %s, snapshot %d, %s", rep.Table, m.Snapshots[i].ID, keyMarker)
			}
			if _, ours := byName[mk.QueryName]; ours && mk.BatchID <= byName[mk.QueryName].BatchID {
				take(mk)
			}
		}
	}
	since, err := m.since()
	if err != nil {
		return nil, err
	}
	out := map[string]queryCounts{}
	for name, last := range byName {
		last.QueryName = name
		take(last)
		q := queryCounts{complete: true}
		for batch := since[name]; batch <= last.BatchID; batch++ {
			c, ok := counts[batchKey{name, batch}]
			if !ok {
				q.complete = false
				continue
			}
			q.batches++
			q.sum.add(c)
		}
		out[name] = q
	}
	return out, nil
}

// since are, by query, the batches that count where a rebuild has exchanged the
// table's rows: the earlier ones put out rows that are gone.
func (m *metadata) since() (map[string]int64, error) {
	var rebuilt struct {
		Since map[string]int64 `json:"since"`
	}
	if raw := m.Properties[propertyRebuilt]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &rebuilt); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "table property %s", propertyRebuilt)
		}
	}
	return rebuilt.Since, nil
}

func (c *counters) add(o counters) {
	c.Read += o.Read
	c.Emitted += o.Emitted
	c.Filtered += o.Filtered
	c.Duplicate += o.Duplicate
	c.Late += o.Late
	c.DeadLettered += o.DeadLettered
}

// readProgress fills counts with the rows of the progress table that speak of
// the given queries, up to the batch that each marker names: the progress
// table is pinned later than the audited one. It returns how many batches are
// there more than once.
func (r *run) readProgress(ctx context.Context, byName map[string]marker, counts map[batchKey]counters) (doubled int, err error) {
	if err := r.pin(ctx, r.cfg.ProgressTable); err != nil {
		return 0, err
	}
	m := r.pinned[r.cfg.ProgressTable]
	if m == nil {
		return 0, nil
	}
	want, err := wantedColumns(m, progressColumns, nil)
	if err != nil {
		return 0, failure.Wrap(failure.Config, err, "table %s", r.cfg.ProgressTable)
	}
	files, err := liveFiles(ctx, r.cfg.Store, m.current())
	if err != nil {
		return 0, wrapTable(err, r.cfg.ProgressTable)
	}
	seen := map[string]bool{}
	scratch := &TableReport{Table: r.cfg.ProgressTable}
	err = r.eachFile(ctx, files, want, scratch, func(b *rowBatch) error {
		for row := range b.Rows {
			name, id := b.text(0, row), b.text(1, row)
			n := func(col int) int64 { return b.number(col, row) }
			mk, ours := byName[name]
			if !ours || n(2) > mk.BatchID {
				continue
			}
			key := fmt.Sprintf("%s/%s/%d", name, id, n(2))
			if seen[key] {
				doubled++
				continue
			}
			seen[key] = true
			c := counts[batchKey{name, n(2)}]
			c.add(counters{Read: n(3), Emitted: n(4), Filtered: n(5), Duplicate: n(6), Late: n(7), DeadLettered: n(8)})
			counts[batchKey{name, n(2)}] = c
		}
		return nil
	})
	if err == nil && len(scratch.Reasons) > 0 {
		err = failure.New(failure.Runtime, "table %s: %s", r.cfg.ProgressTable, scratch.Reasons[0])
	}
	return doubled, err
}

func (b *rowBatch) text(col, row int) string {
	if c := &b.Columns[col]; !c.Null[row] && len(c.Bytes) > 0 {
		return string(c.Bytes[row])
	}
	return ""
}

func (b *rowBatch) number(col, row int) int64 {
	if c := &b.Columns[col]; !c.Null[row] && len(c.Int) > 0 {
		return c.Int[row]
	}
	return 0
}
