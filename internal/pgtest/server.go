//go:build unix

package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is one of the test's own.
type Server struct {
	bin, dir string
	port     int
	user     *syscall.Credential // nil: ours
	run      *exec.Cmd
	log      *bytes.Buffer
}

// Start makes a server with settings such as "wal_level = logical", which it has
// anyway, and starts it. It is stopped in the end. The test skips where the
// environment does not name the programs of a server.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := &Server{bin: os.Getenv(binName), log: new(bytes.Buffer)}
	if s.bin == "" {
		t.Skip("needs postgresql: " + binName + " is not set")
	}
	// Not t.TempDir: the user of the server may not look into that.
	dir, err := os.MkdirTemp("", "pgtest")
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Getuid() == 0 { // the server does not run as root
		s.become(t, "postgres")
	}
	s.must(t, "initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync", "-D", s.data())
	s.port = freePort(t)
	conf := fmt.Sprintf("\nlisten_addresses = '127.0.0.1'\nport = %d\nunix_socket_directories = ''\nwal_level = logical\ntimezone = 'UTC'\n", s.port)
	for _, line := range settings {
		conf += line + "\n"
	}
	f, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(conf); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	t.Cleanup(func() { s.Stop(t) })
	return s
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// URI is the address of the database postgres.
func (s *Server) URI() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// become has the server run as another user, whose its directory is.
func (s *Server) become(t testing.TB, name string) {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatalf("PostgreSQL does not run as root, and there is no user %s: %v", name, err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2, os.Chown(s.dir, int(uid), int(gid))); err != nil {
		t.Fatal(err)
	}
	s.user = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// command is a program of the server.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(s.bin, name), args...) //nolint:gosec // the programs that the environment names
	c.Dir = s.dir
	c.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	c.SysProcAttr = childOf(s.user)
	return c
}

func (s *Server) must(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// Restart stops the server, if it runs, and starts it again in its place.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	s.run = s.command("postgres", "-D", s.data())
	s.run.Stdout, s.run.Stderr = s.log, s.log
	if err := s.run.Start(); err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitFor)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URI())
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			s.Stop(t)
			t.Fatalf("PostgreSQL does not answer: %v\n%s", err, s.log)
		}
	}
}

// Stop stops the server as if the machine had lost power, but for what it has
// told the system to write.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.run == nil {
		return
	}
	_ = s.run.Process.Signal(syscall.SIGQUIT)
	late := time.AfterFunc(waitFor, func() { _ = s.run.Process.Kill() })
	_ = s.run.Wait()
	if !late.Stop() {
		t.Error("PostgreSQL did not stop")
	}
	s.run = nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}
