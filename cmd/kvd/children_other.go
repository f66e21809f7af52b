//go:build unix && !linux

package main

import "syscall"

// childAttributes: a signal from the terminal reaches the parent only. Without Linux's parent-death signal a
// child survives a SIGKILL of its parent.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
