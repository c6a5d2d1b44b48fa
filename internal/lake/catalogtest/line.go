package catalogtest

import (
	"net"
	"sync"
	"testing"
)

// lineBuffer is larger than any request that a match looks for.
const lineBuffer = 64 << 10

// fault is what happens to the next request that matches.
type fault int

const (
	none        fault = iota
	cutRequest        // it does not reach the server
	cutAnswer         // it is carried out, the answer does not come back
	garbleError       // it is carried out, the answer says 503 (HTTP only)
	sendTwice         // it is carried out, then sent again (HTTP only)
)

// armed holds the next fault.
type armed struct {
	mu   sync.Mutex
	next fault
}

func (a *armed) arm(f fault) { a.mu.Lock(); a.next = f; a.mu.Unlock() }

func (a *armed) take() fault {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.next
	a.next = none
	return f
}

// Line is a TCP connection to a server that can be cut at the one request that
// matters.
type Line struct {
	armed
	listener net.Listener
	target   string
	match    func(chunk []byte) bool
}

// NewLine listens on the loopback interface for connections to target.
func NewLine(t testing.TB, target string, match func(chunk []byte) bool) *Line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	line := &Line{listener: l, target: target, match: match}
	t.Cleanup(func() { _ = l.Close() })
	go line.accept()
	return line
}

// Addr is where the line begins, host:port.
func (l *Line) Addr() string { return l.listener.Addr().String() }

// LoseRequest cuts the line before the next matching request.
func (l *Line) LoseRequest() { l.arm(cutRequest) }

// LoseAnswer cuts the line after the next matching request, before its answer.
func (l *Line) LoseAnswer() { l.arm(cutAnswer) }

func (l *Line) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		// A swallowed answer ends the connection.
		swallow := make(chan struct{}, 1)
		go l.up(client, server, swallow)
		go l.down(client, server, swallow)
	}
}

// up carries requests.
func (l *Line) up(client, server net.Conn, swallow chan<- struct{}) {
	defer server.Close()
	defer client.Close()
	buf := make([]byte, lineBuffer)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			if l.match(buf[:n]) {
				switch l.take() {
				case cutRequest:
					return
				case cutAnswer:
					swallow <- struct{}{}
				}
			}
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// down carries answers.
func (l *Line) down(client, server net.Conn, swallow <-chan struct{}) {
	defer client.Close()
	defer server.Close()
	buf := make([]byte, lineBuffer)
	for {
		n, err := server.Read(buf)
		select {
		case <-swallow:
			return
		default:
		}
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
