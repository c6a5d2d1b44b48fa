package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// network is the wire between the processes and the brokers: connections in
// memory, on which a request travels freely and its answer waits at a gate.
// The requests of a connection are answered one after the other, as Kafka does.
type network struct {
	mu        sync.Mutex
	listeners []*listener
	links     map[*link]bool
	// mend corrects answers of the fake brokers.
	mend func(*message)
}

// listener is where a broker takes connections.
type listener struct {
	addr  *net.TCPAddr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	down  bool // nobody gets in
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// port of the first broker; the others follow.
const port = 9092

func (n *network) listen(string, string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port + len(n.listeners)}, conns: make(chan net.Conn), done: make(chan struct{})}
	n.listeners = append(n.listeners, l)
	return l, nil
}

// dialer connects a process; without one, it connects who is no part of the
// schedule, and nothing stops its requests.
func (n *network) dialer(p *process) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for node, l := range n.listeners {
			switch {
			case l.addr.String() != addr:
				continue
			case p != nil && p.dead.Load():
				return nil, errDead
			case p != nil && l.down:
				// As of a kernel: the client tells a broker that is down by the type.
				return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: l.addr, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
			near, far := net.Pipe()
			if p != nil {
				k := &link{p: p, node: node, near: far, done: make(chan struct{})}
				k.far, far = net.Pipe()
				n.links[k] = true
				go n.carry(k)
			}
			select {
			case l.conns <- far:
				return near, nil
			case <-l.done:
			case <-ctx.Done():
			}
			return nil, errAway
		}
		return nil, fmt.Errorf("dial %s: nobody is there", addr)
	}
}

// link is a connection of a process with a broker, and the wire between them.
type link struct {
	p         *process
	node      int
	near, far net.Conn
	done      chan struct{}
	once      sync.Once
}

func (k *link) cut() {
	k.once.Do(func() {
		close(k.done)
		_ = k.near.Close()
		_ = k.far.Close()
	})
}

// cutAll cuts what is connected with a broker.
func (n *network) cutAll(node int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.links {
		if k.node == node {
			k.cut()
		}
	}
}

func (n *network) carry(k *link) {
	stop := context.AfterFunc(k.p.ctx, k.cut)
	defer func() {
		stop()
		k.cut()
		n.mu.Lock()
		delete(n.links, k)
		n.mu.Unlock()
	}()
	requests := make(chan []byte)
	go func() {
		defer close(requests)
		for {
			f, err := readFrame(k.near)
			if err != nil {
				k.cut() // the client has closed it
				return
			}
			select {
			case requests <- f:
			case <-k.done:
				return
			}
		}
	}()
	for req := range requests {
		if err := n.pass(k, req); err != nil {
			return
		}
	}
}

// pass carries a request to the broker and its answer back.
func (n *network) pass(k *link, req []byte) error {
	if err := writeFrame(k.far, req); err != nil {
		return err
	}
	resp, err := readFrame(k.far)
	if err != nil {
		return err
	}
	m := newMessage(req, resp)
	n.mend(m)
	v, ok := k.p.s.await(k.p, fmt.Sprint(m.String(), " ", k.node), k.node, k.done)
	if !ok {
		return errLost
	}
	if resp = m.tamper(v); resp == nil {
		if v.fault == dieBefore {
			k.p.kill()
		}
		return errLost
	}
	return writeFrame(k.near, resp)
}

const frameMax = 64 << 20

func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > frameMax {
		return nil, errors.New("no frame of Kafka's")
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

func writeFrame(w io.Writer, b []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
	return err
}

// message is an answer on its way, with what it answers.
type message struct {
	key, version int16
	asked, raw   []byte
	resp         kmsg.Response // nil where it is none that is tampered with
	head         int           // bytes of the header
}

func newMessage(req, resp []byte) *message {
	m := &message{key: int16(binary.BigEndian.Uint16(req)), version: int16(binary.BigEndian.Uint16(req[2:])), asked: req, raw: resp, head: 4}
	r := kmsg.ResponseForKey(m.key)
	r.SetVersion(m.version)
	if r.IsFlexible() && kmsg.Key(m.key) != kmsg.ApiVersions {
		m.head++ // no broker sends tags in the header
	}
	if r.ReadFrom(resp[m.head:]) == nil {
		m.resp = r
	}
	return m
}

// request is what was asked.
func (m *message) request() (kmsg.Request, error) {
	r := kmsg.RequestForKey(m.key)
	r.SetVersion(m.version)
	b := kbin.Reader{Src: m.asked[8:]}
	b.NullableString() // the client's id
	if r.IsFlexible() {
		kmsg.SkipTags(&b)
	}
	return r, r.ReadFrom(b.Src)
}

// encode writes the answer anew.
func (m *message) encode() []byte { return m.resp.AppendTo(m.raw[:m.head:m.head]) }

// String names the answer for the trace: what it is of, not the bytes, whose
// order is not the schedule's.
func (m *message) String() string {
	name := "kafka " + kmsg.NameForKey(m.key)
	if f, ok := m.resp.(*kmsg.FetchResponse); ok {
		var parts []string
		for _, p := range m.partitions() {
			fp := p.(*kmsg.FetchResponseTopicPartition)
			parts = append(parts, fmt.Sprintf("%d:%d", fp.Partition, records(fp.RecordBatches)))
		}
		if f.ErrorCode != 0 {
			parts = append(parts, fmt.Sprint("error ", f.ErrorCode))
		}
		name += " " + strings.Join(parts, " ")
	}
	return name
}
