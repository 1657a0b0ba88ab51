package outboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"promethean/event"
	"promethean/outbox"
)

// Memory is an outbox in memory: for tests of programs that have one, and what
// the suite compares drivers with. It is an [outbox.Store] and an [outbox.Waker].
type Memory struct {
	mu    sync.Mutex
	rows  []*memoryRow // in the order of commits
	skew  time.Duration
	wakes map[chan struct{}]bool
}

type memoryRow struct {
	outbox.Row
	state    outbox.State
	owner    string
	since    time.Time // when the state began
	until    time.Time // when the claim or the back-off is over
	reason   string
	failedAt time.Time // the last error
	added    time.Time
}

// NewMemory makes an empty outbox.
func NewMemory() *Memory { return &Memory{wakes: make(map[chan struct{}]bool)} }

// MemoryTx is a transaction of a [Memory].
type MemoryTx struct {
	m    *Memory
	rows []outbox.Row
}

// Begin starts a transaction.
func (m *Memory) Begin() *MemoryTx { return &MemoryTx{m: m} }

// Add adds rows once the transaction is committed.
func (tx *MemoryTx) Add(_ context.Context, rows ...outbox.Row) error {
	checked, err := outbox.CheckRows(rows, event.Limits{})
	if err != nil {
		return fmt.Errorf("add to outbox: %w", err)
	}
	tx.m.mu.Lock()
	defer tx.m.mu.Unlock()
	all := slices.Clone(tx.rows)
	for i, r := range checked {
		if tx.m.find(r.ID) != nil || slices.ContainsFunc(all, func(x outbox.Row) bool { return x.ID == r.ID }) {
			return fmt.Errorf("add to outbox: %w", &outbox.RowError{Index: i, Err: fmt.Errorf("id %s is there already", r.ID)})
		}
		all = append(all, r)
	}
	tx.rows = all
	return nil
}

// Commit makes the rows visible.
func (tx *MemoryTx) Commit(context.Context) error {
	tx.m.mu.Lock()
	defer tx.m.mu.Unlock()
	for _, r := range tx.rows {
		tx.m.rows = append(tx.m.rows, &memoryRow{Row: r, state: outbox.Pending, added: tx.m.now()})
	}
	if len(tx.rows) > 0 {
		for w := range tx.m.wakes {
			poke(w)
		}
	}
	tx.rows = nil
	return nil
}

// Rollback forgets the rows.
func (tx *MemoryTx) Rollback(context.Context) error {
	tx.rows = nil
	return nil
}

func poke(w chan struct{}) {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Advance moves the clock of the outbox, back if d is negative.
func (m *Memory) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.skew += d
}

func (m *Memory) now() time.Time { return time.Now().Add(m.skew) }

func (m *Memory) find(id event.ID) *memoryRow {
	for _, r := range m.rows {
		if r.ID == id {
			return r
		}
	}
	return nil
}

// over says whether the claim or the back-off of a row is over, by its end or
// since it began in the future: the clock was set back.
func (r *memoryRow) over(now time.Time) bool {
	return !r.until.After(now) || r.since.After(now.Add(time.Second))
}

func (r *memoryRow) become(s outbox.State, now time.Time) {
	r.state, r.owner, r.since, r.until = s, "", now, time.Time{}
}

// lane is what order goes by.
type lane struct{ topic, key string }

func laneOf(r *outbox.Row) lane { return lane{r.Topic, r.Key} }

// free gives the rows that one claim may take, in order.
func (m *Memory) free() (list []*memoryRow) {
	held := make(map[lane]bool)
	for _, r := range m.rows {
		switch {
		case r.state == outbox.Sent || r.Key != "" && held[laneOf(&r.Row)]:
		case r.state == outbox.Pending && r.over(m.now()):
			list = append(list, r)
		default:
			held[laneOf(&r.Row)] = true
		}
	}
	return list
}

// Setup implements [outbox.Store].
func (m *Memory) Setup(context.Context) error { return nil }

// ClaimBatch implements [outbox.Store].
func (m *Memory) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if err := outbox.CheckClaim(owner, n, lease); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list := m.free()
	var out []outbox.Row
	for _, r := range list[:min(n, len(list))] {
		m.claim(r, owner, lease)
		out = append(out, r.Row)
	}
	return out, nil
}

