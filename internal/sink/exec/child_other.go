//go:build !linux

package exec

import "syscall"

// childAttr gives the program a process group of its own, so that all of it can
// be ended and an interrupt at the terminal does not reach it. When weir is
// killed, the program goes on: its input is whole.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
