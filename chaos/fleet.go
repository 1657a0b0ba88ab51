package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/client"
	"promethean/internal/netfault"
)

const (
	loopback = "127.0.0.1"
	nodes    = 3
	// patience bounds whatever has to come about by itself.
	patience = 90 * time.Second
	// role is the variable that makes this program a node or a worker.
	role = "PROMETHEAN_CHAOS_ROLE"
)

func hostPort(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// fleet is all processes of a run.
type fleet struct {
	dir   string // logs, journals, data
	nodes []*node
	hubs  []*hub
	crew  []*peer // the workers; those without a hub have no proxies
}

type node struct {
	process
	config nodeConfig
}

// peer is a process with a hub in it: the program, or a worker that brings one.
// It reaches the servers through proxies.
type peer struct {
	process
	proxies []*netfault.Proxy // one for each node
}

type hub struct {
	peer
	url    string
	client *client.Client
}

// freePorts gives ports that nobody listens on now. They are below those that
// systems give to connections by themselves, so that they are still free when a
// process is started again.
func freePorts(n int) ([]int, error) {
	var ports []int
	for try := 0; len(ports) < n; try++ {
		l, err := net.Listen("tcp", hostPort(12000+rand.IntN(20000)))
		if err != nil {
			if try > 100*n {
				return nil, fmt.Errorf("no free ports: %w", err)
			}
			continue
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// self is a command that is this program in another role.
func self(as string, config any) *exec.Cmd {
	b, err := json.Marshal(config)
	if err != nil {
		panic(err) // a struct of plain fields
	}
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), role+"="+as, role+"_CONFIG="+string(b))
	return cmd
}

// newFleet lays out the processes, and starts none.
func newFleet(dir, program string, hubs int) (*fleet, error) {
	f := &fleet{dir: dir}
	for _, d := range []string{"log", "journal", "data"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(3*nodes + hubs)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		n := &node{config: nodeConfig{
			Name: fmt.Sprintf("n%d", i+1), Dir: filepath.Join(dir, "data", fmt.Sprintf("n%d", i+1)),
			Port: ports[3*i], Route: ports[3*i+1], Monitor: ports[3*i+2],
		}}
		for j := range nodes {
			n.config.Routes = append(n.config.Routes, ports[3*j+1])
		}
		n.name, n.log = n.config.Name, f.logOf(n.config.Name)
		n.make = func() *exec.Cmd { return self("node", n.config) }
		f.nodes = append(f.nodes, n)
	}
	for i := range hubs {
		h := &hub{url: "http://" + hostPort(ports[3*nodes+i])}
		h.name = fmt.Sprintf("hub%d", i+1)
		h.log = f.logOf(h.name)
		servers, err := f.connect(&h.peer)
		if err != nil {
			return nil, err
		}
		h.make = func() *exec.Cmd {
			cmd := exec.Command(program, "serve", "--listen", strings.TrimPrefix(h.url, "http://"),
				"--store", servers, "--log-format", "text", "--drain-timeout", "5s")
			cmd.Dir = filepath.Join(dir, "data") // no settings of whoever runs this
			return cmd
		}
		if h.client, err = client.New(h.url, client.Options{MaxBackoff: time.Second}); err != nil {
			return nil, err
		}
		f.hubs = append(f.hubs, h)
	}
	return f, nil
}

// connect makes the proxies of a peer, and gives the address of the servers for
// it.
func (f *fleet) connect(to *peer) (servers string, err error) {
	var list []string
	for _, n := range f.nodes {
		p, err := netfault.Carry(hostPort(n.config.Port))
		if err != nil {
			return "", err
		}
		to.proxies = append(to.proxies, p)
		list = append(list, "nats://"+p.Addr())
	}
	return strings.Join(list, ","), nil
}

// peers are all processes with a hub in them.
func (f *fleet) peers() (list []*peer) {
	for _, h := range f.hubs {
		list = append(list, &h.peer)
	}
	for _, w := range f.crew {
		if len(w.proxies) > 0 {
			list = append(list, w)
		}
	}
	return list
}

func (f *fleet) logOf(name string) string { return filepath.Join(f.dir, "log", name+".log") }

// urls are those of the hubs.
func (f *fleet) urls() (list []string) {
	for _, h := range f.hubs {
		list = append(list, h.url)
	}
	return list
}

// direct is the address of the servers without proxies.
func (f *fleet) direct() string {
	var list []string
	for _, n := range f.nodes {
		list = append(list, "nats://"+hostPort(n.config.Port))
	}
	return strings.Join(list, ",")
}

// start starts the servers, then the hubs, and waits until they work.
func (f *fleet) start(ctx context.Context) error {
	for _, n := range f.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	if err := f.until(ctx, patience, f.nodesHealthy); err != nil {
		return err
	}
	for _, h := range f.hubs {
		if err := h.start(); err != nil {
			return err
		}
	}
	return f.until(ctx, patience, f.hubsReady)
}

// nodesHealthy says what is wrong with the servers, if anything is.
func (f *fleet) nodesHealthy(ctx context.Context) error {
	var list []error
	for _, n := range f.nodes {
		list = append(list, n.healthy(ctx))
	}
	return errors.Join(list...)
}

// healthy says why a server has not caught up, if it has not.
func (n *node) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+hostPort(n.config.Monitor)+"/healthz", nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	defer a.Body.Close()
	if a.StatusCode != http.StatusOK {
		var said struct{ Status, Error string }
		_ = json.NewDecoder(a.Body).Decode(&said) // only to say more
		return fmt.Errorf("%s: %s: %s %s", n.name, a.Status, said.Status, said.Error)
	}
	return nil
}

// hubsReady says which hubs do not take work, if any.
func (f *fleet) hubsReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var list []error
	for _, h := range f.hubs {
		if err := h.client.Ready(ctx); err != nil {
			list = append(list, fmt.Errorf("%s is not ready: %w", h.name, err))
		}
	}
	return errors.Join(list...)
}

