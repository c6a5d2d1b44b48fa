//go:build !linux

package broker

import "syscall"

// childAttr gives the child a process group of its own; the end of standard
// input tells it that its parent is gone.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
