package gateway

import (
	"net/http"
	"time"

	"promethean/cluster"
)

// hubOf is how a hub is shown.
type hubOf struct {
	ID      string `json:"id"`
	URL     string `json:"url,omitempty"`
	Version string `json:"version,omitempty"`
	Started int64  `json:"started"`
	Seen    int64  `json:"seen,omitempty"`
	Alive   bool   `json:"alive"`
	Self    bool   `json:"self"`
}

// listHubs serves GET /ops/cluster. A hub without a list is the only one there
// is, as far as it knows.
func listHubs(c *call) error {
	list := []cluster.Hub{{
		ID: c.g.hub.Engine().Owner(), Version: c.g.o.Version, Started: c.g.started, Seen: time.Now(), Alive: true, Self: true,
	}}
	if c.g.o.Cluster != nil {
		var err error
		if list, err = c.g.o.Cluster.Hubs(c.r.Context()); err != nil {
			return err
		}
	}
	out := make([]hubOf, len(list))
	for i, h := range list {
		out[i] = hubOf{ID: h.ID, URL: h.URL, Version: h.Version, Started: h.Started.UnixMilli(), Alive: h.Alive, Self: h.Self}
		if h.Alive {
			out[i].Seen = h.Seen.UnixMilli()
		}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "hubs": out})
}
