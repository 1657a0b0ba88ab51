package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
)

// heir is a process that ends the others if this one is killed and cannot: it
// hears which there are through a pipe, and the pipe ends with us.
type heir struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
}

func newHeir() (*heir, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &heir{cmd: exec.Command(self, "heir")}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return h, h.cmd.Start()
}

// tell says that a process has begun, +, or is about to be gone, -.
func (h *heir) tell(what string, pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, _ = fmt.Fprintf(h.in, "%s%d\n", what, pid)
}

func (h *heir) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.in.Close()
	_ = h.cmd.Wait()
}

// inherit ends what is left when its input does.
func inherit(in io.Reader) {
	left := make(map[int]bool)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		text := lines.Text()
		if pid, err := strconv.Atoi(text[min(1, len(text)):]); err == nil && pid > 1 {
			left[pid] = text[0] == '+'
		}
	}
	for pid, there := range left {
		if there {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
}