func (m *Memory) claim(r *memoryRow, owner string, lease time.Duration) {
	r.become(outbox.Claimed, m.now())
	r.owner, r.until = owner, m.now().Add(lease)
}

// MarkSent implements [outbox.Store].
func (m *Memory) MarkSent(_ context.Context, ids ...event.ID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if r := m.find(id); r != nil && r.state != outbox.Sent {
			r.become(outbox.Sent, m.now())
		}
	}
	return nil
}

func (m *Memory) owned(owner string, id event.ID) *memoryRow {
	if r := m.find(id); r != nil && r.state == outbox.Claimed && r.owner == owner {
		return r
	}
	return nil
}

// MarkError implements [outbox.Store].
func (m *Memory) MarkError(_ context.Context, owner string, refusals ...outbox.Refusal) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, f := range refusals {
		r := m.owned(owner, f.ID)
		if r == nil {
			continue
		}
		r.Attempts++
		r.reason, r.failedAt = outbox.TrimReason(f.Reason), now
		if f.GiveUp {
			r.become(outbox.Failed, now)
			continue
		}
		r.become(outbox.Pending, now)
		r.until = now.Add(f.After)
	}
	return nil
}

// Release implements [outbox.Store].
func (m *Memory) Release(_ context.Context, owner string, ids ...event.ID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if r := m.owned(owner, id); r != nil {
			r.become(outbox.Pending, m.now())
		}
	}
	return nil
}

// RequeueExpired implements [outbox.Store].
func (m *Memory) RequeueExpired(context.Context) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		if r.state == outbox.Claimed && r.over(m.now()) {
			r.become(outbox.Pending, m.now())
			n++
		}
	}
	return n, nil
}

// Stats implements [outbox.Store].
func (m *Memory) Stats(context.Context) (s outbox.Stats, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		switch r.state {
		case outbox.Pending:
			s.Pending++
			if r.reason != "" {
				s.Refused++
			}
		case outbox.Claimed:
			s.Claimed++
		case outbox.Failed:
			s.Failed++
		case outbox.Sent:
			continue
		}
		s.Oldest = max(s.Oldest, m.now().Sub(r.added))
	}
	return s, nil
}

// Errors implements [outbox.Store].
func (m *Memory) Errors(_ context.Context, limit int) (list []outbox.Refused, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, failed := range []bool{true, false} {
		for _, r := range m.rows {
			if len(list) < limit && r.state != outbox.Sent && r.reason != "" && (r.state == outbox.Failed) == failed {
				list = append(list, outbox.Refused{
					ID: r.ID, Topic: r.Topic, Key: r.Key, State: r.state, Attempts: r.Attempts, Error: r.reason, At: r.failedAt,
				})
			}
		}
	}
	return list, nil
}

// troubled says whether a person may retry or discard the row.
func (r *memoryRow) troubled() bool {
	return r.state == outbox.Failed || r.state == outbox.Pending && r.reason != ""
}

// Retry implements [outbox.Store].
func (m *Memory) Retry(_ context.Context, ids ...event.ID) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.rows {
		if r.troubled() && (len(ids) == 0 || slices.Contains(ids, r.ID)) {
			r.become(outbox.Pending, m.now())
			r.Attempts = 0
			n++
		}
	}
	for w := range m.wakes {
		poke(w)
	}
	return n, nil
}

// Discard implements [outbox.Store].
func (m *Memory) Discard(_ context.Context, ids ...event.ID) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	had := len(m.rows)
	m.rows = slices.DeleteFunc(m.rows, func(r *memoryRow) bool { return r.troubled() && slices.Contains(ids, r.ID) })
	return had - len(m.rows), nil
}

// Prune implements [outbox.Store].
func (m *Memory) Prune(_ context.Context, olderThan time.Duration, limit int) (n int, err error) {
	if err := outbox.CheckPrune(olderThan, limit); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	end := m.now().Add(-olderThan)
	m.rows = slices.DeleteFunc(m.rows, func(r *memoryRow) bool {
		if n < limit && r.state == outbox.Sent && !r.since.After(end) {
			n++
			return true
		}
		return false
	})
	return n, nil
}

// Wake implements [outbox.Waker].
func (m *Memory) Wake(ctx context.Context) (<-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wakes[w] = true
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.wakes, w)
		close(w)
	})
	return w, nil
}
