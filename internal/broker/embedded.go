package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// The files of an embedded broker's data directory.
const (
	identityFile = "broker.json" // cluster id and port, written once
	lockFile     = "broker.lock" // held while a broker serves the directory
	logFile      = "broker.log"  // standard error of the child process
	dataFolder   = "data"        // the log segments
)

const (
	// lockWaitMax is how long a start waits for a predecessor to let go of the
	// data directory: an orphan notices its parent's death at once and then
	// closes its files.
	lockWaitMax = 30 * time.Second
	lockPoll    = 20 * time.Millisecond
	// closeMax bounds the clean shutdown; after it the process just ends,
	// which loses nothing acknowledged.
	closeMax = 10 * time.Second
	// seedTimeout bounds the creation of the configured topics.
	seedTimeout = 30 * time.Second
	// messageBytesMax is the largest record batch that the embedded broker
	// takes: values of 20 MiB are part of the tests.
	messageBytesMax = 64 << 20
)

// EmbeddedConfig says what an embedded broker serves.
type EmbeddedConfig struct {
	// DataDir keeps everything: identity, port and records. One broker at a
	// time serves a directory.
	DataDir string
	// Port is the loopback port; 0 means the one that the directory remembers,
	// or a free one on the first start.
	Port int
	// Topics are created where missing; an existing topic stays as it is.
	Topics []Topic
	// SyncWrites makes every produce durable against power loss too, at the
	// cost of throughput. Without it an acknowledged record survives kill -9
	// of every process, as with Kafka's own defaults.
	SyncWrites bool
}

// Topic to have from the start.
type Topic struct {
	Name       string
	Partitions int32
}

// Ready is the one line that a child prints on standard output when it serves
// (or why it cannot).
type Ready struct {
	Bootstrap string `json:"bootstrap,omitempty"`
	PID       int    `json:"pid"`
	ClusterID string `json:"cluster_id,omitempty"`
	// MovedFrom is the remembered port that was taken by another process.
	MovedFrom int `json:"moved_from,omitempty"`
	// Error says why the broker could not start; nothing else is set then.
	Error string `json:"error,omitempty"`
}

// identity is what makes a restarted broker the same broker.
type identity struct {
	ClusterID string `json:"cluster_id"`
	Port      int    `json:"port"`
}

// RunChild is the body of the hidden command: it serves until ctx ends, the
// parent dies or standard input ends, and prints one Ready line when it serves.
func RunChild(ctx context.Context, cfg EmbeddedConfig) error {
	return runChild(ctx, cfg, os.Stdin, os.Stdout)
}

func runChild(ctx context.Context, cfg EmbeddedConfig, stdin io.Reader, stdout io.Writer) error {
	say := json.NewEncoder(stdout)
	e, err := Open(ctx, cfg)
	if err != nil {
		_ = say.Encode(Ready{PID: os.Getpid(), Error: err.Error()})
		return err
	}
	// Loading reads whole segments; they are not needed afterwards.
	debug.FreeOSMemory()
	if err := say.Encode(Ready{Bootstrap: e.Bootstrap(), PID: os.Getpid(), ClusterID: e.id.ClusterID, MovedFrom: e.movedFrom}); err != nil {
		return errors.Join(fmt.Errorf("report the embedded broker's address: %w", err), e.Close())
	}
	// The parent holds the other end of standard input and never writes: an end
	// of file means that it closed it or died, however it died.
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(orphaned)
	}()
	select {
	case <-ctx.Done():
	case <-orphaned:
	}
	return e.Close()
}

// Embedded is a broker inside this process. Only tests and RunChild open one
// directly: the pipeline runs it as a child, so that killing the pipeline and
// killing the broker are different events, as they are with a real broker.
type Embedded struct {
	cluster   *kfake.Cluster
	lock      *os.File
	id        identity
	movedFrom int
}

// Open serves the data directory until Close.
func Open(ctx context.Context, cfg EmbeddedConfig) (*Embedded, error) {
	if cfg.DataDir == "" {
		return nil, failure.New(failure.Config, "the embedded broker needs a data directory")
	}
	if err := os.MkdirAll(cfg.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("create the embedded broker's data directory: %w", err)
	}
	lock, err := acquire(ctx, filepath.Join(cfg.DataDir, lockFile))
	if err != nil {
		return nil, err
	}
	e := &Embedded{lock: lock}
	if err := e.serve(ctx, cfg); err != nil {
		_ = e.Close()
		return nil, err
	}
	return e, nil
}

