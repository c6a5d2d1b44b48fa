package broker

import "syscall"

// childAttr gives the child a process group of its own, so that an interrupt
// typed at the terminal stops the pipeline first and the broker after it, and
// a signal when the parent dies. The signal asks for a clean end, as the end
// of standard input does; either alone is enough.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
