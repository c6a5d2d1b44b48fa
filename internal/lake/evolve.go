package lake

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/table"

	"github.com/weirlake/weir/internal/column"
)

// Columns are the columns that a query has written so far, by field id.
type Columns struct {
	Required []int `json:"required,omitempty"`
	Optional []int `json:"optional,omitempty"`
}

// Wrote reports whether the query has written the column.
func (c *Columns) Wrote(id int) bool {
	return c != nil && (slices.Contains(c.Required, id) || slices.Contains(c.Optional, id))
}

// SchemaChange is what a query's columns ask of its table.
type SchemaChange struct {
	steps []step
	base  *iceberg.Schema
	// names are the table's own, for files without field ids.
	names iceberg.NameMapping
}

// step is a change with what it takes to make it.
type step struct {
	column.Change
	id    int          // of the table's column
	typ   iceberg.Type // of an added or widened column
	after string       // the column that an added one follows, empty for the first
}

// Columns are the changes, column by column.
func (s *SchemaChange) Columns() []column.Change {
	if s == nil {
		return nil
	}
	var out []column.Change
	for _, st := range s.steps {
		out = append(out, st.Change)
	}
	return out
}

// alters reports whether the table's schema becomes another one.
func (s *SchemaChange) alters() bool {
	return s != nil && slices.ContainsFunc(s.steps, func(st step) bool { return st.Kind != column.Left && st.Kind != column.Refused })
}

// PlanSchema compares the table with the columns that its query writes now. A
// nil Evolution is of columns that nobody declares, because the program itself
// has them: those that it does not write stay. wrote is nil where it is not known
// what the query wrote.
//
// Whatever a reader of old rows, or of old files, would lose by is refused.
func PlanSchema(t *table.Table, want *iceberg.Schema, e *column.Evolution, wrote *Columns) *SchemaChange {
	p := &planning{
		out: &SchemaChange{base: t.Schema(), names: t.Metadata().NameMapping()}, wrote: wrote, declared: e != nil, left: map[string]iceberg.NestedField{},
		pinned: pinned(t),
	}
	if e != nil {
		p.evolution = *e
	}
	for _, f := range t.Schema().Fields() {
		p.left[f.Name] = f
	}
	renames := p.renames(want)
	after := ""
	for _, w := range want.Fields() {
		h, ok := p.left[w.Name]
		if old, renamed := renames[w.Name]; renamed {
			h, ok = p.left[old], true
			p.rename(h, w.Name)
			delete(p.left, old)
		}
		delete(p.left, w.Name)
		if ok {
			p.compare(h, w)
		} else {
			p.add(w, after)
		}
		after = w.Name
	}
	for _, f := range t.Schema().Fields() {
		if _, left := p.left[f.Name]; left {
			p.unwritten(f)
		}
	}
	p.suggestRenames()
	return p.out
}

// pinned says which columns the layout of a table stands on.
func pinned(t *table.Table) map[int]string {
	out := map[int]string{}
	for _, spec := range t.Metadata().PartitionSpecs() {
		for _, f := range spec.Fields() {
			for _, id := range f.SourceIDs {
				out[id] = "the table is partitioned by it"
			}
		}
	}
	for _, order := range t.Metadata().SortOrders() {
		for _, f := range order.Fields() {
			for _, id := range f.SourceIDs {
				out[id] = "the table is sorted by it"
			}
		}
	}
	for _, id := range t.Schema().IdentifierFieldIDs {
		out[id] = "it is an identifier field of the table"
	}
	return out
}

// planning is one PlanSchema under way.
type planning struct {
	out       *SchemaChange
	evolution column.Evolution
	wrote     *Columns
	declared  bool
	left      map[string]iceberg.NestedField // the table's columns that no wanted one was found for
	pinned    map[int]string                 // by field id
}

func (p *planning) step(c column.Change, id int) {
	p.out.steps = append(p.out.steps, step{Change: c, id: id})
}

func (p *planning) refuse(name, from, to, hint, format string, args ...any) {
	p.step(column.Change{Kind: column.Refused, Column: name, From: from, To: to, Reason: fmt.Sprintf(format, args...), Hint: hint}, 0)
}

