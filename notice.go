package promethean

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"promethean/event"
	"promethean/store"
)

// noticeTopic is where hubs on a shared engine tell each other of topics: that
// one has appeared, which subscriptions to patterns wait for, and that one has
// other settings, of which partitions decide where events go.
const noticeTopic = "system.topics"

const (
	// noticesFor is how long notices are kept. Who was away longer has started
	// anew, or looks at all topics anyway.
	noticesFor = 24 * time.Hour
	// noticeWait bounds how long one may take to be stored.
	noticeWait = 15 * time.Second
	// lookEvery is how often all topics are looked at, in case that a hub has
	// died between a change and its notice.
	lookEvery = time.Minute
	// lookAgain is how soon that is tried again when it fails.
	lookAgain = time.Second
)

// noticeSpace is the name space of the ids of notices: that a topic has appeared
// is told once, whoever sees it first.
var noticeSpace = event.NameID(event.ID{}, noticeTopic)

// notice is the payload of one.
type notice struct {
	Topic string `json:"topic"`
	Set   bool   `json:"set,omitempty"` // its settings have changed
}

// notices are what a hub on a shared engine tells and hears of topics.
type notices struct {
	h      *Hub
	cancel context.CancelFunc
	heard  sync.WaitGroup // the listener

	told    sync.WaitGroup // the teller
	telling bool           // there is a teller; under Hub.mu, as is fresh
	fresh   []string       // topics that nobody was told of yet

	made sync.Once
}

// listen begins to hear what comes after a seq.
func (h *Hub) listen(after uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	h.notices = &notices{h: h, cancel: cancel}
	w := h.log.Watch(noticeTopic)
	h.notices.heard.Go(func() {
		defer w.Stop()
		h.notices.hear(ctx, w, after)
	})
}

// stop waits until everything is told, and ends hearing.
func (n *notices) stop() {
	n.told.Wait()
	n.cancel()
	n.heard.Wait()
}

// hear takes notices until ctx ends.
func (n *notices) hear(ctx context.Context, w *store.Watch, after uint64) {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		look := false
		select {
		case <-ctx.Done():
			return
		case <-w.C:
		case <-timer.C:
			look = true
		}
		var err error
		var e event.Event
		for e, err = range n.h.log.Read(ctx, store.Query{Topic: noticeTopic, After: after}) {
			if err != nil {
				break
			}
			after = e.Seq
			look = n.take(&e) || look
		}
		if look && err == nil {
			err = n.look(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n.h.o.Logger.Warn("look at the topics of other hubs", "err", err)
			timer.Reset(lookAgain)
		case look:
			timer.Reset(lookEvery)
		}
	}
}

// take learns from a notice, and says whether settings have to be looked at.
func (n *notices) take(e *event.Event) bool {
	var x notice
	if err := json.Unmarshal(e.Payload, &x); err != nil || event.CheckTopic(x.Topic) != nil {
		n.h.o.Logger.Warn("a notice cannot be read", "topic", noticeTopic, "seq", e.Seq)
		return true
	}
	n.h.mu.Lock()
	defer n.h.mu.Unlock()
	n.h.known(x.Topic)
	return x.Set
}

// look learns the settings of all topics. What this hub sets meanwhile stays, is
// told afterwards, and so looked at again.
func (n *notices) look(ctx context.Context) error {
	n.h.mu.Lock()
	asOf := n.h.sets
	n.h.mu.Unlock()
	for t, err := range n.h.log.Topics(ctx) {
		if err != nil {
			return err
		}
		n.h.learn(t.Name, t.Settings, asOf)
	}
	return nil
}

// appeared tells that a topic is new, without anybody waiting for it. Hub.mu
// must be held, and the hub not be closed.
func (n *notices) appeared(topic string) {
	n.fresh = append(n.fresh, topic)
	if n.telling {
		return
	}
	n.telling = true
	n.told.Go(func() {
		for {
			n.h.mu.Lock()
			topics := n.fresh
			n.fresh = nil
			n.telling = len(topics) > 0
			n.h.mu.Unlock()
			if len(topics) == 0 {
				return
			}
			for _, t := range topics {
				e := newNotice(notice{Topic: t})
				e.ID = event.NameID(noticeSpace, t)
				n.tell(e)
			}
		}
	})
}

// changed tells that a topic has other settings.
func (n *notices) changed(topic string) { n.tell(newNotice(notice{Topic: topic, Set: true})) }

func newNotice(x notice) event.Event {
	payload, err := json.Marshal(x)
	if err != nil {
		panic(fmt.Sprintf("a notice does not encode: %v", err)) // plain fields
	}
	e := event.New(noticeTopic, payload)
	e.Partition = event.PartitionOf(0)
	return e
}

// tell stores a notice. If that fails, the others find out when they look at
// all topics.
func (n *notices) tell(e event.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), noticeWait)
	defer cancel()
	n.made.Do(func() {
		if err := n.h.log.SetTopic(ctx, noticeTopic, store.Settings{Retention: noticesFor}); err != nil {
			n.h.o.Logger.Warn("bound how long notices are kept", "topic", noticeTopic, "err", err)
		}
	})
	if _, err := n.h.log.Append(ctx, store.Batch{Events: []event.Event{e}, Internal: true}); err != nil {
		n.h.o.Logger.Warn("tell other hubs of a topic", "err", err)
	}
}
