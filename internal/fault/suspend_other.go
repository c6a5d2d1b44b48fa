//go:build !linux

package fault

import (
	"os"
	"syscall"
)

// suspend stops the process about here, until it gets SIGCONT.
func suspend() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
