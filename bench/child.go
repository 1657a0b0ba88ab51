package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// childFlag makes this program one of its own children. It is not among the
// flags, because nobody else is meant to give it.
const childFlag = "-child"

// role is what a child does. It takes its order as JSON and tells its parent
// about progress and results with say, a line of JSON each.
type role func(ctx context.Context, order []byte, say func(any) error) error

var roles = map[string]role{
	"nats":  natsRole,
	"hub":   hubRole,
	"fill":  fillRole,
	"open":  openRole,
	"crash": crashRole,
}

// runChild is main for children: "-child ROLE ORDER". It says whether the
// arguments were those of a child.
func runChild(args []string) (code int, child bool) {
	if len(args) != 3 || args[0] != childFlag {
		return 0, false
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	do, ok := roles[args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "bench: no role %q\n", args[1])
		return 2, true
	}
	out := json.NewEncoder(os.Stdout)
	if err := do(ctx, []byte(args[2]), out.Encode); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[1], err)
		return 1, true
	}
	return 0, true
}

// child is a running role as its parent sees it.
type child struct {
	*process
	in    *io.PipeReader
	lines *bufio.Scanner
}

func startChild(name string, order any) (*child, error) {
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, out := io.Pipe()
	cmd := exec.Command(self, childFlag, name, string(text))
	cmd.Stdout = out
	p, err := startProcess(cmd)
	if err != nil {
		return nil, err
	}
	go func() {
		<-p.done
		_ = out.Close() // documented to return nil
	}()
	return &child{process: p, in: in, lines: bufio.NewScanner(in)}, nil
}

// hear reads the child's next line into v. If ctx ends first, the child is
// killed.
func (c *child) hear(ctx context.Context, v any) error {
	defer context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })() // an error means that it is gone already
	if c.lines.Scan() {
		return json.Unmarshal(c.lines.Bytes(), v)
	}
	if err := ctx.Err(); err != nil {
		return errors.Join(err, c.end())
	}
	return c.failure()
}

// end kills the child and frees what connects to it.
func (c *child) end() error {
	// Closing first: a child that nobody listens to must not hold up Wait.
	_ = c.in.Close() // documented to return nil
	return c.kill()
}

// ask runs a role that answers with one line.
func ask[T any](ctx context.Context, name string, order any) (answer T, err error) {
	c, err := startChild(name, order)
	if err != nil {
		return answer, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	return answer, c.hear(ctx, &answer)
}
