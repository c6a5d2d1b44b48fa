package bench

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/freeport"
)

// Kinds of brokers in results.
const (
	brokerEmbedded = "embedded"
	brokerScript   = "kafka"
	brokerGiven    = "given"
)

const (
	// brokerStartMax bounds the start of a broker; the script may have to fetch
	// one first.
	brokerStartMax = 5 * time.Minute
	adminMax       = time.Minute
)

// kafka is the broker of the run.
type kafka struct {
	kind      string
	bootstrap []string
	pid       int // 0 where it is not known
	stop      func()
	client    *kgo.Client
	admin     *kadm.Client
}

func (b *bench) openKafka(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, brokerStartMax)
	defer cancel()
	switch {
	case len(b.o.Kafka) > 0:
		b.kafka = &kafka{kind: brokerGiven, bootstrap: b.o.Kafka, stop: func() {}}
	case b.o.KafkaScript != "":
		b.kafka, err = b.scriptBroker(ctx)
	default:
		b.kafka, err = b.embeddedBroker(ctx)
	}
	if err != nil {
		return err
	}
	b.closers = append(b.closers, b.kafka.stop)
	opts, err := broker.ClientOptions(broker.Config{BootstrapServers: b.kafka.bootstrap})
	if err != nil {
		return err
	}
	if b.kafka.client, err = kgo.NewClient(opts...); err != nil {
		return failure.Wrap(failure.Config, err, "make a Kafka client")
	}
	b.kafka.admin = kadm.NewClient(b.kafka.client)
	b.closers = append(b.closers, b.kafka.client.Close)
	return nil
}

func (b *bench) embeddedBroker(ctx context.Context) (*kafka, error) {
	c, err := broker.Spawn(ctx, b.o.Binary, broker.EmbeddedConfig{DataDir: filepath.Join(b.dir, "broker"), Port: b.o.Port})
	if err != nil {
		return nil, err
	}
	return &kafka{kind: brokerEmbedded, bootstrap: []string{c.Bootstrap()}, pid: c.PID(), stop: c.Kill9}, nil
}

// scriptBroker starts a real Apache Kafka in the work folder.
func (b *bench) scriptBroker(ctx context.Context) (*kafka, error) {
	dir := filepath.Join(b.dir, "kafka")
	port := b.o.Port
	if port == 0 {
		var err error
		if port, err = freeport.Find(2); err != nil { // the second is the controller's
			return nil, err
		}
	}
	run := func(ctx context.Context, args ...string) (string, error) {
		out, err := os.CreateTemp(b.dir, "kafka-*.log")
		if err != nil {
			return "", err
		}
		defer out.Close()
		cmd := exec.CommandContext(ctx, "bash", append([]string{b.o.KafkaScript}, args...)...)
		cmd.Env = append(os.Environ(), "KAFKA_EXTRA="+rollingBroker+os.Getenv("KAFKA_EXTRA"))
		// The broker that the script leaves behind holds the output open.
		cmd.WaitDelay = time.Second
		cmd.Stdout, cmd.Stderr = out, out
		err = cmd.Run()
		text, _ := os.ReadFile(out.Name())
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil
		}
		return strings.TrimSpace(string(text)), err
	}
	if out, err := run(ctx, "start", dir, strconv.Itoa(port)); err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "%s start: %s", b.o.KafkaScript, out)
	}
	k := &kafka{kind: brokerScript, bootstrap: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}
	if out, err := run(ctx, "pid", dir); err == nil {
		k.pid, _ = strconv.Atoi(out)
	}
	k.stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopMax)
		defer cancel()
		_, _ = run(ctx, "stop", dir)
	}
	return k, nil
}

// topic makes a topic of this run; its name is new, so that a broker that is
// shared with others is left as it was.
func (b *bench) topic(ctx context.Context, what string) (string, error) {
	return b.topicWith(ctx, what, nil)
}

// topicWith makes a topic with settings of its own.
func (b *bench) topicWith(ctx context.Context, what string, settings map[string]string) (string, error) {
	configs := map[string]*string{}
	for k, v := range settings {
		configs[k] = &v
	}
	name := "weir-bench-" + what + "-" + clock.Nonce()[:8]
	ctx, cancel := context.WithTimeout(ctx, adminMax)
	defer cancel()
	if _, err := b.kafka.admin.CreateTopic(ctx, int32(b.o.Partitions), 1, configs, name); err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "create topic %s", name)
	}
	return name, nil
}

// rollingBroker lets a started broker give the space of removed records back while
// a topic rolls: by default it looks for such segments every five minutes.
const rollingBroker = "log.retention.check.interval.ms=2000\nlog.segment.delete.delay.ms=1000\nlog.segment.bytes=67108864\n"

// dropTopic removes a topic and so gives its disk space back.
func (b *bench) dropTopic(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), adminMax)
	defer cancel()
	_, _ = b.kafka.admin.DeleteTopic(ctx, name)
}

// endOffsets lists where the topic's partitions end.
func (b *bench) endOffsets(ctx context.Context, topic string) (kadm.ListedOffsets, error) {
	offsets, err := b.kafka.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return nil, failure.Wrap(failure.Unreachable, err, "list the end of topic %s", topic)
	}
	return offsets, nil
}

// ends sums the topic's end offsets.
func (b *bench) ends(ctx context.Context, topic string) (int64, error) {
	offsets, err := b.endOffsets(ctx, topic)
	if err != nil {
		return 0, err
	}
	var n int64
	offsets.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, nil
}
