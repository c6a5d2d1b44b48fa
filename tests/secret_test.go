package tests

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/s3test"
)

// secrets are planted texts, by what they are.
type secrets map[string]string

// absent fails where an output holds one of the secrets.
func (s secrets) absent(t *testing.T, where, text string) {
	t.Helper()
	for what, secret := range s {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s holds the %s: …%s…", where, what, strings.ReplaceAll(text[max(0, at-120):at], secret, "[…]"))
		}
	}
}

// absentInFiles looks into every file below dir but those that were planted.
func (s secrets) absentInFiles(t *testing.T, dir string, but ...string) {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, b := range but {
			if path == b {
				return nil
			}
		}
		data, err := os.ReadFile(path)
		n++
		s.absent(t, path, string(data))
		return err
	})
	if err != nil || n == 0 {
		t.Errorf("looked into %d files of %s: %v", n, dir, err)
	}
}

// secretLab is a pipeline over a Kafka with TLS and a log-in, with a stream that
// wants a key and a page that wants a token.
func secretLab(t *testing.T) (l *lab, planted secrets, files []string) {
	t.Helper()
	k := kafkatest.StartSecure(t)
	l = newLab(t, 0)
	planted = secrets{"Kafka password": k.Password, "stream's key": "planted-header-41c7", "page's token": "planted-token-88d1"}
	stream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != planted["stream's key"] {
			t.Error("the stream was asked without its key")
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(stream.Close)
	password := filepath.Join(l.dir, "password.txt")
	if err := os.WriteFile(password, []byte(k.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.useSecure(k, kafkatest.User, "${file:"+password+"}")
	l.edit("queries:", fmt.Sprintf("ingest:\n  - name: stream\n    sse: {url: %q, headers: {X-Key: %q}}\n    topic: stream\n    delivery: exactly-once\nqueries:",
		stream.URL, planted["stream's key"]))
	l.edit("status: {listen: none}", fmt.Sprintf("status: {listen: \"127.0.0.1:0\", token: %q}", planted["page's token"]))
	cl := k.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if _, err := kadm.NewClient(cl).CreateTopic(context.Background(), 2, 1, nil, labTopic); err != nil {
		t.Fatal(err)
	}
	l.client = cl
	l.produce(300)
	return l, planted, []string{l.file, password}
}

func TestNoSecretIsInAnythingThatAPipelineMakes(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("the search for secrets starts a secured Kafka and is part of make secure: set WEIR_TEST_SECURE=1")
	}
	weirBin(t)
	l, planted, files := secretLab(t)
	l.leaks(planted, files, nil)
	l.leaksOfProof(planted)
	l.leaksOfFailures(planted, wrongLogIns())
	l.leaksOfFailures(planted, l.wrongCatalogs())
}

func TestNoSecretIsInAnythingThatAPipelineOnS3Makes(t *testing.T) {
	if os.Getenv("WEIR_TEST_SECURE") == "" {
		t.Skip("the same on S3 is part of make secure: set WEIR_TEST_SECURE=1")
	}
	weirBin(t)
	srv := s3test.Start(t)
	srv.Bucket(s3Bucket)
	l, planted, files := secretLab(t)
	planted["S3 secret key"] = s3test.SecretAccessKey
	l.edit(fmt.Sprintf("warehouse: %q", filepath.Join(l.dir, "warehouse")), "warehouse: s3://"+s3Bucket+"/warehouse")
	l.edit(fmt.Sprintf("checkpointLocation: %q", filepath.Join(l.dir, "checkpoints")), "checkpointLocation: s3://"+s3Bucket+"/checkpoints\n"+
		fmt.Sprintf("stores: [{endpoint: %q, region: %s, pathStyle: true, accessKeyId: %q, secretAccessKey: %q}]",
			srv.Endpoint(), s3test.Region, s3test.AccessKeyID, s3test.SecretAccessKey))
	l.edit("    delivery: exactly-once", fmt.Sprintf("    delivery: exactly-once\n    position: %q", filepath.Join(l.dir, "ingest", "position.json")))
	l.leaks(planted, files, nil)
	planted.absentInFiles(t, srv.ObjectPath(s3Bucket, ""))
}

// leaks runs the pipeline at debug level and looks for the secrets in everything
// that it and the other commands make. until is a further condition to wait for
// before the run is ended.
func (l *lab) leaks(planted secrets, files []string, until func() bool) {
	t := l.t
	t.Helper()
	p := start(t, nil, "run", l.file, "--log-level", "debug", "--pprof")
	url := strings.TrimSuffix(pageOf(t, p), "/")
	waitFor(t, "rows in silver", func() bool {
		if !p.running() {
			t.Fatalf("the run ended by itself\n%s", tail(p.errs.String()))
		}
		_, metrics := l.ask(url+"/metrics", planted["page's token"])
		return strings.Contains(metrics, `query="silver"`) && l.statusBatch("silver") >= 0 && (until == nil || until())
	})
	for _, path := range []string{
		"/", "/api/status", "/api/batches", "/metrics", "/readyz", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1",
	} {
		code, body := l.ask(url+path, planted["page's token"])
		if body == "" || code >= http.StatusBadRequest && path != "/readyz" {
			t.Errorf("%s answers %d with %d bytes", path, code, len(body))
		}
		planted.absent(t, path, body)
	}
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("the run ended with %d\n%s", code, tail(p.errs.String()))
	}
	// A log without the client's own lines was not at debug level, and shows nothing.
	for _, want := range []string{"level=DEBUG msg=weir ", `level=DEBUG msg="kafka client: `, `level=INFO msg="batch committed"`} {
		if !strings.Contains(p.errs.String(), want) {
			t.Errorf("the run's log has no %q\n%s", want, tail(p.errs.String()))
		}
	}
	planted.absent(t, "the run's output", p.out.String()+p.errs.String())
	for _, c := range []struct {
		args []string
		want string // a piece of a real answer
	}{
		{[]string{"validate", l.file}, ""},
		{[]string{"validate", l.file, "--connect"}, "catalog"},
		{[]string{"validate", l.file, "--connect", "--output", "json"}, `"connections"`},
		{[]string{"status", l.file}, "silver"},
		{[]string{"status", l.file, "--output", "json"}, `"silver"`},
		{[]string{"audit", l.file, "--output", "json"}, `"distinct_offsets"`},
		{[]string{"checkpoint", "show", l.file, "bronze"}, "offsets/"},
		{[]string{"checkpoint", "show", l.file, "bronze", "--output", "json"}, `"next_offset"`},
	} {
		out, errs, code := weir(t, []string{"WEIR_LOG_LEVEL=debug"}, c.args...)
		if code != exitOK || !strings.Contains(out, c.want) || !strings.Contains(errs, "level=DEBUG") {
			t.Errorf("weir %v: exit %d, want %q and a log at debug level\n%s%s", c.args, code, c.want, tail(out), tail(errs))
		}
		planted.absent(t, fmt.Sprintf("weir %v", c.args), out+errs)
	}
	planted.absentInFiles(t, l.dir, files...)
}

// leaksOfProof proves the pipeline on a copy and looks into the reports.
func (l *lab) leaksOfProof(planted secrets) {
	t := l.t
	t.Helper()
	dir := t.TempDir()
	page := filepath.Join(dir, "report.html")
	for _, format := range []struct {
		output, want string // a piece of a real answer
		more         []string
	}{
		{"json", `"outcome":"proved"`, nil},
		{"junit", "<testcase", []string{"--resume"}},
		{"text", "pipeline-silver", []string{"--resume"}},
	} {
		args := append([]string{"prove", "--pipeline", l.file, "--dir", filepath.Join(dir, "work"), "--report", page, "--embedded-only", "--output", format.output}, format.more...)
		out, errs, code := weir(t, []string{"WEIR_LOG_LEVEL=debug"}, append(args, "pipeline-silver")...)
		if code != exitOK || !strings.Contains(out, format.want) {
			t.Errorf("weir %v: exit %d, want %s\n%s%s", args, code, format.want, tail(out), tail(errs))
		}
		planted.absent(t, fmt.Sprintf("weir prove --output %s", format.output), out+errs)
	}
	if html, err := os.ReadFile(page); err != nil || !strings.Contains(string(html), "pipeline-silver") {
		t.Errorf("the report is none: %v", err)
	}
	planted.absentInFiles(t, dir)
}

// leaksOfFailures runs what has to fail: the errors hold no secret either.
func (l *lab) leaksOfFailures(planted secrets, changes map[string][2]string) {
	t := l.t
	t.Helper()
	planted["Postgres password"] = "planted-pg-77aa"
	good, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range changes {
		l.edit(change[0], change[1])
		out, errs, code := weir(t, nil, "validate", l.file, "--connect", "--log-level", "debug")
		if code == exitOK {
			t.Errorf("%s: it did not fail\n%s", what, out)
		}
		planted.absent(t, "the error of "+what, out+errs)
		if err := os.WriteFile(l.file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// wrongLogIns are changes of a pipeline over a secured Kafka that make it fail.
func wrongLogIns() map[string][2]string {
	return map[string][2]string{
		"a wrong user":      {`username: "weir"`, `username: "nobody"`},
		"another mechanism": {"SCRAM-SHA-512", "AWS_MSK_IAM"},
	}
}

// wrongCatalogs are changes of the catalog that make it fail.
func (l *lab) wrongCatalogs() map[string][2]string {
	uri := fmt.Sprintf("sqlite:%s/catalog.db", l.dir)
	return map[string][2]string{
		"a catalog that is down":   {uri, "postgres://weir:planted-pg-77aa@127.0.0.1:1/lake?sslmode=disable"},
		"a catalog that is no URL": {uri, "postgres://weir:planted-pg-77aa@[::1/lake"},
	}
}

// ask reads a page with its token.
func (l *lab) ask(url, token string) (int, string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Errorf("read %s: %v", url, err)
	}
	return resp.StatusCode, string(body)
}
