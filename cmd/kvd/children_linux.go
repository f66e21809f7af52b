package main

import "syscall"

// childAttributes: a child dies with its parent, also if that is killed, and a signal from the terminal reaches
// the parent only.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
