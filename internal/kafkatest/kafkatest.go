// Package kafkatest starts a real Apache Kafka for a test, by the project's own
// script, and hurts it: kill -9, restart, pause. It is the oracle next to the
// embedded broker: what must hold is tried on both.
package kafkatest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/freeport"
)

// EnvPort names the first of the ports to use (broker, controller, and the four
// of a secure broker). Without it free ones are chosen.
const EnvPort = "WEIR_KAFKA_TEST_PORT"

const (
	startTimeout = 3 * time.Minute // fetching the jars once is inside it
	readyTimeout = 60 * time.Second
)

// Broker is one running Kafka. Methods fail the test that started it.
type Broker struct {
	t     testing.TB
	dir   string
	port  int
	extra string
	// secure asks for the listeners with TLS and log-in.
	secure bool
}

// Start starts a broker in a temporary folder and stops it when the test ends.
// extra are lines for server.properties. The test is skipped under -short and
// where java, or mvn and the jars, are missing.
func Start(t testing.TB, extra ...string) *Broker { t.Helper(); return launch(t, false, extra) }

func launch(t testing.TB, secure bool, extra []string) *Broker {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a real Apache Kafka: skipped under -short")
	}
	tools, ports := []string{"bash", "java"}, 2
	if secure {
		tools, ports = append(tools, "openssl"), securePorts
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs a real Apache Kafka, and %s is missing", tool)
		}
	}
	b := &Broker{t: t, dir: t.TempDir(), port: freePorts(t, ports), extra: strings.Join(extra, "\n"), secure: secure}
	t.Cleanup(func() {
		b.signal(syscall.SIGCONT)
		if _, err := b.script("kill"); err != nil {
			t.Errorf("stop Kafka: %v", err)
		}
	})
	b.start()
	return b
}

// Bootstrap is the broker's address.
func (b *Broker) Bootstrap() string { return fmt.Sprintf("127.0.0.1:%d", b.port) }

// LogDir holds the partitions' folders, for tests that damage them while the
// broker is down.
func (b *Broker) LogDir() string { return filepath.Join(b.dir, "logs") }

// Kill9 kills the broker as a power cut of the process would.
func (b *Broker) Kill9() {
	b.t.Helper()
	if _, err := b.script("kill"); err != nil {
		b.t.Fatalf("kill Kafka: %v", err)
	}
}

// Restart starts the broker again on its folder and address.
func (b *Broker) Restart() { b.t.Helper(); b.start() }

// Pause freezes the broker: connections stay open and nothing answers.
func (b *Broker) Pause() { b.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (b *Broker) Resume() { b.signal(syscall.SIGCONT) }

// Client is a client of the broker that is closed with the test.
func (b *Broker) Client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Bootstrap())}, opts...)...)
	if err != nil {
		b.t.Fatalf("client of the test's Kafka: %v", err)
	}
	b.t.Cleanup(cl.Close)
	return cl
}

func (b *Broker) start() {
	b.t.Helper()
	out, err := b.script("start")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 5 {
		b.t.Skipf("needs a real Apache Kafka: %s", out)
	}
	if err != nil {
		b.t.Fatalf("start Kafka: %v\n%s", err, out)
	}
	// The socket listens before the controller lets the broker serve.
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Bootstrap()))
	if err != nil {
		b.t.Fatalf("client of the test's Kafka: %v", err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for {
		meta, err := kadm.NewClient(cl).BrokerMetadata(ctx)
		if err == nil && len(meta.Brokers) > 0 {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("Kafka listens but does not serve: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (b *Broker) signal(s syscall.Signal) {
	out, err := b.script("pid")
	if err != nil {
		b.t.Errorf("pid of Kafka: %v", err)
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return // not running
	}
	if err := syscall.Kill(pid, s); err != nil {
		b.t.Errorf("signal %v to Kafka: %v", s, err)
	}
}

func (b *Broker) script(verb string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{scriptPath(), verb, b.dir}, args...)...)
	if verb == "start" {
		cmd.Args = append(cmd.Args, strconv.Itoa(b.port))
		if b.secure {
			cmd.Args = append(cmd.Args, "--secure")
		}
	}
	cmd.Env = append(os.Environ(), "KAFKA_EXTRA="+b.extra)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The broker inherits nothing that would keep Wait from returning: the
	// script redirects its output to a file.
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

// scriptPath is scripts/kafka.sh of this checkout.
func scriptPath() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "scripts", "kafka.sh")
}

// freePorts finds n neighbouring free ports, the broker's and the controller's
// first.
func freePorts(t testing.TB, n int) int {
	t.Helper()
	if v := os.Getenv(EnvPort); v != "" {
		p, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q is not a port", EnvPort, v)
		}
		return p
	}
	port, err := freeport.Find(n)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
