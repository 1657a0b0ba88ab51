package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"promethean"
	"promethean/event"
	"promethean/gateway"
)

// hubTarget is our hub behind its gateway, in a process of its own.
type hubTarget struct {
	name string
	http bool // NDJSON in place of a WebSocket

	server *child
	addr   string
}

func (t *hubTarget) Name() string     { return t.name }
func (*hubTarget) Durability() string { return durable }
func (*hubTarget) Available() error   { return nil }

// hubOrder is what the hub's process is told, hubReady what it answers.
type hubOrder struct{ Dir string }
type hubReady struct {
	Addr string
	PID  int
}

func (t *hubTarget) Open(ctx context.Context, dir string) error {
	server, ready, err := startHub(ctx, dir)
	if err != nil {
		return err
	}
	t.server, t.addr = server, ready.Addr
	return nil
}

func startHub(ctx context.Context, dir string) (*child, hubReady, error) {
	var ready hubReady
	server, err := startChild("hub", hubOrder{Dir: dir})
	if err != nil {
		return nil, ready, err
	}
	if err := server.hear(ctx, &ready); err != nil {
		return nil, ready, errors.Join(fmt.Errorf("start the hub: %w", err), server.end())
	}
	return server, ready, nil
}

func (t *hubTarget) Publisher(context.Context, int) (publisher, error) {
	if t.http {
		return &ndjsonPublisher{url: "http://" + t.addr + "/publish", client: &http.Client{Transport: &http.Transport{}}}, nil
	}
	c, err := dialWS(t.addr)
	if err != nil {
		return nil, err
	}
	return &wsPublisher{c: c}, nil
}

func (t *hubTarget) Close() error {
	if t.server == nil {
		return nil
	}
	err := t.server.end()
	t.server = nil
	return err
}

// wsPublisher sends a PUBLISH frame and waits for its OK.
type wsPublisher struct {
	c   *wsClient
	buf []byte
}

// Publish implements publisher.
func (p *wsPublisher) Publish(_ context.Context, evs []event.Event) error {
	b := append(p.buf[:0], `{"op":"PUBLISH","corr":1,`...)
	if len(evs) == 1 {
		e := &evs[0]
		b = append(b, `"topic":"`...)
		b = append(b, e.Topic...)
		b = append(b, `","payload":`...)
		b = append(b, e.Payload...)
		b = append(b, `,"opts":{`...)
		b = appendFields(b, e)
		b = append(b, '}')
	} else {
		b = append(b, `"events":[`...)
		for i := range evs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendRow(b, &evs[i])
		}
		b = append(b, ']')
	}
	p.buf = append(b, '}')
	if err := p.c.send(p.buf); err != nil {
		return err
	}
	return p.c.ok()
}

// Close implements publisher.
func (p *wsPublisher) Close() error { return p.c.close() }

// appendFields writes what an event has beside topic and payload. Names and
// values of the load need no escaping.
func appendFields(b []byte, e *event.Event) []byte {
	b = append(b, `"id":"`...)
	b, _ = e.ID.AppendText(b) // never fails
	b = append(b, `","key":"`...)
	b = append(b, e.Key...)
	b = append(b, `","ts":`...)
	b = strconv.AppendInt(b, e.TS, 10)
	b = append(b, `,"headers":{`...)
	for i, h := range e.Headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, h.Name...)
		b = append(b, `":"`...)
		b = append(b, h.Value...)
		b = append(b, '"')
	}
	return append(b, '}')
}

// appendRow writes an event as a row of a batch.
func appendRow(b []byte, e *event.Event) []byte {
	b = append(b, `{"topic":"`...)
	b = append(b, e.Topic...)
	b = append(b, `",`...)
	b = appendFields(b, e)
	b = append(b, `,"payload":`...)
	b = append(b, e.Payload...)
	return append(b, '}')
}

// ndjsonPublisher posts batches.
type ndjsonPublisher struct {
	url    string
	client *http.Client
	buf    []byte
}

// Publish implements publisher.
func (p *ndjsonPublisher) Publish(ctx context.Context, evs []event.Event) error {
	b := p.buf[:0]
	for i := range evs {
		b = append(appendRow(b, &evs[i]), '\n')
	}
	p.buf = b
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-ndjson")
	got, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }()
	answer, err := io.ReadAll(got.Body)
	if err == nil && got.StatusCode != http.StatusCreated {
		err = fmt.Errorf("the hub answers %s %.300s", got.Status, answer)
	}
	return err
}

// Close implements publisher.
func (p *ndjsonPublisher) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// hubRole runs a hub behind a gateway until the parent kills it.
func hubRole(ctx context.Context, order []byte, say func(any) error) error {
	var o hubOrder
	if err := json.Unmarshal(order, &o); err != nil {
		return err
	}
	hub, err := promethean.Open(o.Dir, promethean.Options{})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, hub.Close())
	}
	g := gateway.New(hub, gateway.Options{})
	server := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // it ends with the process
	if err := say(hubReady{Addr: l.Addr().String(), PID: processID()}); err != nil {
		return err
	}
	<-ctx.Done()
	return errors.Join(server.Close(), g.Close(context.Background()), hub.Close())
}

// asyncJet is JetStream with publishers that wait for many answers at once.
type asyncJet struct{ jetTarget }

func (t *asyncJet) Publisher(_ context.Context, i int) (publisher, error) {
	js, err := t.connect(i)
	if err != nil {
		return nil, err
	}
	return &asyncPublisher{js}, nil
}

type asyncPublisher struct{ js jetstream.JetStream }

// Publish implements publisher.
func (p *asyncPublisher) Publish(ctx context.Context, evs []event.Event) error {
	answers := make([]jetstream.PubAckFuture, len(evs))
	for i := range evs {
		f, err := p.js.PublishMsgAsync(jetMessage(&evs[i]))
		if err != nil {
			return err
		}
		answers[i] = f
	}
	for _, f := range answers {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close implements publisher.
func (*asyncPublisher) Close() error { return nil }
