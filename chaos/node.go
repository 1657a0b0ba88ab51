package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// nodeConfig is what a process that is a NATS server is told.
type nodeConfig struct {
	Name    string
	Dir     string
	Port    int   // for clients
	Route   int   // for the other servers
	Monitor int   // for questions about its health
	Routes  []int // of all servers
}

// runNode is a NATS server until it gets SIGTERM. It keeps what it acknowledges
// on disk, as the documentation asks for.
func runNode(config string) error {
	var c nodeConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return fmt.Errorf("configuration of a node: %w", err)
	}
	o := &server.Options{
		ServerName: c.Name, Host: loopback, Port: c.Port, HTTPHost: loopback, HTTPPort: c.Monitor,
		JetStream: true, StoreDir: c.Dir, SyncAlways: true, MaxPayload: 4 << 20, NoSigs: true,
		// Clients know the proxies, and must not learn of a way around them.
		Cluster: server.ClusterOpts{Name: "chaos", Host: loopback, Port: c.Route, NoAdvertise: true},
	}
	for _, port := range c.Routes {
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: hostPort(port)})
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return errors.New("the server does not accept connections")
	}
	<-term
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}
