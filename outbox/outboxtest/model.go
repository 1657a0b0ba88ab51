package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"promethean/event"
	"promethean/outbox"
)

// Model draws random calls and compares what the driver answers with the outbox
// in memory. Each sequence runs on an outbox of its own.
func Model(t *testing.T, open func(t testing.TB) Harness) {
	rapid.Check(t, func(r *rapid.T) {
		// Cleanups are of the test: rapid runs sequences by the hundred.
		scope := &scope{TB: t}
		defer scope.end()
		h := open(scope)
		m := &model{r: r, t: scope, h: h, ref: NewMemory(), ctx: context.Background()}
		r.Repeat(map[string]func(*rapid.T){
			"add": m.add, "claim": m.claim, "send": m.send, "refuse": m.refuse, "release": m.release,
			"pass time": m.passTime, "requeue": m.requeue, "retry": m.retry, "discard": m.discard, "prune": m.prune,
			"": m.compare,
		})
	})
}

// scope is a test whose cleanups run at the end of a sequence.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup implements [testing.TB].
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// model is one sequence.
type model struct {
	r   *rapid.T
	t   testing.TB
	h   Harness
	ref *Memory
	ctx context.Context
	all []event.ID // every id that was ever committed
	n   int
}

func (m *model) check(err error) {
	m.r.Helper()
	if err != nil {
		m.r.Fatal(err)
	}
}

func (m *model) add(r *rapid.T) {
	tx, err := m.h.Begin(m.ctx)
	m.check(err)
	shadow := m.ref.Begin()
	rows := make([]outbox.Row, rapid.IntRange(1, 4).Draw(r, "rows"))
	for i := range rows {
		m.n++
		rows[i] = row("t", rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(r, "key"), m.n)
	}
	m.check(tx.Add(m.ctx, rows...))
	if m.h.NoTransactions == "" && rapid.IntRange(0, 3).Draw(r, "outcome") == 0 {
		m.check(tx.Rollback(m.ctx))
		return
	}
	m.check(tx.Commit(m.ctx))
	m.check(shadow.Add(m.ctx, rows...))
	m.check(shadow.Commit(m.ctx))
	m.all = append(m.all, idsOf(rows)...)
}

func owner(r *rapid.T) string { return rapid.SampledFrom([]string{"one", "two"}).Draw(r, "owner") }

// claim checks that what is given may be given, and that it is as much as there
// is; which rows of different keys come first is up to the driver.
func (m *model) claim(r *rapid.T) {
	who, n := owner(r), rapid.IntRange(1, 6).Draw(r, "n")
	got, err := m.h.Store.ClaimBatch(m.ctx, who, n, time.Hour)
	m.check(err)
	m.ref.mu.Lock()
	defer m.ref.mu.Unlock()
	free := m.ref.free()
	if want := min(n, len(free)); len(got) != want {
		r.Fatalf("claimed %d rows, want %d", len(got), want)
	}
	taken := make(map[event.ID]bool)
	for _, x := range got {
		at := slices.IndexFunc(free, func(f *memoryRow) bool { return f.ID == x.ID })
		if at < 0 || taken[x.ID] {
			r.Fatalf("row %s%s was given, and is not free", x.Key, x.Payload)
		}
		if x.Attempts != free[at].Attempts || string(x.Payload) != string(free[at].Payload) {
			r.Fatalf("claimed %+v, want %+v", x, free[at].Row)
		}
		for _, f := range free[:at] {
			if f.Key != "" && f.Key == x.Key && !taken[f.ID] {
				r.Fatalf("row %s%s was given, and not %s before it", x.Key, x.Payload, f.Payload)
			}
		}
		taken[x.ID] = true
	}
	for _, f := range free {
		if taken[f.ID] {
			m.ref.claim(f, who, time.Hour)
		}
	}
}

