package mongostore

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"promethean/store"
)

// leaseDoc is a lease's document. It stays when the lease is free, so that
// epochs go on rising.
type leaseDoc struct {
	Owner []byte    `bson:"owner"` // none: it is free
	Epoch int64     `bson:"epoch"`
	Until time.Time `bson:"until"`
	Now   time.Time `bson:"now"` // when it was last asked for
}

// Expressions of the server's language, over the stored document. The time is
// the server's in all of them.
var (
	leaseNow = "$$NOW"
	// leaseAlive: somebody has the lease. A document that is just being made
	// has no until, and nothing is below every time.
	leaseAlive = bson.D{{Key: "$and", Value: bson.A{
		bson.D{{Key: "$gt", Value: bson.A{"$until", leaseNow}}}, bson.D{{Key: "$gt", Value: bson.A{"$epoch", int64(0)}}},
	}}}
)

func leaseOwner(owner string) bson.D {
	return bson.D{{Key: "$literal", Value: bson.Binary{Data: []byte(owner)}}}
}

func leaseEnd(ttl time.Duration) bson.D {
	ms := max((ttl + time.Millisecond - 1).Milliseconds(), 1)
	return bson.D{{Key: "$add", Value: bson.A{leaseNow, ms}}}
}

func cond(is, then, otherwise any) bson.D {
	return bson.D{{Key: "$cond", Value: bson.A{is, then, otherwise}}}
}

// Acquire implements [store.Leases]. It is one step on the server, and may be
// repeated: who has the lease gets it again with the same epoch.
func (s *Store) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
	l := store.Lease{Name: name, Owner: owner}
	if err := store.CheckLease(name, owner, ttl); err != nil {
		return store.Lease{}, fmt.Errorf("acquire lease: %w", err)
	}
	others := bson.D{{Key: "$and", Value: bson.A{leaseAlive, bson.D{{Key: "$ne", Value: bson.A{"$owner", leaseOwner(owner)}}}}}}
	d, _, err := s.changeLease(ctx, name, bson.D{
		{Key: "owner", Value: cond(others, "$owner", leaseOwner(owner))},
		{Key: "epoch", Value: cond(leaseAlive, "$epoch", bson.D{{Key: "$add", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$epoch", int64(0)}}}, int64(1)}}})},
		{Key: "until", Value: cond(others, "$until", leaseEnd(ttl))},
		{Key: "now", Value: leaseNow},
	}, true)
	if err != nil {
		return store.Lease{}, fmt.Errorf("acquire lease %s: %w", shorten(name), err)
	}
	if string(d.Owner) != owner {
		return store.Lease{}, fmt.Errorf("acquire lease %s: %w until %s: %s", shorten(name), store.ErrHeld, d.Until.Format(time.RFC3339), shorten(string(d.Owner)))
	}
	l.Epoch, l.Expires = uint64(d.Epoch), d.Until
	return l, nil
}

// leaseMine: the lease is l and not over.
func leaseMine(l store.Lease) bson.D {
	return bson.D{{Key: "$and", Value: bson.A{
		leaseAlive, bson.D{{Key: "$eq", Value: bson.A{"$owner", leaseOwner(l.Owner)}}}, bson.D{{Key: "$eq", Value: bson.A{"$epoch", int64(l.Epoch)}}},
	}}}
}

// Renew implements [store.Leases].
func (s *Store) Renew(ctx context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
	if err := store.CheckLease(l.Name, l.Owner, ttl); err != nil {
		return store.Lease{}, fmt.Errorf("renew lease: %w", err)
	}
	d, found, err := s.changeLease(ctx, l.Name, bson.D{
		{Key: "until", Value: cond(leaseMine(l), leaseEnd(ttl), "$until")},
		{Key: "now", Value: leaseNow},
	}, false)
	if err != nil {
		return store.Lease{}, fmt.Errorf("renew lease %s: %w", shorten(l.Name), err)
	}
	if !found || string(d.Owner) != l.Owner || uint64(d.Epoch) != l.Epoch || !d.Until.After(d.Now) {
		return store.Lease{}, fmt.Errorf("renew lease %s, epoch %d: %w", shorten(l.Name), l.Epoch, store.ErrFenced)
	}
	l.Expires = d.Until
	return l, nil
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, l store.Lease) error {
	_, _, err := s.changeLease(ctx, l.Name, bson.D{
		{Key: "owner", Value: cond(leaseMine(l), bson.D{{Key: "$literal", Value: bson.Binary{Data: []byte{}}}}, "$owner")},
		{Key: "until", Value: cond(leaseMine(l), leaseNow, "$until")},
		{Key: "now", Value: leaseNow},
	}, false)
	if err != nil {
		return fmt.Errorf("release lease %s: %w", shorten(l.Name), err)
	}
	return nil
}

// changeLease changes a lease's document by expressions over what is stored,
// and gives it as it is then.
func (s *Store) changeLease(ctx context.Context, name string, set bson.D, make bool) (d leaseDoc, found bool, err error) {
	err = s.call(ctx, func(ctx context.Context) error {
		return s.do(ctx, func(ctx context.Context) error {
			for {
				err := s.leases.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: nameID(name)}}, bson.A{bson.D{{Key: "$set", Value: set}}},
					options.FindOneAndUpdate().SetUpsert(make).SetReturnDocument(options.After)).Decode(&d)
				switch {
				case duplicate(err): // two made it at once, and the other was quicker
					continue
				case isNone(err):
					return nil
				}
				found = err == nil
				return err
			}
		})
	})
	return d, found, err
}

// Holder implements [store.Holds]. It only reads.
func (s *Store) Holder(ctx context.Context, name string) (store.Lease, error) {
	if err := store.CheckLeaseName(name); err != nil {
		return store.Lease{}, fmt.Errorf("holder of lease: %w", err)
	}
	var d leaseDoc
	found := false
	err := s.call(ctx, func(ctx context.Context) error {
		return s.do(ctx, func(ctx context.Context) error {
			all, err := s.leases.Aggregate(ctx, bson.A{
				bson.D{{Key: "$match", Value: bson.D{{Key: "_id", Value: nameID(name)}}}},
				bson.D{{Key: "$set", Value: bson.D{{Key: "now", Value: leaseNow}}}},
			})
			if err != nil {
				return err
			}
			defer func() { _ = all.Close(ctx) }()
			if found = all.Next(ctx); found {
				return all.Decode(&d)
			}
			return all.Err()
		})
	})
	if err == nil && (!found || len(d.Owner) == 0 || !d.Until.After(d.Now)) {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Lease{}, fmt.Errorf("holder of lease %s: %w", shorten(name), err)
	}
	return store.Lease{Name: name, Owner: string(d.Owner), Epoch: uint64(d.Epoch), Expires: d.Until}, nil
}
