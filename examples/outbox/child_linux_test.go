package main

import "syscall"

// dieWithTest has a process end with the test.
func dieWithTest() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
