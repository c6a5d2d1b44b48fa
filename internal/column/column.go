// Package column says how the columns of a query and those of its table differ,
// and what is done about it. It is a leaf: tables of every kind speak of the
// same changes.
//
// Whatever a reader of old rows, or of old files, would lose by is refused:
// a narrower type, another type, a value that is required of rows that have
// none, a column that goes without a word.
package column

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/failure"
)

// Evolution is what a query declares of its table beside the columns: what was
// called otherwise before, and what it no longer writes.
type Evolution struct {
	// Renamed gives the name before by the name now.
	Renamed map[string]string
	// Drop names columns that go out of the table, Keep those that stay and get
	// nulls.
	Drop, Keep []string
	// Fixed says, by column, what stands on it (a key, the event time): such a
	// column is neither renamed nor given another type.
	Fixed map[string]string
}

// Kind is what happens to a column.
type Kind string

// The kinds of changes.
const (
	Added   Kind = "add"
	Widened Kind = "widen"
	Renamed Kind = "rename"
	Relaxed Kind = "make optional"
	Dropped Kind = "drop"
	// Left stays in the table and is not written any more.
	Left Kind = "leave"
	// Refused is a change that would lose something.
	Refused Kind = "refuse"
)

// Change is one difference between a table and the columns of its query.
type Change struct {
	Kind   Kind   `json:"kind"`
	Column string `json:"column"`
	// From and To are types; of a rename, names.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Reason and Hint say why a change is refused, and the way out.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// String is the change in a line.
func (c Change) String() string {
	switch c.Kind {
	case Added:
		return fmt.Sprintf("add %s %s", c.Column, c.To)
	case Widened:
		return fmt.Sprintf("widen %s from %s to %s", c.Column, c.From, c.To)
	case Renamed:
		return fmt.Sprintf("rename %s to %s", c.From, c.To)
	case Left:
		return fmt.Sprintf("leave %s, null in new rows", c.Column)
	case Refused:
		return fmt.Sprintf("column %q: %s", c.Column, c.Reason)
	default:
		return fmt.Sprintf("%s %s", c.Kind, c.Column)
	}
}

// Err refuses the whole where a part of it is refused: class SchemaConflict,
// naming every column.
func Err(table string, changes []Change) error {
	var lines, hints []string
	for _, c := range changes {
		if c.Kind != Refused {
			continue
		}
		lines = append(lines, c.String())
		if !slices.Contains(hints, c.Hint) {
			hints = append(hints, c.Hint)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return failure.New(failure.SchemaConflict, "table %s, %s", table, strings.Join(lines, "\n  ")).
		WithHint("%s", strings.Join(hints, "; "))
}

// The ways out that several tables offer.
const (
	HintFixed     = "leave the column as it was, or write to another table under another query name"
	HintRequired  = "leave required away: the column is null in old rows; or write to another table under another query name"
	HintUnwritten = "if this file is older than the table, use the newer one; else list the column under dropColumns (it goes) or keepColumns (it stays, and new rows have null)"
)

// SuggestRename points from a column that went to the one of its type that came,
// where there is exactly one.
func SuggestRename(gone *Change, came []string) {
	if len(came) == 1 {
		gone.Hint = fmt.Sprintf("if it is %s now, declare that with renamedFrom: %s; %s", came[0], gone.Column, gone.Hint)
	}
}
