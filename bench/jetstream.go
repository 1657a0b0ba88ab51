package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
)

const (
	// jetConns is the number of connections that publishers share.
	jetConns = 64
	// jetStream holds all topics. A key is a header and no part of the
	// subject: a million subjects would cost the server memory and time.
	jetStream = "load"
)

// jetTarget is a NATS server in a process of its own, with one file stream.
type jetTarget struct {
	name, durability string
	// interval is sync_interval; empty leaves the server's default.
	interval string

	server *child
	url    string
	conns  [jetConns]*nats.Conn
}

func (t *jetTarget) Name() string       { return t.name }
func (t *jetTarget) Durability() string { return t.durability }
func (*jetTarget) Available() error     { return nil }

// natsOrder is what the server process is told, natsReady what it answers.
type natsOrder struct{ Dir, Interval string }
type natsReady struct{ URL string }

func (t *jetTarget) Open(ctx context.Context, dir string) (err error) {
	if t.server, err = startChild("nats", natsOrder{Dir: dir, Interval: t.interval}); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start NATS: %w", err), t.Close())
		}
	}()
	var ready natsReady
	if err := t.server.hear(ctx, &ready); err != nil {
		return err
	}
	t.url = ready.URL
	js, err := t.connect(0)
	if err != nil {
		return err
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: jetStream, Subjects: []string{jetStream + ".>"}, Storage: jetstream.FileStorage, AllowAtomicPublish: true,
	})
	return err
}

func (t *jetTarget) connect(i int) (jetstream.JetStream, error) {
	i %= jetConns
	if t.conns[i] == nil {
		nc, err := nats.Connect(t.url, nats.NoReconnect())
		if err != nil {
			return nil, err
		}
		t.conns[i] = nc
	}
	return jetstream.New(t.conns[i])
}

func (t *jetTarget) Publisher(_ context.Context, i int) (publisher, error) {
	js, err := t.connect(i)
	if err != nil {
		return nil, err
	}
	return &jetPublisher{js: js, nc: t.conns[i%jetConns]}, nil
}

func (t *jetTarget) Close() error {
	for i, nc := range t.conns {
		if nc != nil {
			nc.Close()
			t.conns[i] = nil
		}
	}
	if t.server == nil {
		return nil
	}
	err := t.server.end()
	t.server = nil
	return err
}

type jetPublisher struct {
	js jetstream.JetStream
	nc *nats.Conn
}

func jetMessage(e *event.Event) *nats.Msg {
	m := &nats.Msg{Subject: e.Topic, Data: e.Payload, Header: make(nats.Header, len(e.Headers)+5)}
	m.Header.Set(nats.MsgIdHdr, e.ID.String())
	m.Header.Set("key", e.Key)
	for _, h := range e.Headers {
		m.Header.Set(h.Name, h.Value)
	}
	return m
}

// Publish waits for the stream's answer; several events are one atomic batch.
func (p *jetPublisher) Publish(ctx context.Context, evs []event.Event) error {
	if len(evs) == 1 {
		_, err := p.js.PublishMsg(ctx, jetMessage(&evs[0]))
		return err
	}
	batch := evs[0].ID.String()
	for i := range evs {
		m := jetMessage(&evs[i])
		m.Header.Set("Nats-Batch-Id", batch)
		m.Header.Set("Nats-Batch-Sequence", strconv.Itoa(i+1))
		if i < len(evs)-1 {
			if err := p.nc.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		m.Header.Set("Nats-Batch-Commit", "1")
		_, err := p.js.PublishMsg(ctx, m)
		return err
	}
	return nil
}

// Close leaves the connection to the target: others share it.
func (*jetPublisher) Close() error { return nil }

// natsRole runs the server until the parent kills it.
func natsRole(ctx context.Context, order []byte, say func(any) error) error {
	var o natsOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	conf := filepath.Join(o.Dir, "nats.conf")
	text := fmt.Appendf(nil, "listen: 127.0.0.1:-1\njetstream {\n  store_dir: %q\n", o.Dir)
	if o.Interval != "" {
		text = fmt.Appendf(text, "  sync_interval: %s\n", o.Interval)
	}
	if err := os.WriteFile(conf, append(text, "}\n"...), 0o600); err != nil {
		return err
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		return err
	}
	if always := o.Interval == "always"; opts.SyncAlways != always {
		return fmt.Errorf("sync_interval %q was read as always=%t", o.Interval, opts.SyncAlways) // the figure would bear the wrong mark
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		return errors.New("the server does not accept connections")
	}
	if err := say(natsReady{URL: s.ClientURL()}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
