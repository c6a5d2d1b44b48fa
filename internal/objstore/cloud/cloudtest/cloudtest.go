// Package cloudtest starts emulations of Google Cloud Storage and of Azure Blob
// Storage for a test, by the project's own scripts.
package cloudtest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/freeport"
)

// Account and AccountKey are those that Azurite publishes for everybody.
const (
	Account    = "devstoreaccount1"
	AccountKey = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

const (
	scriptTimeout = 2 * time.Minute
	// exitMissing is the scripts' exit code where the program is not there.
	exitMissing = 5
)

// Server is one running emulation. Methods fail the test that started it.
type Server struct {
	t      testing.TB
	name   string
	dir    string
	port   int
	azure  bool
	prefix string
}

// StartGCS starts fake-gcs-server in a temporary folder and stops it when the
// test ends. The test is skipped under -short and where it has not been built.
func StartGCS(t testing.TB) *Server { t.Helper(); return start(t, "gcs.sh", false) }

// StartAzure is StartGCS for Azurite.
func StartAzure(t testing.TB) *Server { t.Helper(); return start(t, "azurite.sh", true) }

func start(t testing.TB, script string, azure bool) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an emulation of a cloud's store: skipped under -short")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs an emulation of a cloud's store, and bash is missing")
	}
	port, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, name: script, dir: t.TempDir(), port: port, azure: azure}
	if azure {
		s.prefix = "/" + Account
	}
	out, err := s.script("start", strconv.Itoa(s.port))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitMissing {
		t.Skipf("needs an emulation of a cloud's store: %s", out)
	}
	if err != nil {
		t.Fatalf("%s start: %v\n%s", script, err, out)
	}
	t.Cleanup(s.Kill9)
	return s
}

// Endpoint is the server's URL, for Azure with the account.
func (s *Server) Endpoint() string { return fmt.Sprintf("http://127.0.0.1:%d%s", s.port, s.prefix) }

// Origin is the server's URL without the account.
func (s *Server) Origin() string { return fmt.Sprintf("http://127.0.0.1:%d", s.port) }

// Down ends the server as roughly as it bears: fake-gcs-server is killed, Azurite
// is asked to end, because it forgets its last seconds (and containers) otherwise.
func (s *Server) Down() {
	s.t.Helper()
	if !s.azure {
		s.Kill9()
		return
	}
	if out, err := s.script("stop"); err != nil {
		s.t.Errorf("%s stop: %v\n%s", s.name, err, out)
	}
}

// Kill9 kills the server; Restart starts it again on its folder and port.
func (s *Server) Kill9() {
	s.t.Helper()
	if out, err := s.script("kill"); err != nil {
		s.t.Errorf("%s kill: %v\n%s", s.name, err, out)
	}
}

// Restart starts the server again on its folder and port.
func (s *Server) Restart() {
	s.t.Helper()
	if out, err := s.script("start", strconv.Itoa(s.port)); err != nil {
		s.t.Fatalf("%s start: %v\n%s", s.name, err, out)
	}
}

// Bucket makes a bucket or a container and gives its location's URI.
func (s *Server) Bucket(name string) string {
	s.t.Helper()
	var (
		req *http.Request
		err error
	)
	if s.azure {
		req, err = http.NewRequestWithContext(context.Background(), http.MethodPut, s.Endpoint()+"/"+name+"?restype=container", nil)
	} else {
		req, err = http.NewRequestWithContext(context.Background(), http.MethodPost, s.Endpoint()+"/storage/v1/b?project=test",
			strings.NewReader(fmt.Sprintf(`{"name":%q}`, name)))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if s.azure {
		now := clock.System{}.Now().UTC().Format(http.TimeFormat)
		req.Header.Set("X-Ms-Date", now)
		req.Header.Set("X-Ms-Version", "2021-12-02")
		key, err := base64.StdEncoding.DecodeString(AccountKey)
		if err != nil {
			s.t.Fatal(err)
		}
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "PUT%sx-ms-date:%s\nx-ms-version:2021-12-02\n/%s/%s/%s\nrestype:container", strings.Repeat("\n", 12), now, Account, Account, name)
		req.Header.Set("Authorization", "SharedKey "+Account+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		s.t.Fatalf("make bucket %s: HTTP %d", name, res.StatusCode)
	}
	if s.azure {
		return "abfss://" + name + "@" + Account + ".dfs.core.windows.net"
	}
	return "gs://" + name
}

func (s *Server) script(verb string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "..", "..", "..", "..", "scripts", s.name)
	cmd := exec.CommandContext(ctx, "bash", append([]string{script, verb, s.dir}, args...)...) //nolint:gosec // our own script
	cmd.Env = os.Environ()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}
