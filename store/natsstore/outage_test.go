package natsstore_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean/event"
	"promethean/internal/natstest"
	"promethean/internal/netfault"
	"promethean/store"
	"promethean/store/natsstore"
)

// behind starts a server, and a proxy before it.
func behind(t *testing.T) (p *netfault.Proxy, url, direct string) {
	t.Helper()
	direct = natstest.Start(t, nil).URL()
	p = netfault.New(t, strings.TrimPrefix(direct, "nats://"))
	return p, "nats://" + p.Addr(), direct
}

// TestSlowServer: whatever takes its time is right all the same, and the events
// of many publishers share what they wait for.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	p, url, _ := behind(t)
	s := open(t, url, natsstore.Options{})
	l := ledger{acked: make(map[event.ID]uint64)}
	p.Delay(100 * time.Millisecond)
	began := time.Now()
	var all sync.WaitGroup
	for who := range 16 {
		all.Go(func() { l.publish(deadline(t), t, s, who, 8) })
	}
	all.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("16 publishers with 8 events each took %v over a line of 200 ms", took)
	}
	p.Delay(0)
	l.judge(t, s)
}

// TestLostAnswers loses requests, and answers of what the server has stored:
// publishers are told the truth, and nothing is there twice.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	p, url, direct := behind(t)
	o := natsstore.Options{RetryFor: 30 * time.Second, AttemptTimeout: 300 * time.Millisecond}
	stores := []*natsstore.Store{open(t, url, o), open(t, url, o)}
	n, lost := 0, 0
	p.Judge(func(chunk []byte) netfault.Fate {
		if !bytes.Contains(chunk, []byte("HPUB")) {
			return netfault.Pass
		}
		n++
		switch n % 23 {
		case 7:
			lost++
			return netfault.LoseRequest
		case 13, 20:
			lost++
			return netfault.LoseResponse
		}
		return netfault.Pass
	})
	l := ledger{acked: make(map[event.ID]uint64)}
	var all sync.WaitGroup
	for who := range 8 {
		all.Go(func() { l.publish(deadline(t), t, stores[who%2], who, 60) })
	}
	all.Wait()
	p.Judge(nil)
	if lost < 5 {
		t.Errorf("only %d were lost", lost)
	}
	l.judge(t, open(t, direct, natsstore.Options{}))
}

// TestFrozenServer: a server that keeps the connection and says nothing is away
// too, and what it does when it wakes counts once.
func TestFrozenServer(t *testing.T) {
	t.Parallel()
	p, url, _ := behind(t)
	s := open(t, url, quick)
	ctx := deadline(t)
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 1)}})
	if _, err := s.PutCursor(ctx, store.Cursor{Topic: topic, Group: "g"}); err != nil {
		t.Fatal(err)
	}
	second := newEvent("k", 2)
	settle := store.Batch{Settle: []store.Settlement{{Topic: topic, Group: "g", Done: []store.Range{{First: 1, Last: 1}}}}}
	calls := []func() error{
		func() error { _, err := s.Append(ctx, store.Batch{Events: []event.Event{second}}); return err },
		func() error { _, err := s.Append(ctx, settle); return err },
	}
	p.Freeze(true)
	began := time.Now()
	for _, call := range calls {
		if err := call(); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a frozen server: %v", err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("giving up took %v", took)
	}
	p.Freeze(false)
	for _, call := range calls {
		for err := call(); err != nil; err = call() {
			if !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
		}
	}
	if log := readAll(t, s, store.Query{Topic: topic}); len(log) != 2 || log[1].ID != second.ID {
		t.Errorf("%d events", len(log))
	}
	if c, err := s.Cursor(ctx, topic, "g"); err != nil || c.Floor != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}
