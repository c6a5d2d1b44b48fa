package status

import (
	"net/http"
	"strings"
	"time"
)

// Jobs is what the jobs of a pipeline came to in this process.
type Jobs struct {
	Jobs   []Job   `json:"jobs"`
	Models []Mart  `json:"models"`
	Checks []Check `json:"checks"`
	// TestsPassed and TestsFailed count the models' tests of the last gold run.
	TestsPassed int `json:"tests_passed"`
	TestsFailed int `json:"tests_failed"`
}

// Job is one job with its last run.
type Job struct {
	Name     string     `json:"name"`
	What     string     `json:"what"`
	When     string     `json:"when"`
	State    string     `json:"state"` // empty before the first run
	RunID    string     `json:"run_id,omitempty"`
	Trigger  string     `json:"trigger,omitempty"`
	Started  *time.Time `json:"started_at,omitempty"`
	Seconds  float64    `json:"seconds"`
	Tries    int        `json:"tries"`
	Error    string     `json:"error,omitempty"`
	Runs     int64      `json:"runs"`
	Failures int64      `json:"failures"`
}

// Mart is one model of gold after its last run.
type Mart struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind"`
	State   string   `json:"state"`
	Mode    string   `json:"mode,omitempty"`
	Rows    int64    `json:"rows"`
	Seconds float64  `json:"seconds"`
	Reads   []string `json:"reads,omitempty"`
	Error   string   `json:"error,omitempty"`
	// TestsPassed counts tests of the last run that look at this model;
	// TestsFailed names those that did not pass.
	TestsPassed int      `json:"tests_passed"`
	TestsFailed []string `json:"tests_failed,omitempty"`
}

// Check is one check after its last run.
type Check struct {
	Name     string    `json:"name"`
	Kind     string    `json:"kind"`
	Table    string    `json:"table,omitempty"`
	Severity string    `json:"severity"`
	State    string    `json:"state"`
	Observed string    `json:"observed"`
	Expected string    `json:"expected"`
	Error    string    `json:"error,omitempty"`
	At       time.Time `json:"at"`
}

// warnings are what is red among them. A model that is blocked by another, and
// tests of a model that failed by them, are told with their cause.
func (j *Jobs) warnings() (out []Reason) {
	told := map[string]bool{}
	for _, c := range j.Checks {
		if c.Tone() == "bad" {
			told["checks"] = true
			out = append(out, Reason{Subject: c.Name, Code: CodeCheck, Text: "check " + c.Name + " (" + c.Severity + "): " + firstOf(c.Error, "found "+c.Observed+", wanted "+c.Expected)})
		}
	}
	for _, m := range j.Models {
		told["gold"] = told["gold"] || m.Tone() == "bad"
		switch {
		case len(m.TestsFailed) > 0:
			out = append(out, Reason{Subject: m.Name, Code: CodeModelTest, Text: "model " + m.Name + ": tests do not pass: " + strings.Join(m.TestsFailed, ", ")})
		case m.State == "failed":
			out = append(out, Reason{Subject: m.Name, Code: CodeModel, Text: "model " + m.Name + " failed: " + m.Error})
		}
	}
	for _, job := range j.Jobs {
		kind, _, _ := strings.Cut(job.What, " ")
		if job.Tone() == "bad" && !told[kind] {
			out = append(out, Reason{Subject: job.Name, Code: CodeJob, Text: "job " + job.Name + " failed: " + job.Error})
		}
	}
	return out
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Tone is the colour of a state: ok, wait or bad.
func (j Job) Tone() string { return toneOf(j.State) }

// Tone is the colour of a state.
func (m Mart) Tone() string { return toneOf(m.State) }

// Tone is the colour of a state.
func (c Check) Tone() string { return toneOf(c.State) }

func toneOf(state string) string {
	switch state {
	case "succeeded", "passed", "published", "skipped", "built":
		return "ok"
	case "failed", "error", "blocked":
		return "bad"
	}
	return "wait"
}

// apiJobs is the jobs' part of the status alone; an empty object where the
// pipeline has none.
func (s *Server) apiJobs(w http.ResponseWriter, r *http.Request) {
	j := s.board.model(r.Context(), nothing).Jobs
	if j == nil {
		writeJSON(w, http.StatusOK, struct{}{})
		return
	}
	writeJSON(w, http.StatusOK, j)
}

// jobMetricHelp names the metrics of jobs and checks: name, help, labels.
var jobMetricHelp = []struct {
	name, help string
	labels     []string
}{
	{"weir_job_runs_total", "Runs of the job that were begun since the start of the process.", []string{"job"}},
	{"weir_job_failures_total", "Runs of the job that failed, retries and all.", []string{"job"}},
	{"weir_job_up", "1 where the job's last run succeeded or is under way, 0 where it failed, was interrupted or had nothing to work on yet.", []string{"job"}},
	{"weir_job_last_start_timestamp_seconds", "Start of the job's last run, in seconds since 1970.", []string{"job"}},
	{"weir_check_passed", "1 where the check passed when it was last run, 0 where it did not.", []string{"check", "severity"}},
	{"weir_gold_rows", "Rows of a gold table after its last run.", []string{"model"}},
}

func collectJobs(j *Jobs, gauge func(string, float64, ...string), total func(string, int64, ...string)) {
	for _, job := range j.Jobs {
		total("weir_job_runs_total", job.Runs, job.Name)
		total("weir_job_failures_total", job.Failures, job.Name)
		if job.State == "" {
			continue
		}
		gauge("weir_job_up", truth(job.State == "succeeded" || job.State == "running"), job.Name)
		gauge("weir_job_last_start_timestamp_seconds", float64(job.Started.UnixMilli())/1000, job.Name)
	}
	for _, c := range j.Checks {
		gauge("weir_check_passed", truth(c.State == "passed"), c.Name, c.Severity)
	}
	for _, m := range j.Models {
		if m.Kind == "table" || m.Kind == "incremental" {
			gauge("weir_gold_rows", float64(m.Rows), m.Name)
		}
	}
}
