package app

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/upsert"
)

// UpsertSpec is how a table's sink merges; nil for one that appends.
func UpsertSpec(u *pipeline.Upsert) *upsert.Spec {
	if u == nil {
		return nil
	}
	return &upsert.Spec{Keys: u.Keys, OrderBy: u.OrderBy, KeepNewer: len(u.OrderBy) > 0, DeleteColumn: operator.DeletedColumn}
}

// deleteColumn is the column of a store outside that says of a row that it deletes
// its key, empty where none does.
func deleteColumn(t pipeline.To) string {
	if t.Upsert() == nil {
		return ""
	}
	return operator.DeletedColumn
}

// changesOf is what the transform makes of rows that are merged; nil for rows that
// are appended.
func changesOf(u *pipeline.Upsert) *operator.Changes {
	if u == nil {
		return nil
	}
	return &operator.Changes{Format: u.Changes, DeleteWhen: u.DeleteWhen, Keys: u.Keys, OrderBy: u.OrderBy, RememberDeletes: u.RememberDeletes}
}

// tableShape is the shape of the table's rows.
func (s SinkSpec) tableShape() *arrow.Schema {
	if s.Upsert == nil || s.Upsert.DeleteColumn == "" {
		return s.Shape
	}
	return upsert.WithoutColumn(s.Shape, s.Upsert.DeleteColumn)
}
