package store

import (
	"context"
	"fmt"
	"time"
)

// Leases is named, exclusive ownership that ends by itself. Time is the
// engine's, never the caller's, so that hubs with different clocks agree.
type Leases interface {
	// Acquire takes the lease if it is free, has expired or is owner's
	// already. Otherwise it fails with ErrHeld. Epoch is larger each time the
	// lease was free or has expired, also after a restart, and stays while the
	// owner holds it. A name has 1 to 512 bytes, an owner 1 to 256, and ttl is
	// positive; else ErrInvalid. An engine may round ttl up to a whole second.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (Lease, error)

	// Renew prolongs a lease that is still held with the same epoch: it ends
	// ttl from now. Otherwise it fails with ErrFenced.
	Renew(ctx context.Context, l Lease, ttl time.Duration) (Lease, error)

	// Release gives the lease back at once; one that is over is left alone.
	Release(ctx context.Context, l Lease) error
}

// Holds is the ability to say who has a lease. Engines with [Leases] that are
// [Shared] have it. It is found by [As].
type Holds interface {
	// Holder gives the lease of that name as it stands. If it is free, or has
	// expired by the engine's clock, that is ErrNotFound. A name that is no
	// lease's is ErrInvalid. Whoever acquired, renewed or released it before the
	// call is seen.
	Holder(ctx context.Context, name string) (Lease, error)
}

// Lease is ownership of a name up to a moment.
type Lease struct {
	Name, Owner string
	Epoch       uint64
	// Expires is by the engine's clock. An owner counts from the moment at
	// which it asked, by its own.
	Expires time.Time
}

// CheckLease says what is wrong with the arguments of Acquire. Engines share
// it.
func CheckLease(name, owner string, ttl time.Duration) error {
	if err := CheckLeaseName(name); err != nil {
		return err
	}
	switch {
	case owner == "" || len(owner) > 256:
		return fmt.Errorf("%w: a lease's owner has 1 to 256 bytes, not %d", ErrInvalid, len(owner))
	case ttl <= 0:
		return fmt.Errorf("%w: a lease of %v", ErrInvalid, ttl)
	}
	return nil
}

// CheckLeaseName says what is wrong with the name of a lease.
func CheckLeaseName(name string) error {
	if name == "" || len(name) > 512 {
		return fmt.Errorf("%w: a lease's name has 1 to 512 bytes, not %d", ErrInvalid, len(name))
	}
	return nil
}
