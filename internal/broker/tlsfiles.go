package broker

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// tlsFiles holds the TLS settings of a client and reads the files again when
// they have changed. Each new connection looks; connections that are open stay
// as they are, for TLS has no other way.
//
// A certificate and its key are two files, and whoever replaces them does so one
// after the other: between the two they do not fit, and the connection is made
// with what fitted last.
type tlsFiles struct {
	t TLS

	mu    sync.Mutex
	conf  *tls.Config
	stamp []fileStamp
}

// fileStamp is what tells that a file was replaced.
type fileStamp struct {
	size     int64
	modified time.Time
	inode    os.FileInfo
}

func newTLSFiles(t TLS) (*tlsFiles, error) {
	f := &tlsFiles{t: t, stamp: t.stamps()}
	var err error
	f.conf, err = t.config()
	return f, err
}

func (t TLS) stamps() []fileStamp {
	var out []fileStamp
	for _, path := range []string{t.CAFile, t.CertFile, t.KeyFile} {
		var s fileStamp
		if path != "" {
			if info, err := os.Stat(path); err == nil {
				s = fileStamp{info.Size(), info.ModTime(), info}
			}
		}
		out = append(out, s)
	}
	return out
}

func (a fileStamp) same(b fileStamp) bool {
	if a.inode == nil || b.inode == nil {
		return a.inode == b.inode
	}
	return a.size == b.size && a.modified.Equal(b.modified) && os.SameFile(a.inode, b.inode)
}

// current is the configuration for a connection that begins now.
func (f *tlsFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.t.stamps()
	if !slices.EqualFunc(now, f.stamp, fileStamp.same) {
		// Looked at before it is read: a change in between is seen next time.
		if conf, err := f.t.config(); err == nil {
			f.conf, f.stamp = conf, now
		}
	}
	return f.conf
}

// dial is not kgo.DialTLSConfig, which excludes a time-out of our own.
func (f *tlsFiles) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := &tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: f.current()}
	return d.DialContext(ctx, network, addr)
}