// leader gives the server that leads the stream of a topic.
func (f *fleet) leader(ctx context.Context, topic string) (*node, error) {
	nc, err := nats.Connect(f.direct(), nats.Timeout(2*time.Second))
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	s, err := js.Stream(ctx, "promethean-"+strings.ReplaceAll(topic, ".", "_"))
	if err != nil {
		return nil, err
	}
	if c := s.CachedInfo().Cluster; c != nil {
		for _, n := range f.nodes {
			if n.name == c.Leader {
				return n, nil
			}
		}
	}
	return nil, fmt.Errorf("the stream of %s has no leader", topic)
}

// failed says which process has ended by itself, if any has.
func (f *fleet) failed() error {
	var list []error
	for _, n := range f.nodes {
		list = append(list, n.failed())
	}
	for _, h := range f.hubs {
		list = append(list, h.failed())
	}
	for _, w := range f.crew {
		list = append(list, w.failed())
	}
	return errors.Join(list...)
}

// close ends whatever runs, and waits until it is gone.
func (f *fleet) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, h := range f.hubs {
		_ = h.client.Close(ctx)
		h.kill()
	}
	for _, w := range f.crew {
		w.kill()
	}
	for _, p := range f.peers() {
		for _, x := range p.proxies {
			x.Close()
		}
	}
	for _, n := range f.nodes {
		n.kill()
	}
}

// until asks again and again until nothing is wrong any more, or a process has
// ended by itself.
func (f *fleet) until(ctx context.Context, patience time.Duration, wrong func(context.Context) error) error {
	for end := time.Now().Add(patience); ; {
		err := wrong(ctx)
		if err == nil {
			return nil
		}
		if gone := f.failed(); gone != nil {
			return gone
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %w", patience, err)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// pause waits for so long, and says whether ctx is still good then.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
