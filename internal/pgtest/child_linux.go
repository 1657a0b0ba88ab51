package pgtest

import "syscall"

// childOf has a process run as a user, and end with the test.
func childOf(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: user, Pdeathsig: syscall.SIGQUIT}
}
