package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"promethean"
	"promethean/internal/app/config"
	"promethean/schema"
	"promethean/store"
	"promethean/store/docstore"
	"promethean/view"
)

// models are the read models of a hub.
type models struct {
	set   *view.Set
	docs  store.Docs   // this hub's own; nil where the engine keeps documents
	own   func() error // closes and removes them
	ready atomic.Bool  // all views are in the set
}

// openModels finds the place for documents. On an engine that keeps none, such
// as NATS, the hub has them in a directory of its own and makes them anew from
// the log when it starts.
func openModels(hub *promethean.Hub) (*models, error) {
	m := &models{set: view.NewSet()}
	if _, ok := store.As[store.HasDocs](hub.Log()); ok {
		return m, nil
	}
	dir, err := os.MkdirTemp("", "promethean-views-")
	if err != nil {
		return nil, fmt.Errorf("views: %w", err)
	}
	docs, err := docstore.Open(dir, docstore.Options{})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("views: %w", err), os.RemoveAll(dir))
	}
	m.docs = docs
	m.own = func() error { return errors.Join(docs.Close(), os.RemoveAll(dir)) }
	return m, nil
}

// hold is the first seq of a topic whose tombstones must stay, since a view has
// not passed it.
func (m *models) hold(topic string) uint64 {
	if !m.ready.Load() {
		return 0 // views that are about to start may be behind
	}
	return m.set.Low(topic)
}

// options are those that every view of the hub has.
func (m *models) options(reg *schema.Registry, log *slog.Logger) view.Options {
	return view.Options{Docs: m.docs, Upcast: reg.Normalise, Logger: log}
}

// start starts the views of the configuration.
func (m *models) start(ctx context.Context, hub *promethean.Hub, reg *schema.Registry, c *config.Config, log *slog.Logger) error {
	for i := range c.Views {
		v := &c.Views[i]
		o, err := v.Options(v.Name)
		if err != nil {
			return fmt.Errorf("%s: view %s: %w", v.Place, v.Name, err)
		}
		if err := exists(ctx, hub, c, v); err != nil {
			return err
		}
		o.Options = m.options(reg, log)
		started, err := view.Changelog(ctx, hub, o)
		if err == nil {
			err = m.add(started)
		}
		if err != nil {
			return fmt.Errorf("%s: view %s: %w", v.Place, v.Name, err)
		}
	}
	m.ready.Store(true)
	return nil
}

// exists refuses a view over a topic that nobody may make.
func exists(ctx context.Context, hub *promethean.Hub, c *config.Config, v *config.View) error {
	if c.AutoCreate {
		return nil
	}
	for t, err := range hub.Topics(ctx) {
		if err != nil {
			return err
		}
		if t.Name == v.Topic {
			return nil
		}
	}
	return fmt.Errorf("%s: view %s: there is no topic %s, and auto_create is off: name it under topics", v.Place, v.Name, v.Topic)
}

// add takes a view in, or closes it.
func (m *models) add(v *view.View) error {
	if err := m.set.Add(v); err != nil {
		return errors.Join(err, v.Close())
	}
	return nil
}

// reduce is how the state of a key of a topic is made of its events: as the
// views of the topic say, if they agree.
func reduce(views []config.View, topic string) string {
	how := ""
	for _, v := range views {
		if v.Topic != topic {
			continue
		}
		this := v.Reduce
		if this == "" {
			this = "replace"
		}
		if how != "" && how != this {
			return "replace"
		}
		how = this
	}
	if how == "" {
		return "replace"
	}
	return how
}

// close ends all views.
func (m *models) close() error {
	if m == nil {
		return nil
	}
	err := m.set.Close()
	if m.own != nil {
		err = errors.Join(err, m.own())
	}
	return err
}
