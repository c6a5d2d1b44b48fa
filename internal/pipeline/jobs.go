package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// BuiltinGold is the project of SQL models that ships with the binary.
const BuiltinGold = "builtin:wikimedia"

// Gold is a folder of SQL models in the shape of a dbt project.
type Gold struct {
	// Project is BuiltinGold or an absolute path.
	Project string `yaml:"project" weir:"required"`
	// Schema is the namespace of the published tables.
	Schema string `yaml:"schema" weir:"name"`
	// Database is a DuckDB file that gets a copy of them; empty for none.
	Database    string            `yaml:"database" weir:"path"`
	Vars        map[string]string `yaml:"vars"`
	Threads     int               `yaml:"threads" weir:"min=0,max=1024"`
	MemoryLimit string            `yaml:"memoryLimit"`
}

// Severities of a check, and which ones raise an alert.
const (
	SeverityError = "error"
	SeverityWarn  = "warn"
)

// Check is an assertion about a table: exactly one kind is set.
type Check struct {
	Name     string `yaml:"name" weir:"required,name"`
	Table    string `yaml:"table" weir:"table"`
	Severity string `yaml:"severity" weir:"enum=error|warn"`
	// Where limits the rows that are looked at.
	Where string `yaml:"where"`

	Duplicates     []string        `yaml:"duplicates" weir:"min=1"`
	NotNull        []string        `yaml:"notNull" weir:"min=1"`
	AcceptedValues *AcceptedValues `yaml:"acceptedValues"`
	Freshness      *Freshness      `yaml:"freshness"`
	Completeness   *Completeness   `yaml:"completeness"`
	Reconciliation *Reconciliation `yaml:"reconciliation"`
	RowCount       *RowCount       `yaml:"rowCount"`
	SQL            string          `yaml:"sql"`
}

// Kind is the key of the kind that is set, empty where none is.
func (c Check) Kind() string {
	k := c.kinds()
	if len(k) == 0 {
		return ""
	}
	return k[0]
}

func (c Check) kinds() []string {
	var out []string
	for _, k := range []struct {
		key string
		set bool
	}{
		{"duplicates", c.Duplicates != nil}, {"notNull", c.NotNull != nil}, {"acceptedValues", c.AcceptedValues != nil},
		{"freshness", c.Freshness != nil}, {"completeness", c.Completeness != nil}, {"reconciliation", c.Reconciliation != nil},
		{"rowCount", c.RowCount != nil}, {"sql", c.SQL != ""},
	} {
		if k.set {
			out = append(out, k.key)
		}
	}
	return out
}

// AcceptedValues lists what a column may hold; nulls are let through.
type AcceptedValues struct {
	Column string   `yaml:"column" weir:"required"`
	Values []string `yaml:"values" weir:"required,min=1"`
}

// Freshness bounds the age of the newest value of a column.
type Freshness struct {
	Column string        `yaml:"column" weir:"required"`
	MaxAge time.Duration `yaml:"maxAge" weir:"required,min=1s"`
}

// Completeness compares a table that a query feeds from Kafka with the topic's
// end.
type Completeness struct {
	Topic  string `yaml:"topic" weir:"required,topic"`
	MaxLag int64  `yaml:"maxLag" weir:"min=0"`
}

// Reconciliation compares two numbers.
type Reconciliation struct {
	Left      string `yaml:"left" weir:"required"`
	Right     string `yaml:"right" weir:"required"`
	Tolerance int64  `yaml:"tolerance" weir:"min=0"`
}

// RowCount bounds the number of rows, and how far it may be from the last run's.
type RowCount struct {
	Min              int64 `yaml:"min" weir:"min=0"`
	Max              int64 `yaml:"max" weir:"min=0"`
	MaxDropPercent   int64 `yaml:"maxDropPercent" weir:"min=0,max=100"`
	MaxGrowthPercent int64 `yaml:"maxGrowthPercent" weir:"min=0"`
}

// Values of Job.Gold.
const (
	GoldRun   = "run"
	GoldBuild = "build"
	GoldTest  = "test"
)

// Values of Job.CatchUp.
const (
	CatchUpSkip = "skip"
	CatchUpOnce = "once"
	CatchUpAll  = "all"
)

// AllChecks stands for every check in Job.Checks.
const AllChecks = "all"

