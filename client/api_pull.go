package client

import (
	"context"
	"net/http"
	"time"

	"promethean/event"
)

// PullRequest asks for events of a group. The first one makes the group.
type PullRequest struct {
	Topic, Group string
	// Max is how many events at most. The default is 100.
	Max int
	// Wait is how long to wait for the first one, at most 30 s. The default is
	// not at all.
	Wait time.Duration
	// From is where a new group begins. The default is the end.
	From Place
	// Settings are those of the group.
	Settings GroupSettings
	// Normalise gives events in the latest version of their schema. Those that
	// cannot be brought up to it go to the dead letters. The default is to give
	// them as they were stored.
	Normalise bool
}

// Pulled is an event that is leased until Deadline.
type Pulled struct {
	Event       event.Event `json:"event"`
	Attempt     int         `json:"attempt"`
	MaxAttempts int         `json:"maxAttempts"`
	// Lease names this delivery.
	Lease string `json:"lease"`
	// DeadlineMs is the end of the lease by the hub's clock, in epoch ms.
	DeadlineMs int64 `json:"ack_deadline_ms"`
}

// Pull leases events of a group. Ack, nack or extend them by Settle before the
// lease is over, or they come back.
func (c *Client) Pull(ctx context.Context, r PullRequest) ([]Pulled, error) {
	opts, err := r.Settings.options(r.From)
	if err != nil {
		return nil, err
	}
	if r.Normalise {
		opts["normalise"] = true
	}
	in := map[string]any{"topic": r.Topic, "group": r.Group, "wait_ms": r.Wait.Milliseconds(), "opts": opts}
	if r.Max > 0 {
		in["max"] = r.Max
	}
	var got struct{ Events []Pulled }
	err = c.call(ctx, http.MethodPost, "/pull", nil, in, &got)
	return got.Events, err
}

// What a [Settlement] does with events.
const (
	DoAck    = "ack"    // they are done
	DoNack   = "nack"   // they failed, and come again
	DoExtend = "modack" // they need more time
)

// Settlement is what is to be done with events that were pulled.
type Settlement struct {
	Topic, Group string
	// Do is DoAck, DoNack or DoExtend.
	Do string
	// IDs are those of the events, 10,000 at most.
	IDs []event.ID
	// Leases, one for each id, keep a nack or an extension from touching a
	// later delivery. The default is to touch whatever there is.
	Leases []string
	// Reason is kept with a nack.
	Reason string
	// Delay is after what time a nacked event comes again. The default is a
	// delay that grows.
	Delay *time.Duration
	// Dead sends nacked events to the dead letters at once.
	Dead bool
	// Extend is how long leases last from now on.
	Extend time.Duration
}

// Settled is what came of one id.
type Settled struct {
	ID event.ID `json:"id"`
	OK bool     `json:"ok"`
	// Err is the code of what is wrong: unknown_id or fenced.
	Err string `json:"err,omitempty"`
}

// Settle acks, nacks or extends, and returns once that is durable. Results come
// in the order of the ids.
func (c *Client) Settle(ctx context.Context, s Settlement) ([]Settled, error) {
	in := map[string]any{"topic": s.Topic, "group": s.Group, "ids": s.IDs}
	if len(s.Leases) > 0 {
		in["leases"] = s.Leases
	}
	switch s.Do {
	case DoNack:
		if s.Reason != "" {
			in["reason"] = s.Reason
		}
		if s.Delay != nil {
			in["delay_ms"] = s.Delay.Milliseconds()
		}
		if s.Dead {
			in["dead"] = true
		}
	case DoExtend:
		in["extend_ms"] = s.Extend.Milliseconds()
	}
	var got struct{ Results []Settled }
	err := c.call(ctx, http.MethodPost, "/"+s.Do, nil, in, &got)
	return got.Results, err
}
