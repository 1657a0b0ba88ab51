package storetest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"promethean/store"
)

var leaseCases = []Case{
	{Name: "lease/one owner at a time", needs: needsLeases, run: leaseExclusive},
	{Name: "lease/ends by itself", needs: needsLeases, run: leaseExpires},
	{Name: "lease/renewed it goes on", needs: needsLeases, run: leaseRenewed},
	{Name: "lease/given back it is free", needs: needsLeases, run: leaseReleased},
	{Name: "lease/epochs rise over a restart", needs: needsLeases | needsReopen, run: leaseReopened},
	{Name: "lease/many want it", needs: needsLeases, run: leaseContended},
	{Name: "lease/many want a new one", needs: needsLeases, run: leaseContendedNew},
	{Name: "lease/its holder is known", needs: needsLeases | needsHolds, run: leaseHolder},
	{Name: "lease/its holder is known after a restart", needs: needsLeases | needsHolds | needsReopen, run: leaseHolderReopened},
	{Name: "lease/bad input", needs: needsLeases, run: leaseInput},
}

// ttl is how long leases last that a case waits for. Engines may have whole
// seconds only.
const ttl = time.Second

func (t *trial) leases() store.Leases { return t.e.(store.Leases) }

func (t *trial) acquire(name, owner string, d time.Duration) store.Lease {
	t.Helper()
	l, err := t.leases().Acquire(t.ctx, name, owner, d)
	t.ok(err, "acquire %s for %s", name, owner)
	if l.Name != name || l.Owner != owner || l.Epoch == 0 || l.Expires.IsZero() {
		t.Fatalf("acquire %s for %s gives %+v", name, owner, l)
	}
	return l
}

// wantHeld checks that somebody else owns a lease.
func (t *trial) wantHeld(name, owner string) {
	t.Helper()
	if l, err := t.leases().Acquire(t.ctx, name, owner, time.Minute); !errors.Is(err, store.ErrHeld) {
		t.Fatalf("acquire %s for %s: %+v, %v; want that it is held", name, owner, l, err)
	}
}

