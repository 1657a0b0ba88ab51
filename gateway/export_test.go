package gateway

import (
	"time"

	"promethean/gateway/auth"
)

// Route is a row of the table, for tests.
type Route struct {
	Method, Path, Topic string
	Action              auth.Action
	Example, Body       string
	BodyType            string
}

// Routes gives the table.
func (g *Gateway) Routes() []Route {
	var out []Route
	for i := range g.routes {
		r := &g.routes[i]
		kind := r.doc.bodyType
		if kind == "" {
			kind = "application/json"
		}
		out = append(out, Route{r.method, r.path, r.topic, r.action, r.doc.example.path, r.doc.example.body, kind})
	}
	return out
}

// Pullers is how many members are kept for pulls.
func (g *Gateway) Pullers() int {
	g.pulls.mu.Lock()
	defer g.pulls.mu.Unlock()
	return len(g.pulls.all)
}

// PullIdle is how long they stay.
const PullIdle = pullIdle

// Heartbeat is how often a stream says that it is there.
const Heartbeat = heartbeat

// MaxPullWait is how long a pull waits at most.
const MaxPullWait time.Duration = maxPullWait
