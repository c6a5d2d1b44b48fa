// Package freeport finds ports for servers that are killed and started again on
// the same port. They lie below those that the kernel gives to clients, which
// come and go: one of those could be taken while the server is down.
package freeport

import (
	"net"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/weirlake/weir/internal/failure"
)

const (
	from, to = 20_000, 32_000
	// stride is the most neighbouring ports that can be asked for.
	stride = 8
	// apart keeps processes that look at the same time away from each other.
	apart = 97
	tries = 500
)

// asked counts the questions: nobody in this process is given a port twice,
// before all others were.
var asked atomic.Int64

// Find gives the first of n neighbouring ports of the loopback interface on which
// nobody listens now; n is at most 8. The error (class Config) says that there are
// none.
func Find(n int) (int, error) {
	for range tries {
		port := from + stride*((os.Getpid()*apart+int(asked.Add(1)))%((to-from)/stride))
		if allFree(port, min(n, stride)) {
			return port, nil
		}
	}
	return 0, failure.New(failure.Config, "no %d free ports side by side between %d and %d", n, from, to)
}

func allFree(port, n int) bool {
	for p := port; p < port+n; p++ {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		if err != nil || ln.Close() != nil {
			return false
		}
	}
	return true
}
