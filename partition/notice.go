package partition

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"promethean"
	"promethean/store"
)

// Hubs that share an engine tell each other when they have changed who has
// what: a record that names the group, after which the others look.

const (
	noticeTopic = "rebalances" // under system.
	noticesFor  = time.Hour
	noticeWait  = 5 * time.Second
)

// notice is the payload of one.
type notice struct {
	Topic string `json:"topic"`
	Group string `json:"group"`
	Hub   string `json:"hub"`
}

type notices struct {
	c     *Coordinator
	topic *promethean.SystemTopic
}

// listen begins to hear what others tell.
func listen(c *Coordinator) (*notices, error) {
	topic, err := c.hub.SystemTopic(noticeTopic, noticesFor)
	if err != nil {
		return nil, err
	}
	log := c.hub.Log()
	w := log.Watch(topic.Name())
	b, err := log.Bounds(c.ctx, topic.Name())
	if err != nil {
		w.Stop()
		return nil, err
	}
	n := &notices{c: c, topic: topic}
	c.work.Go(func() {
		defer w.Stop()
		n.hear(w, b.Last)
	})
	return n, nil
}

// hear takes notices until the coordinator is closed. What cannot be read is
// made up for by looking every now and then.
func (n *notices) hear(w *store.Watch, after uint64) {
	for {
		select {
		case <-n.c.ctx.Done():
			return
		case <-w.C:
		}
		for e, err := range n.c.hub.Log().Read(n.c.ctx, store.Query{Topic: n.topic.Name(), After: after}) {
			if err != nil {
				if n.c.ctx.Err() == nil {
					n.c.o.Logger.Warn("hear of rebalances at other hubs", "err", err)
				}
				break
			}
			after = e.Seq
			var x notice
			if err := json.Unmarshal(e.Payload, &x); err != nil {
				n.c.o.Logger.Warn("a notice cannot be read", "topic", n.topic.Name(), "seq", e.Seq)
				continue
			}
			if x.Hub != n.c.o.Self {
				n.c.poke(groupName{x.Topic, x.Group})
			}
		}
	}
}

// tell says that a group has changed. If that fails, the others find out when
// they look.
func (n *notices) tell(name groupName) {
	b, err := json.Marshal(notice{Topic: name.topic, Group: name.group, Hub: n.c.o.Self})
	if err != nil {
		panic(fmt.Sprintf("a notice does not encode: %v", err)) // plain fields
	}
	ctx, cancel := context.WithTimeout(n.c.ctx, noticeWait)
	defer cancel()
	if err := n.topic.Append(ctx, b); err != nil && n.c.ctx.Err() == nil {
		n.c.o.Logger.Warn("tell other hubs of a rebalance", "topic", name.topic, "group", name.group, "err", err)
	}
}