// Bootstrap is the broker's address.
func (e *Embedded) Bootstrap() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(e.id.Port)) }

// ClusterID is the broker's random cluster id, the same for the directory's life.
func (e *Embedded) ClusterID() string { return e.id.ClusterID }

// Close ends the broker cleanly and gives the directory free.
func (e *Embedded) Close() error {
	if e.cluster != nil {
		done := make(chan struct{})
		go func() { e.cluster.Close(); close(done) }()
		ctx, cancel := context.WithTimeout(context.Background(), closeMax)
		defer cancel()
		select {
		case <-done:
		case <-ctx.Done():
			// The directory's lock goes with the process; everything
			// acknowledged is in the files already.
			return failure.New(failure.Runtime, "the embedded broker did not close within %s", closeMax)
		}
	}
	return e.lock.Close()
}

func (e *Embedded) serve(ctx context.Context, cfg EmbeddedConfig) error {
	data := filepath.Join(cfg.DataDir, dataFolder)
	path := filepath.Join(cfg.DataDir, identityFile)
	known, err := readIdentity(path)
	if err != nil {
		return err
	}
	e.id = known
	if known.ClusterID == "" {
		// kfake's own cluster id is a constant, so that a recreated directory
		// would look like the old cluster.
		e.id.ClusterID = uuid.NewString()
	}
	if cfg.Port != 0 {
		e.id.Port = cfg.Port
	}
	if err := repair(data); err != nil {
		return fmt.Errorf("repair the embedded broker's data after a crash: %w", err)
	}
	if err := e.listen(data, cfg); err != nil {
		return err
	}
	if e.id != known {
		if err := writeIdentity(path, e.id); err != nil {
			return err
		}
	}
	return e.seed(ctx, cfg.Topics)
}

// listen starts the cluster on the remembered port, or on another one where
// that is taken: a client that was given the address finds it again after a
// restart, and a stranger on the port does not keep the data from being read.
func (e *Embedded) listen(data string, cfg EmbeddedConfig) error {
	opts := []kfake.Opt{
		kfake.ClusterID(e.id.ClusterID),
		kfake.DataDir(data),
		kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(messageBytesMax)}),
	}
	if cfg.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(append(opts, kfake.Ports(e.id.Port))...)
	if errors.Is(err, syscall.EADDRINUSE) {
		e.movedFrom = e.id.Port
		cluster, err = kfake.NewCluster(append(opts, kfake.Ports(0))...)
	}
	if err != nil {
		return fmt.Errorf("start the embedded broker on %s: %w", data, err)
	}
	e.cluster = cluster
	_, port, err := net.SplitHostPort(cluster.ListenAddrs()[0])
	if err != nil {
		return fmt.Errorf("address of the embedded broker: %w", err)
	}
	e.id.Port, err = strconv.Atoi(port)
	return err
}

func (e *Embedded) seed(ctx context.Context, topics []Topic) error {
	if len(topics) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, seedTimeout)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(e.Bootstrap()), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("client of the embedded broker: %w", err)
	}
	defer cl.Close()
	for _, t := range topics {
		_, err := kadm.NewClient(cl).CreateTopic(ctx, t.Partitions, 1, nil, t.Name)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s in the embedded broker: %w", t.Name, err)
		}
	}
	return nil
}

// acquire takes the directory's lock, waiting for a predecessor to go.
func acquire(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the embedded broker's lock: %w", err)
	}
	for waited := time.Duration(0); ; waited += lockPoll {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if waited >= lockWaitMax {
			_ = f.Close()
			return nil, failure.New(failure.Fenced, "another embedded broker serves %s", filepath.Dir(path)).
				WithHint("stop the other run, or use another data directory")
		}
		if err := (clock.System{}).Sleep(ctx, lockPoll); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
}

func readIdentity(path string) (identity, error) {
	var id identity
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return id, fmt.Errorf("read the embedded broker's identity: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil || id.ClusterID == "" {
		return id, failure.New(failure.Checkpoint, "the embedded broker's identity file %s is damaged", path).
			WithHint("restore it, or remove the whole data directory to start over")
	}
	return id, nil
}

// writeIdentity replaces the file as a whole, so that a crash leaves the old
// identity or the new one.
func writeIdentity(path string, id identity) error {
	b, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode the embedded broker's identity: %w", err)
	}
	return replaceFile(path, append(b, '\n'))
}

func replaceFile(path string, b []byte) error {
	tmp := path + ".new"
	f, err := os.Create(tmp)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
