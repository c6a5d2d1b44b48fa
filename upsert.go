package weir

import (
	"time"

	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/pipeline"
)

// Upsert makes a table of a query keep one row per key, the last: of Iceberg and
// Delta alike, in the commit that holds the query's memory. docs/upsert.md.
type Upsert struct {
	// Keys are columns that name a row; Parse has to have them as Required.
	Keys []string
	// OrderBy are columns that say which of two rows of a key is the later one: a
	// row that comes before the table's is left out. The order of arrival where
	// empty.
	OrderBy []string
	// DeleteWhen is an expression as Parse.Filter has it; a row for which it is true
	// deletes its key.
	DeleteWhen string
	// Debezium reads values as Debezium's envelopes: the paths of Parse lead into
	// the row itself, with $.__op, $.__ts_ms and $.__source beside it, and op d
	// deletes.
	Debezium bool
	// RememberDeletes is how long the order of a deleted key is kept, so that a late
	// change does not bring it back; 7 days where 0, not at all where negative. It
	// needs OrderBy.
	RememberDeletes time.Duration
}

// spec is the upsert as the pipeline file has it; nil for none.
func (u *Upsert) spec() *pipeline.Upsert {
	if u == nil {
		return nil
	}
	out := &pipeline.Upsert{Keys: u.Keys, OrderBy: u.OrderBy, DeleteWhen: u.DeleteWhen, RememberDeletes: u.RememberDeletes}
	if u.Debezium {
		out.Changes = pipeline.ChangesDebezium
	}
	if out.RememberDeletes == 0 {
		out.RememberDeletes = pipeline.DefaultRememberDeletes
	}
	if len(u.OrderBy) == 0 || out.RememberDeletes < 0 {
		out.RememberDeletes = 0
	}
	return out
}

// merged is the upsert of the query's table, nil where it appends, and for a store
// outside where no row deletes its key.
func (q *Query) merged() *Upsert {
	switch t := q.table.(type) {
	case Iceberg:
		return t.Upsert
	case Delta:
		return t.Upsert
	case Postgres:
		return t.upsert()
	case Cassandra:
		return t.upsert()
	}
	return nil
}

// upsertFaults are what is wrong with Upsert together with the rest.
func (q *Query) upsertFaults() (out []string) {
	u := q.merged()
	if u == nil {
		return nil
	}
	if len(u.Keys) == 0 {
		out = append(out, "an Upsert without Keys: the columns that name a row")
	}
	if q.parse == nil {
		out = append(out, "Upsert without Parse: rows are merged by declared columns")
	} else if len(q.parse.DropDuplicatesWithinWatermark) > 0 {
		out = append(out, "Upsert with DropDuplicatesWithinWatermark: the key makes rows unique already")
	}
	if q.transform != nil {
		out = append(out, "Upsert with Transform is not supported: use ForeachBatch with DeltaTable.Merge")
	}
	return out
}

// changes is what the operators are told.
func (q *Query) changes() *operator.Changes {
	u := q.merged().spec()
	if u == nil {
		return nil
	}
	return &operator.Changes{Format: u.Changes, DeleteWhen: u.DeleteWhen, Keys: u.Keys, OrderBy: u.OrderBy, RememberDeletes: u.RememberDeletes}
}
