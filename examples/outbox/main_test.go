package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"promethean/client"
	"promethean/internal/pgtest"
)

// role is the variable that makes the test program the example itself.
const role = "PROMETHEAN_OUTBOX_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		main()
		os.Exit(0)
	}
	code := m.Run()
	if program, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(program))
	}
	os.Exit(code)
}

// build builds the hub's program once.
var build = sync.OnceValues(func() (program string, err error) {
	dir, err := os.MkdirTemp("", "outbox-example-")
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "promethean")
	if out, err := exec.Command("go", "build", "-o", program, "promethean/cmd/promethean").CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build: %w\n%s", err, out), os.RemoveAll(dir))
	}
	return program, nil
})

// child is a process that is killed, and started again.
type child struct {
	t    *testing.T
	name string
	make func() *exec.Cmd
	told *regexp.Regexp // what it says when it is ready; nil if it need not be

	cmd   *exec.Cmd
	ended chan error
	said  *transcript
}

// transcript keeps the end of what a process says.
type transcript struct {
	mu    sync.Mutex
	text  []byte
	ready chan string
	told  *regexp.Regexp
}

func (x *transcript) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.text = append(x.text, b...)
	if x.told != nil {
		if m := x.told.Find(x.text); m != nil {
			x.ready <- string(m)
			x.told = nil
		}
	}
	if over := len(x.text) - 8<<10; over > 0 {
		x.text = x.text[over:]
	}
	return len(b), nil
}

func (x *transcript) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return string(x.text)
}

// start starts it, and gives what it said when it was ready.
func (c *child) start() (ready string) {
	c.t.Helper()
	c.said = &transcript{ready: make(chan string, 1), told: c.told}
	c.cmd, c.ended = c.make(), make(chan error, 1)
	c.cmd.Stdout, c.cmd.Stderr = c.said, c.said
	c.cmd.SysProcAttr = dieWithTest()
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait() }(c.cmd, c.ended)
	if c.told == nil {
		return ""
	}
	select {
	case ready = <-c.said.ready:
	case err := <-c.ended:
		c.ended <- err
		c.t.Fatalf("%s ended before it was ready: %v\n%s", c.name, err, c.said)
	case <-time.After(time.Minute):
		c.t.Fatalf("%s is not ready:\n%s", c.name, c.said)
	}
	return ready
}

// kill ends it as a crash does. It must not have ended by itself.
func (c *child) kill() {
	c.t.Helper()
	if c.over() {
		c.t.Fatalf("%s ended by itself\n%s", c.name, c.said)
	}
	_ = c.cmd.Process.Kill()
	c.ended <- <-c.ended
}

// over says whether it has ended.
func (c *child) over() bool {
	select {
	case err := <-c.ended:
		c.ended <- err
		return true
	default:
		return false
	}
}

// stop asks it to end, and wants it to end well.
func (c *child) stop() {
	c.t.Helper()
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	c.wait()
}

func (c *child) wait() {
	c.t.Helper()
	if err := <-c.ended; err != nil {
		c.t.Errorf("%s: %v\n%s", c.name, err, c.said)
	}
	c.ended <- nil
}

// tidy is for the end of the test, whatever came before.
func (c *child) tidy() {
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		<-c.ended
		if c.t.Failed() {
			c.t.Logf("%s said at last:\n%s", c.name, c.said)
		}
	}
}

// trial is a shop with a hub, and all that runs for it.
type trial struct {
	*testing.T
	ctx  context.Context
	db   string
	shop *shop
	hub  *child
	c    *client.Client
	addr string
}

func newTrial(t *testing.T, db string) *trial {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	t.Cleanup(cancel)
	dir := t.TempDir()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	x := &trial{T: t, ctx: ctx, db: db, addr: freeAddr(t)}
	x.hub = x.child("hub", regexp.MustCompile(`https?://[^\s/]+:\d+`), func() *exec.Cmd {
		return exec.Command(program, "serve", "--listen", x.addr, "--store", "file://"+filepath.Join(dir, "hub"))
	})
	x.hub.start()
	if x.c, err = client.New(x.addr, client.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.c.Close(context.Background()) })
	if x.shop, err = open(ctx, db); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.shop.close() })
	return x
}

// freeAddr is an address that nobody listens on, below those that the system
// gives to connections: the hub has to get it again after every crash.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(12_000)))
		if err != nil {
			continue
		}
		addr := l.Addr().String()
		_ = l.Close()
		return addr
	}
	t.Fatal("no free port on 127.0.0.1")
	return ""
}

func (x *trial) child(name string, told *regexp.Regexp, make func() *exec.Cmd) *child {
	c := &child{t: x.T, name: name, told: told, make: make}
	x.Cleanup(c.tidy)
	return c
}

// role is a process of the example.
func (x *trial) role(name string, told string, args ...string) *child {
	return x.child(name, regexp.MustCompile(told), func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], append([]string{"-db", x.db, "-hub", x.addr}, append(args, name)...)...)
		cmd.Env = append(os.Environ(), role+"=1")
		return cmd
	})
}