// Job is work that weir run does beside the queries: exactly one of Gold, Checks
// and Command, and at least one of Cron, Every, AfterCommit and AfterJob.
type Job struct {
	Name    string   `yaml:"name" weir:"required,name"`
	Gold    string   `yaml:"gold" weir:"enum=run|build|test"`
	Select  []string `yaml:"select" weir:"min=1"`
	Checks  []string `yaml:"checks" weir:"min=1"`
	Command string   `yaml:"command"`

	Cron        string        `yaml:"cron"`
	TimeZone    string        `yaml:"timeZone"`
	Every       time.Duration `yaml:"every" weir:"min=1s"`
	AfterCommit []string      `yaml:"afterCommit" weir:"min=1"`
	AfterJob    []string      `yaml:"afterJob" weir:"min=1"`
	// MinInterval is the least time between the starts of two runs that commits
	// or jobs ask for.
	MinInterval time.Duration `yaml:"minInterval" weir:"min=0s"`
	CatchUp     string        `yaml:"catchUp" weir:"enum=skip|once|all"`
	Retries     int           `yaml:"retries" weir:"min=0,max=100"`
	BackOff     time.Duration `yaml:"backOff" weir:"min=0s"`
	Timeout     time.Duration `yaml:"timeout" weir:"min=1s"`
}

// Alerts say who hears of checks and jobs that fail.
type Alerts struct {
	// Webhook gets the alert as JSON; the URL may carry a secret.
	Webhook Secret `yaml:"webhook"`
	// Command is run by the shell with the alert on standard input.
	Command  string        `yaml:"command"`
	Severity string        `yaml:"severity" weir:"enum=error|warn"`
	Timeout  time.Duration `yaml:"timeout" weir:"min=1s"`
}

// Defaults of jobs.
const (
	DefaultGoldSchema = "gold"
	// DefaultDuckMemory bounds DuckDB in gold and in checks, which run beside the
	// streams; it spills to disk beyond.
	DefaultDuckMemory  = "1GB"
	DefaultMinInterval = 10 * time.Second
	DefaultBackOff     = 5 * time.Second
	DefaultJobTimeout  = 30 * time.Minute
	DefaultAlertWait   = 10 * time.Second
	DefaultRunsTable   = "ops.runs"
	DefaultChecksTable = "ops.checks"
)

func (g *Gold) setDefaults()  { g.Schema, g.MemoryLimit = DefaultGoldSchema, DefaultDuckMemory }
func (c *Check) setDefaults() { c.Severity = SeverityError }
func (j *Job) setDefaults() {
	j.CatchUp, j.MinInterval, j.BackOff, j.Timeout = CatchUpOnce, DefaultMinInterval, DefaultBackOff, DefaultJobTimeout
}
func (a *Alerts) setDefaults() { a.Severity, a.Timeout = SeverityError, DefaultAlertWait }

// checkJobs checks gold, checks, jobs and alerts.
func (l *loader) checkJobs(p *Pipeline) {
	if p.Gold != nil && !l.isBroken("gold.project") {
		switch s := p.Gold.Project; {
		case s == "" || s == BuiltinGold:
		case strings.HasPrefix(s, "builtin:"):
			l.faultKey("gold.project", "project: no built-in project of that name; there is %s", BuiltinGold)
		default:
			abs, err := l.path(s)
			if err != nil {
				l.faultKey("gold.project", "project %s", err)
			}
			p.Gold.Project = abs
		}
	}
	checks := map[string]bool{}
	for i, c := range p.Checks {
		l.checkCheck(p, fmt.Sprintf("checks[%d]", i), c)
		if checks[c.Name] {
			l.faultKey(fmt.Sprintf("checks[%d].name", i), "check name %q is used twice", c.Name)
		}
		checks[c.Name] = true
	}
	jobs := map[string]bool{}
	for i, j := range p.Jobs {
		if jobs[j.Name] {
			l.faultKey(fmt.Sprintf("jobs[%d].name", i), "job name %q is used twice", j.Name)
		}
		jobs[j.Name] = true
	}
	for i, j := range p.Jobs {
		l.checkJob(p, fmt.Sprintf("jobs[%d]", i), j, checks, jobs)
	}
	l.checkJobCircle(p)
	if a := p.Alerts; a != nil {
		if url := a.Webhook.Reveal(); url != "" && checkKind(url, "url") != nil {
			l.faultKey("alerts.webhook", "webhook is not an http or https URL")
		}
		if a.Webhook.Reveal() == "" && a.Command == "" && !l.isBroken("alerts") {
			l.faultKey("alerts", "alerts needs webhook or command")
		}
	}
}

