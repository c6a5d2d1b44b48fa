package prove

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/freeport"
)

// serverStartMax bounds the start of a server; its script may have to fetch it.
const serverStartMax = 8 * time.Minute

// portTaken is the scripts' exit code where somebody else has the port.
const portTaken = 4

// servers are real stores that the project's own scripts run. Each is started
// when the first scenario needs it, and shared: a scenario has a database of its
// own there.
type servers struct {
	o       Options
	mu      sync.Mutex
	running map[string]*server
}

// server is one of them, or why it cannot be had.
type server struct {
	script, dir, addr string
	version           string // for the report, with the name
	err               error
}

// get gives the address of the server that a script starts, host:port. A
// scenario that cannot have its server is inconclusive, and says so.
func (s *servers) get(ctx context.Context, name, hint string) (addr string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if had := s.running[name]; had != nil {
		return had.addr, had.err
	}
	if s.o.Scripts == "" {
		return "", failure.New(failure.Inconclusive, "no script to start %s with", name).
			WithHint("run weir prove in a checkout of the project; %s", hint)
	}
	srv := &server{script: filepath.Join(s.o.Scripts, name+".sh")}
	if srv.err = srv.start(ctx); srv.err != nil {
		srv.stop()
		srv.err = failure.Wrap(failure.Inconclusive, srv.err, "start %s", name).WithHint("%s", hint)
		if ctx.Err() != nil {
			return "", srv.err
		}
	}
	s.running[name] = srv
	return srv.addr, srv.err
}

func (s *server) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, serverStartMax)
	defer cancel()
	// Not in the work folder: the server may run as a user who cannot get there.
	if s.dir, err = os.MkdirTemp("", "weir-prove-server-"); err != nil {
		return err
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { //nolint:gosec // nothing secret is in it
		return err
	}
	for try := 1; ; try++ {
		port, err := freeport.Find(serverPorts)
		if err != nil {
			return err
		}
		out, err := s.run(ctx, "start", s.dir, strconv.Itoa(port))
		if err == nil {
			s.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			s.version, err = s.run(ctx, "version")
			return err
		}
		var exit *exec.ExitError
		if try == portTries || !errors.As(err, &exit) || exit.ExitCode() != portTaken {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
}

// ownServer starts a server that the scenario may kill.
func (e *Env) ownServer(ctx context.Context, name, hint string) (*server, error) {
	own := &servers{o: e.o, running: map[string]*server{}}
	e.cleanup = append(e.cleanup, own.stop)
	if _, err := own.get(ctx, name, hint); err != nil {
		return nil, err
	}
	srv := own.running[name]
	e.servers = append(e.servers, srv.version)
	return srv, nil
}

func (s *server) run(ctx context.Context, args ...string) (string, error) {
	// A proof installs nothing on the machine.
	return runScript(ctx, s.dir, "-c", append([]string{`POSTGRES_INSTALL=no exec bash "$0" "$@"`, s.script}, args...)...)
}

func (s *server) stop() {
	if s.dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopMax)
	defer cancel()
	_, _ = s.run(ctx, "kill", s.dir) // what it holds is of no use to anybody
	_ = os.RemoveAll(s.dir)
}

func (s *servers) stop() {
	for _, srv := range s.running {
		srv.stop()
	}
}
