package promethean_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/store"
)

// in runs a test in virtual time with a hub in memory.
func in(t *testing.T, f func(t *testing.T, h *promethean.Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}()
		f(t, h)
	})
}

func emit(t *testing.T, h promethean.Bus, topic string, v any, opts ...promethean.PublishOption) promethean.Receipt {
	t.Helper()
	r, err := promethean.PublishAs(t.Context(), h, topic, v, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func subscribe(t *testing.T, h promethean.Bus, topic, name string, f promethean.Handler, opts ...promethean.SubscribeOption) promethean.Subscription {
	t.Helper()
	s, err := h.Subscribe(t.Context(), topic, name, f, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// list collects from handlers.
type list struct {
	mu  sync.Mutex
	all []string
}

func (l *list) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
}

func (l *list) get() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func TestEarliestDeliversAndAdvancesTheCursor(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		var seen list
		subscribe(t, h, "t.a", "g1", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			seen.add(string(e.Payload))
			return nil
		}, promethean.FromEarliest(), promethean.Ordered(group.ByTopic))
		emit(t, h, "t.a", "one")
		last := emit(t, h, "t.a", "two")
		synctest.Wait()
		if got := seen.get(); !slices.Equal(got, []string{`"one"`, `"two"`}) {
			t.Errorf("seen %v", got)
		}
		p, err := h.Cursor(t.Context(), "t.a", "g1")
		if err != nil || p.Seq != 2 || p.LastID != last.ID || p.LastTS != last.TS {
			t.Errorf("cursor %+v, %v", p, err)
		}
	})
}

func TestNackIsRetried(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		var attempts atomic.Int32
		subscribe(t, h, "t.b", "g1", func(context.Context, event.Event, *promethean.Delivery) error {
			if attempts.Add(1) == 1 {
				return errors.New("boom")
			}
			return nil
		}, promethean.FromEarliest())
		emit(t, h, "t.b", "x")
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if n := attempts.Load(); n != 2 {
			t.Errorf("%d attempts, want 2", n)
		}
	})
}

// A handler that never returns, one that panics and one that ends its
// goroutine do not hold up their neighbours, and end in the dead letters.
func TestBadHandlers(t *testing.T) {
	for _, bad := range []string{"panic", "exit", "hang"} {
		t.Run(bad, func(t *testing.T) {
			in(t, func(t *testing.T, h *promethean.Hub) {
				var good list
				release := make(chan struct{})
				subscribe(t, h, "t.a", "g", func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
					if e.Key != "bad" {
						good.add(e.Key)
						return nil
					}
					switch bad {
					case "panic":
						panic("out of cheese")
					case "exit":
						runtime.Goexit()
					case "hang":
						<-release
					}
					return nil
				}, promethean.MaxAttempts(2), promethean.AckTimeout(time.Second))
				emit(t, h, "t.a", 1, promethean.Key("bad"))
				for i := range 5 {
					emit(t, h, "t.a", i, promethean.Key(fmt.Sprint(i)))
				}
				synctest.Wait()
				if n := len(good.get()); n != 5 {
					t.Errorf("%d neighbours were handled, want 5", n)
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				var letters []group.LetterAt
				if err := h.Engine().Letters(t.Context(), "t.a", "g", func(l group.LetterAt) bool {
					letters = append(letters, l)
					return true
				}); err != nil {
					t.Fatal(err)
				}
				if len(letters) != 1 || letters[0].Attempts != 2 || letters[0].Original.Key != "bad" {
					t.Fatalf("dead letters %+v", letters)
				}
				if bad == "panic" && (!strings.Contains(letters[0].Err, "out of cheese") || !strings.Contains(letters[0].Err, "hub_test.go")) {
					t.Errorf("the letter says %q", letters[0].Err)
				}
				close(release)
			})
		})
	}
}

