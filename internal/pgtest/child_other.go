//go:build unix && !linux

package pgtest

import "syscall"

// childOf has a process run as a user.
func childOf(user *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: user}
}
