package delta

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
)

// RebuildScan implements sink.Sink; emit takes the records over. Where the
// marker's version has been cleaned up the head is read instead: it holds the
// same rows of this query, because only this query writes them and its marker
// has not moved since. Compaction changes files, not rows.
func (s *Sink) RebuildScan(ctx context.Context, m *marker.Marker, columns []string, timeColumn string, minMicros int64, emit func(arrow.RecordBatch) error) error {
	snap, err := s.table.SnapshotAt(ctx, m.BaseSequence)
	if err == nil && s.filesGone(ctx, snap) {
		err = delta.ErrNoVersion
	}
	if errors.Is(err, delta.ErrNoVersion) {
		snap, err = s.table.Snapshot(ctx)
	}
	if errors.Is(err, delta.ErrNoTable) {
		return failure.New(failure.Checkpoint, "table %s, which holds the state of query %s, was dropped", s.Name(), m.QueryName)
	}
	if err != nil {
		return s.readError(err)
	}
	o := delta.ScanOptions{Columns: slices.Clone(columns)}
	bounded := timeColumn != "" && minMicros > marker.MinTime
	if bounded {
		if !slices.Contains(columns, timeColumn) {
			o.Columns = append(o.Columns, timeColumn)
		}
		o.Keep = func(a *delta.Add) bool { return mayReach(a, timeColumn, minMicros) }
	}
	err = s.table.Scan(ctx, snap, o, func(rec arrow.RecordBatch) error {
		if !bounded {
			return emit(rec)
		}
		defer rec.Release()
		return since(rec, len(columns), timeColumn, minMicros, emit)
	})
	if err != nil {
		return fmt.Errorf("scan table %s: %w", s.Name(), err)
	}
	return nil
}

// filesGone reports whether a vacuum has removed files of an older version.
func (s *Sink) filesGone(ctx context.Context, snap *delta.Snapshot) bool {
	for _, a := range snap.Files() {
		key, err := a.Key()
		if err != nil {
			return false
		}
		if _, err := s.opts.Storage.Stat(ctx, key); err != nil {
			return true
		}
	}
	return false
}

// mayReach reports whether a file may hold rows at or after a time.
func mayReach(a *delta.Add, column string, micros int64) bool {
	st, ok := a.ParseStats()
	if !ok {
		return true
	}
	var text string
	if json.Unmarshal(st.MaxValues[column], &text) != nil {
		return true
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	// Other engines cut the maximum to milliseconds.
	return err != nil || at.Add(time.Millisecond).UnixMicro() >= micros
}

// since gives the rows at or after a time, without columns that were only read
// to tell.
func since(rec arrow.RecordBatch, columns int, timeColumn string, micros int64, emit func(arrow.RecordBatch) error) error {
	times, ok := rec.Column(rec.Schema().FieldIndices(timeColumn)[0]).(*array.Timestamp)
	if !ok {
		return failure.New(failure.SchemaConflict, "column %q is not a timestamp", timeColumn)
	}
	wanted := array.NewRecordBatch(arrow.NewSchema(rec.Schema().Fields()[:columns], nil), rec.Columns()[:columns], rec.NumRows())
	defer wanted.Release()
	n := times.Len()
	in := func(i int) bool { return times.IsValid(i) && int64(times.Value(i)) >= micros }
	for from := 0; from < n; from++ {
		if !in(from) {
			continue
		}
		to := from + 1
		for to < n && in(to) {
			to++
		}
		if err := emit(wanted.NewSlice(int64(from), int64(to))); err != nil {
			return err
		}
		from = to
	}
	return nil
}
