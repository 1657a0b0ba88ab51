package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"promethean/store"
)

// The list is kept as the Meta of a cursor: a small document that every engine
// changes by compare-and-set, and that all hubs see.
const (
	topic = "system.cluster"
	group = "system.hubs"
)

// registry is the document.
type registry struct {
	// Secret is what hubs know each other by; see [Cluster.Prove]. The first
	// hub makes it.
	Secret []byte  `json:"secret"`
	Hubs   []entry `json:"hubs"` // by id
}

// entry is a hub in it.
type entry struct {
	ID      string `json:"id"`
	URL     string `json:"url,omitempty"`
	Version string `json:"version,omitempty"`
	Started int64  `json:"started"` // epoch ms
	TTLms   int64  `json:"ttl_ms"`
}

// index finds a hub, or gives -1.
func (r *registry) index(id string) int {
	return slices.IndexFunc(r.Hubs, func(e entry) bool { return e.ID == id })
}

// put adds a hub or replaces it, and says whether that changed anything.
func (r *registry) put(e entry) bool {
	i := r.index(e.ID)
	switch {
	case i < 0:
		r.Hubs = append(r.Hubs, e)
		slices.SortFunc(r.Hubs, func(a, b entry) int { return strings.Compare(a.ID, b.ID) })
	case r.Hubs[i] == e:
		return false
	default:
		r.Hubs[i] = e
	}
	return true
}

// remove takes a hub off that started at that time, and says whether it was
// there.
func (r *registry) remove(id string, started int64) bool {
	i := r.index(id)
	if i < 0 || r.Hubs[i].Started != started {
		return false
	}
	r.Hubs = slices.Delete(r.Hubs, i, i+1)
	return true
}

// register puts this hub on the list.
func (c *Cluster) register(ctx context.Context) error {
	e := entry{ID: c.self.ID, URL: c.self.URL, Version: c.self.Version, Started: c.self.Started.UnixMilli(), TTLms: c.o.TTL.Milliseconds()}
	return c.update(ctx, func(r *registry) bool { return r.put(e) })
}

// read gives the document, and the cursor that it stands in. One that was never
// written is empty.
func (c *Cluster) read(ctx context.Context) (r registry, cur store.Cursor, err error) {
	cur, err = c.log.Cursor(ctx, topic, group)
	if errors.Is(err, store.ErrNotFound) {
		return r, store.Cursor{Topic: topic, Group: group}, nil
	}
	if err == nil && len(cur.Meta) > 0 {
		if err = json.Unmarshal(cur.Meta, &r); err != nil {
			err = fmt.Errorf("the list of hubs does not decode: %w", err)
		}
	}
	if err != nil {
		return r, cur, err
	}
	c.mu.Lock()
	c.list = r
	c.mu.Unlock()
	// The caller may change what it gets.
	r.Hubs = slices.Clone(r.Hubs)
	return r, cur, nil
}

// update has the document changed, again if somebody else was quicker. If
// change says no, it stays as it is.
func (c *Cluster) update(ctx context.Context, change func(*registry) bool) error {
	for {
		r, cur, err := c.read(ctx)
		if err != nil {
			return err
		}
		if !change(&r) {
			return nil
		}
		if len(r.Secret) == 0 {
			r.Secret = make([]byte, 32)
			_, _ = rand.Read(r.Secret) // it does not fail
		}
		if cur.Meta, err = json.Marshal(r); err != nil {
			return err
		}
		_, err = c.log.PutCursor(ctx, cur)
		if err == nil {
			c.mu.Lock()
			c.list = r
			c.mu.Unlock()
			return nil
		}
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrFenced) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// CheckURL says what is wrong with the address of a hub: it is http or https,
// with a host that is not every host, and without a path, a query or a name and
// password.
func CheckURL(s string) error {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%q is no URL", s)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q: the URL of a hub begins with http:// or https://", s)
	case u.Hostname() == "":
		return fmt.Errorf("%q names no host", s)
	case u.User != nil:
		return fmt.Errorf("the URL of a hub has no user and no password: %s", u.Redacted())
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q: the URL of a hub has no path, query or fragment", s)
	case isEvery(u.Hostname()):
		return fmt.Errorf("%q: other hubs cannot reach %s, which stands for all addresses of a machine", s, u.Hostname())
	}
	return nil
}

// isEvery says whether a host stands for all addresses of a machine.
func isEvery(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsUnspecified()
}
