package pipeline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestJobsChecksAndGoldAreRead(t *testing.T) {
	p := load(t, "testdata/valid/jobs.yaml")
	if p.Gold.Schema != "marts" || !filepath.IsAbs(p.Gold.Project) || p.Gold.Vars["lookback_minutes"] != "5" {
		t.Errorf("gold is %+v", p.Gold)
	}
	var kinds []string
	for _, c := range p.Checks {
		kinds = append(kinds, c.Kind())
	}
	want := []string{"duplicates", "notNull", "acceptedValues", "freshness", "completeness", "reconciliation", "rowCount", "sql"}
	if !slices.Equal(kinds, want) {
		t.Errorf("kinds %v, want %v", kinds, want)
	}
	if p.Checks[0].Severity != SeverityError || p.Checks[1].Severity != SeverityWarn {
		t.Error("severity is error unless told otherwise")
	}
	if v := p.Checks[2].AcceptedValues.Values; !slices.Equal(v, []string{"a", "b, c"}) {
		t.Errorf("accepted values %q", v)
	}
	j := p.Jobs[0]
	if j.MinInterval != 30*time.Second || j.Retries != 3 || j.CatchUp != CatchUpOnce {
		t.Errorf("job is %+v", j)
	}
	if p.Ops.RunsTable != DefaultRunsTable || p.Ops.ChecksTable != DefaultChecksTable {
		t.Errorf("ops is %+v", p.Ops)
	}
	s, err := ParseCron(p.Jobs[2].Cron, p.Jobs[2].TimeZone)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Next(time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)).UTC(); got.Hour() != 1 || got.Minute() != 15 {
		t.Errorf("03:15 in Zurich in summer is %s", got)
	}
}

func TestFaultsOfJobsAndChecksNameTheKeyAndTheWayOut(t *testing.T) {
	good, err := os.ReadFile("testdata/valid/jobs.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ from, to, want string }{
		"no kind":            {", duplicates: [topic, partition, offset]", "", "says nothing"},
		"two kinds":          {"notNull: [value]", "notNull: [value], sql: x", "two kinds"},
		"no table":           {"fresh, table: bronze.a", "fresh", "needs a table"},
		"unknown check":      {"checks: [once, fresh]", "checks: [onec]", `no check "onec"`},
		"unknown query":      {"afterCommit: [bronze]", "afterCommit: [silver]", `no query "silver"`},
		"unknown job":        {"afterJob: [gold]", "afterJob: [glod]", `no other job "glod"`},
		"circle":             {"afterCommit: [bronze]", "afterJob: [quality]", "waits for itself"},
		"never":              {", every: 1h", "", "never starts"},
		"bad cron":           {"15 3 * * *", "15 3 * *", "cron:"},
		"bad zone":           {"Europe/Zurich", "Europe/Zurihc", "no time zone"},
		"does two things":    {`command: "true"`, `command: "true", checks: all`, "two things"},
		"no gold":            {"gold:\n  project: models\n  schema: marts\n  database: ./data/gold.duckdb\n  vars: {lookback_minutes: 5}\n  threads: 2\n  memoryLimit: 1GB\n", "", "no gold"},
		"foreign table":      {"complete, table: bronze.a", "complete, table: bronze.b", "no query of this file writes"},
		"nobody to alert":    {`alerts: {webhook: "http://127.0.0.1:1/hook", command: "cat", severity`, "alerts: {severity", "needs webhook or command"},
		"unknown builtin":    {"project: models", "project: builtin:nothing", "no built-in project"},
		"check named twice":  {"name: filled", "name: once", "used twice"},
		"job named twice":    {"name: nightly", "name: hourly", "used twice"},
		"cron and every":     {"every: 1h", `every: 1h, cron: "@hourly"`, "both cron and every"},
		"min above max":      {"min: 1, max: 100", "min: 101, max: 100", "more than max"},
		"select but no gold": {`command: "true"`, `command: "true", select: [x]`, "select is for gold"},
	} {
		bad := strings.Replace(string(good), c.from, c.to, 1)
		if bad == string(good) {
			t.Fatalf("%s: nothing was changed", name)
		}
		_, faults := LoadBytes("x.yaml", t.TempDir(), []byte(bad), func(string) (string, bool) { return "", false })
		if !slices.ContainsFunc(faults, func(f Fault) bool { return strings.Contains(f.Message, c.want) }) {
			t.Errorf("%s: no fault says %q: %v", name, c.want, faults)
		}
	}
}
