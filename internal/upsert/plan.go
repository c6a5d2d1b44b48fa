package upsert

import "github.com/apache/arrow-go/v18/arrow"

// Counts say what a merge did to the table.
type Counts struct {
	Inserted, Updated, Deleted int64
	// Ignored are keys whose row in the table is newer.
	Ignored int64
	// Copied are rows that stood in files that were written again.
	Copied int64
	// Rewritten is how many files were replaced.
	Rewritten int
}

// Plan is what a source does to one version of a table.
type Plan struct {
	Source *Source
	// stale are keys that the table has a newer row of; matched counts the rows
	// of the table that every other key replaces. hits are the keys by file.
	stale   map[string]bool
	matched map[string]int64
	hits    map[string]map[string]int64
	Counts  Counts
}

// NewPlan begins with nothing looked at.
func NewPlan(s *Source) *Plan {
	return &Plan{Source: s, stale: map[string]bool{}, matched: map[string]int64{}, hits: map[string]map[string]int64{}}
}

// Look notes which rows of a file the source replaces. rec holds the columns of
// Spec.Columns.
func (p *Plan) Look(file string, rec arrow.RecordBatch) error {
	keys, orders := KeyColumns{Names: p.Source.Keys}, OrderColumns{Names: p.Source.OrderBy}
	if err := keys.Bind(rec); err != nil {
		return err
	}
	if p.Source.KeepNewer {
		if err := orders.Bind(rec); err != nil {
			return err
		}
	}
	for i := range int(rec.NumRows()) {
		k, ok := keys.Key(i)
		if !ok {
			continue
		}
		row := p.Source.Rows[string(k)]
		if row == nil {
			continue
		}
		found := p.hits[file]
		if found == nil {
			found = map[string]int64{}
			p.hits[file] = found
		}
		found[string(k)]++
		if p.Source.KeepNewer && orders.At(i).Compare(row.Order) > 0 {
			p.stale[string(k)] = true
		}
	}
	return nil
}

// Touched reports whether a file holds rows that are replaced. It is asked once
// for each file, after all of them were looked at.
func (p *Plan) Touched(file string) bool {
	touched := false
	for k, n := range p.hits[file] {
		if !p.stale[k] {
			touched = true
			p.matched[k] += n
		}
	}
	if touched {
		p.Counts.Rewritten++
	}
	return touched
}

// Rest emits the rows of a touched file that stay. It takes rec over; emit takes
// over what it is given.
func (p *Plan) Rest(rec arrow.RecordBatch, emit func(arrow.RecordBatch) error) error {
	defer rec.Release()
	keys := KeyColumns{Names: p.Source.Keys}
	if err := keys.Bind(rec); err != nil {
		return err
	}
	return runs(rec, func(i int) bool {
		k, ok := keys.Key(i)
		if ok {
			_, ok = p.matched[string(k)]
		}
		return !ok
	}, func(part arrow.RecordBatch) error {
		p.Counts.Copied += part.NumRows()
		return emit(part)
	})
}

// Insert emits the source's rows that are neither deletes nor late, and counts.
// It is called last.
func (p *Plan) Insert(emit func(arrow.RecordBatch) error) error {
	p.Counts.Ignored = int64(len(p.stale))
	write := make([][]bool, len(p.Source.Records))
	for i, r := range p.Source.Records {
		write[i] = make([]bool, r.NumRows())
	}
	for k, row := range p.Source.Rows {
		had, known := p.matched[k]
		switch {
		case p.stale[k]:
		case row.Delete:
			p.Counts.Deleted += had
		default:
			write[row.Rec][row.Row] = true
			if known {
				p.Counts.Updated++
			} else {
				p.Counts.Inserted++
			}
		}
	}
	for i, rec := range p.Source.Records {
		if err := runs(rec, func(row int) bool { return write[i][row] }, emit); err != nil {
			return err
		}
	}
	return nil
}

// Changes reports whether the plan does anything to the table.
func (p *Plan) Changes() bool {
	c := p.Counts
	return c.Inserted+c.Updated+c.Deleted > 0
}

// runs gives the rows that pass as slices of the record.
func runs(rec arrow.RecordBatch, pass func(int) bool, emit func(arrow.RecordBatch) error) error {
	n := int(rec.NumRows())
	for from := 0; from < n; {
		if !pass(from) {
			from++
			continue
		}
		to := from + 1
		for to < n && pass(to) {
			to++
		}
		if err := emit(rec.NewSlice(int64(from), int64(to))); err != nil {
			return err
		}
		from = to + 1
	}
	return nil
}
