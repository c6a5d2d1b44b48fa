package prove

import (
	"slices"
	"strings"
)

// foreign readers, by the prefix of their figures' keys: what the built-in
// reader observes as K, they observe as prefix_K.
var foreign = []struct{ prefix, name string }{{"iceberg", "PyIceberg"}, {"duckdb", "DuckDB"}}

// builtIn heads the column of our own reader's figures.
const builtIn = "observed"

// Row is one line of the table of figures: what must be, and what each reader
// counted.
type Row struct {
	Text  string
	Want  string
	Cells []Cell
}

// Cell is one reader's figure; Value is empty where it does not count this.
type Cell struct {
	Value string
	Met   bool
}

// Met reports whether every reader counted what must be.
func (r Row) Met() bool {
	return !slices.ContainsFunc(r.Cells, func(c Cell) bool { return c.Value != "" && !c.Met })
}

// Readers are the heads of the table's columns.
func (s *Result) Readers() []string {
	out := []string{builtIn}
	for _, f := range foreign {
		if slices.ContainsFunc(s.Checks, func(c Check) bool { return strings.HasPrefix(c.Key, f.prefix+"_") }) {
			out = append(out, f.name)
		}
	}
	return out
}

// Rows are the table of figures, one line per check of the built-in reader.
func (s *Result) Rows() []Row {
	checks := map[string]Check{}
	for _, c := range s.Checks {
		checks[c.Key] = c
	}
	cell := func(key string) Cell {
		c, ok := checks[key]
		if !ok {
			return Cell{}
		}
		return Cell{Value: figure(s.Observed[key]), Met: s.Met(c)}
	}
	readers := s.Readers()
	var out []Row
	for _, c := range s.Checks {
		if isForeign(c.Key) {
			continue
		}
		row := Row{Text: c.Text, Want: figure(c.Want), Cells: []Cell{cell(c.Key)}}
		for _, f := range foreign {
			if slices.Contains(readers, f.name) {
				row.Cells = append(row.Cells, cell(f.prefix+"_"+c.Key))
			}
		}
		out = append(out, row)
	}
	return out
}

func isForeign(key string) bool {
	for _, f := range foreign {
		if strings.HasPrefix(key, f.prefix+"_") {
			return true
		}
	}
	return false
}

// Met reports whether a check holds.
func (s *Result) Met(c Check) bool {
	got, ok := s.Observed[c.Key]
	return ok && figure(got) == figure(c.Want)
}

// Notes are the observed figures that no check is about.
func (s *Result) Notes() []string {
	checked := map[string]bool{}
	for _, c := range s.Checks {
		checked[c.Key] = true
	}
	var out []string
	for k := range s.Observed {
		if !checked[k] {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
