package storetest

import (
	"context"
	"fmt"
	"time"

	"promethean/store"
)

// heldLease is a lease as the reference keeps it.
type heldLease struct {
	owner   string // "": it is free
	epoch   uint64
	expires time.Time
}

func (l heldLease) alive() bool { return l.owner != "" && time.Now().Before(l.expires) }

// Acquire implements [store.Leases].
func (r *Reference) Acquire(_ context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	if err := store.CheckLease(name, owner, ttl); err != nil {
		return store.Lease{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return store.Lease{}, store.ErrClosed
	}
	l := r.leases[name]
	if l.alive() && l.owner != owner {
		return store.Lease{}, fmt.Errorf("lease %s: %w", name, store.ErrHeld)
	}
	if !l.alive() {
		l.epoch++
	}
	l.owner, l.expires = owner, time.Now().Add(ttl)
	r.leases[name] = l
	return store.Lease{Name: name, Owner: owner, Epoch: l.epoch, Expires: l.expires}, nil
}

// Renew implements [store.Leases].
func (r *Reference) Renew(_ context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := store.CheckLease(l.Name, l.Owner, ttl); err != nil {
		return l, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return l, store.ErrClosed
	}
	h := r.leases[l.Name]
	if !h.alive() || h.owner != l.Owner || h.epoch != l.Epoch {
		return l, fmt.Errorf("lease %s: %w", l.Name, store.ErrFenced)
	}
	h.expires = time.Now().Add(ttl)
	r.leases[l.Name] = h
	l.Expires = h.expires
	return l, nil
}

// Release implements [store.Leases].
func (r *Reference) Release(_ context.Context, l store.Lease) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return store.ErrClosed
	}
	if h := r.leases[l.Name]; h.owner == l.Owner && h.epoch == l.Epoch {
		h.owner = ""
		r.leases[l.Name] = h
	}
	return nil
}

// Holder implements [store.Holds].
func (r *Reference) Holder(_ context.Context, name string) (store.Lease, error) {
	if err := store.CheckLeaseName(name); err != nil {
		return store.Lease{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return store.Lease{}, store.ErrClosed
	}
	h := r.leases[name]
	if !h.alive() {
		return store.Lease{}, fmt.Errorf("lease %s: %w", name, store.ErrNotFound)
	}
	return store.Lease{Name: name, Owner: h.owner, Epoch: h.epoch, Expires: h.expires}, nil
}
