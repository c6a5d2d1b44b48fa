package delta

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/weirlake/weir/internal/column"
	"github.com/weirlake/weir/internal/delta"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/sink"
)

// columnsKey is the table property that says which columns the query has
// written. It tells a column that the query has let go of from one that somebody
// else added.
func (s *Sink) columnsKey() string { return "weir.columns." + s.opts.Query }

// written is the property.
func (s *Sink) written() string {
	var names []string
	for _, f := range s.opts.Arrow.Fields() {
		names = append(names, f.Name)
	}
	raw, err := json.Marshal(names)
	if err != nil {
		panic(err) // texts only
	}
	return string(raw)
}

// evolve gives the action that makes the table's columns the query's, nil where
// they are. Only a query that has written to the table before changes it, unless
// it is told to: any other may just be pointed at the wrong one.
func (s *Sink) evolve(snap *delta.Snapshot, known bool) ([]delta.Action, error) {
	if !known && !s.opts.AddColumns {
		return nil, s.table.Fits(snap, s.opts.Arrow)
	}
	changes, err := s.planColumns(snap)
	if err == nil {
		err = column.Err(s.Name(), changes)
	}
	if err != nil {
		return nil, err
	}
	change, err := s.table.Evolve(snap, s.opts.Arrow)
	if err != nil {
		return nil, err
	}
	key, now := s.columnsKey(), s.written()
	if change == nil && snap.Metadata.Configuration[key] == now {
		return nil, nil
	}
	meta := *snap.Metadata
	if change != nil {
		meta = *change.Metadata
	}
	if meta.Configuration = maps.Clone(meta.Configuration); meta.Configuration == nil {
		meta.Configuration = map[string]string{}
	}
	meta.Configuration[key] = now
	return []delta.Action{{Metadata: &meta}}, nil
}

// PlanClaim implements sink.Planner.
func (s *Sink) PlanClaim(ctx context.Context, want sink.Facts, m *marker.Marker) (sink.ClaimPlan, error) {
	snap, ok := want.Handle.(*delta.Snapshot)
	if !ok {
		return sink.ClaimPlan{}, nil // it would be made
	}
	var plan sink.ClaimPlan
	var err error
	known := want.Marker != nil
	if known || s.opts.AddColumns {
		if plan.Columns, err = s.planColumns(snap); err != nil {
			return plan, err
		}
	}
	if err := s.checkOwner(snap, m); err != nil {
		return plan, err
	}
	markers, err := s.markersOf(ctx, snap)
	if err != nil {
		return plan, err
	}
	if _, err := s.evolve(snap, known); err != nil {
		return plan, err
	}
	if err := sink.CheckOverlap(s.Name(), markers, m); err != nil {
		return plan, err
	}
	_, err = s.ownAppID(snap, m)
	return plan, err
}

// planColumns compares the table with the columns that the query writes now.
func (s *Sink) planColumns(snap *delta.Snapshot) ([]column.Change, error) {
	var wrote []string
	if raw, ok := snap.Metadata.Configuration[s.columnsKey()]; ok {
		if err := json.Unmarshal([]byte(raw), &wrote); err != nil {
			return nil, failure.Wrap(failure.Checkpoint, err, "table %s, property %s", s.Name(), s.columnsKey()).
				WithHint("remove the property: the next start writes it again")
		}
	}
	var out []column.Change
	refuse := func(name, from, to, reason, hint string) {
		out = append(out, column.Change{Kind: column.Refused, Column: name, From: from, To: to, Reason: reason, Hint: hint})
	}
	for _, w := range s.opts.Arrow.Fields() {
		h, ok := fieldOf(snap.Schema, w.Name)
		to := delta.TypeName(w.Type)
		switch {
		case !ok && !w.Nullable:
			refuse(w.Name, "", to+" required", "the query writes it as a required "+to+", the table does not have it and its rows have no value for it", column.HintRequired)
		case !ok:
			out = append(out, column.Change{Kind: column.Added, Column: w.Name, To: to})
		case h.Name != w.Name:
			refuse(w.Name, "", to, "the table has "+h.Name+", and Delta does not tell names apart by case", "choose another name")
		case !delta.SameShape(h.Type, w.Type):
			from := delta.TypeName(h.Type)
			refuse(w.Name, from, to, "the query writes "+to+", the table has "+from+": a Delta table of protocol (1, 2) keeps the types of its columns",
				"declare the column as "+from+" again; or give the new one another name and list the old one under keepColumns")
		}
	}
	for _, h := range snap.Schema.Fields() {
		if len(s.opts.Arrow.FieldIndices(h.Name)) > 0 || !slices.Contains(wrote, h.Name) {
			continue
		}
		if e := s.opts.Evolution; e != nil && !slices.Contains(e.Keep, h.Name) {
			refuse(h.Name, delta.TypeName(h.Type), "", "the query wrote it ("+delta.TypeName(h.Type)+") and does not declare it any more",
				"if this file is older than the table, use the newer one; else list the column under keepColumns (it stays, and new rows have null)")
			continue
		}
		out = append(out, column.Change{Kind: column.Left, Column: h.Name, From: delta.TypeName(h.Type)})
	}
	return out, nil
}

func fieldOf(sc *arrow.Schema, name string) (arrow.Field, bool) {
	for _, f := range sc.Fields() {
		if strings.EqualFold(f.Name, name) {
			return f, true
		}
	}
	return arrow.Field{}, false
}
