package prove

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/clock"
)

// standingEnv is a scenario's folder with a checkpoint in it, over a catalog
// that says where every table's metadata is.
func standingEnv(t *testing.T, newest string) *Env {
	t.Helper()
	e := &Env{o: Options{Clock: clock.System{}, Binary: "/no/binary"}, dir: t.TempDir(), observed: map[string]any{}, catalog: located(newest)}
	for _, dir := range []string{"checkpoints/bronze/offsets", "checkpoints/bronze/commits", "checkpoints/bronze/state/dedup"} {
		if err := os.MkdirAll(e.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return e
}

type located string

func (l located) MetadataLocation(context.Context, string) (string, error) { return string(l), nil }

func TestABrokenStandingAssertionIsNamed(t *testing.T) {
	exact := func() *audit.TableReport {
		return &audit.TableReport{Table: bronzeTable, Outcome: audit.Exact, MetadataLocation: "v2"}
	}
	for _, c := range []struct {
		name  string
		spoil func(*testing.T, *Env, *audit.TableReport)
		want  string
	}{
		{standOffsets, func(_ *testing.T, _ *Env, r *audit.TableReport) {
			r.Missing = []audit.Range{{Partition: 1, From: 3, To: 5}}
		}, "partition 1 offsets 3 to 4"},
		{standFiles, func(_ *testing.T, _ *Env, r *audit.TableReport) { r.FilesLiveTwice = []string{"a.parquet"} }, "a.parquet"},
		{standIDs, func(_ *testing.T, _ *Env, r *audit.TableReport) { r.Silver = &audit.SilverReport{DoubledEventIDs: 2} }, "2 doubled"},
		{standSums, func(_ *testing.T, _ *Env, r *audit.TableReport) {
			r.Silver = &audit.SilverReport{Balance: &audit.Balance{Complete: true}}
		}, bronzeTable},
		{standFolders, func(t *testing.T, e *Env, _ *audit.TableReport) {
			for i := range stateFilesMax + 1 {
				touch(t, e.path("checkpoints/bronze/state/dedup/"+strconv.Itoa(i)))
			}
		}, "dedup has 201 entries"},
		{standLocks, func(t *testing.T, e *Env, _ *audit.TableReport) {
			f := touch(t, e.path("checkpoints/bronze/lock"))
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}, "checkpoints/bronze"},
		{standProcesses, func(t *testing.T, e *Env, _ *audit.TableReport) {
			p, err := spawn("/usr/bin/tail", []string{"-f", touch(t, e.path("x")).Name()}, nil, e.path("log"), "a process that is left")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.abandon)
			e.o.Binary, _ = filepath.EvalSymlinks("/usr/bin/tail")
		}, "tail -f"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat("/proc/self/exe"); err != nil && c.name == standProcesses {
				t.Skip("no /proc")
			}
			e, report := standingEnv(t, "v2"), exact()
			c.spoil(t, e, report)
			e.audited = &audit.Report{Tables: []*audit.TableReport{report}}
			got, err := e.stand(context.Background(), &Scenario{})
			if err != nil {
				t.Fatal(err)
			}
			said := e.observed[standingKey].(string)
			if len(got.broken) != 1 || !strings.HasPrefix(said, c.name) || !strings.Contains(said, c.want) {
				t.Errorf("broken %q, want only %q with %q", got.broken, c.name, c.want)
			}
		})
	}
}

func touch(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestAReaderThatDidNotSeeTheNewestMetadataMakesAScenarioInconclusive(t *testing.T) {
	for newest, want := range map[string]string{"v2": Proved, "v3": Inconclusive} {
		e := standingEnv(t, newest)
		e.audited = &audit.Report{Tables: []*audit.TableReport{{Table: bronzeTable, Outcome: audit.Exact, MetadataLocation: "v2"}}}
		s := &Scenario{Expect: func(*Env) []Check { return nil }}
		if outcome, reason, _ := s.perform(context.Background(), e); outcome != want {
			t.Errorf("judged by v2, newest %s: %s (%s), want %s", newest, outcome, reason, want)
		}
	}
}