func TestHandlerContextEndsWithTheLease(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		var ended, extended atomic.Int64
		subscribe(t, h, "t.a", "g", func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
			began := time.Now()
			if d.Attempt == 2 {
				if _, err := h.ModAck(ctx, "t.a", "g", 5*time.Second, e.ID); err != nil {
					return err
				}
			}
			<-ctx.Done()
			if d.Attempt == 1 {
				ended.Store(int64(time.Since(began)))
			} else {
				extended.Store(int64(time.Since(began)))
			}
			return context.Cause(ctx)
		}, promethean.AckTimeout(time.Second), promethean.MaxAttempts(2))
		emit(t, h, "t.a", 1)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if d := time.Duration(ended.Load()); d != time.Second {
			t.Errorf("the context ended after %v, want 1s", d)
		}
		if d := time.Duration(extended.Load()); d != 5*time.Second {
			t.Errorf("the extended context ended after %v, want 5s", d)
		}
	})
}

func TestManualAck(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		var ids []event.ID
		var mu sync.Mutex
		subscribe(t, h, "t.a", "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, e.ID)
			return nil
		}, promethean.ManualAck())
		r := emit(t, h, "t.a", 1)
		synctest.Wait()
		if p, err := h.Cursor(t.Context(), "t.a", "g"); err != nil || p.Seq != 0 || p.Pending != 1 {
			t.Errorf("%+v, %v", p, err)
		}
		res, err := h.Ack(t.Context(), "t.a", "g", r.ID)
		if err != nil || res[0].Err != nil {
			t.Fatal(res, err)
		}
		if p, err := h.Cursor(t.Context(), "t.a", "g"); err != nil || p.Seq != 1 || p.Pending != 0 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"a.*", "a.b", true}, {"a.*", "a.b.c", false}, {"a.*", "a", false}, {"a.**", "a", true}, {"a.**", "a.b.c", true},
		{"**", "a.b", true}, {"**", "dlq.a", false}, {"**", "system.x", false}, {"*.b", "a.b", true}, {"*.b", "dlq.b", false},
		{"dlq.*", "dlq.a", true}, {"a.**.z", "a.b.c.z", true}, {"a.**.z", "a.z", true}, {"a.**.z", "a.b", false}, {"a.b", "a.b", true},
	} {
		if got := promethean.MatchTopic(c.pattern, c.topic); got != c.want {
			t.Errorf("%s fits %s: %v, want %v", c.topic, c.pattern, got, c.want)
		}
	}
	in(t, func(t *testing.T, h *promethean.Hub) {
		emit(t, h, "a.one", "old")
		var seen list
		s := subscribe(t, h, "a.*", "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			seen.add(e.Topic + string(e.Payload))
			return nil
		}, promethean.Topics("b.x"))
		emit(t, h, "a.one", "new")
		emit(t, h, "a.two", "first") // a topic that appears is read from its first event
		emit(t, h, "b.x", "x")
		emit(t, h, "b.y", "y")
		synctest.Wait()
		got := seen.get()
		slices.Sort(got)
		if !slices.Equal(got, []string{`a.one"new"`, `a.two"first"`, `b.x"x"`}) {
			t.Errorf("seen %v", got)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		emit(t, h, "a.three", "late")
		synctest.Wait()
		if len(seen.get()) != 3 {
			t.Error("handled after Stop")
		}
		for _, bad := range []string{"a..*", "A.*", "a.b*", "***"} {
			if _, err := h.Subscribe(t.Context(), bad, "g", func(context.Context, event.Event, *promethean.Delivery) error { return nil }); !errors.Is(err, event.ErrInvalidTopic) {
				t.Errorf("pattern %q: %v", bad, err)
			}
		}
	})
}

