package outboxtest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"promethean/event"
	"promethean/outbox"
)

// broken is an outbox that keeps all promises but one.
type broken struct {
	*Memory
	claim  func(owner string, n int, lease time.Duration) []outbox.Row
	error  func(owner string, f outbox.Refusal) outbox.Refusal
	sent   func(ids []event.ID) []event.ID
	prune  func() int
	owner  func(owner string, id event.ID) string
	expire func() // before requeueing
	stats  func(*outbox.Stats)
	errors func([]outbox.Refused) []outbox.Refused
	again  func(ids []event.ID) []event.ID // what is retried
	deaf   bool
}

func (b *broken) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if b.claim == nil {
		return b.Memory.ClaimBatch(ctx, owner, n, lease)
	}
	if err := outbox.CheckClaim(owner, n, lease); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claim(owner, n, lease), nil
}

func (b *broken) as(owner string, id event.ID) string {
	if b.owner == nil {
		return owner
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owner(owner, id)
}

func (b *broken) MarkError(ctx context.Context, owner string, list ...outbox.Refusal) error {
	for _, f := range list {
		if b.error != nil {
			f = b.error(owner, f)
		}
		if err := b.Memory.MarkError(ctx, b.as(owner, f.ID), f); err != nil {
			return err
		}
	}
	return nil
}

func (b *broken) Release(ctx context.Context, owner string, ids ...event.ID) error {
	for _, id := range ids {
		if err := b.Memory.Release(ctx, b.as(owner, id), id); err != nil {
			return err
		}
	}
	return nil
}

func (b *broken) MarkSent(ctx context.Context, ids ...event.ID) error {
	if b.sent != nil {
		ids = b.sent(ids)
	}
	return b.Memory.MarkSent(ctx, ids...)
}

func (b *broken) RequeueExpired(ctx context.Context) (int, error) {
	if b.expire != nil {
		b.mu.Lock()
		b.expire()
		b.mu.Unlock()
	}
	return b.Memory.RequeueExpired(ctx)
}

func (b *broken) Prune(ctx context.Context, age time.Duration, n int) (int, error) {
	if b.prune != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.prune(), nil
	}
	return b.Memory.Prune(ctx, age, n)
}

func (b *broken) Stats(ctx context.Context) (outbox.Stats, error) {
	s, err := b.Memory.Stats(ctx)
	if b.stats != nil {
		b.stats(&s)
	}
	return s, err
}

func (b *broken) Errors(ctx context.Context, limit int) ([]outbox.Refused, error) {
	list, err := b.Memory.Errors(ctx, limit)
	if b.errors != nil {
		list = b.errors(list)
	}
	return list, err
}

func (b *broken) Retry(ctx context.Context, ids ...event.ID) (int, error) {
	if b.again != nil {
		ids = b.again(ids)
	}
	return b.Memory.Retry(ctx, ids...)
}

func (b *broken) Wake(ctx context.Context) (<-chan struct{}, error) {
	w, err := b.Memory.Wake(ctx)
	if !b.deaf || err != nil {
		return w, err
	}
	quiet := make(chan struct{})
	context.AfterFunc(ctx, func() { close(quiet) })
	return quiet, nil
}

// give claims rows whatever order asks for.
func (b *broken) give(owner string, n int, lease time.Duration, rows []*memoryRow) (out []outbox.Row) {
	for _, r := range rows[:min(n, len(rows))] {
		b.Memory.claim(r, owner, lease)
		out = append(out, r.Row)
	}
	return out
}

func (b *broken) in(s outbox.State) (list []*memoryRow) {
	for _, r := range b.rows {
		if r.state == s {
			list = append(list, r)
		}
	}
	return list
}

