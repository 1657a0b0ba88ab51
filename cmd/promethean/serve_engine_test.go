package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"promethean/internal/mongofake"
	"promethean/internal/mongotest"
	"promethean/internal/natstest"
)

// Each engine serves, keeps what it was given, and, where it can, serves a
// second hub beside the first, which learns of topics at once.
func TestServeOnEveryEngine(t *testing.T) {
	for name, at := range map[string]func(t *testing.T) (url string, keeps, shared bool){
		"memory": func(*testing.T) (string, bool, bool) { return "memory://", false, false },
		"file": func(t *testing.T) (string, bool, bool) {
			return "file://" + filepath.Join(t.TempDir(), "data"), true, false
		},
		"nats": func(t *testing.T) (string, bool, bool) {
			return natstest.Start(t, nil).URL() + "?prefix=serve", true, true
		},
		"fake of mongodb": func(t *testing.T) (string, bool, bool) {
			return mongofake.Start(t, mongofake.Options{}).URI(), true, true
		},
		"mongodb": func(t *testing.T) (string, bool, bool) { return mongotest.Fresh(t, "serve"), true, true },
	} {
		t.Run(name, func(t *testing.T) {
			url, keeps, shared := at(t)
			file := filepath.Join(t.TempDir(), "p.yaml")
			write(t, file, "topics: {orders: {partitions: 2, retention: 3d}}\n")
			p := serveProcess(t, nil, "--store", url, "--config", file)
			p.want(201, "POST", "/publish/orders?partition=1", `1`)
			p.want(400, "POST", "/publish/orders?partition=2", `1`)
			if shared {
				q := serveProcess(t, nil, "--store", url)
				p.want(201, "POST", "/publish/orders?partition=1", `1`)
				q.want(201, "POST", "/publish/orders?partition=1", `1`)
				write(t, file, "topics: {orders: {partitions: 8}}\n")
				p.signal(syscall.SIGHUP)
				began := time.Now()
				q.until("the other hub learns of the settings", func() bool {
					status, _, err := q.try("POST", "/publish/orders?partition=7", `1`)
					return err == nil && status == 201
				})
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("the other hub has learnt of the settings after %v", took)
				}
				// Either serves a group of the other, and both are on the list.
				const pull = `{"topic":"orders","group":"g","max":1,"wait_ms":10000,"opts":{"from":"earliest"}}`
				for i, x := range []*process{p, q} {
					if _, body, err := x.try("POST", "/pull", pull); err != nil || !strings.Contains(body, `"lease"`) {
						t.Errorf("a pull at hub %d: %s, %v", i, body, err)
					}
				}
				if _, body, err := q.try("GET", "/ops/cluster", ""); err != nil || !strings.Contains(body, `"count":2`) {
					t.Errorf("the hubs: %s, %v", body, err)
				}
				q.signal(syscall.SIGTERM)
				q.ends(0)
				if _, body, err := p.try("GET", "/ops/cluster", ""); err != nil || !strings.Contains(body, `"count":1`) {
					t.Errorf("the hubs: %s, %v", body, err)
				}
			}
			p.want(201, "POST", "/publish/other?id=0192f7c1-0000-7000-8000-000000000001", `1`)
			p.signal(syscall.SIGTERM)
			p.ends(0)
			if keeps {
				p = serveProcess(t, nil, "--store", url)
				p.want(200, "POST", "/publish/other?id=0192f7c1-0000-7000-8000-000000000001", `1`)
				p.want(201, "POST", "/publish/orders?partition=1", `1`)
				p.signal(syscall.SIGTERM)
				p.ends(0)
			}
		})
	}
}

// A server that asks for a password gets the one that the settings name, and it
// is never shown.
func TestServeLogsInToNATS(t *testing.T) {
	s := natstest.Start(t, func(o *natstest.Options) { o.Username, o.Password = "hub", "hunter2" })
	file := filepath.Join(t.TempDir(), "p.yaml")
	write(t, file, "nats: {user: hub, password_env: NATS_PASSWORD}\n")
	p := serveProcess(t, []string{"NATS_PASSWORD=hunter2"}, "--config", file, "--store", s.URL())
	p.want(201, "POST", "/publish/orders", `1`)
	p.signal(syscall.SIGTERM)
	p.ends(0)

	p = serveProcess(t, nil, "--store", strings.Replace(s.URL(), "//", "//hub:hunter2@", 1))
	p.want(200, "GET", "/readyz", "")
	p.signal(syscall.SIGTERM)
	p.ends(0)
	if strings.Contains(p.ready+p.stderr.String(), "hunter2") || !strings.Contains(p.ready, "(store nats://***@127.0.0.1:") {
		t.Errorf("%s\n%s", p.ready, p.stderr.String())
	}

	cmd := exec.Command("promethean", "serve", "--listen", "127.0.0.1:0", "--store", strings.Replace(s.URL(), "//", "//hub:wrong-one@", 1))
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || strings.Contains(string(out), "wrong-one") || !strings.HasPrefix(string(out), "promethean: open nats store: ") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestServeWithoutAServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close() // nobody is there now
	cmd := exec.Command("promethean", "serve", "--listen", "127.0.0.1:0", "--store", "nats://"+addr)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "connect to nats://"+addr) {
		t.Errorf("%v: %s", err, out)
	}
}

// Who stops a hub that still looks for its server does not wait for that.
func TestServeStopsBeforeItIsReady(t *testing.T) {
	var addr [2]string
	for i := range addr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		addr[i] = l.Addr().String()
		if i == 0 {
			_ = l.Close()
		}
	}
	// The second takes connections and never says a word.
	cmd := exec.Command("promethean", "serve", "--listen", addr[0], "--store", "nats://"+addr[1])
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		if conn, err := net.Dial("tcp", addr[0]); err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatal("the hub does not listen")
		}
		time.Sleep(5 * time.Millisecond) // polling, up to a deadline
	}
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("ended after %v", took)
	}
}

// The supervisor hears of everything, in the protocol of systemd.
func TestServeTellsItsSupervisor(t *testing.T) {
	dir, err := os.MkdirTemp("", "n") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "s")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := socket.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	beats := 0
	// next gives the next state that is no heartbeat.
	next := func() string {
		t.Helper()
		for b := make([]byte, 1024); ; beats++ {
			n, err := socket.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if s := string(b[:n]); s != "WATCHDOG=1" {
				return s
			}
		}
	}
	p := serveProcess(t, []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=20000"}, "--store", "memory://")
	if got := next(); got != "READY=1\nSTATUS=serving on "+p.url {
		t.Errorf("%q", got)
	}
	p.signal(syscall.SIGHUP)
	got := next()
	if n, err := strconv.ParseInt(strings.TrimPrefix(got, "RELOADING=1\nMONOTONIC_USEC="), 10, 64); err != nil || n <= 0 {
		t.Errorf("%q", got)
	}
	if got := next(); !strings.HasPrefix(got, "READY=1\n") {
		t.Errorf("%q", got)
	}
	for b := make([]byte, 100); beats < 3; beats++ {
		if n, err := socket.Read(b); err != nil || string(b[:n]) != "WATCHDOG=1" {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	p.signal(syscall.SIGTERM)
	if got := next(); got != "STOPPING=1" {
		t.Errorf("%q", got)
	}
	p.ends(0)
}
