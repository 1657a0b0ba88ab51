package store

import (
	"context"
	"time"
)

// Leases is named, exclusive ownership that ends by itself. Time is the
// engine's, never the caller's, so that hubs with different clocks agree.
type Leases interface {
	// Acquire takes the lease if it is free, has expired or is owner's
	// already. Otherwise it fails with ErrHeld. Epoch is larger each time the
	// owner changes and stays on renewal.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (Lease, error)

	// Renew prolongs a lease that is still held with the same epoch, or fails
	// with ErrFenced.
	Renew(ctx context.Context, l Lease, ttl time.Duration) (Lease, error)

	// Release gives the lease back at once; one that is over is left alone.
	Release(ctx context.Context, l Lease) error
}

// Lease is ownership of a name up to a moment.
type Lease struct {
	Name, Owner string
	Epoch       uint64
	Expires     time.Time
}
