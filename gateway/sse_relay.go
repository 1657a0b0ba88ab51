package gateway

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"promethean/cluster"
)

// maxBlock bounds one event of a stream of another hub, beside its payload.
const maxBlock = 1 << 20

// relayEvents streams what the hub sends that owns the group. It returns without
// an error when that is over, or when this hub owns the group: the caller looks
// again. While the owner is out of reach it waits a moment.
func (c *call) relayEvents(ctx context.Context, s *stream, topic, name string, signal <-chan struct{}, foreign *atomic.Bool) error {
	beat := time.NewTimer(heartbeat)
	defer beat.Stop()
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := c.eventsOf(short, topic, name)
	for foreign.Load() {
		if err != nil {
			wake := make(chan struct{})
			timer := time.AfterFunc(relayMaxPause, func() { close(wake) })
			defer timer.Stop()
			return s.await(ctx, wake, beat)
		}
		select {
		case b, ok := <-events:
			if !ok {
				err = errTransit
				continue
			}
			s.buf = append(append(s.buf, b...), "\n\n"...)
			if err := s.flush(); err != nil {
				return err
			}
			beat.Reset(heartbeat)
		case <-signal:
		case <-beat.C:
			s.buf = append(s.buf, ":\n\n"...)
			if err := s.flush(); err != nil {
				return err
			}
			beat.Reset(heartbeat)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// eventsOf asks the owner of a group for the same stream. What it gives are
// whole events: one that was cut is left out, and comes again.
func (c *call) eventsOf(ctx context.Context, topic, name string) (<-chan []byte, error) {
	hub, err := c.g.peers.owner(ctx, topic, name)
	if err != nil {
		return nil, err
	}
	ctx, undo := c.g.peers.bound(ctx, hub)
	out, err := c.streamOf(ctx, hub, undo)
	if err != nil {
		undo()
	}
	return out, err
}

// streamOf is eventsOf of a hub; undo is called at the end of the stream.
func (c *call) streamOf(ctx context.Context, hub cluster.Hub, undo func()) (<-chan []byte, error) {
	r, err := c.g.peers.request(ctx, hub, http.MethodGet, c.r.URL.RequestURI(), bearer(c.r), nil)
	if err != nil {
		return nil, err
	}
	got, err := c.g.peers.http.Do(r) //nolint:bodyclose // whoever reads it does it
	if err != nil {
		return nil, c.g.peers.unreachable(hub, err)
	}
	if got.StatusCode != http.StatusOK {
		err := problemOfOwner(got)
		_ = got.Body.Close() // there is nothing more to read
		return nil, err
	}
	out := make(chan []byte)
	c.g.open.Add(1) // the call itself is still counted
	go func() {
		defer c.g.open.Done()
		defer undo()
		defer close(out)
		defer func() { _ = got.Body.Close() }()
		in := bufio.NewScanner(got.Body)
		in.Buffer(nil, 4*c.g.payloadLimit()+maxBlock)
		in.Split(blocksOf)
		for in.Scan() {
			b := in.Bytes()
			if bytes.HasPrefix(b, []byte(": open")) || string(b) == ":" {
				continue // what concerns the connection to the owner
			}
			select {
			case out <- bytes.Clone(b):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// blocksOf splits a stream at empty lines. What stands behind the last one is
// not whole.
func blocksOf(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.Index(data, []byte("\n\n")); i >= 0 {
		return i + 2, data[:i], nil
	}
	if atEOF {
		return len(data), nil, nil
	}
	return 0, nil, nil
}
