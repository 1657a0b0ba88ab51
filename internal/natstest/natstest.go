// Package natstest runs NATS servers with JetStream inside a test process: a
// single one, or a cluster whose members can be stopped and started again.
//
// Servers listen on loopback, keep their data in a temporary directory of the
// test and take payloads of up to 4 MiB.
package natstest

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startTimeout bounds how long servers may take to be ready.
const startTimeout = 30 * time.Second

// Server is one server that can be stopped and started again in its place.
type Server struct {
	o   *server.Options
	run *server.Server
}

// Options are those of a server that a test may change.
type Options = server.Options

// Start runs a single server. Change may alter its options.
func Start(t testing.TB, change func(*Options)) *Server {
	t.Helper()
	s := &Server{o: options(t.TempDir())}
	if change != nil {
		change(s.o)
	}
	s.Start(t)
	t.Cleanup(s.Stop)
	return s
}

func options(dir string) *server.Options {
	return &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		MaxPayload: 4 << 20, NoLog: true, NoSigs: true,
	}
}

// Start starts a server that was stopped, on the same port and with its data.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	run, err := server.NewServer(s.o)
	if err != nil {
		t.Fatal(err)
	}
	s.run = run
	run.Start()
	if !run.ReadyForConnections(startTimeout) {
		t.Fatal("the NATS server does not accept connections")
	}
	if a, ok := run.Addr().(*net.TCPAddr); ok {
		s.o.Port = a.Port
	}
}

// Stop ends the server and waits until it is gone.
func (s *Server) Stop() {
	s.run.Shutdown()
	s.run.WaitForShutdown()
}

// URL is where clients connect.
func (s *Server) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.o.Port) }

// Running gives the server itself.
func (s *Server) Running() *server.Server { return s.run }

// Cluster is several servers that replicate streams among each other.
type Cluster struct{ Servers []*Server }

// StartCluster runs a cluster of n servers and waits until it has a leader and
// knows all of them.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	// Routes must be known before the first server starts.
	c := &Cluster{}
	var routes []*url.URL
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		defer func() { _ = l.Close() }()
		o := options(t.TempDir())
		o.ServerName = fmt.Sprintf("n%d", i+1)
		o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		c.Servers = append(c.Servers, &Server{o: o})
		_ = l.Close()
	}
	for _, s := range c.Servers {
		s.o.Routes = routes
		s.Start(t)
		t.Cleanup(s.Stop)
	}
	c.Await(t, n)
	return c
}

// Await waits until a leader knows n servers, and each that runs has caught up.
// Where a server is stopped before that, a stream may be without a leader until
// the server is back.
func (c *Cluster) Await(t testing.TB, n int) {
	t.Helper()
	for end := time.Now().Add(startTimeout); !c.settled(n); {
		if time.Now().After(end) {
			t.Fatalf("the cluster of %d servers does not settle:\n%s", n, c.Describe())
		}
		time.Sleep(10 * time.Millisecond) // nothing tells
	}
}

func (c *Cluster) settled(n int) bool {
	led := false
	for _, s := range c.Servers {
		if r := s.run; r.Running() {
			led = led || r.JetStreamIsLeader() && len(r.JetStreamClusterPeers()) >= n
			if r.Healthz(&server.HealthzOptions{}).Status != "ok" {
				return false
			}
		}
	}
	return led
}

// Leader gives the server that leads a stream, or nil.
func (c *Cluster) Leader(account, stream string) *Server {
	for _, s := range c.Servers {
		if s.run.Running() && s.run.JetStreamIsStreamLeader(account, stream) {
			return s
		}
	}
	return nil
}

// URL names all servers.
func (c *Cluster) URL() string {
	var list []string
	for _, s := range c.Servers {
		list = append(list, s.URL())
	}
	return strings.Join(list, ",")
}

// Describe says how the servers stand, for a test that has failed.
func (c *Cluster) Describe() string {
	var out strings.Builder
	for _, s := range c.Servers {
		r := s.run
		if !r.Running() {
			fmt.Fprintf(&out, "%s is down\n", s.o.ServerName)
			continue
		}
		h := r.Healthz(&server.HealthzOptions{})
		fmt.Fprintf(&out, "%s: leader %v, current %v, peers %v, health %s %s\n",
			s.o.ServerName, r.JetStreamIsLeader(), r.JetStreamIsCurrent(), r.JetStreamClusterPeers(), h.Status, h.Error)
		js, err := r.Jsz(&server.JSzOptions{Accounts: true, Streams: true, RaftGroups: true})
		if err != nil {
			fmt.Fprintf(&out, "\t%v\n", err)
			continue
		}
		for _, a := range js.AccountDetails {
			for _, x := range a.Streams {
				fmt.Fprintf(&out, "\t%s: %d messages to %d", x.Name, x.State.Msgs, x.State.LastSeq)
				if x.Cluster != nil {
					fmt.Fprintf(&out, ", leader %q", x.Cluster.Leader)
					for _, p := range x.Cluster.Replicas {
						fmt.Fprintf(&out, ", %s current %v offline %v lag %d active %v", p.Name, p.Current, p.Offline, p.Lag, p.Active)
					}
				}
				out.WriteByte('\n')
			}
		}
	}
	return out.String()
}
