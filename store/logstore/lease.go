package logstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/store"
)

// Leases are cursors on a topic of their own: its epoch is the lease's, and who
// holds it until when stands in Meta. Compare-and-set is what cursors have
// anyway, and so is durability.

// leaseTopic is where leases are kept.
const leaseTopic = "system.leases"

// leaseMeta is what a lease's cursor holds beside the epoch.
type leaseMeta struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner,omitempty"` // none: it is free
	Expires time.Time `json:"expires"`
}

// leaseGroup is the name of a lease's cursor. Leases have longer names than
// groups.
func leaseGroup(name string) string {
	if len(name) <= maxGroup-len("sha256:") {
		return "name:" + name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// lease gives a lease as it stands; without one, a cursor to be made.
func (s *Store) lease(ctx context.Context, name string) (store.Cursor, leaseMeta, error) {
	var m leaseMeta
	c, err := s.Cursor(ctx, leaseTopic, leaseGroup(name))
	if errors.Is(err, store.ErrNotFound) {
		return store.Cursor{Topic: leaseTopic, Group: leaseGroup(name)}, m, nil
	}
	if err == nil {
		err = json.Unmarshal(c.Meta, &m)
	}
	return c, m, err
}

// putLease replaces a lease. It fails with store.ErrConflict if somebody else
// was quicker.
func (s *Store) putLease(ctx context.Context, c store.Cursor, m leaseMeta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c.Meta = b
	_, err = s.PutCursor(ctx, c)
	return err
}

// changeLease reads a lease, has it changed and puts it back, until nobody
// comes in between. If change says no, the lease stays as it is.
func (s *Store) changeLease(ctx context.Context, name string, change func(c *store.Cursor, m *leaseMeta, now time.Time) (bool, error)) error {
	for {
		c, m, err := s.lease(ctx, name)
		if err != nil {
			return fmt.Errorf("lease %s: %w", name, err)
		}
		put, err := change(&c, &m, time.Now())
		if err == nil && put {
			err = s.putLease(ctx, c, m)
		}
		if err == nil || !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrFenced) || !put {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// Acquire implements [store.Leases].
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	l := store.Lease{Name: name, Owner: owner}
	if err := store.CheckLease(name, owner, ttl); err != nil {
		return l, err
	}
	err := s.changeLease(ctx, name, func(c *store.Cursor, m *leaseMeta, now time.Time) (bool, error) {
		alive := m.Owner != "" && now.Before(m.Expires)
		if alive && m.Owner != owner {
			return false, fmt.Errorf("lease %s: %w until %s: %s", name, store.ErrHeld, m.Expires.Format(time.RFC3339), m.Owner)
		}
		if !alive {
			c.Epoch++
		}
		*m = leaseMeta{Name: name, Owner: owner, Expires: now.Add(ttl)}
		l.Epoch, l.Expires = c.Epoch, m.Expires
		return true, nil
	})
	return l, err
}

// Renew implements [store.Leases].
func (s *Store) Renew(ctx context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := store.CheckLease(l.Name, l.Owner, ttl); err != nil {
		return l, err
	}
	err := s.changeLease(ctx, l.Name, func(c *store.Cursor, m *leaseMeta, now time.Time) (bool, error) {
		if m.Owner != l.Owner || c.Epoch != l.Epoch || !now.Before(m.Expires) {
			return false, fmt.Errorf("lease %s: %w", l.Name, store.ErrFenced)
		}
		m.Expires = now.Add(ttl)
		l.Expires = m.Expires
		return true, nil
	})
	return l, err
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	return s.changeLease(ctx, l.Name, func(c *store.Cursor, m *leaseMeta, _ time.Time) (bool, error) {
		if m.Owner != l.Owner || c.Epoch != l.Epoch {
			return false, nil
		}
		m.Owner = ""
		return true, nil
	})
}

// Holder implements [store.Holds].
func (s *Store) Holder(ctx context.Context, name string) (store.Lease, error) {
	if err := store.CheckLeaseName(name); err != nil {
		return store.Lease{}, err
	}
	c, m, err := s.lease(ctx, name)
	if err == nil && (m.Owner == "" || !time.Now().Before(m.Expires)) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Lease{}, fmt.Errorf("holder of lease %s: %w", name, err)
	}
	return store.Lease{Name: name, Owner: m.Owner, Epoch: c.Epoch, Expires: m.Expires}, nil
}
