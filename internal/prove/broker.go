package prove

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/freeport"
)

// Kinds of brokers.
const (
	BrokerEmbedded = "embedded"
	BrokerScript   = "script"
	BrokerGiven    = "given"
)

// brokerStartMax bounds the start of a broker; the script may have to fetch one.
const brokerStartMax = 5 * time.Minute

// broker is what the scenarios publish to.
type broker struct {
	kind      string
	name      string // for the report, with the version
	bootstrap []string
	stop      func()
}

// brokers are started when the first scenario needs them.
type brokers struct {
	o          Options
	mu         sync.Mutex
	main, real *broker
	noReal     bool // a real Kafka could not be started
}

func (b *brokers) stop() {
	for _, x := range []*broker{b.main, b.real} {
		if x != nil {
			x.stop()
		}
	}
}

// of is the broker of a scenario: the one of the options, or a real Kafka where
// the scenario asks for one, the options do not say which, and it can be had.
func (b *brokers) of(ctx context.Context, s *Scenario) (*broker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.start(ctx, s)
}

// wantsReal reports whether the scenario gets a real Kafka besides the others'
// broker.
func (b *brokers) wantsReal(s *Scenario) bool {
	return s.RealKafka && len(b.o.Kafka) == 0 && b.o.KafkaScript == "" && b.o.RealScript != ""
}

// kindOf is the kind of broker that a scenario gets, where it can be started.
func (b *brokers) kindOf(s *Scenario) string {
	switch {
	case len(b.o.Kafka) > 0:
		return BrokerGiven
	case b.o.KafkaScript != "" || b.wantsReal(s):
		return BrokerScript
	}
	return BrokerEmbedded
}

func (b *brokers) start(ctx context.Context, s *Scenario) (*broker, error) {
	if b.wantsReal(s) && !b.noReal {
		if b.real == nil {
			fmt.Fprintf(b.o.Progress, "starting a real Kafka for %s: %s\n", s.Name, b.o.RealScript)
			o := b.o
			// The port of the options is the embedded broker's.
			o.KafkaScript, o.Port = b.o.RealScript, 0
			var err error
			if b.real, err = startBroker(ctx, o); err != nil {
				if ctx.Err() != nil {
					return nil, err
				}
				b.noReal = true
				fmt.Fprintf(b.o.Progress, "going on with the embedded broker: %v\n", err)
				return b.start(ctx, s)
			}
		}
		return b.real, nil
	}
	if b.main == nil {
		var err error
		if b.main, err = startBroker(ctx, b.o); err != nil {
			return nil, err
		}
	}
	return b.main, nil
}

// startBroker gives the broker of the options: one that runs already, the
// embedded one as a child of its own, or a real Apache Kafka by the script.
func startBroker(ctx context.Context, o Options) (b *broker, err error) {
	ctx, cancel := context.WithTimeout(ctx, brokerStartMax)
	defer cancel()
	switch {
	case len(o.Kafka) > 0:
		b = &broker{kind: BrokerGiven, bootstrap: o.Kafka, stop: func() {}}
	case o.KafkaScript != "":
		b, err = scriptBroker(ctx, o)
	default:
		b, err = embeddedBroker(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	b.name, err = b.describe(ctx)
	if err != nil {
		b.stop()
		return nil, err
	}
	return b, nil
}

// describe names the broker with the version that its API versions tell.
func (b *broker) describe(ctx context.Context) (string, error) {
	if b.kind == BrokerEmbedded {
		return "embedded (franz-go kfake " + moduleVersion("github.com/twmb/franz-go/pkg/kfake") + ")", nil
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.bootstrap...))
	if err != nil {
		return "", failure.Wrap(failure.Config, err, "Kafka client for %v", b.bootstrap)
	}
	defer cl.Close()
	all, err := kadm.NewClient(cl).ApiVersions(ctx)
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "ask Kafka at %v for its versions", b.bootstrap)
	}
	for _, v := range all.Sorted() {
		if v.Err == nil {
			return "Apache Kafka " + strings.TrimPrefix(v.VersionGuess(), "v"), nil
		}
	}
	return "Kafka of an unknown version", nil
}

func embeddedBroker(ctx context.Context, o Options) (*broker, error) {
	dir := filepath.Join(o.Dir, "broker")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cmd := exec.Command(o.Binary, "__broker", "--data-dir", dir, "--port", strconv.Itoa(o.Port))
	// The child serves until its standard input ends, so it cannot outlive us.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(o.Dir, "broker.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	stop := func() {
		_ = stdin.Close()
		t := time.AfterFunc(stopMax, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		t.Stop()
	}
	var ready struct {
		Bootstrap string `json:"bootstrap"`
		Error     string `json:"error"`
	}
	said := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(stdout, 1<<16)).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &ready)
		}
		said <- err
	}()
	select {
	case err = <-said:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && ready.Bootstrap == "" {
		err = fmt.Errorf("it says: %s", ready.Error)
	}
	if err != nil {
		stop()
		return nil, failure.Wrap(failure.Unreachable, err, "the embedded broker did not start (log: %s)", log.Name())
	}
	return &broker{kind: BrokerEmbedded, bootstrap: []string{ready.Bootstrap}, stop: stop}, nil
}

// scriptBroker starts a real Apache Kafka in the work folder.
func scriptBroker(ctx context.Context, o Options) (*broker, error) {
	dir := filepath.Join(o.Dir, "kafka")
	run := func(ctx context.Context, args ...string) (string, error) {
		return runScript(ctx, o.Dir, o.KafkaScript, args...)
	}
	port := o.Port
	for try := 1; ; try++ {
		if o.Port == 0 {
			var err error
			if port, err = freeport.Find(serverPorts); err != nil {
				return nil, err
			}
		}
		out, err := run(ctx, "start", dir, strconv.Itoa(port))
		if err == nil {
			break
		}
		// Somebody else may have taken a port meanwhile.
		if o.Port != 0 || try == portTries {
			return nil, failure.Wrap(failure.Unreachable, err, "%s start: %s", o.KafkaScript, out)
		}
		_ = os.RemoveAll(dir)
	}
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopMax)
		defer cancel()
		_, _ = run(ctx, "stop", dir)
	}
	return &broker{kind: BrokerScript, bootstrap: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, stop: stop}, nil
}

// runScript runs one of the project's scripts and gives what it prints.
func runScript(ctx context.Context, dir, script string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bash", append([]string{script}, args...)...)
	// The server that the script leaves behind holds the output open.
	cmd.WaitDelay = time.Second
	out, err := os.CreateTemp(dir, "script-*.log")
	if err != nil {
		return "", err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	b, _ := os.ReadFile(out.Name())
	return strings.TrimSpace(string(b)), err
}

const (
	// portTries are for a port that somebody takes before the server does.
	portTries = 5
	// serverPorts is how many ports side by side a server may take.
	serverPorts = 2
)
