package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"

	"promethean/gateway/auth"
	"promethean/group"
	"promethean/view"
	"promethean/wire"
)

// needViews refuses what is about views where there are none.
func needViews(h handler) handler {
	return func(c *call) error {
		if c.g.o.Views == nil {
			if err := c.allow(auth.Read, "**"); err != nil {
				return err
			}
			return wire.Errorf(wire.Unsupported, "this hub has no views")
		}
		return h(c)
	}
}

// isView says whether a group is that of a view.
func (g *Gateway) isView(topic, group string) bool {
	if g.o.Views == nil {
		return false
	}
	return slices.ContainsFunc(g.o.Views.Views(), func(v *view.View) bool { return v.Topic() == topic && v.Group() == group })
}

// collection finds the view of the path, if the caller may read its topic. That
// there is none is said only to who may read everything: others cannot tell it
// from one that they may not see.
func (c *call) collection() (*view.Collection, error) {
	name := c.r.PathValue("view")
	if v := c.g.o.Views.Collection(name); v != nil {
		return v, c.allow(auth.Read, v.View().Topic())
	}
	if err := c.allow(auth.Read, "**"); err != nil {
		return nil, err
	}
	return nil, wire.Errorf(wire.NotFound, "there is no view %q", clip(name))
}

// listViews serves GET /views: those that the caller may read.
func listViews(c *call) error {
	out := []view.Status{}
	there := make(map[string][]view.Status) // what hubs that project have told
	for _, v := range c.g.o.Views.Views() {
		if c.allow(auth.Read, v.Topic()) != nil {
			continue
		}
		s, err := v.Status(c.r.Context())
		if err != nil {
			return err
		}
		for _, other := range c.projected(v, there) {
			if other.Name == s.Name {
				s = other
			}
		}
		out = append(out, s)
	}
	if len(out) == 0 { // there are none, or none for him
		if err := c.allow(auth.Read, "**"); err != nil {
			return err
		}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "views": out})
}

// projector finds the hub that projects a view.
func (c *call) projector(v *view.View) finder {
	return c.g.peers.holder("projects view "+v.Name(), v.Projector)
}

// projected gives the views of the hub that projects this one, if that is another
// hub which answers: it knows of counts and rebuilds. Each hub is asked once.
func (c *call) projected(v *view.View, told map[string][]view.Status) []view.Status {
	if v.Projects() || c.forwarded || !c.g.peers.several() {
		return nil
	}
	at, err := v.Projector(c.r.Context())
	if err != nil {
		return nil // nobody does
	}
	list, asked := told[at]
	if !asked {
		var got struct{ Views []view.Status }
		if err := c.askPeer(at, "projects view "+v.Name(), "/views", &got); err != nil {
			c.g.o.Logger.Debug("views of another hub", "id", at, "err", err)
		}
		list, told[at] = got.Views, got.Views
	}
	return list
}

// showView serves GET /views/{view}.
func showView(c *call) error {
	v, err := c.collection()
	if err != nil {
		return err
	}
	s, err := v.View().Status(c.r.Context())
	if err != nil {
		return err
	}
	for _, other := range c.projected(v.View(), map[string][]view.Status{}) {
		if other.Name == s.Name {
			s = other
		}
	}
	return c.answerJSON(http.StatusOK, s)
}

// server serves a collection. It is made once.
func (g *Gateway) server(v *view.Collection) *view.Server {
	if s, ok := g.views.Load(v); ok {
		return s.(*view.Server)
	}
	s, _ := g.views.LoadOrStore(v, view.NewServer(v, view.HandlerOptions{Private: g.o.Verifier != nil}))
	return s.(*view.Server)
}

// snapView serves GET /views/{view}/snap/{key...}.
func snapView(c *call) error {
	v, err := c.collection()
	if err != nil {
		return err
	}
	key := c.r.PathValue("key")
	if err := checkKey(key); err != nil {
		return err
	}
	return c.g.server(v).Snap(c.w, c.r, key)
}

// listView serves GET /views/{view}/list.
func listView(c *call) error {
	v, err := c.collection()
	if err != nil {
		return err
	}
	return c.g.server(v).List(c.w, c.r)
}

// watchView serves GET /views/{view}/watch. It ends with the token, and when the
// hub drains.
func watchView(c *call) error {
	v, err := c.collection()
	if err != nil {
		return err
	}
	return c.lasting(func(ctx context.Context) error {
		return c.g.server(v).Watch(c.w, c.r.WithContext(ctx))
	})
}

// rebuildView serves POST /views/{view}/rebuild: it begins, and GET
// /views/{view} tells how far it is.
func rebuildView(c *call) error {
	name := c.r.PathValue("view")
	v := c.g.o.Views.Collection(name)
	if v == nil {
		return wire.Errorf(wire.NotFound, "there is no view %q", clip(name))
	}
	body, err := c.body(maxBody, wire.PayloadTooLarge)
	if err != nil {
		return err
	}
	var ask struct {
		From string `json:"from"`
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &ask, json.RejectUnknownMembers(true)); err != nil {
			return wire.Errorf(wire.BadJSON, "the body must be an object with from, or nothing: %s", clip(err.Error()))
		}
	}
	o := view.RebuildOptions{}
	switch ask.From {
	case "", "earliest":
	case "snapshot":
		o.From = view.Snapshot
	default:
		return wire.Errorf(wire.InvalidArgument, "from: %q is neither earliest nor snapshot", clip(ask.From))
	}
	if err := v.View().StartRebuild(o); err != nil {
		if errors.Is(err, group.ErrNotOwner) {
			return &atHub{err: err, find: c.projector(v.View())}
		}
		return err
	}
	s, err := v.View().Status(c.r.Context())
	if err != nil {
		return err
	}
	return c.answerJSON(http.StatusAccepted, s)
}
