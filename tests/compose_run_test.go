package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/kafkatest"
	"github.com/weirlake/weir/internal/lake/catalogtest"
)

// house is the compose file's services outside of containers: the same commands
// and variables, with this machine's addresses and folders in place of theirs.
type house struct {
	t       *testing.T
	c       composeFile
	dir     string
	env     map[string]string // what .env would hold
	replace *strings.Replacer
}

func (h *house) text(s string) string {
	return h.replace.Replace(composeVariable.ReplaceAllStringFunc(s, func(m string) string {
		return h.env[composeVariable.FindStringSubmatch(m)[1]]
	}))
}

func (h *house) texts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = h.text(s)
	}
	return out
}

// environment is that of a service of our image.
func (h *house) environment(name string) []string {
	out := []string{"WEIR_DATA=" + filepath.Join(h.dir, name), "HOME=" + h.dir} // the Dockerfile's ENV
	for k, v := range h.c.Services[name].Environment {
		out = append(out, k+"="+h.text(v))
	}
	return out
}

// weir starts a service of our image.
func (h *house) weir(name string) *process {
	h.t.Helper()
	return start(h.t, h.environment(name), h.texts(h.c.Services[name].Command)...)
}

// healthy runs a service's own check until it succeeds.
func (h *house) healthy(p *process, check []string) {
	h.t.Helper()
	waitFor(h.t, strings.Join(check, " "), func() bool {
		if !p.running() {
			h.t.Fatalf("it ended: %v\n%s", p.err, tail(p.errs.String()))
		}
		_, _, code := weir(h.t, nil, h.texts(check)...)
		return code == 0
	})
}

func loopbackPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// kafkaLines are the broker's settings as lines of its file, as its image turns
// them; addresses and folders are the script's.
func kafkaLines(env map[string]string) (out []string) {
	own := []string{"listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs"}
	for k, v := range env {
		key := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(k, "KAFKA_")), "_", ".")
		if !slices.Contains(own, key) {
			out = append(out, key+"="+v)
		}
	}
	slices.Sort(out)
	return out
}

// TestTheServicesOfTheComposeFileRunOutsideOfContainers runs what compose would:
// every command, variable and health check of our image, the S3 server's command,
// the broker's settings on a real Kafka, a real Postgres, and Prometheus with its
// own flags and files where there is one.
func TestTheServicesOfTheComposeFileRunOutsideOfContainers(t *testing.T) {
	weirBin(t)
	versitygw := filepath.Join(repo(t), ".cache", "bin", "versitygw")
	if _, err := os.Stat(versitygw); err != nil {
		t.Skipf("needs a real S3 server at %s: make tools-s3", versitygw)
	}
	c, _ := readCompose(t)
	h := &house{t: t, c: c, dir: t.TempDir(), env: map[string]string{
		"POSTGRES_PASSWORD": "weir", "S3_ACCESS_KEY": "weir", "S3_SECRET_KEY": "a-secret-of-this-test",
		"WEIR_STATUS_TOKEN": "a-token-of-this-test", "GRAFANA_PASSWORD": "none",
	}}
	broker := kafkatest.Start(t, kafkaLines(c.Services["kafka"].Environment)...)
	pg := catalogtest.StartPostgres(t)
	pg.Exec("postgres", "CREATE DATABASE "+c.Services["postgres"].Environment["POSTGRES_DB"])
	uri, err := url.Parse(pg.URI(pg.Addr(), "lake"))
	if err != nil {
		t.Fatal(err)
	}
	h.env["POSTGRES_PASSWORD"], _ = uri.User.Password()
	if uri.User.Username() != c.Services["postgres"].Environment["POSTGRES_USER"] {
		t.Fatalf("the script's user is %s", uri.User.Username())
	}
	stream, page, s3 := loopbackPort(t), loopbackPort(t), loopbackPort(t)
	h.replace = strings.NewReplacer("0.0.0.0:8090", stream, "127.0.0.1:8090", stream, "stream:8090", stream,
		"0.0.0.0:8080", page, "127.0.0.1:8080", page, "weir:8080", page, "kafka:9092", broker.Bootstrap(),
		"postgres:5432", pg.Addr(), "s3:7070", s3, ":7070", s3, "/etc/weir/pipeline.yaml", filepath.Join(dockerFolder(t), "pipeline.yaml"),
		"/data", filepath.Join(h.dir, "objects"))

	bucket := h.texts(c.Services["bucket"].Command)
	if out, err := exec.Command(bucket[0], bucket[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("bucket: %v\n%s", err, out)
	}
	h.background(versitygw, c.Services["s3"])
	waitFor(t, "the S3 server's health", func() bool { status, _ := h.get("http://" + s3 + "/health"); return status == http.StatusOK })

	if _, errs, code := weir(t, h.environment("weir"), "validate", filepath.Join(dockerFolder(t), "pipeline.yaml")); code != exitOK {
		t.Fatalf("the pipeline is not valid: %s", errs)
	}
	s := h.weir("stream")
	check := c.Services["stream"].Healthcheck.Test
	if !slices.Equal(check[:2], []string{"CMD", "/usr/bin/weir"}) {
		t.Fatalf("the stream's check is %v", check)
	}
	h.healthy(s, check[2:])
	p := h.weir("weir")
	h.healthy(p, []string{"health", "--url", "http://127.0.0.1:8080/livez"}) // the image's check, at this port
	waitFor(t, "500 rows of silver", func() bool { return h.silverRows(page) >= 500 })
	h.prometheus(page)
	p.stop(exitOK)
	s.stop(exitOK)
	out, errs, code := weir(t, h.environment("weir"), "audit", filepath.Join(dockerFolder(t), "pipeline.yaml"))
	if code != exitOK {
		t.Errorf("audit: exit %d\n%s%s", code, tail(out), tail(errs))
	}
}

// background starts a service that is somebody else's program.
func (h *house) background(program string, s composeService) *exec.Cmd {
	h.t.Helper()
	cmd := exec.Command(program, h.texts(s.Command)...)
	for k, v := range s.Environment {
		cmd.Env = append(cmd.Env, k+"="+h.text(v))
	}
	log, err := os.Create(filepath.Join(h.dir, filepath.Base(program)+".log"))
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, h.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		log.Close()
		if h.t.Failed() {
			said, _ := os.ReadFile(log.Name())
			h.t.Logf("%s said:\n%s", filepath.Base(program), tail(string(said)))
		}
	})
	return cmd
}

