package broker

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirlake/weir/internal/failure"
)

// front listens before a broker. Once armed, it breaks its connections and
// closes so many new ones as soon as a request has come, which is what a client
// sees of a broker that is killed while it starts; the others are passed on.
type front struct {
	ln     net.Listener
	to     string
	left   atomic.Int64
	closed atomic.Int64

	mu   sync.Mutex
	live []net.Conn
}

func (f *front) arm(n int64) {
	f.left.Store(n)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.live {
		_ = conn.Close()
	}
}

func newFront(t *testing.T) *front {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{ln: ln}
	t.Cleanup(func() { _ = ln.Close() })
	return f
}

func (f *front) serve(to string) {
	f.to = to
	go func() {
		for {
			conn, err := f.ln.Accept()
			if err != nil {
				return
			}
			go f.handle(conn)
		}
	}()
}

func (f *front) handle(conn net.Conn) {
	defer conn.Close()
	if f.left.Add(-1) >= 0 {
		var request [4]byte
		_, _ = io.ReadFull(conn, request[:])
		f.closed.Add(1)
		return
	}
	up, err := net.Dial("tcp", f.to)
	if err != nil {
		return
	}
	defer up.Close()
	f.mu.Lock()
	f.live = append(f.live, conn)
	f.mu.Unlock()
	go func() {
		_, _ = io.Copy(up, conn)
		_ = up.Close()
	}()
	_, _ = io.Copy(conn, up)
}

func TestABrokerThatClosesEachConnectionOnItsFirstRequestIsWaitedOut(t *testing.T) {
	const closes = 4
	f := newFront(t)
	// The cluster tells the front's address, so that no connection goes past it.
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "events"), kfake.ListenFn(func(network, _ string) (net.Listener, error) {
		ln, err := net.Listen(network, "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		f.serve(ln.Addr().String())
		return advertised{ln, f.ln.Addr()}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cl := client(t, f.ln.Addr().String())
	// The broker dies while a producer asks for its id, and while it is asked
	// again: that failed all records for good.
	var once sync.Once
	c.ControlKey(kmsg.InitProducerID.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		once.Do(func() { f.arm(closes) })
		return nil, nil, false
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "events", Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatalf("after %d closed connections: %v", f.closed.Load(), err)
	}
	if n := f.closed.Load(); n != closes {
		t.Fatalf("%d connections were closed, want %d: the record did not go through the fault", n, closes)
	}
}

// advertised is a listener that a cluster tells its clients another address of.
type advertised struct {
	net.Listener
	addr net.Addr
}

func (a advertised) Addr() net.Addr { return a.addr }

func TestTheFirstContactNamesWhatIsWrongWithTheConnection(t *testing.T) {
	dir := t.TempDir()
	conf, ca := selfSigned(t, dir)
	_, otherCA := selfSigned(t, t.TempDir())
	cluster := func(opts ...kfake.Opt) string {
		t.Helper()
		c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c.ListenAddrs()[0]
	}
	plain := cluster()
	secure := cluster(kfake.TLS(conf))
	mutual := conf.Clone()
	mutual.ClientAuth = tls.RequireAnyClientCert
	login := cluster(kfake.EnableSASL(), kfake.Superuser(SASLScram256, "u", "p"))
	trust := TLS{Enabled: true, CAFile: ca}
	for _, tt := range []struct {
		name string
		c    Config
		want []string // empty: it answers
	}{
		{"plaintext to plaintext", Config{BootstrapServers: []string{plain}}, nil},
		{"TLS to TLS", Config{BootstrapServers: []string{secure}, TLS: trust}, nil},
		{"plaintext to TLS", Config{BootstrapServers: []string{secure}}, []string{"speaks TLS", "kafka.tls"}},
		{"TLS to plaintext", Config{BootstrapServers: []string{plain}, TLS: trust}, []string{"speaks plaintext", "kafka.tls"}},
		{"another authority", Config{BootstrapServers: []string{secure}, TLS: TLS{Enabled: true, CAFile: otherCA}}, []string{"certificate", "kafka.tls.caFile"}},
		{"another name", Config{BootstrapServers: []string{secure}, TLS: TLS{Enabled: true, CAFile: ca, ServerName: "kafka.example"}}, []string{"certificate", "serverName"}},
		{"no client certificate", Config{BootstrapServers: []string{cluster(kfake.TLS(mutual))}, TLS: trust}, []string{"client certificate", "kafka.tls.certFile"}},
		{"no log-in", Config{BootstrapServers: []string{login}}, []string{"wants a log-in", "kafka.sasl"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // each wrong one waits until the first try is over
			err := Contact(t.Context(), tt.c)
			if len(tt.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !failure.Is(err, failure.Config) {
				t.Fatalf("%v, want a configuration error", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not say %q: %v", w, err)
				}
			}
		})
	}
}

func TestABrokerThatIsDownIsNoFaultOfTheConfiguration(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() { // accepts, and dies at once
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	for _, c := range []Config{
		{BootstrapServers: []string{ln.Addr().String()}},
		{BootstrapServers: []string{ln.Addr().String()}, TLS: TLS{Enabled: true}},
		{BootstrapServers: []string{"127.0.0.1:1"}},
	} {
		if err := Diagnose(t.Context(), c); err != nil {
			t.Errorf("%v: %v, want nothing: it is an outage", c.BootstrapServers, err)
		}
	}
}
