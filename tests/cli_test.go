package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// desk is a folder in which a stranger makes mistakes.
type desk struct {
	t   *testing.T
	dir string
	env []string
}

func newDesk(t *testing.T, env ...string) *desk {
	t.Helper()
	weirBin(t)
	return &desk{t: t, dir: t.TempDir(), env: env}
}

// write writes a file on the desk and gives its path.
func (d *desk) write(name, text string) string {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// minimal is the shipped minimal example with parts put in place of others.
func (d *desk) minimal(name string, replace ...string) string {
	d.t.Helper()
	b, err := os.ReadFile(filepath.Join(repo(d.t), "examples", "minimal.yaml"))
	if err != nil {
		d.t.Fatal(err)
	}
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(string(b), replace[i]) {
			d.t.Fatalf("examples/minimal.yaml has no %q", replace[i])
		}
	}
	return d.write(name, strings.NewReplacer(replace...).Replace(string(b)))
}

// trace is what no user may ever see.
var trace = regexp.MustCompile(`(?m)^goroutine \d+|^panic: |\.go:\d+`)

// fails runs a command that must end with the code, name everything in says, and
// print nothing on standard output.
func (d *desk) fails(code int, says []string, args ...string) {
	d.t.Helper()
	out, errs, got := weir(d.t, d.env, args...)
	if got != code {
		d.t.Errorf("weir %s: exit %d, not %d\n%s%s", strings.Join(args, " "), got, code, tail(out), tail(errs))
	}
	for _, s := range says {
		if !strings.Contains(errs, s) {
			d.t.Errorf("weir %s does not say %q:\n%s", strings.Join(args, " "), s, tail(errs))
		}
	}
	if out != "" {
		d.t.Errorf("weir %s: on standard output: %s", strings.Join(args, " "), tail(out))
	}
	if trace.MatchString(out + errs) {
		d.t.Errorf("weir %s shows its insides:\n%s", strings.Join(args, " "), tail(out+errs))
	}
}

