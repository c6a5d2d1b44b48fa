package engine

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
)

// definitions are what the query's stateful operators are.
func (q *Query) definitions() []operator.Definition {
	if d, ok := q.Transform.(operator.Definer); ok {
		return d.Definitions()
	}
	return nil
}

// definitionOf names the definition of an operator, empty where it has none.
func (q *Query) definitionOf(name string) string {
	for _, d := range q.definitions() {
		if d.Name == name {
			return d.Fingerprint()
		}
	}
	return ""
}

// checkDefinition refuses to go on with state that was made by another
// definition of the query, before anything is claimed: what was put out under
// the old one and what would be put out under the new one do not add up.
func (q *Query) checkDefinition(obs *observed, d checkpoint.Decision) error {
	m := obs.sinks[len(obs.sinks)-1].Marker
	if q.Options.NewState || m == nil || m.BatchID < 0 || d.Outcome == checkpoint.OutcomeFresh || d.Outcome == checkpoint.OutcomeRestart {
		return nil
	}
	known := map[string]operator.Definition{} // by fingerprint
	if meta := obs.check.Metadata; meta != nil {
		for print, raw := range meta.Definitions {
			var def operator.Definition
			if json.Unmarshal(raw, &def) == nil && def.Fingerprint() == print {
				known[print] = def
			}
		}
	}
	var lines []string
	left := map[string]marker.StateFile{}
	for _, f := range m.State {
		left[f.Operator] = f
	}
	for _, def := range q.definitions() {
		f, ok := left[def.Name]
		delete(left, def.Name)
		switch {
		case !ok && def.Kind != "dedup": // ids of the past are in the table, groups are not
			lines = append(lines, fmt.Sprintf("%s is new: %s", def.Name, def))
		case !ok, f.Definition == "", f.Definition == def.Fingerprint():
		default:
			lines = append(lines, changed(def, known, f.Definition)...)
		}
	}
	for name, f := range left {
		text := name + " is gone"
		if old, ok := known[f.Definition]; ok {
			text += ": " + old.String()
		}
		lines = append(lines, text)
	}
	if len(lines) == 0 {
		return nil
	}
	return failure.New(failure.Checkpoint, "query %s is defined otherwise than when its state was made:\n  %s", q.Name, strings.Join(lines, "\n  ")).
		WithHint("take the change back; or give the query another name and table, which starts over; or give up what the query remembers: "+
			"weir run --new-state %s begins with nothing (rows of groups that are open now are in no group)", q.Name)
}

// changed says how a definition is another one than the one of the state.
func changed(def operator.Definition, known map[string]operator.Definition, was string) []string {
	old, ok := known[was]
	switch {
	case !ok:
		return []string{fmt.Sprintf("%s is now %s; what it was is not known any more", def.Name, def)}
	case operator.Migrates(old, def):
		return nil
	}
	var out []string
	for _, l := range operator.Differences(old, def) {
		out = append(out, def.Name+": "+l)
	}
	return out
}

// readable are the definitions by fingerprint, for the checkpoint's metadata.
func (q *Query) readable() map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, d := range q.definitions() {
		out[d.Fingerprint()] = encode(d)
	}
	return out
}
