package fault

import (
	"os"
	"runtime"
	"syscall"
)

// suspend stops the process here, until it gets SIGCONT. The signal goes to this
// very thread: one to the process may be taken by another thread, and this one would
// run on for a moment, into what comes behind the point.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}
