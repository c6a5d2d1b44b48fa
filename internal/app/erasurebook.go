package app

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/weirlake/weir/internal/erase"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/opstable"
)

const (
	// ErasuresTable is the table of what was erased: who, when, which offsets of
	// which table, never the values.
	ErasuresTable = "ops.erasures"
	// erasuresProperty lists the ids that the table has rows of.
	erasuresProperty = "weir.erasures"
)

// erasureRow is what an erasure has taken of one partition in one table.
type erasureRow struct {
	ID, Table, Topic, Offsets, Condition, RequestedBy, Reason string
	// Partition is -1 where the rows have no place, or none was taken.
	Partition, FirstOffset, EndOffset, Rows, SnapshotID int64
	RequestedAt, ErasedAt                               time.Time
}

func erasureRows(p *erasePlan, name string, done *erase.Erased, now time.Time) (out []erasureRow) {
	for _, d := range done.Declared {
		row := erasureRow{ID: p.ID, Table: name, Topic: d.Topic, Partition: int64(d.Partition), FirstOffset: d.From, EndOffset: d.To, Rows: d.Rows, Offsets: d.Offsets,
			Condition: p.Condition, RequestedBy: p.RequestedBy, Reason: p.Reason, RequestedAt: p.RequestedAt, ErasedAt: now, SnapshotID: done.SnapshotID}
		if d.Topic == "" {
			row.Partition = -1
		}
		out = append(out, row)
	}
	return out
}

func (a *App) erasures() (*opstable.Table[erasureRow], error) {
	ident, err := lake.ParseName(ErasuresTable)
	if err != nil {
		return nil, err
	}
	text := func(name string, get func(erasureRow) string) opstable.Column[erasureRow] {
		return opstable.Column[erasureRow]{Name: name, Kind: opstable.Text, Value: func(r erasureRow) any { return get(r) }}
	}
	long := func(name string, get func(erasureRow) int64) opstable.Column[erasureRow] {
		return opstable.Column[erasureRow]{Name: name, Kind: opstable.Long, Value: func(r erasureRow) any { return get(r) }}
	}
	at := func(name string, get func(erasureRow) time.Time) opstable.Column[erasureRow] {
		return opstable.Column[erasureRow]{Name: name, Kind: opstable.Instant, Value: func(r erasureRow) any { return get(r) }}
	}
	return &opstable.Table[erasureRow]{Catalog: a.Catalog, Ident: ident, Clock: a.opts.Clock, Columns: []opstable.Column[erasureRow]{
		text("erasure_id", func(r erasureRow) string { return r.ID }),
		text("table_name", func(r erasureRow) string { return r.Table }),
		text("topic", func(r erasureRow) string { return r.Topic }),
		long("partition", func(r erasureRow) int64 { return r.Partition }),
		long("first_offset", func(r erasureRow) int64 { return r.FirstOffset }),
		long("end_offset", func(r erasureRow) int64 { return r.EndOffset }),
		text("offsets", func(r erasureRow) string { return r.Offsets }),
		long("rows", func(r erasureRow) int64 { return r.Rows }),
		text("condition", func(r erasureRow) string { return r.Condition }),
		text("reason", func(r erasureRow) string { return r.Reason }),
		text("requested_by", func(r erasureRow) string { return r.RequestedBy }),
		at("requested_at", func(r erasureRow) time.Time { return r.RequestedAt }),
		at("erased_at", func(r erasureRow) time.Time { return r.ErasedAt }),
		long("snapshot_id", func(r erasureRow) int64 { return r.SnapshotID }),
	}}, nil
}

// record appends the rows of an erasure to ops.erasures, once.
func (e *eraser) record(ctx context.Context, id string, rows []erasureRow) error {
	book, err := e.a.erasures()
	if err != nil {
		return err
	}
	err = book.Append(ctx, func(props map[string]string) (*opstable.Change[erasureRow], error) {
		var ids []string
		if raw, ok := props[erasuresProperty]; ok {
			if err := json.Unmarshal([]byte(raw), &ids); err != nil {
				return nil, failure.Wrap(failure.Checkpoint, err, "property %s of table %s", erasuresProperty, ErasuresTable)
			}
		}
		if slices.Contains(ids, id) {
			return nil, nil // before a crash, or by a try whose answer was lost
		}
		list, err := json.Marshal(append(ids, id))
		if err != nil {
			return nil, err
		}
		return &opstable.Change[erasureRow]{Rows: rows, Properties: map[string]string{erasuresProperty: string(list)}}, nil
	})
	if err != nil {
		return fmt.Errorf("record erasure %s: %w", id, err)
	}
	return nil
}
