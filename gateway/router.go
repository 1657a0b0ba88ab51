package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"promethean/gateway/auth"
	"promethean/wire"
)

// route is one row of the table.
type route struct {
	method string
	// path has names in braces for segments that vary. A last one that ends in
	// three dots stands for all that follow.
	path string
	// action is what the caller must be allowed to do. Where topic is "path" or
	// "query", it is checked for the topic that stands there before the handler
	// is called; where it is "handler", the handler asks for each topic that it
	// finds in the body; "all" needs a scope for all topics. "" is for actions
	// without one.
	action auth.Action
	topic  string
	// steady says that the route is served while the hub drains.
	steady bool
	handle handler
	doc    operation
}

// path is what the routes of one path have in common.
type path struct {
	segments []string
	methods  map[string]*route
}

// arrange finds routes by their first segment.
func arrange(routes []route) map[string][]*path {
	byPath := make(map[string]*path)
	out := make(map[string][]*path)
	for i := range routes {
		r := &routes[i]
		p := byPath[r.path]
		if p == nil {
			p = &path{segments: strings.Split(r.path[1:], "/"), methods: make(map[string]*route)}
			byPath[r.path] = p
			out[p.segments[0]] = append(out[p.segments[0]], p)
		}
		p.methods[r.method] = r
	}
	return out
}

// find gives the path of a request and sets its variables. It never redirects:
// whatever is no path of ours is not found.
func (g *Gateway) find(r *http.Request) *path {
	escaped, ok := strings.CutPrefix(r.URL.EscapedPath(), "/")
	if !ok {
		return nil
	}
	segments := strings.Split(escaped, "/")
next:
	for _, p := range g.paths[segments[0]] {
		n := len(p.segments)
		rest := strings.HasSuffix(p.segments[n-1], "...}")
		if len(segments) != n && (!rest || len(segments) < n) {
			continue
		}
		for i, s := range p.segments {
			if !strings.HasPrefix(s, "{") && s != segments[i] {
				continue next
			}
		}
		for i, s := range p.segments {
			if strings.HasPrefix(s, "{") {
				part := segments[i]
				if rest && i == n-1 {
					part = strings.Join(segments[i:], "/")
				}
				v, err := url.PathUnescape(part)
				if err != nil {
					return nil
				}
				r.SetPathValue(strings.TrimSuffix(s[1:len(s)-1], "..."), v)
			}
		}
		return p
	}
	return nil
}

// serve takes a request through all checks to its handler.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	rec := newRecorder(w, g.o.WriteWait)
	rec.expect(r, g.o.BodyWait)
	err := g.dispatch(rec, r)
	switch {
	case err == nil:
	case rec.begun:
		g.o.Logger.Debug("answer was cut short", "path", r.URL.Path, "err", err)
		panic(http.ErrAbortHandler) // the only way to tell the client that there is more
	default:
		g.fail(rec, r, err)
	}
}

func (g *Gateway) dispatch(w *recorder, r *http.Request) error {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	g.guard().share(h, r)
	forwarded, proved := g.peers.marks(r)
	if !proved {
		if err := g.connection(r).request(); err != nil {
			return err
		}
		if err := g.guard().check(r); err != nil {
			return err
		}
	}
	p := g.find(r)
	if p == nil {
		return wire.Errorf(wire.NotFound, "there is nothing at %s", clip(r.URL.Path))
	}
	if r.Method == http.MethodOptions {
		g.guard().preflight(h, r, p.allowed())
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	route := p.methods[r.Method]
	if route == nil && r.Method == http.MethodHead {
		route = p.methods[http.MethodGet]
	}
	if route == nil {
		h.Set("Allow", p.allowed())
		return &wire.Error{Code: wire.InvalidArgument, Msg: r.Method + " is not for " + clip(r.URL.Path) + ", but " + p.allowed(), Err: errMethod}
	}
	if g.draining.Load() && !route.steady {
		return wire.Errorf(wire.Draining, "the hub is shutting down")
	}
	if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
		return wire.Errorf(wire.InvalidArgument, "the query cannot be read: %s", clip(err.Error()))
	}
	who, err := g.identify(r)
	if err != nil && route.action != auth.Open {
		return err
	}
	c := &call{g: g, w: w, r: r, who: who, forwarded: forwarded, proved: proved}
	if r.ContentLength != 0 && route.method == http.MethodGet {
		// It means nothing, but has to come before the answer.
		if _, err := c.body(maxBody, wire.PayloadTooLarge); err != nil {
			return err
		}
	}
	if route.audits() && !proved { // the hub that was asked records it
		return c.recorded(route, w)
	}
	if err := c.admit(route); err != nil {
		return err
	}
	return c.run(route)
}

// admit checks access by what the table says. A handler that finds its topics
// in the body asks for them itself; that somebody calls is checked here.
func (c *call) admit(r *route) error {
	switch r.topic {
	case "path":
		return c.allow(r.action, c.r.PathValue("topic"))
	case "query":
		return c.allow(r.action, c.r.URL.Query().Get("topic"))
	case "all":
		return c.allow(r.action, "**")
	case "handler":
		if c.g.o.Verifier != nil && c.who == nil {
			return wire.Errorf(wire.Unauthorized, "a token is needed")
		}
		return nil
	}
	return c.allow(r.action, "")
}

// allowed lists the methods of a path.
func (p *path) allowed() string {
	list := []string{http.MethodOptions}
	for m := range p.methods {
		list = append(list, m)
		if m == http.MethodGet && p.methods[http.MethodHead] == nil {
			list = append(list, http.MethodHead)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
