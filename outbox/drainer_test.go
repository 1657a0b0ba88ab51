package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean/event"
	"promethean/outbox"
	"promethean/outbox/outboxtest"
	"promethean/store"
)

// sink is a log in memory that knows ids, and refuses what it is told to.
type sink struct {
	mu     sync.Mutex
	events []event.Event
	calls  int
	// refuse gives the error of a batch; nil stores it.
	refuse func(events []event.Event) error
}

func (s *sink) PublishBatch(_ context.Context, events []event.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.refuse != nil {
		if err := s.refuse(events); err != nil {
			return err
		}
	}
	for _, e := range events {
		if !slices.ContainsFunc(s.events, func(x event.Event) bool { return x.ID == e.ID }) {
			s.events = append(s.events, e)
		}
	}
	return nil
}

func (s *sink) set(refuse func([]event.Event) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// names are keys and payloads of what is stored, in order.
func (s *sink) names() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		list = append(list, e.Key+string(e.Payload))
	}
	return list
}

// bad refuses batches that have one of the events, without saying which.
func bad(err error, names ...string) func([]event.Event) error {
	return func(events []event.Event) error {
		for _, e := range events {
			if slices.Contains(names, e.Key+string(e.Payload)) {
				return err
			}
		}
		return nil
	}
}

// named refuses as a hub does: it names the first bad event.
func named(err error, names ...string) func([]event.Event) error {
	return func(events []event.Event) error {
		for i, e := range events {
			if slices.Contains(names, e.Key+string(e.Payload)) {
				return fmt.Errorf("publish: %w", &store.EventError{Index: i, Err: err})
			}
		}
		return nil
	}
}

func add(t *testing.T, m *outboxtest.Memory, names ...string) {
	t.Helper()
	tx := m.Begin()
	for _, name := range names {
		r := outbox.Row{Topic: "orders.placed", Key: name[:1], Payload: json.RawMessage(name[1:])}
		if err := tx.Add(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// start runs a drainer until the test ends.
func start(t *testing.T, s outbox.Store, p outbox.Publisher, o outbox.Options) *outbox.Drainer {
	t.Helper()
	d, err := outbox.New(s, p, o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return d
}

func wantNames(t *testing.T, s *sink, want ...string) {
	t.Helper()
	if got := s.names(); !slices.Equal(got, want) {
		t.Fatalf("published %q, want %q", got, want)
	}
}

// plain is a store that does not wake, and counts what it is asked.
type plain struct {
	outbox.Store
	mu    sync.Mutex
	asked int
}

func (p *plain) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
}

func (p *plain) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *plain) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	p.ask()
	return p.Store.ClaimBatch(ctx, owner, n, lease)
}

func (p *plain) Stats(ctx context.Context) (outbox.Stats, error) {
	p.ask()
	return p.Store.Stats(ctx)
}

func (p *plain) RequeueExpired(ctx context.Context) (int, error) {
	p.ask()
	return p.Store.RequeueExpired(ctx)
}

func (p *plain) Prune(ctx context.Context, age time.Duration, n int) (int, error) {
	p.ask()
	return p.Store.Prune(ctx, age, n)
}

func TestDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{}
		add(t, m, "a1", "b1", "a2")
		d := start(t, m, log, outbox.Options{Name: "orders"})
		synctest.Wait()
		wantNames(t, log, "a1", "b1", "a2")
		add(t, m, "a3") // wakes
		synctest.Wait()
		wantNames(t, log, "a1", "b1", "a2", "a3")
		time.Sleep(time.Minute)
		s := d.Status()
		if s.SentTotal != 4 || s.Stats != (outbox.Stats{}) || s.LastSent.IsZero() || s.Outage != "" || !s.Running || !s.Waking || s.Lag() != 0 {
			t.Errorf("status %+v", s)
		}
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		if n, err := m.Prune(t.Context(), 0, 10); n != 0 || err != nil {
			t.Errorf("%d rows were left unpruned, %v", n, err)
		}
	})
}

func TestIdleCostsUnderOneQueryASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, log := &plain{Store: outboxtest.NewMemory()}, &sink{}
		start(t, p, log, outbox.Options{})
		time.Sleep(10 * time.Second) // it has come to rest
		before := p.count()
		const watched = 10 * time.Minute
		time.Sleep(watched)
		if n := p.count() - before; n >= int(watched.Seconds()) {
			t.Errorf("%d queries in %s", n, watched)
		} else if n < 100 {
			t.Errorf("%d queries in %s: it does not look", n, watched)
		}
	})
}

// nervous is a store that wakes four times a second, whatever there is.
type nervous struct{ *plain }

func (n nervous) Wake(ctx context.Context) (<-chan struct{}, error) {
	woken := make(chan struct{}, 1)
	go func() {
		defer close(woken)
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}()
	return woken, nil
}

// So it is where the store wakes for nothing, as that of a busy SQLite file does;
// and rows still come soon.
func TestWokenForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, to := outboxtest.NewMemory(), &sink{}
		p := &plain{Store: m}
		start(t, nervous{p}, to, outbox.Options{})
		time.Sleep(time.Minute)
		before := p.count()
		time.Sleep(10 * time.Minute)
		if asked := p.count() - before; asked >= 600 {
			t.Errorf("%d queries in 10 minutes", asked)
		}
		add(t, m, "a1")
		began := time.Now()
		for len(to.names()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 1800*time.Millisecond {
			t.Errorf("a row was noticed after %s", took)
		}
		add(t, m, "a2")
		time.Sleep(300 * time.Millisecond) // there was work: it is awake
		synctest.Wait()
		wantNames(t, to, "a1", "a2")
	})
}

func TestLooksSoonAfterWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{}
		start(t, &plain{Store: m}, log, outbox.Options{})
		time.Sleep(time.Hour)
		add(t, m, "a1")
		began := time.Now()
		for len(log.names()) == 0 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > 1510*time.Millisecond {
			t.Errorf("an idle drainer noticed a row after %s", took)
		}
		add(t, m, "a2")
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		wantNames(t, log, "a1", "a2")
	})
}

func TestRefusedRowHoldsUpItsKeyAlone(t *testing.T) {
	schema := errors.New("schema invalid: no")
	for name, refuse := range map[string]func(error, ...string) func([]event.Event) error{"named": named, "unnamed": bad} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, log := outboxtest.NewMemory(), &sink{refuse: refuse(schema, "a2", "c1")}
				add(t, m, "a1", "b1", "a2", "c1", "a3", "b2", "c2", "d1")
				d := start(t, m, log, outbox.Options{})
				synctest.Wait()
				got := log.names()
				slices.Sort(got)
				if want := []string{"a1", "b1", "b2", "d1"}; !slices.Equal(got, want) {
					t.Fatalf("published %q, want %q", got, want)
				}
				list, err := m.Errors(t.Context(), 10)
				if err != nil || len(list) != 2 || list[0].Attempts != 1 || list[0].State != outbox.Pending {
					t.Fatalf("errors %+v, %v", list, err)
				}
				if s := d.Status(); s.RefusedTotal != 2 || s.LastError != list[1].Error || s.Outage != "" {
					t.Errorf("status %+v", s)
				}
				log.set(nil)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				got = log.names()
				for _, pair := range [][2]string{{"a1", "a2"}, {"a2", "a3"}, {"c1", "c2"}} {
					if x, y := slices.Index(got, pair[0]), slices.Index(got, pair[1]); x < 0 || y < 0 || y < x {
						t.Errorf("published %q: %s is not before %s", got, pair[0], pair[1])
					}
				}
			})
		})
	}
}

