package client_test

import (
	"context"
	"testing"
	"time"

	"promethean/client"
	"promethean/event"
	"promethean/gateway"
)

// What is asked about feeds and outboxes reaches the hub, and its answers come
// back.
func TestInflow(t *testing.T) {
	c := serve(t, gateway.Options{}).connect(client.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if feeds, err := c.Changefeeds(ctx); err != nil || len(feeds) != 0 {
		t.Errorf("feeds %v, %v", feeds, err)
	}
	if boxes, err := c.Outboxes(ctx); err != nil || len(boxes) != 0 {
		t.Errorf("outboxes %v, %v", boxes, err)
	}
	for name, call := range map[string]func() error{
		"resync":  func() error { _, err := c.ResyncChangefeed(ctx, "no/such"); return err },
		"errors":  func() error { _, err := c.OutboxErrors(ctx, "no such", 10); return err },
		"retry":   func() error { _, err := c.RetryOutbox(ctx, "none", event.NewID()); return err },
		"discard": func() error { _, err := c.DiscardOutbox(ctx, "none", event.NewID()); return err },
	} {
		if err := call(); client.CodeOf(err) != "not_found" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
