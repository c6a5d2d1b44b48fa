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
// b without a row being lost or counted twice.
//
// Of dropDuplicatesWithinWatermark the delay may change, since its table holds
// every id. Of sessions and windows the grouping never may: what they have put out
// was grouped by the old rule, and rows of it would be in groups by the new one
// again. What is computed of a group may: columns come, go, or get other names,
// and the open groups are read again from the source. A column that is computed
// in another way under the same name is another column.
func Migrates(a, b Definition) bool {
	if a.Kind != b.Kind || a.TimeColumn != b.TimeColumn || !slices.Equal(a.Keys, b.Keys) {
		return false
	}
	if a.Kind == "dedup" {
		return true
	}
	if !maps.Equal(a.Settings, b.Settings) || len(a.Aggregates) == 0 || len(b.Aggregates) == 0 {
		return false
	}
	was := map[string]string{}
	for _, text := range a.Aggregates {
		was[resultName(text)] = text
	}
	for _, text := range b.Aggregates {
		if before, ok := was[resultName(text)]; ok && before != text {
			return false
		}
	}
	return true
}

// resultName is the column of an aggregate's text, "name = function(…)".
func resultName(text string) string {
	name, _, _ := strings.Cut(text, " = ")
	return name
}
