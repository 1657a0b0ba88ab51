package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/partition"
	"promethean/wire"
)

// partedOf is how a partitioned group is shown. Times are epoch ms.
type partedOf struct {
	Topic       string        `json:"topic"`
	Group       string        `json:"group"`
	Partitioned bool          `json:"partitioned"`
	Generation  uint64        `json:"generation"`
	Members     []memberOf    `json:"members"`
	Partitions  []partitionOf `json:"partitions"`
	Rebalance   *rebalanceOf  `json:"last_rebalance,omitempty"`
}

type memberOf struct {
	ID         string            `json:"id"`
	Static     bool              `json:"static"`
	Hub        string            `json:"hub,omitempty"`
	Meta       map[string]string `json:"meta,omitempty"`
	Joined     int64             `json:"joined"`
	Heartbeat  int64             `json:"last_heartbeat"`
	Away       int64             `json:"away_since,omitempty"`
	Leaving    bool              `json:"leaving,omitempty"`
	Damped     int64             `json:"damped_until,omitempty"`
	Partitions []int             `json:"partitions"`
}

type partitionOf struct {
	Partition int    `json:"partition"`
	Owner     string `json:"owner"`
	From      string `json:"from,omitempty"`
	Epoch     uint64 `json:"epoch"`
	Cursor    uint64 `json:"cursor"`
	Lag       uint64 `json:"lag"`
	About     bool   `json:"about,omitempty"`
	InFlight  *int   `json:"inflight,omitempty"`
}

type rebalanceOf struct {
	At      int64  `json:"at"`
	TookMs  *int64 `json:"took_ms,omitempty"`
	Moved   int    `json:"moved"`
	Pending int    `json:"pending,omitempty"`
}

// showPartitions serves GET /ops/partitions.
func showPartitions(c *call) error {
	if c.g.o.Partitions == nil {
		return errNoPartitions
	}
	q := c.r.URL.Query()
	topic, name := q.Get("topic"), q.Get("group")
	if topic != "" {
		if err := event.CheckTopic(topic); err != nil {
			return err
		}
	}
	out := []partedOf{}
	for i, err := range c.g.hub.Groups(c.r.Context(), topic) {
		if err != nil {
			return err
		}
		if name != i.Group && name != "" || name == "" && i.Settings.Partitions == 0 {
			continue
		}
		x, err := c.g.showParted(c.r.Context(), &i)
		if errors.Is(err, group.ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		out = append(out, x)
	}
	if name != "" && len(out) == 0 {
		return wire.Errorf(wire.NotFound, "there is no group %s", clip(name))
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "groups": out})
}

// showParted tells how a group is divided.
func (g *Gateway) showParted(ctx context.Context, i *group.Info) (partedOf, error) {
	x := partedOf{Topic: i.Topic, Group: i.Group, Members: []memberOf{}, Partitions: []partitionOf{}}
	if i.Settings.Partitions == 0 {
		return x, nil
	}
	s, err := g.o.Partitions.Show(ctx, i.Topic, i.Group)
	if err != nil {
		return x, err
	}
	x.Partitioned, x.Generation = true, s.Generation
	for _, m := range s.Members {
		x.Members = append(x.Members, memberOf{
			ID: m.ID, Static: m.Static, Hub: m.Hub, Meta: m.Meta, Joined: millis(m.Joined), Heartbeat: millis(m.Seen),
			Away: millis(m.Away), Leaving: m.Leaving, Damped: millis(m.Damped), Partitions: append([]int{}, m.Partitions...),
		})
	}
	for k := range s.Partitions {
		x.Partitions = append(x.Partitions, showPartition(&s.Partitions[k]))
	}
	if r := s.Rebalance; !r.At.IsZero() {
		x.Rebalance = &rebalanceOf{At: millis(r.At), Moved: r.Moved, Pending: r.Pending}
		if r.Pending == 0 {
			took := r.Took.Milliseconds()
			x.Rebalance.TookMs = &took
		}
	}
	return x, nil
}

func showPartition(p *partition.Partition) partitionOf {
	out := partitionOf{Partition: p.Number, Owner: p.Owner, Epoch: p.Epoch, Cursor: p.Cursor, Lag: p.Lag, About: !p.Exact}
	if p.Holder != p.Owner {
		out.From = p.Holder
	}
	if p.Here {
		out.InFlight = &p.InFlight
	}
	return out
}

// millis is 0 for no time.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
