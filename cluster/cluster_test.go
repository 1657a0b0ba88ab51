package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/cluster"
	"promethean/store"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

var ctx = context.Background()

// sharedLog is an engine in memory that several hubs have, and that can be out
// of reach for one of them.
type sharedLog struct {
	*storetest.Shared
	cut atomic.Bool
}

func (l *sharedLog) Close() error { return nil } // the test closes what is below

func (l *sharedLog) err() error {
	if l.cut.Load() {
		return fmt.Errorf("%w: cut off", store.ErrUnavailable)
	}
	return nil
}

func (l *sharedLog) Cursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	if err := l.err(); err != nil {
		return store.Cursor{}, err
	}
	return l.Shared.Cursor(ctx, topic, group)
}

func (l *sharedLog) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return store.Lease{}, err
	}
	return l.Shared.Acquire(ctx, name, owner, ttl)
}

func (l *sharedLog) Renew(ctx context.Context, s store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := l.err(); err != nil {
		return s, err
	}
	return l.Shared.Renew(ctx, s, ttl)
}

// hub is one that shares an engine with others.
type hub struct {
	*cluster.Cluster
	log *sharedLog

	mu   sync.Mutex
	gone []string
}

func (h *hub) went() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.gone)
}

func open(t *testing.T, n int) []*hub {
	t.Helper()
	mem, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mem.Close() })
	var out []*hub
	for i := range n {
		h := &hub{log: &sharedLog{Shared: storetest.Share(mem)}}
		p, err := promethean.New(h.log, promethean.Options{Owner: fmt.Sprint("hub ", i)})
		if err != nil {
			t.Fatal(err)
		}
		h.Cluster, err = cluster.Join(p, cluster.Options{URL: fmt.Sprintf("http://hub%d:7070/", i), Version: "v1"})
		if err != nil {
			t.Fatal(err)
		}
		h.OnGone(func(id string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.gone = append(h.gone, id)
		})
		t.Cleanup(func() {
			h.log.cut.Store(false)
			if err := errors.Join(h.Close(ctx), p.Close()); err != nil {
				t.Error(err)
			}
		})
		out = append(out, h)
	}
	return out
}

func ids(t *testing.T, c *cluster.Cluster, want ...string) []cluster.Hub {
	t.Helper()
	list, err := c.Hubs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range list {
		got = append(got, h.ID)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the hubs are %q, want %q", got, want)
	}
	return list
}

func TestHubsSeeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 3)
		time.Sleep(time.Minute) // leases are renewed many times
		for i := range h {
			for j, x := range ids(t, h[i].Cluster, "hub 0", "hub 1", "hub 2") {
				if !x.Alive || x.Self != (i == j) || x.URL != fmt.Sprintf("http://hub%d:7070", j) || x.Version != "v1" {
					t.Errorf("hub %d says %+v", i, x)
				}
				if since := time.Since(x.Seen); since < 0 || since > 5*time.Second {
					t.Errorf("hub %d has seen hub %d %v ago", i, j, since)
				}
			}
			if w := h[i].went(); len(w) > 0 {
				t.Errorf("hub %d says that %q are gone", i, w)
			}
		}
		for id, want := range map[string]bool{"hub 1": true, "hub 0": true, "nobody": false} {
			if got, err := h[0].Alive(ctx, id); got != want || err != nil {
				t.Errorf("%s lives: %v, %v", id, got, err)
			}
		}
		if x, err := h[2].Find(ctx, "hub 1"); err != nil || x.URL != "http://hub1:7070" {
			t.Errorf("found %+v, %v", x, err)
		}
		if _, err := h[2].Find(ctx, "nobody"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("found nobody: %v", err)
		}
	})
}

func TestAHubThatClosesIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 3)
		time.Sleep(time.Second)
		if err := h[1].Close(ctx); err != nil {
			t.Fatal(err)
		}
		ids(t, h[0].Cluster, "hub 0", "hub 2")
		if alive, err := h[0].Alive(ctx, "hub 1"); alive || err != nil {
			t.Errorf("it lives: %v, %v", alive, err)
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		for _, i := range []int{0, 2} {
			if w := h[i].went(); !slices.Equal(w, []string{"hub 1"}) {
				t.Errorf("hub %d was told of %q", i, w)
			}
		}
		if w := h[1].went(); len(w) > 0 {
			t.Errorf("who has closed was told of %q", w)
		}
	})
}

func TestAHubThatDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 2)
		time.Sleep(time.Second)
		ends := time.Now().Add(10 * time.Second) // at the latest
		h[1].log.cut.Store(true)
		for len(h[0].went()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if late := time.Since(ends); late > 500*time.Millisecond {
			t.Errorf("noticed %v after its lease can have lasted", late)
		}
		ids(t, h[0].Cluster, "hub 0")
		// It comes back.
		h[1].log.cut.Store(false)
		time.Sleep(2 * time.Second)
		ids(t, h[0].Cluster, "hub 0", "hub 1")
		if w := h[0].went(); !slices.Equal(w, []string{"hub 1"}) {
			t.Errorf("told of %q", w)
		}
		if err := h[1].Close(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if w := h[0].went(); !slices.Equal(w, []string{"hub 1", "hub 1"}) {
			t.Errorf("told of %q", w)
		}
	})
}

// A hub that cannot reach the engine itself does not say that others are gone.
func TestAnAbsentEngineIsNoDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 2)
		time.Sleep(time.Second)
		h[0].log.cut.Store(true)
		time.Sleep(time.Minute)
		if w := h[0].went(); len(w) > 0 {
			t.Errorf("told of %q", w)
		}
		if _, err := h[0].Hubs(ctx); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("the list without an engine: %v", err)
		}
	})
}

func TestStopOnGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 2)
		var calls atomic.Int32
		stop := h[0].OnGone(func(string) { calls.Add(1) })
		stop()
		stop()
		time.Sleep(time.Second)
		if err := h[1].Close(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := calls.Load(); n != 0 {
			t.Errorf("told %d times after the end", n)
		}
	})
}

func TestProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := open(t, 2)
		mark := h[0].Prove("POST /ack")
		if !h[1].Proves(mark, "POST /ack") {
			t.Error("a hub does not know another")
		}
		for _, bad := range []string{"", ".", "1", mark + "x", strings.Replace(mark, ".", ".A", 1), "x" + mark} {
			if h[1].Proves(bad, "POST /ack") {
				t.Errorf("%q is taken for a proof", bad)
			}
		}
		if h[1].Proves(mark, "POST /nack") {
			t.Error("a proof is good for another request")
		}
		time.Sleep(2 * time.Minute)
		if h[1].Proves(mark, "POST /ack") {
			t.Error("an old proof counts")
		}
	})
}

func TestOneHubAlone(t *testing.T) {
	p, err := promethean.OpenMemory(promethean.Options{Owner: "me"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	c, err := cluster.Join(p, cluster.Options{URL: "http://127.0.0.1:7070"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	list := ids(t, c, "me")
	if x := list[0]; !x.Self || !x.Alive || x.Started.IsZero() || x.Seen.IsZero() || c.Shared() {
		t.Errorf("the one hub is %+v", x)
	}
	for id, want := range map[string]bool{"me": true, "you": false} {
		if got, err := c.Alive(ctx, id); got != want || err != nil {
			t.Errorf("%s lives: %v, %v", id, got, err)
		}
	}
	if c.Proves(c.Prove("x"), "x") {
		t.Error("a proof counts where there are no others")
	}
	for range p.Topics(ctx) {
		t.Error("something is stored for one hub")
	}
}

func TestCheckURL(t *testing.T) {
	for _, ok := range []string{"http://10.0.0.5:7070", "https://hub.example.org", "http://[fd00::5]:7070/", "http://localhost:1"} {
		if err := cluster.CheckURL(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"", "10.0.0.5:7070", "ftp://x", "http://", "http://0.0.0.0:7070", "http://[::]:7070", "http://x/path", "http://x?q=1", "http://me:secret@x", "http://a b"} {
		err := cluster.CheckURL(bad)
		if err == nil {
			t.Errorf("%q is taken", bad)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the password is told: %v", bad, err)
		}
	}
	p, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if _, err := cluster.Join(p, cluster.Options{URL: "http://0.0.0.0:1"}); err == nil {
		t.Error("a hub joins as every address")
	}
}