// renames are the declared ones that have not been made yet. One whose old name
// is gone, or whose new name is there, was made by an earlier start.
func (p *planning) renames(want *iceberg.Schema) map[string]string {
	out := map[string]string{}
	for now, old := range p.evolution.Renamed {
		_, made := p.left[now]
		_, there := p.left[old]
		if _, declared := want.FindFieldByName(now); declared && there && !made {
			out[now] = old
		}
	}
	return out
}

// fixed says what stands on a column, empty where nothing does.
func (p *planning) fixed(id int, names ...string) string {
	for _, n := range names {
		if why, ok := p.evolution.Fixed[n]; ok {
			return why
		}
	}
	return p.pinned[id]
}

func (p *planning) rename(h iceberg.NestedField, to string) {
	if why := p.fixed(h.ID, to, h.Name); why != "" {
		p.refuse(to, h.Name, to, column.HintFixed, "it is %s in the table and cannot be renamed: %s", h.Name, why)
		return
	}
	p.step(column.Change{Kind: column.Renamed, Column: to, From: h.Name, To: to}, h.ID)
}

func (p *planning) add(w iceberg.NestedField, after string) {
	for _, f := range p.left {
		if strings.EqualFold(f.Name, w.Name) {
			p.refuse(w.Name, "", w.Type.String(), "choose another name, or declare renamedFrom", "the table has %s, and other engines do not tell names apart by case", f.Name)
			return
		}
	}
	if w.Required {
		p.refuse(w.Name, "", w.Type.String()+" required", column.HintRequired,
			"the query writes it as a required %s, the table does not have it and its rows have no value for it", w.Type)
		return
	}
	p.out.steps = append(p.out.steps, step{Change: column.Change{Kind: column.Added, Column: w.Name, To: w.Type.String()}, typ: w.Type, after: after})
}

// compare looks at a column that is on both sides.
func (p *planning) compare(h, w iceberg.NestedField) {
	from, to := h.Type.String(), w.Type.String()
	why := p.fixed(h.ID, w.Name, h.Name)
	switch {
	case sameType(h.Type, w.Type):
	case wider(h.Type, w.Type) && why != "":
		p.refuse(w.Name, from, to, column.HintFixed, "the query writes %s, the table has %s, and its type cannot change: %s", to, from, why)
		return
	case wider(h.Type, w.Type):
		p.out.steps = append(p.out.steps, step{Change: column.Change{Kind: column.Widened, Column: w.Name, From: from, To: to}, id: h.ID, typ: w.Type})
	case wider(w.Type, h.Type):
		p.refuse(w.Name, from, to, "declare the column as "+from+" again, or write to another table under another query name",
			"the query writes %s, the table has %s: a column is not made narrower, old values might not fit", to, from)
		return
	default:
		p.refuse(w.Name, from, to, "declare the column as "+from+" again; or give the new one another name and list the old one under keepColumns or dropColumns",
			"the query writes %s, the table has %s: there is no lossless way from one to the other", to, from)
		return
	}
	switch {
	case h.Required && !w.Required && why != "":
		p.refuse(w.Name, "required", "optional", column.HintFixed, "the query may write nulls, the table requires a value: %s", why)
	case h.Required && !w.Required:
		p.step(column.Change{Kind: column.Relaxed, Column: w.Name, From: "required", To: "optional"}, h.ID)
	case !h.Required && w.Required && p.wrote != nil && slices.Contains(p.wrote.Optional, h.ID):
		p.refuse(w.Name, "optional "+from, "required "+to, "leave required away; a filter (column IS NOT NULL) keeps such rows out",
			"it was declared as optional %s and is required %s now: rows that are in the table may have no value", from, to)
	}
}

// wider reports whether every value of a is one of b, and files that hold a can
// be read as b.
func wider(a, b iceberg.Type) bool {
	switch x := a.(type) {
	case iceberg.Int32Type:
		_, ok := b.(iceberg.Int64Type)
		return ok
	case iceberg.Float32Type:
		_, ok := b.(iceberg.Float64Type)
		return ok
	case iceberg.DecimalType:
		y, ok := b.(iceberg.DecimalType)
		return ok && x.Scale() == y.Scale() && x.Precision() < y.Precision()
	}
	return false
}

