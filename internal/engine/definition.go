package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/operator"
	"github.com/weirlake/weir/internal/source"
	"github.com/weirlake/weir/internal/state"
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
			lines = append(lines, q.changed(def, known, f.Definition)...)
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

// changed says how a definition is another one than the one of the state, nothing
// where what was remembered can be read again under the new one.
func (q *Query) changed(def operator.Definition, known map[string]operator.Definition, was string) []string {
	old, ok := known[was]
	if !ok {
		return []string{fmt.Sprintf("%s is now %s; what it was is not known any more", def.Name, def)}
	}
	migrates := operator.Migrates(old, def)
	if migrates && (def.Kind == "dedup" || q.canRescan()) {
		return nil
	}
	var out []string
	for _, l := range operator.Differences(old, def) {
		out = append(out, def.Name+": "+l)
	}
	if migrates {
		out = append(out, def.Name+": its open groups cannot be read again, because the query parses and groups at once")
	}
	return out
}

// canRescan reports whether the rows of open groups can be read again from the
// source.
func (q *Query) canRescan() bool {
	b, ok := q.Transform.(operator.InputRebuilder)
	_, again := q.Source.(source.Rescanner)
	return ok && again && b.CanRebuild()
}

// rebuiltFrom names where lost memory is read again from.
func (q *Query) rebuiltFrom() string {
	if _, grouped := q.Transform.(operator.InputRebuilder); grouped {
		return "the source"
	}
	return q.mainOutput().Sink.Name()
}

// unusable reports that a file of state is not there, damaged or of another
// version: what was remembered is then read again.
func unusable(err error) bool {
	return errors.Is(err, state.ErrMissing) || errors.Is(err, state.ErrCorrupt) || errors.Is(err, state.ErrForeign)
}

// StateFate is what a start does with the memory of an operator.
type StateFate struct {
	Operator string `json:"operator"`
	// Fate is keep, rebuild, begin (--new-state) or none (nothing was remembered).
	Fate string `json:"fate"`
	// From is what it is rebuilt from, Why is why.
	From string `json:"from,omitempty"`
	Why  string `json:"why,omitempty"`
}

// The fates of state.
const (
	StateKept    = "keep"
	StateRebuilt = "rebuild"
	StateBegins  = "begin"
	StateNone    = "none"
)

// stateFates decide, operator by operator, what becomes of what the marker of the
// claim names. A file that turns out to be missing or damaged is rebuilt all the
// same.
func (q *Query) stateFates(m *marker.Marker, d checkpoint.Decision) []StateFate {
	tips := map[string]marker.StateFile{}
	for _, f := range m.State {
		tips[f.Operator] = f
	}
	_, grouped := q.Transform.(operator.InputRebuilder)
	var out []StateFate
	for _, op := range q.Transform.State() {
		tip, there := tips[op.Name()]
		fate := StateFate{Operator: op.Name(), Fate: StateKept}
		rebuild := func(why string) { fate.Fate, fate.From, fate.Why = StateRebuilt, q.rebuiltFrom(), why }
		other := m.Transform != "" && m.Transform != q.Transform.Fingerprint()
		switch now := q.definitionOf(op.Name()); {
		case q.Options.NewState && m.BatchID >= 0:
			fate.Fate, fate.Why = StateBegins, "--new-state"
		case !there && m.BatchID < 0:
			fate.Fate = StateNone
		case d.RebuildState:
			rebuild(d.RebuildWhy)
		case !there:
			rebuild("there is no state of it yet")
		case other && op.Name() == operator.DeletesName:
			rebuild("the transform has changed") // its definition does not name the order
		case tip.Definition != "" && tip.Definition == now:
			// Other columns, another filter: what it remembers is the same.
		case tip.Definition != "":
			rebuild("its definition has changed")
		case !grouped && other:
			rebuild("the transform has changed")
		}
		out = append(out, fate)
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
