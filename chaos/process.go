package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is a child process that can be killed, stopped and started again. It
// does not outlive this one. Its methods are safe for concurrent use.
type process struct {
	name string
	make func() *exec.Cmd
	log  string // the file that gets what it prints

	mu      sync.Mutex
	cmd     *exec.Cmd
	done    chan struct{} // closed when it is gone
	wanted  bool          // it is to run: an end is a failure
	starts  int
	failure error // it ended by itself
}

// start runs the process, again if it is gone.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted {
		return fmt.Errorf("start %s: it runs already", p.name)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	cmd := p.make()
	cmd.Stdout, cmd.Stderr = out, out
	dieWithParent(cmd)
	done, started := make(chan struct{}), make(chan error)
	go func() {
		// The kernel ties the child to the thread that started it, so that
		// thread has to stay until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		err = cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.wanted && p.cmd == cmd {
			if err == nil {
				err = errors.New("it ended")
			}
			p.wanted, p.failure = false, fmt.Errorf("%s: %w; see %s", p.name, err, p.log)
		}
	}()
	err = <-started
	_ = out.Close() // the child has it
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.done, p.wanted = cmd, done, true
	p.starts++
	return nil
}

// signal sends a signal to the process, if it runs.
func (p *process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted {
		return fmt.Errorf("signal %s: it does not run", p.name)
	}
	return p.cmd.Process.Signal(s)
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.wanted = false
	p.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill() // it may be gone
		<-done
	}
}

// end asks the process to end, and waits for that; after a while it is killed,
// which is an error. So is another exit code than 0.
func (p *process) end(ctx context.Context, patience time.Duration) error {
	p.mu.Lock()
	cmd, done, wanted := p.cmd, p.done, p.wanted
	p.wanted = false
	p.mu.Unlock()
	if !wanted {
		return nil
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-done:
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("%s ended with %v; see %s", p.name, cmd.ProcessState, p.log)
		}
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	<-done
	return fmt.Errorf("%s did not end within %v of SIGTERM; see %s", p.name, patience, p.log)
}

// ask asks the process to end, and lets it take its time; the channel is closed
// when it is gone. One that had not yet begun to listen dies of it.
func (p *process) ask() (gone chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted {
		p.wanted = false
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
	}
	return p.done
}

// failed says why the process ended by itself, if it did.
func (p *process) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}
