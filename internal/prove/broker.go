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
	"time"

	"github.com/weirlake/weir/internal/failure"
)

// Names of brokers in results.
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
	bootstrap []string
	stop      func()
}

// startBroker gives the broker of the options: one that runs already, the
// embedded one as a child of its own, or a real Apache Kafka by the script.
func startBroker(ctx context.Context, o Options) (*broker, error) {
	ctx, cancel := context.WithTimeout(ctx, brokerStartMax)
	defer cancel()
	switch {
	case len(o.Kafka) > 0:
		return &broker{kind: BrokerGiven, bootstrap: o.Kafka, stop: func() {}}, nil
	case o.KafkaScript != "":
		return scriptBroker(ctx, o)
	}
	return embeddedBroker(ctx, o)
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
	port := o.Port
	if port == 0 {
		var err error
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	run := func(ctx context.Context, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "bash", append([]string{o.KafkaScript}, args...)...)
		// The broker that the script leaves behind holds the output open.
		cmd.WaitDelay = time.Second
		out, err := os.CreateTemp(o.Dir, "kafka-*.log")
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
	if out, err := run(ctx, "start", dir, strconv.Itoa(port)); err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "%s start: %s", o.KafkaScript, out)
	}
	stop := func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopMax)
		defer cancel()
		_, _ = run(ctx, "stop", dir)
	}
	return &broker{kind: BrokerScript, bootstrap: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, stop: stop}, nil
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