// published waits until the topic has so many events.
func (x *trial) published(n uint64) {
	x.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := x.c.TopicInfo(x.ctx, topic)
		var problem *client.Error
		if err != nil && !errors.As(err, &problem) { // there is no topic before its first event
			x.Fatal(err)
		}
		if err == nil && info.Last >= n {
			return
		}
		select {
		case <-tick.C:
		case <-x.ctx.Done():
			x.Fatalf("%d events are not published", n)
		}
	}
}

// The drainer and the hub are killed again and again, the writer now and then,
// while orders are placed, and some of them taken back: the log has every order
// that was committed once, none that was not, and those of each customer in order.
func TestCrashShop(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { crashShop(t, "sqlite:"+filepath.Join(t.TempDir(), "shop.db")) })
	t.Run("postgres", func(t *testing.T) { crashShop(t, pgtest.Database(t)) })
}

func crashShop(t *testing.T, db string) {
	rounds, orders, lease := 5, 5_000, "500ms"
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		rounds, orders, lease = 30, 100_000, "1s"
	}
	x := newTrial(t, db)
	drainers := [2]*child{}
	for i := range drainers {
		drainers[i] = x.role("drain", "draining", "-lease", lease)
		drainers[i].start()
	}
	writer := x.role("write", "", "-orders", fmt.Sprint(orders))
	writer.told = nil
	writer.start()
	start := time.Now()
	kills := 0
	crash := func(c *child) {
		c.kill()
		c.start()
		kills++
	}
	for round := range rounds {
		// Both of them, in any order, each at some moment of this round's part.
		first, second := rand.Float64(), rand.Float64()
		for i, at := range []float64{min(first, second), max(first, second)} {
			x.published(uint64(float64(orders) * (float64(round) + at) / float64(rounds+1)))
			if (i == 0) == (round%2 == 0) {
				crash(drainers[rand.IntN(len(drainers))])
			} else {
				crash(x.hub)
			}
		}
		if round%5 == 2 && !writer.over() { // it may have placed them all
			crash(writer)
		}
	}
	writer.wait()
	if err := x.shop.drained(x.ctx); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	for _, d := range drainers {
		d.stop()
	}
	n, err := x.shop.compare(x.ctx, x.c)
	if err != nil {
		t.Error(err)
	}
	if n < orders {
		t.Errorf("%d orders are there, want %d", n, orders)
	}
	// What came after the last kill was not judged by a hub in memory alone.
	x.hub.kill()
	x.hub.start()
	if _, err := x.shop.compare(x.ctx, x.c); err != nil {
		t.Errorf("after another start of the hub: %v", err)
	}
	t.Logf("%d rounds, %d kills, %d orders in %s: %.0f orders/s", rounds, kills, n, took.Round(time.Millisecond), float64(n)/took.Seconds())
}

// The check notices what it is there for.
func TestCheckNotices(t *testing.T) {
	x := newTrial(t, "sqlite:"+filepath.Join(t.TempDir(), "shop.db"))
	if err := write(x.ctx, x.shop, settings{orders: 20, customers: 1, writers: 1}); err != nil {
		t.Fatal(err)
	}
	d := x.role("drain", "draining")
	d.start()
	if err := x.shop.drained(x.ctx); err != nil {
		t.Fatal(err)
	}
	d.stop()
	if n, err := x.shop.compare(x.ctx, x.c); n != 20 || err != nil {
		t.Fatalf("%d orders, %v", n, err)
	}
	if _, err := x.shop.db.ExecContext(x.ctx, `DELETE FROM orders WHERE n = 7`); err != nil {
		t.Fatal(err)
	}
	if err := x.shop.place(x.ctx, "lost", 1, false); err != nil {
		t.Fatal(err)
	}
	_, err := x.shop.compare(x.ctx, x.c)
	for _, want := range []string{"never committed", "has no event"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a word about what %s", err, want)
		}
	}
	if _, err := x.c.Publish(x.ctx, topic, Order{ID: "x", Customer: "customer-000", N: 5}, client.Key("customer-000")); err != nil {
		t.Fatal(err)
	}
	if _, err = x.shop.compare(x.ctx, x.c); err == nil || !strings.Contains(err.Error(), "after order 20") {
		t.Errorf("%v, want a word about the order", err)
	}
}

// The roles as people run them.
func TestRoles(t *testing.T) {
	x := newTrial(t, "sqlite:"+filepath.Join(t.TempDir(), "shop.db"))
	w := x.role("write", "placed 300 orders", "-orders", "300")
	w.start()
	w.wait()
	d := x.role("drain", "draining")
	d.start()
	c := x.role("check", "all 300 orders are in the log once, and in order")
	c.start()
	c.wait()
	d.stop()
	for _, args := range [][]string{{}, {"dance"}, {"-db", "mysql:", "write"}, {"-orders", "-1", "write"}, {"-db", "sqlite:", "check"}} {
		if err := run(x.ctx, append([]string{"-hub", x.addr}, args...)); err == nil {
			t.Errorf("%q: want an error", args)
		}
	}
}