// unwritten looks at a column that only the table has.
func (p *planning) unwritten(f iceberg.NestedField) {
	keep := slices.Contains(p.evolution.Keep, f.Name)
	switch why := p.fixed(f.ID, f.Name); {
	case slices.Contains(p.evolution.Drop, f.Name):
		if why != "" {
			p.refuse(f.Name, f.Type.String(), "", "take it out of dropColumns", "it cannot be dropped: %s", why)
			return
		}
		p.step(column.Change{Kind: column.Dropped, Column: f.Name, From: f.Type.String()}, f.ID)
	case f.Required && !keep:
		p.refuse(f.Name, f.Type.String()+" required", "", "declare the column again, or list it under dropColumns or keepColumns",
			"the table requires a value (%s), the query does not write it", f.Type)
	case f.Required:
		p.step(column.Change{Kind: column.Relaxed, Column: f.Name, From: "required", To: "optional"}, f.ID)
		p.step(column.Change{Kind: column.Left, Column: f.Name, From: f.Type.String()}, f.ID)
	case !p.wrote.Wrote(f.ID):
		// Somebody else's: it has been null in this query's rows all along.
	case keep || !p.declared:
		p.step(column.Change{Kind: column.Left, Column: f.Name, From: f.Type.String()}, f.ID)
	default:
		p.refuse(f.Name, f.Type.String(), "", column.HintUnwritten,
			"the query wrote it (%s) and does not declare it any more", f.Type)
	}
}

// suggestRenames points from a column that went to one of its type that came.
func (p *planning) suggestRenames() {
	for i := range p.out.steps {
		gone := &p.out.steps[i]
		f, left := p.left[gone.Column]
		if gone.Kind != column.Refused || !left {
			continue
		}
		var came []string
		for _, st := range p.out.steps {
			if st.Kind == column.Added && sameType(st.typ, f.Type) {
				came = append(came, st.Column)
			}
		}
		column.SuggestRename(&gone.Change, came)
	}
}

// apply makes the changes a part of the transaction.
func (s *SchemaChange) apply(txn *table.Transaction) error {
	var opts []table.UpdateSchemaOption
	if m := s.names; m != nil {
		opts = append(opts, table.WithNameMapping(m))
	}
	u := txn.UpdateSchema(true, false, opts...)
	// A column's changes are one update: the library applies each to the table's
	// schema as it was, under the name that it had.
	updates := map[int]*table.ColumnUpdate{}
	of := func(id int) *table.ColumnUpdate {
		if updates[id] == nil {
			updates[id] = &table.ColumnUpdate{}
		}
		return updates[id]
	}
	for _, c := range s.steps {
		switch c.Kind {
		case column.Renamed:
			of(c.id).Name = iceberg.Optional[string]{Valid: true, Val: c.To}
		case column.Widened:
			of(c.id).FieldType = iceberg.Optional[iceberg.Type]{Valid: true, Val: c.typ}
		case column.Relaxed:
			of(c.id).Required = iceberg.Optional[bool]{Valid: true}
		case column.Dropped:
			u.DeleteColumn([]string{c.Column})
		case column.Added, column.Left, column.Refused:
		}
	}
	for _, f := range s.base.Fields() {
		if up := updates[f.ID]; up != nil {
			u.UpdateColumn([]string{f.Name}, *up)
		}
	}
	for _, c := range s.steps {
		if c.Kind != column.Added {
			continue
		}
		u.AddColumn([]string{c.Column}, c.typ, "", false, nil)
		if c.after == "" {
			u.MoveFirst([]string{c.Column})
		} else {
			u.MoveAfter([]string{c.Column}, []string{s.before(c.after)})
		}
	}
	return u.Commit()
}

// before is the name that a column had before the change.
func (s *SchemaChange) before(name string) string {
	for _, c := range s.steps {
		if c.Kind == column.Renamed && c.To == name {
			return c.From
		}
	}
	return name
}
