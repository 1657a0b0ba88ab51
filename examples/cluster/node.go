package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// runNode runs one NATS server with JetStream until it gets a signal, or until
// its standard input ends, which it does when whoever started it is gone. It
// writes "ready" once it takes part in its cluster.
func runNode(args []string) error {
	flags := flag.NewFlagSet("cluster node", flag.ContinueOnError)
	name := flags.String("name", "node", "its name in the cluster")
	port := flags.Int("port", 4222, "where clients connect")
	dir := flags.String("dir", "data", "directory for its data")
	route := flags.Int("route", 0, "where the other servers connect; 0: there are none")
	routes := flags.String("routes", "", "such ports of all servers, itself included")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := &server.Options{
		ServerName: *name, Host: "127.0.0.1", Port: *port, JetStream: true, StoreDir: *dir, SyncAlways: true,
		// Twice the limit of a hub's payloads, and room for the rest.
		MaxPayload: 4 << 20, NoSigs: true,
	}
	if *route > 0 {
		o.Cluster = server.ClusterOpts{Name: "promethean", Host: "127.0.0.1", Port: *route}
		for p := range strings.SplitSeq(*routes, ",") {
			if _, err := strconv.ParseUint(p, 10, 16); err != nil {
				return fmt.Errorf("-routes: %q is no port", p)
			}
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: "127.0.0.1:" + p})
		}
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	orphaned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(orphaned)
	}()
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	poll := time.NewTicker(20 * time.Millisecond) // nothing tells
	defer poll.Stop()
	for tick := poll.C; ; {
		select {
		case <-signals:
			return nil
		case <-orphaned:
			return errors.New("whoever started it is gone")
		case <-tick:
			if s.ReadyForConnections(100*time.Millisecond) && s.Healthz(&server.HealthzOptions{}).Status == "ok" {
				fmt.Println("ready")
				tick = nil
			}
		}
	}
}
