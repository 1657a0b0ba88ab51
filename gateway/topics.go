package gateway

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"promethean/compact"
	"promethean/event"
	"promethean/schema"
	"promethean/store"
	"promethean/wire"
)

// topicOf is how a topic is shown.
type topicOf struct {
	Topic string `json:"topic"`
	// Events is how many seqs are retained; First and Last where they are.
	Events   uint64     `json:"events"`
	First    uint64     `json:"first"`
	Last     uint64     `json:"last"`
	Bytes    int64      `json:"bytes"`
	Settings settingsOf `json:"settings"`
}

func (g *Gateway) showTopic(t *store.Topic) topicOf {
	return topicOf{
		Topic: t.Name, Events: t.Bounds.Last + 1 - t.Bounds.First, First: t.Bounds.First, Last: t.Bounds.Last,
		Bytes: t.Bounds.Bytes, Settings: g.showSettings(t),
	}
}

// listTopics serves GET /topics.
func listTopics(c *call) error {
	out := []topicOf{}
	for t, err := range c.g.hub.Topics(c.r.Context()) {
		if err != nil {
			return err
		}
		out = append(out, c.g.showTopic(&t))
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "topics": out})
}

// findTopic looks for a topic by name.
func (g *Gateway) findTopic(ctx context.Context, name string) (t store.Topic, found bool, err error) {
	for t, err := range g.hub.Topics(ctx) {
		if err != nil || t.Name == name {
			return t, err == nil, err
		}
		if t.Name > name {
			break // they come in order
		}
	}
	return store.Topic{}, false, nil
}

// pathTopic reads the topic of the path and checks its name.
func (c *call) pathTopic() (string, error) {
	topic := c.r.PathValue("topic")
	return topic, event.CheckTopic(topic)
}

// getTopic serves GET /topics/{topic}.
func getTopic(c *call) error {
	name, err := c.pathTopic()
	if err != nil {
		return err
	}
	t, found, err := c.g.findTopic(c.r.Context(), name)
	switch {
	case err != nil:
		return err
	case !found:
		return wire.Errorf(wire.NotFound, "there is no topic %s: publishing to it makes it, or PUT /topics/%s", name, name)
	}
	return c.answerJSON(http.StatusOK, c.g.showTopic(&t))
}

// putTopic serves PUT /topics/{topic}: what is named changes, the rest stays.
func putTopic(c *call) error {
	name, err := c.pathTopic()
	if err != nil {
		return err
	}
	change, err := c.body(maxBody, wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	// Two changes at once must not lose each other's fields.
	c.g.settings.Lock()
	defer c.g.settings.Unlock()
	t, _, err := c.g.findTopic(c.r.Context(), name)
	if err != nil {
		return err
	}
	s, err := MergeSettings(t.Settings, change)
	if err != nil {
		return err
	}
	if err := c.g.setTopic(c.r.Context(), name, t.Settings, s); err != nil {
		return err
	}
	if t, _, err = c.g.findTopic(c.r.Context(), name); err != nil {
		return err
	}
	return c.answerJSON(http.StatusOK, c.g.showTopic(&t))
}

// setTopic changes the settings of a topic. Those that would do nothing are
// refused.
func (g *Gateway) setTopic(ctx context.Context, topic string, was, now store.Settings) error {
	if err := g.prepareCompaction(ctx, topic, was, now); err != nil {
		return err
	}
	set := func() error { return g.hub.SetTopic(ctx, topic, now) }
	if g.o.Schemas != nil {
		return g.o.Schemas.Apply(ctx, topic, was, now, set)
	}
	old, err := schema.SettingsOf(was)
	if err != nil {
		return err
	}
	if set, err := schema.SettingsOf(now); err != nil || set != old {
		return errors.Join(err, wire.Errorf(wire.Unsupported, "%s: this hub has no schemas", strings.Join(ofSchemas, ", ")))
	}
	return set()
}

// prepareCompaction judges the settings of a topic that are about compaction.
func (g *Gateway) prepareCompaction(ctx context.Context, topic string, was, now store.Settings) error {
	if g.o.Compactor != nil {
		return g.o.Compactor.Prepare(ctx, topic, was, now)
	}
	old, err := compact.SettingsOf(was)
	if err != nil {
		return err
	}
	if set, err := compact.SettingsOf(now); err != nil || !reflect.DeepEqual(set, old) {
		return errors.Join(err, wire.Errorf(wire.Unsupported, "compaction, history, tombstones, snapshot: this hub has no compactor"))
	}
	return nil
}
