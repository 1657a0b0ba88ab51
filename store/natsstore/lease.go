package natsstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/store"
)

// A lease is a key of the bucket "leases". Its time is the leader's: the entry
// counts from the timestamp that the leader gave it, and is compared with the
// time in the leader's answer to an info request. The epoch is the revision
// with which the owner came: revisions of a bucket only rise.

// leaseRecord is the value of a lease's key.
type leaseRecord struct {
	Name  string        `json:"name"`
	Owner string        `json:"owner,omitempty"` // none: it is free
	Epoch uint64        `json:"epoch,omitempty"` // 0: the revision itself
	TTL   time.Duration `json:"ttl"`
}

// held is a lease as it stands.
type held struct {
	leaseRecord
	rev   uint64
	alive bool
	now   time.Time
	until time.Time
}

// lease reads a lease and judges it by the server's clock.
func (s *Store) lease(ctx context.Context, name string) (h held, err error) {
	e, err := s.get(ctx, s.leases, token(name, &kvSafe))
	if err != nil && !errors.Is(err, errGone) {
		return h, err
	}
	h.rev = e.rev
	if err == nil {
		if err := json.Unmarshal(e.value, &h.leaseRecord); err != nil {
			return h, fmt.Errorf("damaged entry: %w", err)
		}
		if h.Epoch == 0 {
			h.Epoch = e.rev
		}
	}
	err = s.retry(ctx, func(ctx context.Context) error {
		i, err := s.info(ctx, s.leases.stream)
		if err == nil {
			h.now = i.Now
			h.until = e.at.Add(h.TTL)
			h.alive = h.Owner != "" && i.Now.Before(h.until)
		}
		return err
	})
	return h, err
}

// changeLease reads a lease, has it changed and puts it back, until nobody
// comes in between. If change gives nothing, the lease stays as it is.
func (s *Store) changeLease(ctx context.Context, name string, change func(h held) (*leaseRecord, error)) (h held, rev uint64, err error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return h, 0, err
	}
	defer end()
	for wait := time.Duration(0); ; pause(ctx, &wait) {
		if h, err = s.lease(ctx, name); err != nil {
			break
		}
		var record *leaseRecord
		if record, err = change(h); err != nil || record == nil {
			break
		}
		var value []byte
		if value, err = json.Marshal(record); err != nil {
			break
		}
		rev, err = s.put(ctx, s.leases, token(name, &kvSafe), value, h.rev)
		if !errors.Is(err, errRace) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("lease %s: %w", shorten(name), s.outcome(ctx, err))
	}
	return h, rev, err
}

// Acquire implements [store.Leases].
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	l := store.Lease{Name: name, Owner: owner}
	if err := store.CheckLease(name, owner, ttl); err != nil {
		return l, err
	}
	h, rev, err := s.changeLease(ctx, name, func(h held) (*leaseRecord, error) {
		l.Epoch = 0
		if h.alive && h.Owner != owner {
			return nil, fmt.Errorf("%w: %s", store.ErrHeld, shorten(h.Owner))
		}
		if h.alive {
			l.Epoch = h.Epoch
		}
		return &leaseRecord{Name: name, Owner: owner, Epoch: l.Epoch, TTL: ttl}, nil
	})
	if err != nil {
		return store.Lease{Name: name, Owner: owner}, err
	}
	if l.Epoch == 0 {
		l.Epoch = rev
	}
	l.Expires = h.now.Add(ttl)
	return l, nil
}

// Renew implements [store.Leases].
func (s *Store) Renew(ctx context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := store.CheckLease(l.Name, l.Owner, ttl); err != nil {
		return l, err
	}
	h, _, err := s.changeLease(ctx, l.Name, func(h held) (*leaseRecord, error) {
		if !h.alive || h.Owner != l.Owner || h.Epoch != l.Epoch {
			return nil, store.ErrFenced
		}
		return &leaseRecord{Name: l.Name, Owner: l.Owner, Epoch: l.Epoch, TTL: ttl}, nil
	})
	if err != nil {
		return l, err
	}
	l.Expires = h.now.Add(ttl)
	return l, nil
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	_, _, err := s.changeLease(ctx, l.Name, func(h held) (*leaseRecord, error) {
		if h.Owner != l.Owner || h.Epoch != l.Epoch {
			return nil, nil
		}
		return &leaseRecord{Name: l.Name}, nil
	})
	return err
}

// Holder implements [store.Holds].
func (s *Store) Holder(ctx context.Context, name string) (store.Lease, error) {
	if err := store.CheckLeaseName(name); err != nil {
		return store.Lease{}, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return store.Lease{}, err
	}
	defer end()
	h, err := s.lease(ctx, name)
	if err == nil && !h.alive {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Lease{}, fmt.Errorf("holder of lease %s: %w", shorten(name), s.outcome(ctx, err))
	}
	return store.Lease{Name: name, Owner: h.Owner, Epoch: h.Epoch, Expires: h.until}, nil
}