func TestBackoffGrowsToACap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{refuse: bad(errors.New("no"), "a1")}
		add(t, m, "a1", "a2")
		d := start(t, m, log, outbox.Options{MinBackoff: time.Second, MaxBackoff: 5 * time.Second, MaxAttempts: 6})
		synctest.Wait()
		for n, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			began := time.Now()
			for d.Status().RefusedTotal < uint64(n)+2 {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took < pause*8/10 || took > pause*12/10+300*time.Millisecond {
				t.Errorf("pause %d was %s, want about %s", n, took, pause)
			}
		}
		time.Sleep(time.Hour)
		s, err := m.Stats(t.Context())
		if err != nil || s.Failed != 1 || s.Pending != 1 || d.Status().RefusedTotal != 6 {
			t.Fatalf("stats %+v, %v, %+v", s, err, d.Status())
		}
		log.set(nil)
		if n, err := m.Retry(t.Context()); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		synctest.Wait()
		wantNames(t, log, "a1", "a2")
	})
}

func TestOutageIsNoAttempt(t *testing.T) {
	for _, outage := range []error{
		store.ErrUnavailable, store.ErrClosed, context.DeadlineExceeded, errors.New("of my own"), coded("rate_limited"), coded("unauthorized"), coded(""),
	} {
		synctest.Test(t, func(t *testing.T) {
			m, log := outboxtest.NewMemory(), &sink{refuse: func([]event.Event) error { return fmt.Errorf("publish: %w", outage) }}
			add(t, m, "a1", "a2", "b1")
			d := start(t, m, log, outbox.Options{Outage: func(err error) bool { return err.Error() == "publish: of my own" }})
			time.Sleep(time.Minute)
			synctest.Wait()
			if s := d.Status(); s.RefusedTotal != 0 || s.Outage == "" || s.Pending != 3 || s.Refused != 0 || s.Lag() < 30*time.Second {
				t.Errorf("%v: status %+v, lag %s", outage, s, s.Lag())
			}
			if log.calls > 40 || log.calls < 12 {
				t.Errorf("%v: tried %d times in a minute", outage, log.calls)
			}
			log.set(nil)
			time.Sleep(6 * time.Second)
			synctest.Wait()
			wantNames(t, log, "a1", "a2", "b1")
			if s := d.Status(); s.Outage != "" || s.LastError == "" {
				t.Errorf("status %+v", s)
			}
		})
	}
}

type coded string

func (c coded) Error() string     { return "code " + string(c) }
func (c coded) ErrorCode() string { return string(c) }

// An error of no known kind that all rows meet ends the attempt early, and one
// that only the first ones meet does not keep the others.
func TestUnknownErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{refuse: func([]event.Event) error { return errors.New("odd") }}
		var first, rest []string
		for i := range 20 {
			first = append(first, fmt.Sprintf("%c1", 'a'+i))
		}
		for i := range 20 {
			rest = append(rest, fmt.Sprintf("%c1", 'A'+i))
		}
		add(t, m, append(slices.Clone(first), rest...)...)
		d := start(t, m, log, outbox.Options{MinBackoff: time.Hour, MaxBackoff: time.Hour})
		synctest.Wait()
		if s := d.Status(); s.RefusedTotal != 8 || s.Outage == "" {
			t.Errorf("status %+v", s)
		}
		log.set(bad(errors.New("odd"), first...))
		time.Sleep(time.Minute)
		synctest.Wait()
		wantNames(t, log, rest...)
	})
}

func TestLargeBatchesAreDivided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxtest.NewMemory()
		largest := 0
		log := &sink{refuse: func(events []event.Event) error {
			largest = max(largest, len(events))
			if len(events) > 3 {
				return store.ErrTooLarge
			}
			return nil
		}}
		names := []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"}
		add(t, m, names...)
		d := start(t, m, log, outbox.Options{MaxBytes: 500})
		synctest.Wait()
		wantNames(t, log, names...)
		if s := d.Status(); s.RefusedTotal != 0 || largest > 6 {
			t.Errorf("batches of %d, status %+v", largest, s)
		}
	})
}

func TestDamagedRowIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{}
		add(t, m, "a1", "b1", "b2")
		start(t, &damaging{Store: m, key: "a"}, log, outbox.Options{})
		synctest.Wait()
		wantNames(t, log, "b1", "b2")
		list, err := m.Errors(t.Context(), 10)
		if err != nil || len(list) != 1 || list[0].Error != "meta: not JSON" {
			t.Errorf("errors %+v, %v", list, err)
		}
	})
}

// damaging gives the rows of a key as unreadable.
type damaging struct {
	outbox.Store
	key string
}

func (d *damaging) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	rows, err := d.Store.ClaimBatch(ctx, owner, n, lease)
	for i := range rows {
		if rows[i].Key == d.key {
			rows[i].Damaged(errors.New("meta: not JSON"))
		}
	}
	return rows, err
}

// A publisher that does not answer is given up before the lease is over.
func TestSlowPublisherIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxtest.NewMemory()
		add(t, m, "a1")
		slow := outbox.PublisherFunc(func(ctx context.Context, _ []event.Event) error {
			<-ctx.Done()
			return ctx.Err()
		})
		d := start(t, m, slow, outbox.Options{Lease: 30 * time.Second})
		time.Sleep(25 * time.Second)
		synctest.Wait()
		s, err := m.Stats(t.Context())
		if err != nil || d.Status().Outage == "" || s.Pending+s.Claimed != 1 || s.Refused != 0 {
			t.Errorf("stats %+v, %v, status %+v", s, err, d.Status())
		}
	})
}

// The rows of a drainer that was killed come when their lease is over, also where
// the store wakes and has nothing to tell.
func TestKilledDrainerHoldsRowsForALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lease = 2 * time.Second
		m, s := outboxtest.NewMemory(), &sink{}
		add(t, m, "a1")
		if rows, err := m.ClaimBatch(t.Context(), "killed", 1, lease); err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		start(t, m, s, outbox.Options{Lease: lease})
		time.Sleep(lease + lease/2)
		synctest.Wait()
		wantNames(t, s, "a1")
	})
}

// A database that does not answer is noticed, and does not stop the drainer for
// good.
func TestStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, log := outboxtest.NewMemory(), &sink{}
		add(t, m, "a1")
		d := start(t, &hanging{Store: m, until: time.Now().Add(time.Minute)}, log, outbox.Options{})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s := d.Status(); s.Outage == "" {
			t.Errorf("status %+v", s)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		wantNames(t, log, "a1")
	})
}

// hanging is a store whose claims are not answered for a while.
type hanging struct {
	outbox.Store
	until time.Time
}

func (h *hanging) ClaimBatch(ctx context.Context, owner string, n int, lease time.Duration) ([]outbox.Row, error) {
	if time.Now().Before(h.until) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Store.ClaimBatch(ctx, owner, n, lease)
}

func TestCloseGivesRowsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxtest.NewMemory()
		add(t, m, "a1", "b1")
		stuck := outbox.PublisherFunc(func(ctx context.Context, _ []event.Event) error {
			<-ctx.Done()
			return ctx.Err()
		})
		d := start(t, m, stuck, outbox.Options{})
		synctest.Wait()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err := m.Stats(t.Context()); err != nil || s.Pending != 2 || s.Claimed != 0 {
			t.Errorf("stats %+v, %v", s, err)
		}
		if d.Status().Running {
			t.Error("it says that it runs")
		}
		if err := d.Run(t.Context()); !errors.Is(err, outbox.ErrRunning) {
			t.Errorf("run after close: %v", err)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	m := outboxtest.NewMemory()
	for _, o := range []outbox.Options{
		{Batch: -1}, {Every: -1}, {Lease: time.Millisecond}, {MinBackoff: time.Hour, MaxBackoff: time.Minute}, {MaxAttempts: -1}, {Name: "\xff"}, {MaxBytes: -1}, {StatsEvery: -1},
	} {
		if _, err := outbox.New(m, &sink{}, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if _, err := outbox.New(nil, &sink{}, outbox.Options{}); err == nil {
		t.Error("no store was taken")
	}
}
