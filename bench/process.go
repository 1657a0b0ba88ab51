package main

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
)

// process is a child process that does not outlive this one.
type process struct {
	cmd  *exec.Cmd
	said *tail         // the end of what it printed for people
	done chan struct{} // closed when it is gone
	err  error         // valid after done
}

// startProcess starts cmd. What it prints on standard error, and on standard
// output unless the caller took that, is kept for error messages.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, said: &tail{max: 4 << 10}, done: make(chan struct{})}
	cmd.Stderr = p.said
	if cmd.Stdout == nil {
		cmd.Stdout = p.said
	}
	dieWithParent(cmd)
	started := make(chan error)
	go func() {
		// The kernel ties the child to the thread that started it, so that
		// thread has to stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	if err != nil && p.cmd.ProcessState == nil {
		return fmt.Errorf("kill %s: %w", p.cmd.Path, err)
	}
	return nil
}

// failure describes a process that ended by itself, with its last words.
func (p *process) failure() error {
	<-p.done
	err := p.err
	if err == nil {
		err = errors.New("it ended")
	}
	if said := p.said.String(); said != "" {
		return fmt.Errorf("%s: %w: %s", p.cmd.Path, err, said)
	}
	return fmt.Errorf("%s: %w", p.cmd.Path, err)
}

// tail is a writer that keeps the last max bytes.
type tail struct {
	mu  sync.Mutex
	max int
	b   []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if n := len(t.b) - t.max; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}
