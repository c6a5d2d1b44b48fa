package operator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirlake/weir/internal/marker"
)

// Fingerprint names a definition.
func (d Definition) Fingerprint() string {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // texts only
	}
	return marker.Hash(b)
}

// String is the definition in a line.
func (d Definition) String() string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(d.Settings)) {
		parts = append(parts, k+" "+d.Settings[k])
	}
	if len(d.Keys) > 0 {
		parts = append(parts, "keys "+strings.Join(d.Keys, ", "))
	}
	return d.Kind + " over " + d.TimeColumn + ": " + strings.Join(append(parts, d.Aggregates...), "; ")
}

// Differences says line by line how b is another definition than a.
func Differences(a, b Definition) []string {
	var out []string
	differ := func(what, x, y string) {
		if x != y {
			out = append(out, fmt.Sprintf("%s was %s, is %s", what, orNone(x), orNone(y)))
		}
	}
	differ("kind", a.Kind, b.Kind)
	differ("event time", a.TimeColumn, b.TimeColumn)
	keys := map[string]bool{}
	for _, m := range []map[string]string{a.Settings, b.Settings} {
		for k := range m {
			keys[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		differ(k, a.Settings[k], b.Settings[k])
	}
	differ("keys", strings.Join(a.Keys, ", "), strings.Join(b.Keys, ", "))
	for _, x := range a.Aggregates {
		if !slices.Contains(b.Aggregates, x) {
			out = append(out, "no longer: "+x)
		}
	}
	for _, y := range b.Aggregates {
		if !slices.Contains(a.Aggregates, y) {
			out = append(out, "new: "+y)
		}
	}
	if len(out) == 0 && !slices.Equal(a.Aggregates, b.Aggregates) {
		out = append(out, "the columns are in another order")
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// Migrates reports whether what was remembered under a can be read again under
// b without a row being lost or counted twice: dropDuplicatesWithinWatermark
// with another delay, since its table holds every id. Sessions and windows never:
// what they have put out was grouped by the old rule, and rows of it would be in
// groups by the new one again.
func Migrates(a, b Definition) bool {
	return a.Kind == "dedup" && b.Kind == "dedup" && a.TimeColumn == b.TimeColumn && slices.Equal(a.Keys, b.Keys)
}
