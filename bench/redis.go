package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"promethean/event"
)

const redisProgram = "redis-server"

// redisTarget is a Redis server of its own with an append-only file that is
// synced before every answer.
type redisTarget struct {
	server *process
	addr   string
}

func (*redisTarget) Name() string       { return nameRedis }
func (*redisTarget) Durability() string { return durable }

func (*redisTarget) Available() error {
	if _, err := exec.LookPath(redisProgram); err != nil {
		return fmt.Errorf("%s is not on PATH; -install installs the package of Debian", redisProgram)
	}
	return nil
}

// installRedis installs the package where it is missing. The service that the
// package brings is not used.
func installRedis(ctx context.Context) error {
	if (*redisTarget)(nil).Available() == nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "apt-get", "install", "-y", redisProgram).CombinedOutput()
	if err != nil {
		return fmt.Errorf("install %s: %w: %s", redisProgram, err, out)
	}
	return nil
}

// redisConfig: appendfsync always is the durable mode; no snapshots and no
// rewriting of the file, which would only slow it down.
const redisConfig = `bind 127.0.0.1
port %d
dir "%s"
daemonize no
appendonly yes
appendfsync always
save ""
auto-aof-rewrite-percentage 0
`

func (t *redisTarget) Open(ctx context.Context, dir string) error {
	program, err := exec.LookPath(redisProgram)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	conf := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, redisConfig, port, dir), 0o600); err != nil {
		return err
	}
	if t.server, err = startProcess(exec.Command(program, conf)); err != nil {
		return err
	}
	t.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err := t.awaitReady(ctx); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", redisProgram, err), t.Close())
	}
	return nil
}

// freePort asks the kernel for a port. Somebody else may take it before the
// server does; then the server ends, and the round fails with its message.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// awaitReady returns once the server answers.
func (t *redisTarget) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := t.ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-t.server.done:
			return t.server.failure()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (t *redisTarget) ping(ctx context.Context) error {
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	if _, err = c.conn.Write(appendCommand(nil, "PING")); err == nil {
		_, err = readReply(c.in)
	}
	return errors.Join(err, c.Close())
}

func (t *redisTarget) Publisher(ctx context.Context, _ int) (publisher, error) {
	return t.dial(ctx)
}

// dial connects for the life of ctx: when it ends, so does every call.
func (t *redisTarget) dial(ctx context.Context) (*redisConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return nil, err
	}
	release := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // fails only if it is closed
	return &redisConn{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), release: release}, nil
}

func (t *redisTarget) Close() error {
	if t.server == nil {
		return nil
	}
	err := t.server.kill()
	t.server = nil
	return err
}

// redisConn publishes over one connection. Several events are pipelined: one
// write with all commands, then all answers.
type redisConn struct {
	conn    net.Conn
	in      *bufio.Reader
	out     []byte
	release func() bool
}

func (c *redisConn) Publish(ctx context.Context, evs []event.Event) error {
	c.out = c.out[:0]
	for i := range evs {
		c.out = appendXADD(c.out, &evs[i])
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	for range evs {
		if _, err := readReply(c.in); err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	return nil
}

func (c *redisConn) Close() error {
	c.release()
	return c.conn.Close()
}