// pick draws ids, most of them of rows that are in a state.
func (m *model) pick(r *rapid.T, state outbox.State) []event.ID {
	m.ref.mu.Lock()
	var likely []event.ID
	for _, x := range m.ref.rows {
		if x.state == state {
			likely = append(likely, x.ID)
		}
	}
	m.ref.mu.Unlock()
	var out []event.ID
	for range rapid.IntRange(1, 3).Draw(r, "ids") {
		from := likely
		if len(from) == 0 || rapid.IntRange(0, 4).Draw(r, "any") == 0 {
			from = m.all
		}
		if len(from) == 0 {
			return []event.ID{event.NewID()}
		}
		if id := rapid.SampledFrom(from).Draw(r, "id"); !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

func (m *model) send(r *rapid.T) {
	ids := m.pick(r, outbox.Claimed)
	m.check(m.h.Store.MarkSent(m.ctx, ids...))
	m.check(m.ref.MarkSent(m.ctx, ids...))
}

func (m *model) refuse(r *rapid.T) {
	who := owner(r)
	var list []outbox.Refusal
	for _, id := range m.pick(r, outbox.Claimed) {
		list = append(list, outbox.Refusal{
			ID: id, Reason: fmt.Sprint("no ", m.n), After: rapid.SampledFrom([]time.Duration{0, 90 * time.Minute}).Draw(r, "after"), GiveUp: rapid.IntRange(0, 2).Draw(r, "give up") == 0,
		})
	}
	m.check(m.h.Store.MarkError(m.ctx, who, list...))
	m.check(m.ref.MarkError(m.ctx, who, list...))
}

func (m *model) release(r *rapid.T) {
	who, ids := owner(r), m.pick(r, outbox.Claimed)
	m.check(m.h.Store.Release(m.ctx, who, ids...))
	m.check(m.ref.Release(m.ctx, who, ids...))
}

func (m *model) passTime(r *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{40 * time.Minute, 3 * time.Hour, -24 * time.Hour}).Draw(r, "by")
	m.h.Advance(m.t, d)
	m.ref.Advance(d)
}

// same compares counts.
func (m *model) same(what string) func(int, error) func(int, error) {
	return func(got int, err error) func(int, error) {
		m.check(err)
		return func(want int, err error) {
			m.check(err)
			if got != want {
				m.r.Fatalf("%s: %d rows, want %d", what, got, want)
			}
		}
	}
}

func (m *model) requeue(*rapid.T) {
	m.same("requeue")(m.h.Store.RequeueExpired(m.ctx))(m.ref.RequeueExpired(m.ctx))
}

func (m *model) retry(r *rapid.T) {
	var ids []event.ID
	if rapid.Bool().Draw(r, "some") {
		ids = m.pick(r, outbox.Failed)
	}
	m.same("retry")(m.h.Store.Retry(m.ctx, ids...))(m.ref.Retry(m.ctx, ids...))
}

func (m *model) discard(r *rapid.T) {
	ids := m.pick(r, outbox.Failed)
	m.same("discard")(m.h.Store.Discard(m.ctx, ids...))(m.ref.Discard(m.ctx, ids...))
}

func (m *model) prune(r *rapid.T) {
	age := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(r, "age")
	m.same("prune")(m.h.Store.Prune(m.ctx, age, 1000))(m.ref.Prune(m.ctx, age, 1000))
}

// compare holds the counts and errors of both against each other.
func (m *model) compare(r *rapid.T) {
	got, err := m.h.Store.Stats(m.ctx)
	m.check(err)
	want, err := m.ref.Stats(m.ctx)
	m.check(err)
	got.Oldest, want.Oldest = 0, 0
	if got != want {
		r.Fatalf("stats %+v, want %+v", got, want)
	}
	list, err := m.h.Store.Errors(m.ctx, 1000)
	m.check(err)
	wanted, err := m.ref.Errors(m.ctx, 1000)
	m.check(err)
	if len(list) != len(wanted) {
		r.Fatalf("%d errors, want %d", len(list), len(wanted))
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(list, func(x outbox.Refused) bool {
			return x.ID == w.ID && x.State == w.State && x.Attempts == w.Attempts && x.Error == w.Error && x.Key == w.Key
		}) {
			r.Fatalf("errors %+v, want %+v among them", list, w)
		}
	}
}