func TestRefusals(t *testing.T) {
	in(t, func(t *testing.T, h *promethean.Hub) {
		emit(t, h, "t.a", 1)
		nothing := func(context.Context, event.Event, *promethean.Delivery) error { return nil }
		for _, c := range []struct {
			name string
			opt  promethean.SubscribeOption
			want error
		}{
			{"unknown id", promethean.AfterID(event.NewID()), group.ErrCursorUnknown},
			{"seq beyond the end", promethean.AfterSeq(5), group.ErrCursorUnknown},
			{"negative in flight", promethean.MaxInFlight(-1), group.ErrInvalid},
			{"negative batch", promethean.BatchSize(-1), group.ErrInvalid},
			{"negative attempts", promethean.MaxAttempts(-1), group.ErrInvalid},
		} {
			if _, err := h.Subscribe(t.Context(), "t.a", "new", nothing, c.opt); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		for _, topic := range []string{"dlq.t.a", "system.x", "No", ""} {
			if _, err := h.Publish(t.Context(), event.New(topic, []byte("1"))); !errors.Is(err, event.ErrInvalidTopic) {
				t.Errorf("publish to %q: %v", topic, err)
			}
		}
		for _, err := range h.Read(t.Context(), store.Query{Topic: "t.a", Limit: -1}) {
			if !errors.Is(err, group.ErrInvalid) {
				t.Errorf("read with a negative limit: %v", err)
			}
		}
	})
}

func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var done atomic.Bool
		subscribe(t, h, "t.a", "g", func(context.Context, event.Event, *promethean.Delivery) error {
			time.Sleep(5 * time.Second)
			done.Store(true)
			return nil
		})
		emit(t, h, "t.a", 1)
		synctest.Wait()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if !done.Load() {
			t.Error("Close did not wait for the handler")
		}
		if _, err := h.Emit(t.Context(), "t.a", 1); !errors.Is(err, promethean.ErrClosed) {
			t.Errorf("publish after Close: %v", err)
		}
	})
}

func TestExactlyOnce(t *testing.T) {
	for name, subscribe := range map[string]func(*promethean.Hub) func(context.Context, string, string, promethean.Handler, time.Duration, ...promethean.SubscribeOption) (promethean.Subscription, error){
		"durable": func(h *promethean.Hub) func(context.Context, string, string, promethean.Handler, time.Duration, ...promethean.SubscribeOption) (promethean.Subscription, error) {
			return h.SubscribeExactlyOnce
		},
		"in memory": func(h *promethean.Hub) func(context.Context, string, string, promethean.Handler, time.Duration, ...promethean.SubscribeOption) (promethean.Subscription, error) {
			return h.SubscribeOnceInMemory
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, h *promethean.Hub) {
				var seen list
				fails := 1
				_, err := subscribe(h)(t.Context(), "t.a", "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
					if fails > 0 {
						fails--
						return errors.New("once")
					}
					seen.add(string(e.Payload))
					return nil
				}, time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				emit(t, h, "t.a", 1)
				emit(t, h, "t.a", 2)
				time.Sleep(time.Second)
				synctest.Wait()
				back := promethean.Place{From: group.Earliest}
				if err := h.SetCursor(t.Context(), "t.a", "g", back); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if p, err := h.Cursor(t.Context(), "t.a", "g"); err != nil || p.Seq != 2 {
					t.Errorf("%+v, %v", p, err)
				}
				if got := seen.get(); len(got) != 2 {
					t.Errorf("handled %v", got)
				}
				time.Sleep(2 * time.Hour) // the marks are forgotten
				if err := h.SetCursor(t.Context(), "t.a", "g", back); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if got := seen.get(); len(got) != 4 {
					t.Errorf("handled %v", got)
				}
			})
		})
	}
}

// TestContextEndsWithALeaseThatIsCutShort lets a lease end before the deadline
// that the handler was given.
func TestContextEndsWithALeaseThatIsCutShort(t *testing.T) {
	for name, end := range map[string]func(h *promethean.Hub, id event.ID) error{
		"an earlier deadline": func(h *promethean.Hub, id event.ID) error {
			_, err := h.ModAck(context.Background(), "t.a", "g", 0, id)
			return err
		},
		"a nack": func(h *promethean.Hub, id event.ID) error {
			_, err := h.Nack(context.Background(), "t.a", "g", "no", id)
			return err
		},
		"a cursor that is moved": func(h *promethean.Hub, _ event.ID) error {
			return h.SetCursor(context.Background(), "t.a", "g", promethean.Place{From: group.Latest})
		},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(t *testing.T, h *promethean.Hub) {
				over := make(chan error, 9)
				subscribe(t, h, "t.a", "g", func(ctx context.Context, _ event.Event, d *promethean.Delivery) error {
					if d.Attempt == 1 {
						<-ctx.Done()
						over <- ctx.Err()
					}
					return nil
				})
				id := emit(t, h, "t.a", 1).ID
				synctest.Wait()
				began := time.Now()
				if err := end(h, id); err != nil {
					t.Fatal(err)
				}
				if err := <-over; !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("the handler heard of it after %v", took)
				}
			})
		})
	}
}
