package prove

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirlake/weir/internal/fault"
)

// groupState are the scenarios of state beyond memory: the sessions of
// sessionsYAML in a database in a folder, their snapshots in parts.
const groupState = "state"

const stateYAML = sessionsYAML + `    state: {store: pebble, cacheBytes: 8MiB, partBytes: 1KiB}
`

// stateFolder is where the query works.
func stateFolder(e *Env) string {
	return e.path(filepath.Join("checkpoints", sessionsQuery, "pebble"))
}

// states makes the scenarios: a kill at every step that state beyond memory has, and
// what can become of the folder afterwards.
func states() []Scenario {
	var out []Scenario
	for _, p := range fault.Points() {
		if p.Step == "state" {
			out = append(out, stateKilled("state-"+p.Name, p, fmt.Sprintf("killed at %s (%s)", p.Name, p.Text)))
		}
	}
	saved := fault.Point{Name: fault.StageState}
	const start = "start again, and run to the end"
	kept := stateKilled("state-kept", saved, "killed in mid-batch, whose folder is kept")
	lost := stateKilled("state-lost", saved, "killed in mid-batch, whose folder is then removed,").
		before(start, "remove the folder", func(_ context.Context, e *Env) error { return os.RemoveAll(stateFolder(e)) })
	old := stateKilled("state-old", saved, "killed in mid-batch, whose folder is then replaced by an older copy,").
		before("publish more", "copy the folder", func(_ context.Context, e *Env) error {
			return os.CopyFS(e.path("old-copy"), os.DirFS(stateFolder(e)))
		}).
		before(start, "put the older copy in its place", func(_ context.Context, e *Env) error {
			if err := os.RemoveAll(stateFolder(e)); err != nil {
				return fmt.Errorf("remove the folder: %w", err)
			}
			return os.Rename(e.path("old-copy"), stateFolder(e))
		})
	return append(out, kept, lost, old)
}

// stateKilled is a scenario of sessions with their state in a folder.
func stateKilled(name string, p fault.Point, what string) Scenario {
	// A snapshot, and so its parts, is what a query writes in its first batch.
	s := sessionsKilled(p, p.Name == fault.StatePart, nil, "")
	s.Name, s.Group, s.Place = name, groupState, nil
	s.Claim = fmt.Sprintf("The query of sessions with its state in a local folder, %s, has every complete session once after a restart.", what)
	s.Steps[0].Do = func(ctx context.Context, e *Env) (err error) {
		st := &sessionState{point: p.Name, nth: 1, settle: func() {}}
		e.state = st
		st.workload, err = e.newWorkload(ctx, setup{Name: "state", MaxOffsets: crashMaxOffsets, Extra: stateYAML, Delay: sessionsDelay})
		return err
	}
	return s
}

// before puts a step before another one.
func (s Scenario) before(step, name string, do func(context.Context, *Env) error) Scenario {
	i := slices.IndexFunc(s.Steps, func(x Step) bool { return x.Name == step })
	s.Steps = slices.Insert(slices.Clone(s.Steps), i, Step{name, do})
	return s
}
