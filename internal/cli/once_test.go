package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"testing"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/engine"
	"github.com/weirlake/weir/internal/failure"
)

func TestTheLastLineOfARunSaysHowItEndedAndWhetherToTryAgain(t *testing.T) {
	stopped, stop := context.WithCancelCause(t.Context())
	stop(signalled(syscall.SIGTERM))
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want onceSummary
	}{
		"worked off":          {t.Context(), nil, onceSummary{Completed: true}},
		"stopped":             {stopped, nil, onceSummary{Failure: "stopped", ExitCode: 143, Retry: true}},
		"stopped while going": {stopped, context.Canceled, onceSummary{Failure: "stopped", ExitCode: 143, Retry: true}},
		"failed, then stopped": {stopped, failure.New(failure.Checkpoint, "gone"),
			onceSummary{Failure: "checkpoint", ExitCode: 7}},
		"unreachable":   {t.Context(), failure.New(failure.Unreachable, "no answer"), onceSummary{Failure: "unreachable", ExitCode: 8, Retry: true}},
		"unknown":       {t.Context(), failure.New(failure.CommitUnknown, "?"), onceSummary{Failure: "commit-unknown", ExitCode: 6, Retry: true}},
		"plain error":   {t.Context(), errors.New("disk full"), onceSummary{Failure: "runtime", ExitCode: 1, Retry: true}},
		"configuration": {t.Context(), failure.New(failure.Config, "no"), onceSummary{Failure: "configuration", ExitCode: 2}},
		"fenced":        {t.Context(), failure.New(failure.Fenced, "no"), onceSummary{Failure: "fenced", ExitCode: 5}},
		"source":        {t.Context(), failure.New(failure.SourceChanged, "no"), onceSummary{Failure: "source-changed", ExitCode: 3}},
	} {
		var out bytes.Buffer
		g := &globals{output: "json", stdout: &out, stderr: &out}
		o := newOnceRun(clock.System{})
		for i := range 3 {
			o.batch(engine.Progress{QueryName: "bronze", QueryID: "id", BatchID: int64(i), InputRows: 10, OutputRows: 7, RowsFiltered: 2, RowsDeadLettered: 1})
		}
		o.batch(engine.Progress{QueryName: "silver", BatchID: 4, InputRows: 21, OutputRows: 20, RowsDuplicate: 1})
		err := g.finish(c.ctx, o, c.err)
		if (err == nil) != c.want.Completed {
			t.Errorf("%s: error %v", name, err)
		}
		var got onceSummary
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out.String())
		}
		if got.Completed != c.want.Completed || got.Failure != c.want.Failure || got.ExitCode != c.want.ExitCode || got.Retry != c.want.Retry {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if len(got.Queries) != 2 || got.Queries[0].InputRows != 30 || got.Queries[0].OutputRows != 21 || got.Queries[0].Batches != 3 ||
			got.Queries[0].LastBatchID != 2 || got.Queries[1].RowsDuplicate != 1 {
			t.Errorf("%s: the sums are %+v", name, got.Queries)
		}
	}
}
