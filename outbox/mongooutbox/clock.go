package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// clock knows the server's time and what it is.
type clock struct {
	mu      sync.Mutex
	server  time.Time // what it said
	asked   time.Time // when, by the clock that is never set
	transac bool      // its transactions are real
}

// askEvery is how often the server is asked for its time.
const askEvery = 10 * time.Second

// slack is how far a beginning may lie in the future before the clock counts as
// set back.
const slack = 1000

// ask greets the server if it was not greeted lately.
func (b *Outbox) ask(ctx context.Context) error {
	c := &b.clock
	if !c.asked.IsZero() && time.Since(c.asked) < askEvery {
		return nil
	}
	// Not with the session of a transaction that the context may carry.
	ctx = sessionless{ctx}
	began := time.Now()
	var hello struct {
		LocalTime time.Time `bson:"localTime"`
		SetName   string    `bson:"setName"`
		Msg       string    `bson:"msg"` // isdbgrid: a router of a cluster
	}
	if err := b.db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return fmt.Errorf("greet the server: %w", err)
	}
	c.asked = began.Add(time.Since(began) / 2)
	c.server, c.transac = hello.LocalTime, hello.SetName != "" || hello.Msg == "isdbgrid"
	if c.server.IsZero() { // it does not say
		c.server = c.asked
	}
	return nil
}

// now is the server's time in epoch milliseconds.
func (b *Outbox) now(ctx context.Context) (int64, error) {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	if err := b.ask(ctx); err != nil {
		return 0, err
	}
	return b.clock.server.Add(time.Since(b.clock.asked)).UnixMilli(), nil
}

// transacts says whether the server's transactions are real.
func (b *Outbox) transacts(ctx context.Context) (bool, error) {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	err := b.ask(ctx)
	return b.clock.transac, err
}

// sessionless is a context without the session that the driver puts into it.
type sessionless struct{ context.Context }

// Value implements [context.Context]. A session is the only value that the driver
// looks for with a key of its own; nothing else is needed here.
func (sessionless) Value(any) any { return nil }

// ms is a duration in milliseconds, rounded up.
func ms(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// contended says that a compatible server could not get a lock, or that two made
// the same document at once. Trying again helps.
func contended(err error) bool {
	var s mongo.ServerError
	return errors.As(err, &s) && (s.HasErrorCode(16908292) || s.HasErrorCode(16777245) || s.HasErrorMessage("deadlock detected"))
}

// again makes a call again while others are in its way.
func again(ctx context.Context, call func() error) error {
	for pause := 2 * time.Millisecond; ; pause *= 2 {
		err := call()
		if !contended(err) || pause > time.Second {
			return err
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
