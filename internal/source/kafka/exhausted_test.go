package kafka

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlake/weir/internal/broker"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
)

// Nobody would wait two minutes for a broker that this process cannot even ask.
func TestARunWithoutFileDescriptorsNamesThemAtOnce(t *testing.T) {
	asked := 0
	dial := func(_ context.Context, network, addr string) (net.Conn, error) {
		asked++
		return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}
	s, err := New(Config{Client: broker.Config{BootstrapServers: []string{"127.0.0.1:9"}, Dial: dial}, Topics: []string{topic},
		UnreachableAfter: 365 * 24 * time.Hour}, clock.System{}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_, err = s.Initial(t.Context())
	var f *failure.Error
	if !errors.As(err, &f) || f.Class != failure.Runtime || !strings.Contains(err.Error(), "too many open files") || !strings.Contains(err.Error(), "ulimit -n") {
		t.Fatalf("%v", err)
	}
	if asked == 0 {
		t.Fatal("no connection was tried")
	}
}
