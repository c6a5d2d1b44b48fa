package exec

import "syscall"

// childAttr gives the program a process group of its own, so that all of it can
// be ended and an interrupt at the terminal does not reach it, and a kill when we
// die: by then the next start may be running it with the same batch.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