func (l *loader) checkCheck(p *Pipeline, key string, c Check) {
	switch kinds := c.kinds(); {
	case len(kinds) == 0 && !l.isBroken(key):
		l.faultKey(key, "%s says nothing: give duplicates, notNull, acceptedValues, freshness, completeness, reconciliation, rowCount or sql", key)
	case len(kinds) > 1:
		l.faultKey(key+"."+kinds[1], "%s is of two kinds, %s and %s: make it two checks", key, kinds[0], kinds[1])
	case len(kinds) == 1 && c.Table == "" && kinds[0] != "reconciliation" && kinds[0] != "sql":
		l.faultKey(key, "%s: %s needs a table", key, kinds[0])
	}
	if r := c.RowCount; r != nil && r.Max > 0 && r.Min > r.Max {
		l.faultKey(key+".rowCount.min", "min is more than max")
	}
	if c.Completeness == nil {
		return
	}
	fed := false
	for _, q := range p.Queries {
		fed = fed || q.To.Table() == c.Table
	}
	if !fed && c.Table != "" {
		l.faultKey(key+".completeness", "no query of this file writes %s: it has no position to compare with the topic's end", c.Table)
	}
	if p.Kafka == nil {
		l.faultKey(key+".completeness", "completeness needs kafka")
	}
}

func (l *loader) checkJob(p *Pipeline, key string, j Job, checks, jobs map[string]bool) {
	var what []string
	for _, w := range []struct {
		key string
		set bool
	}{{"gold", j.Gold != ""}, {"checks", j.Checks != nil}, {"command", j.Command != ""}} {
		if w.set {
			what = append(what, w.key)
		}
	}
	switch {
	case len(what) == 0 && !l.isBroken(key):
		l.faultKey(key, "%s does nothing: give gold, checks or command", key)
	case len(what) > 1:
		l.faultKey(key+"."+what[1], "%s does two things, %s and %s: make it two jobs, the second with afterJob", key, what[0], what[1])
	}
	if j.Gold != "" && p.Gold == nil {
		l.faultKey(key+".gold", "%s runs gold, but the file has no gold", key)
	}
	if j.Select != nil && j.Gold == "" {
		l.faultKey(key+".select", "select is for gold")
	}
	for _, name := range j.Checks {
		if name != AllChecks && !checks[name] {
			l.faultKey(key+".checks", "there is no check %q", name)
		}
	}
	if j.Cron == "" && j.Every == 0 && j.AfterCommit == nil && j.AfterJob == nil && !l.isBroken(key) {
		l.faultKey(key, "%s never starts: give cron, every, afterCommit or afterJob", key)
	}
	if j.Cron != "" && j.Every != 0 {
		l.faultKey(key+".every", "%s has both cron and every; keep one", key)
	}
	if _, err := ParseCron(j.Cron, j.TimeZone); j.Cron != "" && err != nil {
		l.faultKey(key+".cron", "cron: %s", err)
	}
	for _, name := range j.AfterCommit {
		if !slices.ContainsFunc(p.Queries, func(q Query) bool { return q.Name == name }) {
			l.faultKey(key+".afterCommit", "there is no query %q", name)
		}
	}
	for _, name := range j.AfterJob {
		if !jobs[name] || name == j.Name {
			l.faultKey(key+".afterJob", "there is no other job %q", name)
		}
	}
}

// checkJobCircle refuses jobs that wait for each other.
func (l *loader) checkJobCircle(p *Pipeline) {
	after := map[string][]string{}
	for _, j := range p.Jobs {
		after[j.Name] = j.AfterJob
	}
	for i, j := range p.Jobs {
		seen := map[string]bool{}
		todo := slices.Clone(j.AfterJob)
		for len(todo) > 0 {
			next := todo[0]
			todo = todo[1:]
			if next == j.Name {
				l.faultKey(fmt.Sprintf("jobs[%d].afterJob", i), "job %s waits for itself, through others", j.Name)
				break
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, after[next]...)
			}
		}
	}
}

// ParseCron reads five fields or a word like @hourly, in a time zone; empty is
// UTC.
func ParseCron(spec, zone string) (cron.Schedule, error) {
	if zone == "" {
		zone = "UTC"
	}
	if _, err := time.LoadLocation(zone); err != nil {
		return nil, fmt.Errorf("there is no time zone %q", zone)
	}
	if strings.HasPrefix(spec, "TZ=") || strings.HasPrefix(spec, "CRON_TZ=") || strings.HasPrefix(spec, "@every") {
		return nil, fmt.Errorf("%q: write the zone in timeZone, and an interval in every", spec)
	}
	return cron.ParseStandard("CRON_TZ=" + zone + " " + spec)
}
