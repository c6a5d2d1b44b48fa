package prove

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"syscall"
	"time"

	"github.com/weirlake/weir/internal/audit"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/fault"
	"github.com/weirlake/weir/internal/freeport"
)

const (
	groupStore = "store"

	storeBucket = "lake"
	storeKey    = "weir-prove"
	storeSecret = "weir-prove-secret"
	// storeDown is how long a killed store stays away.
	storeDown = 3 * time.Second
	// One request in so many is answered with 503, or its answer is lost.
	throttleEvery = 4
	loseEvery     = 9
)

// storeState is what a scenario of an object store that fails knows.
type storeState struct {
	*workload
	script, dir string
	missed      string
	disturbance *disturbance // of the proxy before it, where there is one
}

// storeFaults makes the scenarios of an object store that fails under a
// pipeline whose tables and checkpoints lie on it.
func storeFaults() []Scenario {
	var out []Scenario
	for _, query := range []string{"bronze", "silver"} {
		for _, point := range []string{fault.PlanWritten, fault.StageDone, fault.CommitBefore, fault.CommitMetadata, fault.CommitSwapped} {
			const strike = "suspend the pipeline at the step, kill the store, wake the pipeline, start the store again"
			out = append(out, storeScenario("store-killed-"+query+"-"+point,
				&Place{Matrix: "An S3 server that is killed under a pipeline", Row: point, Column: query},
				fmt.Sprintf("An S3 server killed with SIGKILL while %s stands at %s, and away for %s: the pipeline ends well or says that the store is away, and the tables are exact.", query, point, storeDown),
				Step{strike, func(ctx context.Context, e *Env) error { return storeKill(ctx, e, query+"/"+point) }}, nil))
		}
	}
	throttled := func() *disturbance {
		return &disturbance{
			hits: func(n int64, _ *http.Request) bool { return n%throttleEvery == 0 },
			do:   refuse(http.StatusServiceUnavailable, "application/xml", slowDown),
		}
	}
	lost := func() *disturbance {
		return &disturbance{
			hits: func(n int64, r *http.Request) bool { return r.Method == http.MethodPut && n%loseEvery == 0 },
			do:   loseAnswer,
		}
	}
	return append(out,
		storeScenario("store-throttles", nil,
			fmt.Sprintf("A store that answers one request in %d with 503 SlowDown costs time and nothing else.", throttleEvery),
			Step{"run against a store that throttles", storeDisturbed}, throttled),
		storeScenario("store-loses-answers", nil,
			fmt.Sprintf("A store that does what it is asked and breaks the connection before it answers, at one PUT in %d, conditional ones among them: nothing is written twice and nothing is taken for another's.", loseEvery),
			Step{"run against a store whose answers get lost", storeDisturbed}, lost),
		storeIgnores())
}

// storeIgnores is a store that a checkpoint cannot stand on.
func storeIgnores() Scenario {
	strike := Step{"run against a store that ignores conditions: it must refuse", storeRefused}
	s := storeScenario("store-ignores-conditions", nil,
		fmt.Sprintf("A store that answers a conditional PUT over what is there as if it were done is refused (exit code %d) before anything is written to a table.", failure.Config),
		strike, func() *disturbance {
			return &disturbance{
				hits: func(_ int64, r *http.Request) bool {
					return r.Method == http.MethodPut && r.Header.Get("If-None-Match") != ""
				},
				do: ignoreCondition,
			}
		})
	counts := s.Expect
	s.Expect = func(e *Env) []Check {
		return append(counts(e),
			Check{"exit_code_of_the_run", "exit code under the store that ignores conditions", int64(failure.Config)},
			Check{"bronze_rows_written_there", "rows of bronze written there", int64(0)})
	}
	return s
}

