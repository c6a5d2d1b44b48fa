package catalogtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/weirlake/weir/internal/freeport"
)

const (
	// EnvPort names the first port to use; each server takes the next one.
	// Without it free ones are chosen.
	EnvPort = "WEIR_CATALOG_TEST_PORT"

	scriptTimeout = 4 * time.Minute // fetching or installing once is inside it
	portTries     = 20
	// pgPassword is that of scripts/postgres.sh.
	pgPassword = "weir"
)

// Server is a catalog's server that the project's own script runs. Methods
// fail the test that started it.
type Server struct {
	t      testing.TB
	script string
	env    []string
	dir    string
	port   int
	dbs    atomic.Int64
}

// StartPostgres starts a Postgres and stops it when the test ends. The test is
// skipped under -short and where there is none and none can be installed.
func StartPostgres(t testing.TB) *Server {
	t.Helper()
	// Tests do not install anything: POSTGRES_INSTALL=no.
	return start(t, "postgres.sh", "a real Postgres", "POSTGRES_INSTALL=no", "PG_PASSWORD="+pgPassword)
}

// StartREST starts Apache Iceberg's REST catalog and stops it when the test
// ends. credential is the id:secret that it asks for; empty lets everybody in.
func StartREST(t testing.TB, credential string) *Server {
	t.Helper()
	return start(t, "iceberg-rest.sh", "Iceberg's REST catalog", "ICEBERG_REST_CREDENTIAL="+credential)
}

// StartMoto starts moto, an emulation of Glue and S3 that keeps everything in
// memory, and stops it when the test ends.
func StartMoto(t testing.TB) *Server {
	t.Helper()
	return start(t, "moto.sh", "moto, an emulation of AWS")
}

// StartSchemaRegistry starts a schema registry, which keeps everything in memory,
// and stops it when the test ends.
func StartSchemaRegistry(t testing.TB) *Server {
	t.Helper()
	return start(t, "schema-registry.sh", "a schema registry")
}

// Bucket makes a bucket on a moto.
func (s *Server) Bucket(name string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, "http://"+s.Addr()+"/"+name, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	// moto finds the service in the scope of the signature, and checks none.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		s.t.Fatalf("make bucket %s: HTTP %d", name, res.StatusCode)
	}
	return name
}

func start(t testing.TB, script, what string, env ...string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skipf("needs %s: skipped under -short", what)
	}
	dir := t.TempDir()
	// The server may run as another user.
	for d := dir; d != filepath.Dir(d) && strings.HasPrefix(d, os.TempDir()+string(filepath.Separator)); d = filepath.Dir(d) {
		_ = os.Chmod(d, 0o755) //nolint:gosec // a folder of this test
	}
	s := &Server{t: t, script: script, env: env, dir: dir, port: freePort(t)}
	t.Cleanup(func() {
		s.signal(syscall.SIGCONT)
		if out, err := s.run("kill"); err != nil {
			t.Errorf("%s kill: %v\n%s", script, err, out)
		}
		// What the server wrote may belong to another user.
		_ = os.RemoveAll(dir)
	})
	out, err := s.run("start")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 5 {
		t.Skipf("needs %s: %s", what, strings.TrimSpace(out))
	}
	if err != nil {
		t.Fatalf("%s start: %v\n%s", script, err, out)
	}
	return s
}

// Addr is the server's address, host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Warehouse is the folder where the REST catalog puts tables.
func (s *Server) Warehouse() string { return filepath.Join(s.dir, "warehouse") }

// Kill9 kills the server as a power cut of the process would.
func (s *Server) Kill9() {
	s.t.Helper()
	if out, err := s.run("kill"); err != nil {
		s.t.Fatalf("%s kill: %v\n%s", s.script, err, out)
	}
}

// Restart starts the server again on its folder and address.
func (s *Server) Restart() {
	s.t.Helper()
	if out, err := s.run("start"); err != nil {
		s.t.Fatalf("%s start: %v\n%s", s.script, err, out)
	}
}

// URI is the address of a database on a Postgres, seen at host:port addr.
func (s *Server) URI(addr, database string) string {
	return fmt.Sprintf("postgres://weir:%s@%s/%s?sslmode=disable", pgPassword, addr, database)
}

// NewDatabase makes an empty database on a Postgres.
func (s *Server) NewDatabase() string {
	s.t.Helper()
	name := fmt.Sprintf("lake_%d", s.dbs.Add(1))
	s.Exec("postgres", "CREATE DATABASE "+name)
	return name
}

// Exec runs statements in a database of a Postgres as its owner.
func (s *Server) Exec(database string, statements ...string) {
	s.t.Helper()
	db, err := sql.Open("pgx", s.URI(s.Addr(), database))
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.Exec(q); err != nil {
			s.t.Fatalf("%s: %v", q, err)
		}
	}
}

// Lock runs a statement in a transaction that stays open until release.
func (s *Server) Lock(database, statement string) (release func()) {
	s.t.Helper()
	db, err := sql.Open("pgx", s.URI(s.Addr(), database))
	if err != nil {
		s.t.Fatal(err)
	}
	tx, err := db.Begin()
	if err == nil {
		_, err = tx.Exec(statement)
	}
	if err != nil {
		_ = db.Close()
		s.t.Fatalf("%s: %v", statement, err)
	}
	return func() {
		_ = tx.Rollback()
		_ = db.Close()
	}
}

func (s *Server) signal(sig syscall.Signal) {
	out, err := s.run("pid")
	if err != nil {
		return
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(out)); err == nil {
		_ = syscall.Kill(pid, sig)
	}
}

func (s *Server) run(verb string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	_, self, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(self), "..", "..", "..", "scripts", s.script)
	cmd := exec.CommandContext(ctx, "bash", path, verb, s.dir, strconv.Itoa(s.port)) //nolint:gosec // our own script
	cmd.Env = append(os.Environ(), s.env...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // the server holds no pipe of ours; a broken one may
	err := cmd.Run()
	return out.String(), err
}

var portsTaken atomic.Int64

func freePort(t testing.TB) int {
	t.Helper()
	if v := os.Getenv(EnvPort); v != "" {
		first, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q: want a port", EnvPort, v)
		}
		for range portTries {
			p := first + int(portsTaken.Add(1)-1)%portTries
			if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p))); err == nil {
				_ = l.Close()
				return p
			}
		}
		t.Fatalf("no free port from %d on", first)
	}
	port, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