func TestAWrongFileIsRefusedWithEveryFaultAndItsPlace(t *testing.T) {
	d := newDesk(t)
	none := filepath.Join(d.dir, "none.yaml")
	for _, command := range []string{"run", "ingest", "audit", "status"} {
		d.fails(2, []string{none + ":1:1: there is no such file", "weir init"}, command, none)
	}
	d.fails(2, []string{"is a folder"}, "run", d.dir)
	d.fails(2, []string{"not valid YAML"}, "run", d.write("broken.yaml", "a: [1,\n  b: }\n"))
	d.fails(2, []string{"the file is empty"}, "run", d.write("empty.yaml", ""))
	d.fails(2, nil, "run", d.write("binary.yaml", "\x00\x01\xff\xfe"))
	bad := d.minimal("bad.yaml", "startingOffsets", "startingOffset", "10s", "10 sceonds", "day(timestamp)", "day(timestmp)", "${KAFKA_BOOTSTRAP:-localhost:9092}", "${NOWHERE_SET}")
	faults := []string{
		`:20:21: kafka.bootstrapServers: variable NOWHERE_SET is not set`,
		`:32:9: unknown key "startingOffset"; did you mean "startingOffsets"?`,
		`:34:31: processingTime: "10 sceonds" is not a duration`,
		`:38:23: partitionBy: no column "timestmp"; did you mean "timestamp"?`,
	}
	d.fails(2, faults, "run", bad)

	// validate answers on standard output: the faults are its result.
	out, errs, code := weir(t, nil, "validate", bad)
	if code != 2 || errs != "" {
		t.Errorf("validate: exit %d\n%s", code, errs)
	}
	for _, f := range faults {
		if !strings.Contains(out, bad+f) {
			t.Errorf("validate does not say %q:\n%s", f, out)
		}
	}
	out, _, code = weir(t, nil, "validate", bad, "--output", "json")
	var doc struct {
		Valid  bool `json:"valid"`
		Faults []struct {
			Line, Column int
			Message      string
		} `json:"faults"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || code != 2 || doc.Valid || len(doc.Faults) != len(faults) {
		t.Errorf("validate --output json: exit %d, %v\n%s", code, err, out)
	}
}

func TestWhatDoesNotFitTheSituationSaysWhatAndTheWayOut(t *testing.T) {
	d := newDesk(t)
	bootstrap, _ := embeddedBroker(t, filepath.Join(d.dir, "kafka"), "events:2", "more:1")
	d.env = []string{"KAFKA_BOOTSTRAP=" + bootstrap}
	good := d.minimal("good.yaml")
	d.fails(2, []string{"topic evnts does not exist", "hint:"}, "run", d.minimal("topic.yaml", "[events]", "[evnts]", "catalog.db", "t.db"), "--once")

	// A catalog and a warehouse that are none.
	d.write("data/text.db", strings.Repeat("this is not a database. ", 100))
	text := d.minimal("text.yaml", "catalog.db", "text.db")
	for _, args := range [][]string{{"run", text, "--once"}, {"status", text}, {"checkpoint", "show", text}, {"audit", text}} {
		d.fails(2, []string{"text.db", "is not a SQLite database"}, args...)
	}
	d.write("afile", "")
	d.fails(2, []string{"the warehouse cannot be written to", "afile", "hint:"},
		"run", d.minimal("warehouse.yaml", "./data/warehouse", "./afile/warehouse", "catalog.db", "w.db"), "--once")
	d.fails(2, []string{"checkpoint", "afile", "hint:"},
		"run", d.minimal("checkpoints.yaml", "./data/checkpoints", "./afile/checkpoints", "catalog.db", "c.db"), "--once")

	// Before the first run: nothing there, and looking makes nothing.
	out, errs, code := weir(t, d.env, "status", good)
	if code != 0 || !strings.Contains(out, "not started yet") || errs != "" {
		t.Errorf("status before the first run: exit %d\n%s%s", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "data", "catalog.db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("status made a catalog: %v", err)
	}
	out, _, code = weir(t, d.env, "audit", good)
	if code != 4 || !strings.Contains(out, "the table does not exist") {
		t.Errorf("audit before the first run: exit %d\n%s", code, out)
	}

	// After it.
	_, errs, code = weir(t, d.env, "run", good, "--once")
	if code != 0 || !strings.Contains(errs, "nothing new") {
		t.Errorf("a run over an empty topic: exit %d\n%s", code, errs)
	}
	d.fails(2, []string{"already fed from topic events", "by query events", "hint:"},
		"run", d.minimal("renamed.yaml", "name: events", "name: occurrences"), "--once")
	d.fails(9, []string{"bronze.events", `column "x"`, "hint:"}, "run", d.write("schema.yaml", fmt.Sprintf(`
name: other
catalog: {type: sql, uri: "sqlite:./data/catalog.db"}
warehouse: ./data/warehouse
checkpointLocation: ./data/other
kafka: {bootstrapServers: [%q]}
queries:
  - name: other
    from: {kafka: {topics: [more]}}
    parse: {format: json, columns: [{name: x, path: $.x, type: string}]}
    deadLetter: {table: bronze.dead}
    to: {iceberg: {table: bronze.events}}
`, bootstrap)), "--once")
	d.fails(2, []string{`has no query "nosuch"`}, "checkpoint", "show", good, "nosuch")
	d.fails(2, []string{"say --yes"}, "checkpoint", "reset", good)
	d.fails(2, []string{"has no ingest section"}, "ingest", good)
}

func TestABrokerThatIsNotThereIsSaidWithinSeconds(t *testing.T) {
	d := newDesk(t, "KAFKA_BOOTSTRAP=127.0.0.1:1")
	file := d.minimal("pipeline.yaml", "queries:", "status: {listen: none}\nqueries:")
	withTopics := d.minimal("topics.yaml", "queries:", "status: {listen: none}\nqueries:", "  # tls:", "  topics: [{name: events}]\n  # tls:")
	for _, f := range []string{file, withTopics} {
		p := start(t, d.env, "run", f)
		began := time.Now()
		for !strings.Contains(p.errs.String(), "waiting for Kafka") {
			if time.Since(began) > patience || !p.running() {
				t.Fatalf("%s: it never says what it waits for\n%s", f, p.errs.String())
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("said after %s", time.Since(began).Round(100*time.Millisecond))
		if !strings.Contains(p.errs.String(), "127.0.0.1:1") || !strings.Contains(p.errs.String(), "giving_up_after=2m0s") {
			t.Errorf("%s", p.errs.String())
		}
		// Whoever gives up waiting stops it cleanly.
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if code := p.wait(); code != 0 || trace.MatchString(p.errs.String()) {
			t.Errorf("stopped while waiting: exit %d\n%s", code, p.errs.String())
		}
	}
	d.fails(8, []string{"127.0.0.1:1"}, "audit", file)
}

func TestABrokerThatStaysAwayEndsARunWithEight(t *testing.T) {
	if os.Getenv("WEIR_SLOW") == "" {
		t.Skip("waits out the two minutes of the deadline: set WEIR_SLOW=1")
	}
	d := newDesk(t, "KAFKA_BOOTSTRAP=127.0.0.1:1")
	d.fails(8, []string{"no answer from Kafka at [127.0.0.1:1] for 2m0s", "hint:", "starting again is safe"}, "run", d.minimal("pipeline.yaml"), "--once")
}

func TestATakenPortIsSaid(t *testing.T) {
	d := newDesk(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	d.fails(2, []string{taken, "hint:"}, "replay-sse", "--listen", taken)
	d.fails(2, []string{taken, "hint:"}, "demo", "--data", filepath.Join(d.dir, "demo"), "--events", "10", "--once", "--listen", taken)
	_, port, err := net.SplitHostPort(taken)
	if err != nil {
		t.Fatal(err)
	}
	_, errs, code := weir(t, []string{"WEIR_DATA=" + d.dir, "WEIR_KAFKA_PORT=" + port}, "run", filepath.Join(repo(t), "examples", "wikimedia.yaml"), "--once")
	if code != 0 || !strings.Contains(errs, port) {
		t.Errorf("the embedded broker's port is taken: exit %d\n%s", code, errs)
	}
}

func TestADemosFolderKeepsItsStream(t *testing.T) {
	d := newDesk(t)
	demo := func(flags ...string) []string {
		return append([]string{"demo", "--data", filepath.Join(d.dir, "demo"), "--once", "--listen", "none"}, flags...)
	}
	if _, errs, code := weir(t, nil, demo("--events", "300")...); code != 0 {
		t.Fatalf("exit %d\n%s", code, errs)
	}
	d.fails(2, []string{"--seed 1", "hint:"}, demo("--events", "300", "--seed", "2")...)
	d.fails(2, []string{"--delivery at-least-once", "hint:"}, demo("--events", "300", "--delivery", "exactly-once")...)
	d.fails(2, []string{"300", "--events 200 is fewer", "hint:"}, demo("--events", "200")...)
	d.fails(2, []string{"--events -1"}, demo("--events", "-1")...)
	d.fails(2, []string{"add --events N"}, demo()...)
	d.write("afile", "")
	d.fails(2, []string{"afile"}, "demo", "--data", filepath.Join(d.dir, "afile"), "--events", "10", "--once")
}

// TestEveryAnswerInJSONIsJSONAndNothingElse runs every command that has one, at
// the chattiest log level.
func TestEveryAnswerInJSONIsJSONAndNothingElse(t *testing.T) {
	d := newDesk(t)
	env := []string{"WEIR_DATA=" + filepath.Join(d.dir, "demo"), "WEIR_LISTEN=none", "WEIR_LOG_LEVEL=debug"}
	file := filepath.Join(repo(t), "examples", "wikimedia.yaml")
	for _, c := range []struct {
		args []string
		docs int // -1: any number
	}{
		{[]string{"version"}, 1},
		{[]string{"validate", file}, 1},
		{[]string{"status", file}, 1},
		{[]string{"demo", "--data", filepath.Join(d.dir, "demo"), "--events", "500", "--once", "--listen", "none"}, 1},
		{[]string{"status", file}, 1},
		{[]string{"audit", file}, 1},
		{[]string{"checkpoint", "show", file, "silver"}, 1},
		{[]string{"checkpoint", "adopt", file, "silver"}, 1},
		{[]string{"checkpoint", "reset", file, "silver", "--yes"}, 1},
		// The query of sessions, downstream, would rightly refuse a table that was
		// started over.
		{[]string{"run", file, "--once", "--query", "bronze", "--query", "silver"}, -1},
		{[]string{"prove", "--list"}, 1},
		{[]string{"prove", "--list-crash-points"}, 1},
	} {
		out, errs, code := weir(t, env, append(c.args, "--output", "json", "--log-format", "json")...)
		name := strings.Join(c.args, " ")
		if code != 0 {
			t.Errorf("weir %s: exit %d\n%s", name, code, tail(errs))
		}
		if n, err := documents(out); err != nil || (c.docs >= 0 && n != c.docs) {
			t.Errorf("weir %s: %d documents, %v\n%s", name, n, err, tail(out))
		}
		if trace.MatchString(errs) {
			t.Errorf("weir %s shows its insides:\n%s", name, tail(errs))
		}
	}
	// Two that go on until they are stopped.
	p := start(t, env, "replay-sse", "--listen", "127.0.0.1:0", "--output", "json")
	url := ""
	for deadline := time.Now().Add(patience); url == "" && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var served struct{ URL string }
		if json.Unmarshal([]byte(p.out.String()), &served) == nil {
			url = served.URL
		}
	}
	in := start(t, append(env, "WEIR_SSE_URL="+url, "WEIR_DATA="+filepath.Join(d.dir, "ingest")), "ingest", file, "--output", "json")
	time.Sleep(time.Second) // wherever it is then
	for _, q := range []*process{in, p} {
		if err := q.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		code := q.wait()
		if n, err := documents(q.out.String()); code != 0 || err != nil || n > 1 {
			t.Errorf("weir %s: exit %d, %d documents, %v\n%s%s", q.cmd.Args[1], code, n, err, tail(q.out.String()), tail(q.errs.String()))
		}
	}
}

// documents counts the JSON documents of a text that must hold nothing else.
func documents(text string) (n int, err error) {
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
		n++
	}
}

// TestSecretsAreNeverPrinted has secrets in every place where the file takes
// them, commands that succeed and fail, and debug logs.
func TestSecretsAreNeverPrinted(t *testing.T) {
	d := newDesk(t)
	const secret = "hunter2"
	bootstrap, _ := embeddedBroker(t, filepath.Join(d.dir, "kafka"), "events:1")
	text := func(servers, more string) string {
		return fmt.Sprintf(`
name: secret
catalog: {type: sql, uri: "%s"}
warehouse: ./data/warehouse
checkpointLocation: ./data/checkpoints
kafka:
  bootstrapServers: [%q]
  sasl: {mechanism: PLAIN, username: "${file:user}", password: "${file:pass}"}
%squeries:
  - name: events
    from: {kafka: {topics: [events]}}
    to: {iceberg: {table: bronze.events}}
status: {listen: none}
`, "sqlite:./data/catalog.db", servers, more)
	}
	// A folder for each, so that they can wait side by side.
	with := func(name, text string, replace ...string) string {
		d.write(name+"/user", secret+"user\n")
		d.write(name+"/pass", secret+"pass\n")
		return d.write(name+"/pipeline.yaml", strings.NewReplacer(replace...).Replace(text))
	}
	files := []string{
		with("refused", text(bootstrap, "")), // the broker knows no SASL
		with("away", text("127.0.0.1:1", "")),
		with("topics", text("127.0.0.1:1", "  topics: [{name: events}]\n")),
		with("fault", text(bootstrap, "  sasel: {password: "+secret+"}\n")),
		with("mechanism", text(bootstrap, ""), "PLAIN", `"${file:pass}"`),
		with("postgres", text(bootstrap, ""), "sqlite:./data/catalog.db", "postgresql://u:"+secret+"@127.0.0.1:1/db"),
		with("variable", text(bootstrap, ""), "${file:pass}", "${WEIR_TEST_PASSWORD}"),
		with("listen", text(bootstrap, ""), "listen: none", `listen: "${WEIR_TEST_PASSWORD}"`),
	}
	env := []string{"WEIR_LOG_LEVEL=debug", "WEIR_TEST_PASSWORD=" + secret + "env"}
	t.Run("printed", func(t *testing.T) {
		for _, f := range files {
			t.Run(filepath.Base(filepath.Dir(f)), func(t *testing.T) {
				t.Parallel()
				printsNo(t, secret, env, f)
			})
		}
	})
	// Nor is it written anywhere.
	err := filepath.WalkDir(d.dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.Contains(path, "/data/") {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), secret) {
			t.Errorf("%s holds a secret", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// printsNo runs commands on a pipeline file and looks for the secret in all
// that they print. One that waits for what does not come is stopped when it has
// said so.
func printsNo(t *testing.T, secret string, env []string, file string) {
	for _, args := range [][]string{
		{"validate", file}, {"validate", file, "--output", "json"}, {"status", file}, {"checkpoint", "show", file},
		{"run", file, "--once"}, {"audit", file},
	} {
		p := start(t, env, args...)
		select {
		case <-p.exited:
		case <-time.After(5 * time.Second):
			_ = p.cmd.Process.Signal(os.Interrupt)
			p.wait()
		}
		all := p.out.String() + p.errs.String()
		if strings.Contains(all, secret) {
			t.Errorf("weir %s prints a secret:\n%s", strings.Join(args, " "), tail(all))
		}
		if trace.MatchString(all) {
			t.Errorf("weir %s shows its insides:\n%s", strings.Join(args, " "), tail(all))
		}
		t.Logf("weir %s: exit %d\n%s", strings.Join(args, " "), p.cmd.ProcessState.ExitCode(), tail(all))
	}
}