// ignoreCondition lets the server do it, and says that it is done where the
// server says that something is there.
func ignoreCondition(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	was := httptest.NewRecorder()
	forward.ServeHTTP(was, r)
	code := was.Code
	if code == http.StatusPreconditionFailed || code == http.StatusConflict {
		w.Header().Set("ETag", `"00000000000000000000000000000000"`)
		w.WriteHeader(http.StatusOK)
		return
	}
	for key, values := range was.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(code)
	_, _ = was.Body.WriteTo(w) // the client may be gone
}

func storeRefused(ctx context.Context, e *Env) error {
	st := e.state.(*storeState)
	st.disturbance.on.Store(true)
	defer st.disturbance.on.Store(false)
	before, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	p, err := e.start("weir run --once, on a store that ignores conditions", nil, "run", e.path(queriesFileName), "--once")
	if err != nil {
		return err
	}
	if e.observed["exit_code_of_the_run"], err = p.endsBy(ctx, runOnceMax); err != nil {
		return err
	}
	after, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	e.observed["bronze_rows_written_there"] = after.Table(bronzeTable).Rows - before.Table(bronzeTable).Rows
	if st.disturbance.done.Load() == 0 {
		st.missed = "no conditional request was seen"
	}
	return nil
}

// slowDown is what S3 says to a client that asks too often.
const slowDown = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`

func storeScenario(name string, place *Place, claim string, strike Step, disturb func() *disturbance) Scenario {
	publish := func(ctx context.Context, e *Env) error { return e.state.(*storeState).publish(ctx, e) }
	once := func(ctx context.Context, e *Env) error { _, err := e.runOnce(ctx); return err }
	return Scenario{
		Name: name, Group: groupStore, Place: place, Claim: claim,
		Steps: []Step{
			{"start an S3 server, make the topic and the pipeline file", func(ctx context.Context, e *Env) error { return storePrepare(ctx, e, disturb) }},
			{"publish, and run to the end", both(publish, once)},
			{"publish more", publish},
			strike,
			{"publish more, and run to the end", both(publish, once)},
			{"count", storeCount},
		},
		GuardAfter: strike.Name,
		Guard:      func(e *Env) string { return e.state.(*storeState).missed },
		Expect: func(e *Env) []Check {
			st := e.state.(*storeState)
			return []Check{
				{"kafka_messages", "Kafka messages", st.sent},
				{"bronze_rows", "bronze rows", st.sent},
				{"bronze_distinct_offsets", "distinct (partition, offset)", st.sent},
				{"silver_rows", "silver rows", int64(len(st.expected))},
				{"silver_distinct_event_ids", "distinct event ids in silver", int64(len(st.expected))},
				{"audit", "audit of both tables", audit.Exact},
			}
		},
	}
}

// storePrepare starts an S3 server of the scenario's own, behind a proxy where
// it is to be disturbed.
func storePrepare(ctx context.Context, e *Env, disturb func() *disturbance) error {
	st := &storeState{script: e.o.StoreScript, dir: e.path("s3")}
	e.state = st
	if st.script == "" {
		return failure.New(failure.Inconclusive, "no script to start an S3 server with").
			WithHint("run it from a checkout of the project (make tools-s3 builds the server)")
	}
	port, err := st.start(ctx, e)
	if err != nil {
		return err
	}
	endpoint := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if disturb != nil {
		st.disturbance = disturb()
		if endpoint, err = e.proxy(endpoint, st.disturbance); err != nil {
			return err
		}
	}
	// A folder of the scenario's own: on one machine a location stands for itself,
	// whatever server it is on, and others may prove at the same time.
	base := "s3://" + storeBucket + "/" + e.prefix
	st.workload, err = e.newWorkload(ctx, setup{Name: "store", MaxOffsets: crashMaxOffsets, Warehouse: base + "warehouse",
		Checkpoints: base + "checkpoints", Store: endpoint})
	return err
}

func (st *storeState) start(ctx context.Context, e *Env) (port int, err error) {
	var out string
	for range portTries {
		if port, err = freeport.Find(serverPorts); err != nil {
			return 0, err
		}
		out, err = st.run(ctx, e, "start", st.dir, strconv.Itoa(port))
		if err == nil {
			break
		}
	}
	if err == nil {
		out, err = st.run(ctx, e, "bucket", st.dir, storeBucket)
	}
	if err != nil {
		return 0, failure.Wrap(failure.Inconclusive, err, "start an S3 server: %s", out).WithHint("make tools-s3 builds it")
	}
	e.cleanup = append(e.cleanup, func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopMax)
		defer cancel()
		_, _ = st.run(ctx, e, "stop", st.dir)
	})
	e.servers = append(e.servers, st.version(ctx, e))
	return port, nil
}

// version names the server.
func (st *storeState) version(ctx context.Context, e *Env) string {
	out, err := st.run(ctx, e, "version")
	if err != nil {
		return "versitygw"
	}
	return out
}

func (st *storeState) run(ctx context.Context, e *Env, args ...string) (string, error) {
	return runScript(ctx, e.dir, "-c", append([]string{fmt.Sprintf(`S3_ACCESS_KEY_ID=%s S3_SECRET_ACCESS_KEY=%s exec bash "$0" "$@"`, storeKey, storeSecret), st.script}, args...)...)
}

// storeKill kills the server while the pipeline is suspended at a step.
func storeKill(ctx context.Context, e *Env, point string) error {
	st := e.state.(*storeState)
	p, why, err := e.suspend(ctx, point, 1, "run", e.path(queriesFileName), "--once")
	if err != nil || p == nil {
		st.missed = "the step was never reached: " + why
		return err
	}
	if out, err := st.run(ctx, e, "kill", st.dir); err != nil {
		return fmt.Errorf("kill the S3 server: %w: %s", err, out)
	}
	e.kills++
	e.mark("kill", "store", 0, "SIGKILL")
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	if err := e.o.Clock.Sleep(ctx, storeDown); err != nil {
		return err
	}
	if out, err := st.run(ctx, e, "start", st.dir); err != nil {
		return failure.Wrap(failure.Unreachable, err, "start the S3 server again: %s", out)
	}
	e.mark("start", "store", 0, "")
	code, err := p.endsBy(ctx, runOnceMax)
	if err != nil {
		return err
	}
	e.observed["exit_code_of_the_run"] = code
	if code != 0 && code != int64(failure.Unreachable) && code != int64(failure.CommitUnknown) {
		return violated("the run ended with exit code %d\n%s", code, p.tail())
	}
	return nil
}

func storeDisturbed(ctx context.Context, e *Env) error {
	st := e.state.(*storeState)
	st.disturbance.on.Store(true)
	defer st.disturbance.on.Store(false)
	if _, err := e.runOnce(ctx); err != nil {
		return err
	}
	e.observed["requests_disturbed"] = st.disturbance.done.Load()
	if st.disturbance.done.Load() == 0 {
		st.missed = "no request was disturbed"
	}
	return nil
}

// storeCount asks the audit, which reads the bucket by an implementation of its
// own.
func storeCount(ctx context.Context, e *Env) error {
	st := e.state.(*storeState)
	n, err := e.messages(ctx, st.setup.Topic)
	if err != nil {
		return err
	}
	e.observed["kafka_messages"] = n
	report, err := e.auditPipeline(ctx)
	if err != nil {
		return err
	}
	e.observed["audit"] = audit.Exact
	for _, t := range report.Tables {
		if t.Outcome != audit.Exact {
			e.observed["audit"], e.observed["audit_of_"+t.Table] = t.Outcome, findings(t)
		}
		if t.Table == silverTable && t.Silver != nil {
			e.observed["silver_rows"], e.observed["silver_distinct_event_ids"] = t.Rows, t.Silver.DistinctEventIDs
		}
		if t.Table == bronzeTable {
			e.observed["bronze_rows"], e.observed["bronze_distinct_offsets"] = t.Rows, t.DistinctOffsets
		}
	}
	return nil
}
