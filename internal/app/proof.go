package app

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/pipeline"
	"github.com/weirlake/weir/internal/prove"
	"github.com/weirlake/weir/internal/status"
)

// ProofFile is where the last report of weir prove lies for a pipeline: beside
// its checkpoints. It is empty where these are in an object store.
func ProofFile(p *pipeline.Pipeline) string {
	if pipeline.Remote(p.CheckpointLocation) {
		return ""
	}
	return filepath.Join(filepath.Dir(p.CheckpointLocation), "proof.json")
}

// proofFacts reads the report at path, or where the pipeline's lies. A report
// that was asked for and is not there is an error; another one is just missing.
func proofFacts(path string, p *pipeline.Pipeline) func(context.Context) (*status.Proof, error) {
	asked := path != ""
	if !asked {
		path = ProofFile(p)
	}
	if path == "" {
		return nil
	}
	return func(context.Context) (*status.Proof, error) {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && !asked {
			return nil, nil
		}
		if err != nil {
			return nil, failure.Wrap(failure.Config, err, "the proof's report")
		}
		var r prove.Report
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, failure.Wrap(failure.Config, err, "%s is not a report of weir prove", path)
		}
		return proofOf(path, &r), nil
	}
}

func proofOf(path string, r *prove.Report) *status.Proof {
	out := &status.Proof{
		File: path, At: r.About.Started, Version: r.About.Weir, Revision: r.About.Revision, Outcome: r.Outcome(),
		Scenarios: len(r.Scenarios), Kills: r.Kills,
		Recovery: [3]float64{r.Recovery.P50Seconds, r.Recovery.P95Seconds, r.Recovery.MaxSeconds},
		Groups:   []status.ProofGroup{}, Failing: []status.ProofCase{},
	}
	for _, s := range r.Scenarios {
		i := slices.IndexFunc(out.Groups, func(g status.ProofGroup) bool { return g.Name == s.Group })
		if i < 0 {
			i = len(out.Groups)
			out.Groups = append(out.Groups, status.ProofGroup{Name: s.Group})
		}
		g := &out.Groups[i]
		g.Total++
		switch s.Outcome {
		case prove.Proved:
			out.Proved++
			g.Proved++
			continue
		case prove.Violated:
			out.Violated++
		default:
			out.Inconclusive++
		}
		out.Failing = append(out.Failing, status.ProofCase{Name: s.Name, Outcome: s.Outcome, Claim: s.Claim, Reason: s.Reason})
	}
	return out
}
