// Package s3test starts a real S3 server (versitygw) for a test, by the
// project's own script, and hurts it: kill -9, restart, and a proxy in between
// that throttles, loses answers and breaks bodies off.
package s3test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/freeport"
)

// Keys and region of the test's server.
const (
	AccessKeyID     = "weir-test"
	SecretAccessKey = "weir-test-secret"
	Region          = "us-east-1"
)

// EnvPort names the port to use. Without it a free one is chosen.
const EnvPort = "WEIR_S3_TEST_PORT"

const (
	scriptTimeout = 2 * time.Minute
	// exitMissing is the script's exit code where the program is not there.
	exitMissing = 5
)

// Server is one running S3 server. Methods fail the test that started it.
type Server struct {
	t    testing.TB
	dir  string
	port int
	tls  bool
}

// Start starts a server in a temporary folder and stops it when the test ends.
// The test is skipped under -short and where the program has not been built.
func Start(t testing.TB) *Server { return start(t, false, 0) }

// StartTLS is Start with a certificate of the server's own: CAFile has it.
func StartTLS(t testing.TB) *Server { return start(t, true, 0) }

// StartWithKeys is Start with n pairs of keys more, those of Keys(1) to Keys(n).
func StartWithKeys(t testing.TB, n int) *Server { return start(t, false, n) }

// Keys is the nth pair of keys of StartWithKeys.
func Keys(n int) (accessKeyID, secretAccessKey string) {
	return fmt.Sprintf("weir-key-%d", n), fmt.Sprintf("weir-secret-%d", n)
}

func start(t testing.TB, secure bool, keys int) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real S3 server: skipped under -short")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs a real S3 server, and bash is missing")
	}
	s := &Server{t: t, dir: t.TempDir(), port: freePort(t), tls: secure}
	if secure {
		writeCertificate(t, s.dir)
	}
	if keys > 0 {
		writeKeys(t, s.dir, keys)
	}
	out, err := s.script("start", strconv.Itoa(s.port))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitMissing {
		t.Skipf("needs a real S3 server: %s", out)
	}
	if err != nil {
		t.Fatalf("start the S3 server: %v\n%s", err, out)
	}
	t.Cleanup(s.Kill9)
	return s
}

// writeKeys writes the users of versitygw's internal IAM.
func writeKeys(t testing.TB, dir string, n int) {
	t.Helper()
	users := map[string]any{}
	for i := 1; i <= n; i++ {
		access, secret := Keys(i)
		users[access] = map[string]any{"access": access, "secret": secret, "role": "admin"}
	}
	body, err := json.Marshal(map[string]any{"accessAccounts": users})
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "iam"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "iam", "users.json"), body, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Endpoint is the server's URL.
func (s *Server) Endpoint() string {
	scheme := "http"
	if s.tls {
		scheme = "https"
	}
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, s.port)
}

// CAFile is the certificate to trust, of a server that speaks TLS.
func (s *Server) CAFile() string { return filepath.Join(s.dir, "tls.crt") }

// Bucket makes a bucket and gives its name.
func (s *Server) Bucket(name string) string {
	s.t.Helper()
	if out, err := s.script("bucket", name); err != nil {
		s.t.Fatalf("make bucket %s: %v\n%s", name, err, out)
	}
	return name
}

// ObjectPath is the file that holds an object.
func (s *Server) ObjectPath(bucket, key string) string {
	return filepath.Join(s.dir, "objects", bucket, filepath.FromSlash(key))
}

// Kill9 kills the server; Restart starts it again on its folder and port.
func (s *Server) Kill9() {
	s.t.Helper()
	if out, err := s.script("kill", ""); err != nil {
		s.t.Errorf("kill the S3 server: %v\n%s", err, out)
	}
}

// Restart starts the server again on its folder and port.
func (s *Server) Restart() {
	s.t.Helper()
	if out, err := s.script("start", strconv.Itoa(s.port)); err != nil {
		s.t.Fatalf("start the S3 server again: %v\n%s", err, out)
	}
}

// Requests counts the requests in the server's log by operation, as in
// REST.GET.OBJECT.
func (s *Server) Requests() map[string]int {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, "access.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]int{}
	for _, line := range strings.Split(string(b), "\n") {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "REST.") {
				out[word]++
				break
			}
		}
	}
	return out
}

// UnfinishedUploads lists the multipart uploads of a bucket that were neither
// completed nor aborted: the server keeps each in a folder that holds its parts.
func (s *Server) UnfinishedUploads(bucket string) []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "objects", bucket, ".sgwtmp", "multipart", "*", "*"))
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

func (s *Server) script(verb, arg string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "..", "..", "scripts", "s3.sh")
	cmd := exec.CommandContext(ctx, "bash", script, verb, s.dir)
	if arg != "" {
		cmd.Args = append(cmd.Args, arg)
	}
	cmd.Env = append(os.Environ(), "S3_ACCESS_KEY_ID="+AccessKeyID, "S3_SECRET_ACCESS_KEY="+SecretAccessKey)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

func freePort(t testing.TB) int {
	t.Helper()
	if v := os.Getenv(EnvPort); v != "" {
		p, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q is not a port", EnvPort, v)
		}
		return p
	}
	port, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
