package broker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirlake/weir/internal/failure"
)

// The test binary is its own child: the hidden command, and a parent that
// spawns one and is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Subcommand {
		cfg, err := ParseArgs(os.Args[2:])
		if err == nil {
			err = RunChild(context.Background(), cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if dir := os.Getenv("WEIR_TEST_BROKER_PARENT"); dir != "" {
		c, err := Spawn(context.Background(), os.Args[0], EmbeddedConfig{DataDir: dir})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(c.PID())
		select {}
	}
	os.Exit(m.Run())
}

func spawn(t *testing.T, cfg EmbeddedConfig) *Child {
	t.Helper()
	c, err := Spawn(t.Context(), os.Args[0], cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Kill9() })
	return c
}

func client(t *testing.T, addr string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	base, err := ClientOptions(Config{BootstrapServers: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(append(base, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// readAll reads a topic to its last stable offset and counts each value.
func readAll(t *testing.T, addr, topic string, n int64) map[string]int {
	t.Helper()
	cl := client(t, addr, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
	if n > total {
		t.Fatalf("%s has %d records, want at least %d", topic, total, n)
	}
	seen := map[string]int{}
	quiet := 0
	for quiet < 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		fs := cl.PollFetches(ctx)
		cancel()
		before := len(seen)
		fs.EachRecord(func(r *kgo.Record) { seen[string(r.Value)]++ })
		if fs.NumRecords() == 0 && len(seen) == before {
			quiet++
		}
	}
	return seen
}

func TestAcknowledgedRecordsSurviveKill9OfTheEmbeddedBroker(t *testing.T) {
	cfg := EmbeddedConfig{DataDir: t.TempDir(), Topics: []Topic{{"events", 3}}}
	acked := map[string]bool{}
	var clusterID, addr string
	for round := range 3 {
		c := spawn(t, cfg)
		if round > 0 && (c.Ready.ClusterID != clusterID || c.Bootstrap() != addr) {
			t.Fatalf("restarted as %s at %s, was %s at %s", c.Ready.ClusterID, c.Bootstrap(), clusterID, addr)
		}
		clusterID, addr = c.Ready.ClusterID, c.Bootstrap()
		cl := client(t, addr)
		done := make(chan string, 100_000)
		for i := range 2000 {
			v := fmt.Sprintf("%d-%d", round, i)
			cl.Produce(t.Context(), &kgo.Record{Topic: "events", Value: []byte(v)}, func(_ *kgo.Record, err error) {
				if err == nil {
					done <- v
				}
			})
			if i == 1500 {
				acked[<-done] = true // something is acknowledged, something in flight
				c.Kill9()
			}
		}
		go cl.Close()
		for n := len(done); n > 0; n-- {
			acked[<-done] = true
		}
	}
	c := spawn(t, cfg)
	seen := readAll(t, c.Bootstrap(), "events", int64(len(acked)))
	for v := range acked {
		if seen[v] == 0 {
			t.Fatalf("acknowledged record %s is gone", v)
		}
	}
	if len(acked) == 0 {
		t.Fatal("nothing was acknowledged before the kill")
	}
}

func TestAProducerThatOutlivesKill9OfTheBrokerRepeatsNothing(t *testing.T) {
	cfg := EmbeddedConfig{DataDir: t.TempDir(), Topics: []Topic{{"events", 1}}}
	c := spawn(t, cfg)
	cl := client(t, c.Bootstrap(), kgo.ProducerLinger(0), kgo.MaxProduceRequestsInflightPerBroker(1))
	const n = 3000
	failed := make(chan error, n)
	for i := range n {
		cl.Produce(t.Context(), &kgo.Record{Topic: "events", Value: []byte(strconv.Itoa(i))}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed <- err
			}
		})
		if i%1000 == 999 {
			c.Kill9()
			c = spawn(t, cfg)
		}
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(failed) > 0 {
		t.Fatalf("%d records failed: %v", len(failed), <-failed)
	}
	seen := readAll(t, c.Bootstrap(), "events", n)
	for i := range n {
		if seen[strconv.Itoa(i)] != 1 {
			t.Fatalf("record %d is there %d times", i, seen[strconv.Itoa(i)])
		}
	}
}

func TestABatchWithoutItsIndexEntryDoesNotBecomeCommittedByACrash(t *testing.T) {
	dir := t.TempDir()
	cfg := EmbeddedConfig{DataDir: dir, Topics: []Topic{{"events", 1}}}
	c := spawn(t, cfg)
	plain := client(t, c.Bootstrap())
	if err := plain.ProduceSync(t.Context(), &kgo.Record{Topic: "events", Value: []byte("first")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	cl := client(t, c.Bootstrap(), kgo.TransactionalID("t"))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "events", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c.Kill9()
	// What a kill between the two writes leaves.
	idx := filepath.Join(dir, dataFolder, "partitions", "events-0", "0.idx")
	info, err := os.Stat(idx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(idx, info.Size()-indexEntryBytes); err != nil {
		t.Fatal(err)
	}
	c = spawn(t, cfg)
	seen := readAll(t, c.Bootstrap(), "events", 1)
	if seen["first"] != 1 || seen["open"] != 0 {
		t.Fatalf("after the crash the topic shows %v, want only the first record", seen)
	}
}

func TestAnOpenTransactionIsAbortedByKill9OfTheBroker(t *testing.T) {
	cfg := EmbeddedConfig{DataDir: t.TempDir(), Topics: []Topic{{"events", 1}}}
	c := spawn(t, cfg)
	cl := client(t, c.Bootstrap(), kgo.TransactionalID("t"))
	txn := func(value string, end kgo.TransactionEndTry) {
		t.Helper()
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "events", Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := cl.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	txn("committed", kgo.TryCommit)
	txn("aborted", kgo.TryAbort)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "events", Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c.Kill9()
	c = spawn(t, cfg)
	seen := readAll(t, c.Bootstrap(), "events", 1)
	if len(seen) != 1 || seen["committed"] != 1 {
		t.Fatalf("read_committed shows %v, want the committed record only", seen)
	}
}

func TestTheBrokerGoesWithAKilledParentAndTheNextStartWaitsForIt(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		parent := exec.Command(os.Args[0])
		parent.Env = append(os.Environ(), "WEIR_TEST_BROKER_PARENT="+dir)
		out, err := parent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatalf("the parent reported no broker: %v", err)
		}
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = parent.Wait()
		// No wait here: the next start must do it.
		c := spawn(t, EmbeddedConfig{DataDir: dir})
		if err := syscall.Kill(pid, 0); err == nil {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); len(b) > 0 && !strings.Contains(string(b), ") Z ") {
				t.Fatalf("orphan %d still runs while its successor %d serves", pid, c.PID())
			}
		}
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestATakenPortMovesTheBrokerAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(t.Context(), EmbeddedConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	addr, id := e.Bootstrap(), e.ClusterID()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := spawn(t, EmbeddedConfig{DataDir: dir})
	_, port, _ := net.SplitHostPort(addr)
	if c.Bootstrap() == addr || strconv.Itoa(c.Ready.MovedFrom) != port || c.Ready.ClusterID != id {
		t.Fatalf("ready %+v, want another port than %s, moved_from set and cluster %s", c.Ready, port, id)
	}
}

func TestARecreatedDataDirectoryIsAnotherCluster(t *testing.T) {
	ids := map[string]bool{}
	for range 2 {
		e, err := Open(t.Context(), EmbeddedConfig{DataDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		meta, err := kadm.NewClient(client(t, e.Bootstrap())).BrokerMetadata(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if meta.Cluster != e.ClusterID() {
			t.Fatalf("the broker says cluster %q, its folder %q", meta.Cluster, e.ClusterID())
		}
		ids[meta.Cluster] = true
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != 2 {
		t.Fatalf("two data directories share a cluster id: %v", ids)
	}
}

func TestSeededTopicsKeepTheirPartitionsAndLargeRecordsPass(t *testing.T) {
	dir := t.TempDir()
	for _, parts := range []int32{4, 9} {
		e, err := Open(t.Context(), EmbeddedConfig{DataDir: dir, Topics: []Topic{{"a.b_c", parts}}})
		if err != nil {
			t.Fatal(err)
		}
		cl := client(t, e.Bootstrap(), kgo.ProducerBatchMaxBytes(32<<20))
		topics, err := kadm.NewClient(cl).ListTopics(t.Context(), "a.b_c")
		if err != nil || len(topics["a.b_c"].Partitions) != 4 {
			t.Fatalf("topic has %d partitions, want 4 (%v)", len(topics["a.b_c"].Partitions), err)
		}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "a.b_c", Value: make([]byte, 20<<20)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestArgumentsOfTheHiddenCommandComeBackAsTheyWere(t *testing.T) {
	want := EmbeddedConfig{DataDir: "/d", Port: 7, SyncWrites: true, Topics: []Topic{{"a.b", 3}, {"c", 1}}}
	got, err := ParseArgs(Args(want)[1:])
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %+v (%v), want %+v", got, err, want)
	}
	for _, bad := range [][]string{{"--topic", "x"}, {"--topic", "x:0"}, {"--nonsense"}} {
		if _, err := ParseArgs(bad); !failure.Is(err, failure.Config) {
			t.Errorf("%v: %v, want a configuration error", bad, err)
		}
	}
}

func TestEveryFaultOfTheConnectionSettingsIsNamedAtOnce(t *testing.T) {
	_, err := ClientOptions(Config{
		BootstrapServers: []string{"nohost"},
		TLS:              TLS{CertFile: "x"},
		SASL:             SASL{Mechanism: "GSSAPI"},
	})
	if !failure.Is(err, failure.Config) {
		t.Fatalf("%v, want a configuration error", err)
	}
	for _, part := range []string{"nohost", "tls is not enabled", "certificate and its key", "GSSAPI"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %q: %v", part, err)
		}
	}
}

func TestSASLMechanismsLogIn(t *testing.T) {
	for _, mechanism := range []string{SASLPlain, SASLScram256, SASLScram512} {
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(mechanism, "u", "p"))
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			password string
			ok       bool
		}{{"p", true}, {"wrong", false}} {
			opts, err := ClientOptions(Config{BootstrapServers: c.ListenAddrs(), SASL: SASL{Mechanism: mechanism, Username: "u", Password: tt.password}})
			if err != nil {
				t.Fatal(err)
			}
			cl, err := kgo.NewClient(append(opts, kgo.RequestRetries(1))...)
			if err != nil {
				t.Fatal(err)
			}
			err = cl.Ping(t.Context())
			if (err == nil) != tt.ok {
				t.Errorf("%s with password %q: %v", mechanism, tt.password, err)
			}
			cl.Close()
		}
		c.Close()
	}
	// kfake hangs up on a wrong password; a real broker says so.
	if err := fmt.Errorf("connect: %w", kerr.SaslAuthenticationFailed); !Misconfigured(err) {
		t.Errorf("%v is not recognised as a configuration fault", err)
	}
}

func TestTLSNeedsTheServersCA(t *testing.T) {
	dir := t.TempDir()
	conf, ca := selfSigned(t, dir)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(conf))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, tt := range []struct {
		ca string
		ok bool
	}{{ca, true}, {"", false}} {
		opts, err := ClientOptions(Config{BootstrapServers: c.ListenAddrs(), TLS: TLS{Enabled: true, CAFile: tt.ca}})
		if err != nil {
			t.Fatal(err)
		}
		cl, err := kgo.NewClient(append(opts, kgo.RequestRetries(1))...)
		if err != nil {
			t.Fatal(err)
		}
		err = cl.Ping(t.Context())
		if (err == nil) != tt.ok {
			t.Errorf("ca %q: %v", tt.ca, err)
		}
		if !tt.ok && !Misconfigured(err) {
			t.Errorf("an unknown CA is not recognised as a configuration fault: %v", err)
		}
		cl.Close()
	}
	if _, err := ClientOptions(Config{BootstrapServers: []string{"h:1"}, TLS: TLS{Enabled: true, CAFile: filepath.Join(dir, "none")}}); !failure.Is(err, failure.Config) {
		t.Errorf("missing CA file: %v, want a configuration error", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other.key")
	if err := os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = ClientOptions(Config{BootstrapServers: []string{"h:1"}, TLS: TLS{Enabled: true, CertFile: ca, KeyFile: other}})
	if !failure.Is(err, failure.Config) {
		t.Errorf("certificate with another key: %v, want a configuration error", err)
	}
}

func TestADataDirectoryIsServedByOneBrokerAtATime(t *testing.T) {
	dir := t.TempDir()
	e, err := Open(t.Context(), EmbeddedConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, EmbeddedConfig{DataDir: dir}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second broker on the same directory: %v, want it to wait", err)
	}
}
