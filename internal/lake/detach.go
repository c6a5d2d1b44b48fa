package lake

import (
	"reflect"

	"github.com/apache/iceberg-go/table"
)

// detach makes the snapshot of a commit independent of the transaction that
// made it. The library lets a new snapshot's ParentSnapshotID and SchemaID point
// into the transaction (producer and builder), which holds the metadata that it
// began from, whose newest snapshot points into the transaction before. Metadata
// that is kept in memory would so keep every earlier version with all its
// snapshots: half a megabyte a commit, for as long as the process runs.
//
// The update's type is not exported, its field is. Where a later version has
// no such field nothing is done; a test notices what is held then.
func detach(updates []table.Update) {
	for _, u := range updates {
		if u.Action() != table.UpdateAddSnapshot {
			continue
		}
		v := reflect.ValueOf(u)
		if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
			continue
		}
		f := v.Elem().FieldByName("Snapshot")
		if !f.IsValid() || !f.CanInterface() {
			continue
		}
		if s, ok := f.Interface().(*table.Snapshot); ok && s != nil {
			s.SchemaID, s.ParentSnapshotID = copied(s.SchemaID), copied(s.ParentSnapshotID)
			s.FirstRowID, s.AddedRows = copied(s.FirstRowID), copied(s.AddedRows)
		}
	}
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}