// untilFree tries to get a lease until that works.
func (t *trial) untilFree(name, owner string, d time.Duration) store.Lease {
	t.Helper()
	for {
		l, err := t.leases().Acquire(t.ctx, name, owner, d)
		if err == nil {
			return l
		}
		if !errors.Is(err, store.ErrHeld) {
			t.Fatalf("acquire %s for %s: %v", name, owner, err)
		}
		select {
		case <-t.ctx.Done():
			t.Fatalf("waited in vain for lease %s", name)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func leaseExclusive(t *trial) {
	l := t.acquire("a", "me", time.Minute)
	t.wantHeld("a", "you")
	if again := t.acquire("a", "me", time.Minute); again.Epoch != l.Epoch {
		t.Fatalf("the owner gets epoch %d, and has %d", again.Epoch, l.Epoch)
	}
	t.wantHeld("a", "you")
	t.acquire("b", "you", time.Minute) // another name is another lease
	t.acquire("a.>*/ b\x00ä", "you", time.Minute)
	t.acquire(strings.Repeat("n", 512), strings.Repeat("o", 256), time.Minute)
}

func leaseExpires(t *trial) {
	began := time.Now()
	mine := t.acquire("a", "me", ttl)
	theirs := t.untilFree("a", "you", time.Minute)
	if took := time.Since(began); took < ttl/2 {
		t.Fatalf("a lease of %v was over after %v", ttl, took)
	}
	if theirs.Epoch <= mine.Epoch {
		t.Fatalf("epoch %d after %d", theirs.Epoch, mine.Epoch)
	}
	if _, err := t.leases().Renew(t.ctx, mine, time.Minute); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("renew what is over: %v, want fenced", err)
	}
	t.ok(t.leases().Release(t.ctx, mine), "release what is over")
	t.wantHeld("a", "me")
	if _, err := t.leases().Renew(t.ctx, theirs, time.Minute); err != nil {
		t.Fatalf("renew: %v", err)
	}
	// Also nobody else may have come: it is over all the same.
	alone := t.acquire("b", "me", ttl)
	for {
		l, err := t.leases().Acquire(t.ctx, "b", "me", ttl)
		t.ok(err, "acquire what was ours")
		if l.Epoch > alone.Epoch {
			break
		}
		select { // it is prolonged by that, so wait for its end
		case <-t.ctx.Done():
			t.Fatal("a lease that nobody renews goes on")
		case <-time.After(ttl + ttl/2):
		}
	}
}

func leaseRenewed(t *trial) {
	l := t.acquire("a", "me", 2*ttl)
	for began := time.Now(); time.Since(began) < 4*ttl; {
		t.wantHeld("a", "you")
		again, err := t.leases().Renew(t.ctx, l, 2*ttl)
		t.ok(err, "renew")
		if again.Epoch != l.Epoch || again.Owner != "me" || again.Name != "a" || again.Expires.Before(l.Expires) {
			t.Fatalf("renewed to %+v from %+v", again, l)
		}
		l = again
		select {
		case <-t.ctx.Done():
			t.Fatal(t.ctx.Err())
		case <-time.After(ttl / 4):
		}
	}
	// Renewing may shorten it too.
	if _, err := t.leases().Renew(t.ctx, l, ttl); err != nil {
		t.Fatalf("renew: %v", err)
	}
	t.untilFree("a", "you", time.Minute)
}

func leaseReleased(t *trial) {
	l := t.acquire("a", "me", time.Minute)
	t.ok(t.leases().Release(t.ctx, l), "release")
	t.ok(t.leases().Release(t.ctx, l), "release again")
	if _, err := t.leases().Renew(t.ctx, l, time.Minute); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("renew what was given back: %v, want fenced", err)
	}
	theirs := t.acquire("a", "you", time.Minute)
	if theirs.Epoch <= l.Epoch {
		t.Fatalf("epoch %d after %d", theirs.Epoch, l.Epoch)
	}
	t.ok(t.leases().Release(t.ctx, l), "release what is somebody else's")
	t.wantHeld("a", "me")
	// Its former owner is a new one too.
	t.ok(t.leases().Release(t.ctx, theirs), "release")
	if again := t.acquire("a", "you", time.Minute); again.Epoch <= theirs.Epoch {
		t.Fatalf("epoch %d after %d", again.Epoch, theirs.Epoch)
	}
}

func leaseReopened(t *trial) {
	held := t.acquire("held", "me", time.Minute)
	free := t.acquire("free", "me", time.Minute)
	t.ok(t.leases().Release(t.ctx, free), "release")
	t.reopen()
	if l := t.acquire("free", "you", time.Minute); l.Epoch <= free.Epoch {
		t.Fatalf("epoch %d after %d", l.Epoch, free.Epoch)
	}
	t.wantHeld("held", "you")
	if l, err := t.leases().Renew(t.ctx, held, time.Minute); err != nil || l.Epoch != held.Epoch {
		t.Fatalf("renew: %+v, %v", l, err)
	}
}

// leaseContended has many owners take turns.
func leaseContended(t *trial) {
	const owners, turns = 8, 5
	var holders atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	for o := range owners {
		all.Go(func() {
			owner := fmt.Sprint("owner ", o)
			for range turns {
				var l store.Lease
				for {
					var err error
					if l, err = t.leases().Acquire(t.ctx, "a", owner, time.Minute); err == nil {
						break
					}
					if !errors.Is(err, store.ErrHeld) {
						t.Errorf("acquire: %v", err)
						return
					}
					select {
					case <-t.ctx.Done():
						t.Error("waited in vain for the lease")
						return
					case <-time.After(time.Millisecond):
					}
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d owners at a time", n)
				}
				if before := last.Swap(l.Epoch); before >= l.Epoch {
					t.Errorf("epoch %d after %d", l.Epoch, before)
				}
				for range 50 { // time for another to be let in
					runtime.Gosched()
				}
				holders.Add(-1)
				if err := t.leases().Release(t.ctx, l); err != nil {
					t.Errorf("release: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// leaseContendedNew: of many that want a lease which nobody ever had, one gets
// it, and the others are told that it is held.
func leaseContendedNew(t *trial) {
	const names, owners = 20, 8
	for n := range names {
		name := fmt.Sprint("new ", n)
		var got atomic.Int32
		var all sync.WaitGroup
		for o := range owners {
			all.Go(func() {
				switch _, err := t.leases().Acquire(t.ctx, name, fmt.Sprint("owner ", o), time.Minute); {
				case err == nil:
					got.Add(1)
				case !errors.Is(err, store.ErrHeld):
					t.Errorf("acquire %s: %v", name, err)
				}
			})
		}
		all.Wait()
		if n := got.Load(); n != 1 {
			t.Errorf("%d of %d have got %s", n, owners, name)
		}
	}
}

func leaseInput(t *trial) {
	for _, c := range []struct {
		name, owner string
		ttl         time.Duration
	}{{"", "me", ttl}, {"a", "", ttl}, {"a", "me", 0}, {"a", "me", -ttl}, {strings.Repeat("n", 513), "me", ttl}, {"a", strings.Repeat("o", 257), ttl}} {
		if _, err := t.leases().Acquire(t.ctx, c.name, c.owner, c.ttl); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("acquire %+v: %v, want that it is invalid", c, err)
		}
	}
	l := t.acquire("a", "me", time.Minute)
	if _, err := t.leases().Renew(t.ctx, l, 0); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("renew for no time: %v, want that it is invalid", err)
	}
	if _, err := t.leases().Renew(t.ctx, store.Lease{Name: "never", Owner: "me", Epoch: 1}, time.Minute); !errors.Is(err, store.ErrFenced) {
		t.Errorf("renew what never was: %v, want fenced", err)
	}
	t.ok(t.leases().Release(t.ctx, store.Lease{Name: "never", Owner: "me", Epoch: 1}), "release what never was")
}

func (t *trial) wantHolder(want store.Lease) {
	t.Helper()
	got, err := t.e.(store.Holds).Holder(t.ctx, want.Name)
	if err != nil || got.Name != want.Name || got.Owner != want.Owner || got.Epoch != want.Epoch {
		t.Fatalf("the holder is %+v, %v; want %+v", got, err, want)
	}
	// The time of an entry and that of an answer may be some milliseconds apart.
	if d := got.Expires.Sub(want.Expires).Abs(); d > ttl/2 {
		t.Fatalf("the holder's lease ends at %v, and it was told %v", got.Expires, want.Expires)
	}
}

func (t *trial) wantFree(name string) {
	t.Helper()
	if l, err := t.e.(store.Holds).Holder(t.ctx, name); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("the holder of %q is %+v, %v; want that there is none", name, l, err)
	}
}

func leaseHolder(t *trial) {
	t.wantFree("a")
	l := t.acquire("a", "me", time.Minute)
	t.wantHolder(l)
	t.wantFree("b")
	l, err := t.leases().Renew(t.ctx, l, 2*time.Minute)
	t.ok(err, "renew")
	t.wantHolder(l)
	t.ok(t.leases().Release(t.ctx, l), "release")
	t.wantFree("a")
	t.wantHolder(t.acquire("a", "you", time.Minute))
	// One that runs out is nobody's, though nobody else came.
	short := t.acquire("short", "me", ttl)
	t.wantHolder(short)
	began := time.Now()
	for {
		_, err := t.e.(store.Holds).Holder(t.ctx, "short")
		if errors.Is(err, store.ErrNotFound) {
			break
		}
		t.ok(err, "holder")
		select {
		case <-t.ctx.Done():
			t.Fatal("a lease that is over has a holder")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if took := time.Since(began); took < ttl/2 {
		t.Fatalf("a lease of %v was nobody's after %v", ttl, took)
	}
	odd := t.acquire("a.>*/ b\x00ä\n", "my \x00 self", time.Minute)
	t.wantHolder(odd)
	t.wantHolder(t.acquire(strings.Repeat("n", 512), strings.Repeat("o", 256), time.Minute))
	for _, name := range []string{"", strings.Repeat("n", 513)} {
		if _, err := t.e.(store.Holds).Holder(t.ctx, name); !errors.Is(err, store.ErrInvalid) {
			t.Errorf("the holder of a name of %d bytes: %v, want that it is invalid", len(name), err)
		}
	}
}

func leaseHolderReopened(t *trial) {
	held := t.acquire("held", "me", time.Minute)
	free := t.acquire("free", "me", time.Minute)
	t.ok(t.leases().Release(t.ctx, free), "release")
	t.reopen()
	t.wantHolder(held)
	t.wantFree("free")
}
