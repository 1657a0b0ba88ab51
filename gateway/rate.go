package gateway

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"promethean/event"
	"promethean/wire"
)

// rates bound how much comes in.
type rates struct {
	connection float64 // 0: no bound
	topics     map[string]*bucket
}

// newRates makes rates in the place of others, which may be nil: a topic whose
// rate stays keeps what it has taken.
func newRates(connection float64, topics map[string]float64, was *rates) *rates {
	r := &rates{topics: make(map[string]*bucket, len(topics))}
	if bounds(connection) {
		r.connection = connection
	}
	for t, n := range topics {
		switch {
		case !bounds(n):
		case was != nil && was.topics[t] != nil && was.topics[t].rate == n:
			r.topics[t] = was.topics[t]
		default:
			r.topics[t] = newBucket(n)
		}
	}
	return r
}

// bounds says whether a rate is one; all others mean that there is none.
func bounds(rate float64) bool { return rate > 0 && !math.IsInf(rate, 1) }

// events takes n events of a topic from its rate, or says when to come again.
func (r *rates) events(topic string, n int) error {
	b := r.topics[topic]
	if b == nil {
		return nil
	}
	if wait := b.take(time.Now(), float64(n)); wait > 0 {
		return &limited{err: wire.Errorf(wire.RateLimited, "topic %s takes %g events a second", topic, b.rate), wait: wait}
	}
	return nil
}

// batch takes the events of a batch from the rates of their topics: all of them,
// or none.
func (r *rates) batch(events []event.Event) error {
	if len(r.topics) == 0 {
		return nil
	}
	counts := make(map[string]int, 1)
	for i := range events {
		counts[events[i].Topic]++
	}
	var taken []string
	for topic, n := range counts {
		if err := r.events(topic, n); err != nil {
			for _, t := range taken {
				r.topics[t].giveBack(float64(counts[t]))
			}
			return err
		}
		if r.topics[topic] != nil {
			taken = append(taken, topic)
		}
	}
	return nil
}

type connectionKey struct{}

// ConnContext is for the field ConnContext of [http.Server]: it gives each TCP
// connection its share of [Options.ConnectionRate]. Without it requests are not
// bounded, only frames of WebSockets are. Clients behind one proxy may share a
// connection, and then its share.
func (g *Gateway) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	if g.rates().connection == 0 {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, newBucket(g.rates().connection))
}

// connection gives what bounds the connection of a request; nil if nothing does.
// A WebSocket goes on with it.
func (g *Gateway) connection(r *http.Request) *bucket {
	if b, ok := r.Context().Value(connectionKey{}).(*bucket); ok {
		return b
	}
	if g.rates().connection == 0 {
		return nil
	}
	return newBucket(g.rates().connection)
}

// request takes one request or frame from the rate of a connection, which may
// be nil, or says when to come again.
func (b *bucket) request() error {
	if b == nil {
		return nil
	}
	if wait := b.take(time.Now(), 1); wait > 0 {
		return &limited{err: wire.Errorf(wire.RateLimited, "a connection may send %g requests a second", b.rate), wait: wait}
	}
	return nil
}

// limited is a refusal that says when to come again.
type limited struct {
	err  error
	wait time.Duration
}

func (l *limited) Error() string { return l.err.Error() }

func (l *limited) Unwrap() error { return l.err }

// retryAfter is how many seconds a caller should wait.
func retryAfter(err error) int {
	var l *limited
	if errors.As(err, &l) {
		return max(1, int(math.Ceil(l.wait.Seconds())))
	}
	return 1
}

// longestWait is what a caller is told at most.
const longestWait = 24 * time.Hour

// bucket holds what may still come: it fills by rate a second, up to one
// second's worth. What is larger than that may come when it is full.
type bucket struct {
	rate float64

	mu   sync.Mutex
	have float64
	at   time.Time
}

func newBucket(rate float64) *bucket { return &bucket{rate: rate, have: max(rate, 1)} }

// take takes n, or says how long to wait and takes nothing.
func (b *bucket) take(now time.Time, n float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := max(b.rate, 1)
	switch {
	case b.at.IsZero():
		b.at = now
	case now.After(b.at): // callers come with times in any order
		b.have = min(most, b.have+b.rate*now.Sub(b.at).Seconds())
		b.at = now
	}
	if need := min(n, most); b.have < need {
		seconds := (need - b.have) / b.rate
		if seconds >= longestWait.Seconds() {
			return longestWait
		}
		return max(1, time.Duration(math.Ceil(seconds*float64(time.Second))))
	}
	b.have -= n // below zero after a large one: the next waits for longer
	return 0
}

// giveBack undoes a take.
func (b *bucket) giveBack(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.have = min(max(b.rate, 1), b.have+n)
}
