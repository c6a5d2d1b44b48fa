package iceberg

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
)

// RebuildScan implements sink.Sink; emit takes the records over. Where the
// marker's snapshot has expired the head is read instead: it holds the same
// rows of this query, because only this query writes them and its marker has
// not moved since. Rewrites by other engines (compaction) change files, not
// rows.
func (s *Sink) RebuildScan(ctx context.Context, m *marker.Marker, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error {
	t, err := s.opts.Catalog.LoadTablePatiently(ctx, s.opts.Table, s.opts.Clock)
	if errors.Is(err, lake.ErrNoTable) {
		return failure.New(failure.Checkpoint, "table %s, which holds the state of query %s, was dropped", s.Name(), m.QueryName)
	}
	if err != nil {
		return failure.Wrap(failure.Unreachable, err, "read table %s", s.Name())
	}
	if t.CurrentSnapshot() == nil {
		return nil
	}
	opts := []table.ScanOption{table.WithSelectedFields(columns...)}
	if id := snapshotOf(t, m); id != 0 {
		opts = append(opts, table.WithSnapshotID(id))
	}
	if minMicros > marker.MinTime {
		opts = append(opts, table.WithRowFilter(
			iceberg.GreaterThanEqual(iceberg.Reference(timeColumn), iceberg.Timestamp(minMicros))))
	}
	_, records, err := t.Scan(opts...).ToArrowRecords(ctx)
	if err != nil {
		return fmt.Errorf("scan table %s: %w", s.Name(), err)
	}
	for rec, err := range records {
		if err != nil {
			return fmt.Errorf("scan table %s: %w", s.Name(), err)
		}
		if err := emit(rec); err != nil {
			return err
		}
	}
	return nil
}
