package iceberg

import (
	"context"
	"encoding/json"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/lake"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// columnsPrefix + query name is the table property that says which columns the
// query has written, by field id. It tells a column that the query has let go of
// from one that somebody else added.
const columnsPrefix = "weir.columns."

// evolve plans what the query's columns ask of the table's. Only a query that
// has written to the table before changes it: any other may just be pointed at
// the wrong one.
func (s *Sink) evolve(t *table.Table, want sink.Facts) (*lake.SchemaChange, error) {
	if want.Marker == nil {
		return nil, lake.CheckSchema(s.opts.Table, t.Schema(), s.opts.Schema)
	}
	change, err := s.planColumns(t)
	if err != nil {
		return nil, err
	}
	return change, column.Err(s.Name(), change.Columns())
}

func (s *Sink) planColumns(t *table.Table) (*lake.SchemaChange, error) {
	key := columnsPrefix + s.opts.Query
	var wrote *lake.Columns
	if raw, ok := t.Properties()[key]; ok {
		wrote = &lake.Columns{}
		if err := json.Unmarshal([]byte(raw), wrote); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "table %s, property %s", s.Name(), key).
				WithHint("remove the property: the next start writes it again")
		}
	}
	return lake.PlanSchema(t, s.opts.Schema, s.opts.Evolution, wrote), nil
}

// PlanClaim implements sink.Planner.
func (s *Sink) PlanClaim(_ context.Context, want sink.Facts, m *marker.Marker) (sink.ClaimPlan, error) {
	t, ok := want.Handle.(*table.Table)
	if !ok {
		return sink.ClaimPlan{}, nil // it would be made
	}
	var plan sink.ClaimPlan
	if want.Marker != nil {
		change, err := s.planColumns(t)
		if err != nil {
			return plan, err
		}
		plan.Columns = change.Columns()
	}
	_, err := s.claimChange(t, want, m)
	return plan, err
}

// written is the property, for a table of the given schema.
func (s *Sink) written(now *iceberg.Schema) map[string]string {
	var c lake.Columns
	for _, f := range s.opts.Schema.Fields() {
		h, ok := now.FindFieldByName(f.Name)
		switch {
		case !ok:
		case f.Required:
			c.Required = append(c.Required, h.ID)
		default:
			c.Optional = append(c.Optional, h.ID)
		}
	}
	raw, err := json.Marshal(c)
	if err != nil {
		panic(err) // lists of numbers
	}
	return map[string]string{columnsPrefix + s.opts.Query: string(raw)}
}
