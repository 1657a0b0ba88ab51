package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/store"
)

// late is an outbox whose database is away at first.
type late struct {
	*outboxtest.Memory
	away   int
	closed int
}

func (l *late) Close() error {
	l.closed++
	return errors.New("closed badly")
}

// opened is a store that could not be opened at first.
func opened(s outbox.Store, away int) func(context.Context) (outbox.Store, error) {
	return func(context.Context) (outbox.Store, error) {
		if away--; away >= 0 {
			return nil, errors.New("no such file")
		}
		return s, nil
	}
}

func (l *late) Setup(context.Context) error {
	if l.away--; l.away >= 0 {
		return errors.New("connection refused")
	}
	return nil
}

func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &late{Memory: outboxtest.NewMemory(), away: 3}
		add(t, m.Memory, "a1", "a2", "b1")
		to, set := &sink{}, outbox.NewSet()
		box := outbox.Box{Open: opened(m, 2), Setup: true}
		if err := set.Add(box, to, outbox.Options{Name: "shop"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := set.List()[0]; s.Running || s.Outage != "open: no such file" || s.Name != "shop" {
			t.Errorf("%+v", s)
		}
		if _, err := set.Store("shop"); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("a store that is not open: %v", err)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if s := set.List()[0]; s.Running || s.Outage != "set up: connection refused" {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		wantNames(t, to, "a1", "a2", "b1")
		if s := set.List()[0]; !s.Running || s.Outage != "" || s.SentTotal != 3 || s.Name != "shop" {
			t.Errorf("%+v", s)
		}
		if got, err := set.Store("shop"); err != nil || got != outbox.Store(m) {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := set.Store("none"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("no such outbox: %v", err)
		}
		if err := set.Add(box, to, outbox.Options{Name: "shop"}); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("the same name twice: %v", err)
		}
		if err := set.Add(box, to, outbox.Options{Name: "other", Batch: -1}); err == nil {
			t.Error("a bad option is taken")
		}
		if err := set.Close(); err == nil || !strings.Contains(err.Error(), "closed badly") || m.closed != 1 {
			t.Errorf("close: %v, %d times", err, m.closed)
		}
		if err := set.Add(box, to, outbox.Options{Name: "late"}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("add after close: %v", err)
		}
	})
}

// A set that is closed while a database is away ends.
func TestSetClosesWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := outbox.NewSet()
		if err := set.Add(outbox.Box{Open: opened(outboxtest.NewMemory(), 1<<30)}, &sink{}, outbox.Options{Name: "shop"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		if s := set.List()[0]; s.Running {
			t.Errorf("%+v", s)
		}
	})
}