var faults = []struct {
	name   string
	spoil  func(b *broken)
	caught string // by this case among others
}{
	{"rows are given to several", func(b *broken) {
		b.claim = func(owner string, n int, lease time.Duration) []outbox.Row {
			return b.give(owner, n, lease, append(b.free(), b.in(outbox.Claimed)...))
		}
	}, "claim/nobody else has the rows"},
	{"a key does not wait for what is before", func(b *broken) {
		b.claim = func(owner string, n int, lease time.Duration) []outbox.Row {
			return b.give(owner, n, lease, slices.DeleteFunc(b.in(outbox.Pending), func(r *memoryRow) bool { return !r.over(b.now()) }))
		}
	}, "claim/no more than asked for, the first of each key first"},
	{"the same, seen by one drainer", func(b *broken) {
		b.claim = func(owner string, n int, lease time.Duration) []outbox.Row {
			return b.give(owner, n, lease, slices.DeleteFunc(b.in(outbox.Pending), func(r *memoryRow) bool { return !r.over(b.now()) }))
		}
	}, "drain/a refused row waits visibly, others go on"},
	{"the newest first", func(b *broken) {
		b.claim = func(owner string, n int, lease time.Duration) []outbox.Row {
			rows := b.free()
			slices.Reverse(rows)
			return b.give(owner, n, lease, rows)
		}
	}, "drain/a drainer publishes all, in order"},
	{"back-off is forgotten", func(b *broken) {
		b.error = func(_ string, f outbox.Refusal) outbox.Refusal { f.After = 0; return f }
	}, "mark/a refused row waits, and is due again"},
	{"nothing is ever given up", func(b *broken) {
		b.error = func(_ string, f outbox.Refusal) outbox.Refusal { f.GiveUp = false; return f }
	}, "mark/one that was given up waits for a person"},
	{"reasons are lost", func(b *broken) {
		b.error = func(_ string, f outbox.Refusal) outbox.Refusal { f.Reason = "error"; return f }
	}, "mark/errors are visible"},
	{"claims that are over still count", func(b *broken) {
		b.owner = func(owner string, id event.ID) string {
			if r := b.find(id); r != nil && r.state == outbox.Claimed {
				return r.owner
			}
			return owner
		}
	}, "claim/one that is over changes nothing but what was sent"},
	{"leases never end", func(b *broken) {
		b.expire = func() {
			for _, r := range b.in(outbox.Claimed) {
				r.since, r.until = b.now(), b.now().Add(time.Hour)
			}
		}
	}, "claim/a lease ends, and not earlier"},
	{"leases end early", func(b *broken) {
		b.expire = func() {
			for _, r := range b.in(outbox.Claimed) {
				r.until = time.Time{}
			}
		}
	}, "claim/a lease ends, and not earlier"},
	{"a clock that is set back is not noticed", func(b *broken) {
		b.expire = func() {
			for _, r := range b.in(outbox.Claimed) {
				r.since = time.Time{}
			}
		}
	}, "claim/the clock is set back"},
	{"one of those that were sent is not marked", func(b *broken) {
		b.sent = func(ids []event.ID) []event.ID { return ids[:max(len(ids)-1, 0)] }
	}, "mark/what is sent does not come again"},
	{"prune takes what is not sent", func(b *broken) {
		b.prune = func() int { n := len(b.rows); b.rows = nil; return n }
	}, "care/prune removes what was sent long ago"},
	{"failed rows are not counted", func(b *broken) {
		b.stats = func(s *outbox.Stats) { s.Failed = 0 }
	}, "care/stats tell counts and age"},
	{"age is of the newest", func(b *broken) {
		b.stats = func(s *outbox.Stats) { s.Oldest = min(s.Oldest, time.Second) }
	}, "care/stats tell counts and age"},
	{"errors are listed in any order", func(b *broken) {
		b.errors = func(list []outbox.Refused) []outbox.Refused { slices.Reverse(list); return list }
	}, "mark/errors are visible"},
	{"a retry of one is a retry of all", func(b *broken) {
		b.again = func([]event.ID) []event.ID { return nil }
	}, "care/retry makes rows due at once"},
	{"nobody is woken", func(b *broken) { b.deaf = true }, "care/a commit wakes"},
}

// earlyTx shows its rows before they are committed, and after a rollback.
type earlyTx struct{ *MemoryTx }

func (tx earlyTx) Add(ctx context.Context, rows ...outbox.Row) error {
	if err := tx.MemoryTx.Add(ctx, rows...); err != nil {
		return err
	}
	return tx.MemoryTx.Commit(ctx)
}

func brokenHarness(b *broken) func(testing.TB) Harness {
	return func(testing.TB) Harness {
		return Harness{
			Store: b, Begin: func(context.Context) (Tx, error) { return b.Begin(), nil },
			Advance: func(_ testing.TB, d time.Duration) { b.Advance(d) }, Timeout: 2 * time.Second,
		}
	}
}

func TestSuiteNotices(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			b := &broken{Memory: NewMemory()}
			f.spoil(b)
			wantCaught(t, f.caught, brokenHarness(b))
		})
	}
	t.Run("a rollback keeps the rows", func(t *testing.T) {
		h := brokenHarness(&broken{Memory: NewMemory()})
		wantCaught(t, "add/what is rolled back never comes", func(t testing.TB) Harness {
			h := h(t)
			m := h.Store.(*broken).Memory
			h.Begin = func(context.Context) (Tx, error) { return earlyTx{m.Begin()}, nil }
			return h
		})
	})
}

func wantCaught(t *testing.T, name string, open func(testing.TB) Harness) {
	t.Helper()
	i := slices.IndexFunc(Cases(), func(c Case) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no case %s", name)
	}
	if got := record(t, func(t testing.TB) { Cases()[i].Run(t, open) }); len(got) == 0 {
		t.Errorf("case %s does not notice it", name)
	}
}

// recorder is a testing.TB that takes failures down instead of failing.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// record runs f on a recorder and gives the failures.
func record(t testing.TB, f func(t testing.TB)) []string {
	r := &recorder{TB: t}
	var done sync.WaitGroup
	done.Go(func() {
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		f(r)
	})
	done.Wait()
	return r.failures
}

func (r *recorder) note(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, text)
}

func (r *recorder) Helper()                   {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Error(args ...any)         { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(args ...any)         { r.note(fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.note(fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *recorder) Skip(...any)               { runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)      { runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}