// get asks with the page's token; status 0 where nothing answers.
func (h *house) get(url string) (status int, body []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+h.env["WEIR_STATUS_TOKEN"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, body
}

func (h *house) silverRows(page string) int64 {
	_, metrics := h.get("http://" + page + "/metrics")
	for _, line := range strings.Split(string(metrics), "\n") {
		if v, ok := strings.CutPrefix(line, `weir_query_output_rows_total{query="silver"} `); ok {
			n, _ := strconv.ParseFloat(v, 64)
			return int64(n)
		}
	}
	return 0
}

// prometheus runs it with the compose file's flags on the compose file's files.
func (h house) prometheus(page string) { // a copy: its addresses are its own
	h.t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		h.t.Log("not tried: Prometheus's command and files, because prometheus is missing")
		return
	}
	service := h.c.Services["prometheus"]
	config, err := os.ReadFile(filepath.Join(dockerFolder(h.t), "prometheus.yaml"))
	if err != nil {
		h.t.Fatal(err)
	}
	write := func(name, text string) string {
		path := filepath.Join(h.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			h.t.Fatal(err)
		}
		return path
	}
	token := write("weir-token", h.env[h.c.Secrets["weir-token"]["environment"].(string)])
	h.replace = strings.NewReplacer("/run/secrets/weir-token", token, "weir:8080", page,
		"/etc/prometheus/alerts.yaml", filepath.Join(repo(h.t), "deploy", "prometheus", "alerts.yaml"))
	file := write("prometheus.yaml", h.text(string(config)))
	h.replace = strings.NewReplacer("/etc/prometheus/prometheus.yaml", file, "=/prometheus", "="+filepath.Join(h.dir, "tsdb"))
	addr := loopbackPort(h.t)
	service.Command = append(slices.Clone(service.Command), "--web.listen-address="+addr)
	h.background(program, service)
	waitFor(h.t, "Prometheus to scrape weir", func() bool {
		_, body := h.get(fmt.Sprintf("http://%s/api/v1/query?query=%s", addr, url.QueryEscape(`up{job="weir"}`)))
		var answer struct {
			Data struct{ Result []struct{ Value []any } }
		}
		if json.Unmarshal(body, &answer) != nil || len(answer.Data.Result) != 1 {
			return false
		}
		return answer.Data.Result[0].Value[1] == "1"
	})
}
