package prove

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirlake/weir/internal/fault"
)

const (
	groupCare = "care"
	// careMaxOffsets makes more batches of what is published than lie between two
	// rounds of table care, some times over.
	careMaxOffsets = 10
	// careSettings let snapshots go long before a round of care comes again.
	careSettings = "{expiry: {keepSnapshots: 20}}"
)

// ofCare are the steps of table care beside and between the batches. What removes
// files waits for a minute at least; package maintain kills that one in its tests.
var ofCare = []string{fault.CareExpired, fault.CareStaged, fault.CareCompacted, fault.CareManifests}

// cares kills a query in the care of its table, at each step of it.
func cares() []Scenario {
	var out []Scenario
	for _, query := range []string{"bronze", "silver"} {
		for _, p := range fault.Points() {
			if slices.Contains(ofCare, p.Name) {
				out = append(out, careKilledAt(query, p))
			}
		}
	}
	return out
}

func careKilledAt(query string, p fault.Point) Scenario {
	const kill = "run until the step is reached, and SIGKILL"
	return Scenario{
		Name: query + "-" + p.Name, Group: groupCare,
		Place: &Place{Matrix: "Steps of table care", Row: p.Name, Column: query},
		Claim: fmt.Sprintf("%s killed at %s (%s), while batches go on, is exact after a restart.", query, p.Name, p.Text),
		Steps: []Step{
			{"make the topic and the pipeline file", func(ctx context.Context, e *Env) (err error) {
				st := &crashState{query: query, point: p.Name, nth: 1}
				e.state = st
				st.workload, err = e.newWorkload(ctx, setup{Name: "care", MaxOffsets: careMaxOffsets, Care: careSettings})
				return err
			}},
			{"publish", both(crashPublish, crashPublish)},
			{kill, crashKill},
			{"publish more, start again, and run to the end", both(crashPublish, crashRestart)},
			{"count", crashCount},
		},
		GuardAfter: kill, Guard: crashMissed, Expect: crashExpect,
	}
}
