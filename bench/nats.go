package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/store/natsstore"
)

// Rows of the figures about NATS. Ours and the plain client's have a server of
// their own in this process, and the same durability: what the server says.
const (
	rowPlainSingle = "plain client, 64 publishers"
	rowOursSingle  = "us over nats, 64 publishers"
	rowPlainBatch  = "plain client, 4 publishers, atomic batches of 100"
	rowOursBatch   = "us over nats, 4 publishers, batches of 100"
	rowPlainTake   = "plain consumer, explicit acks"
	rowOursTake    = "us over nats, 1 group"
)

const natsBatch = 100

// sharedPlan is the size of the figures about engines with a server.
type sharedPlan struct {
	publish time.Duration // of one round
	events  int           // to consume
}

func planShared(short bool) sharedPlan {
	if short {
		return sharedPlan{publish: time.Second, events: 10_000}
	}
	return sharedPlan{publish: 6 * time.Second, events: 200_000}
}

// measureNats compares us with the plain client on a NATS server.
func (b *bench) measureNats(ctx context.Context) *measured {
	p := planShared(b.short)
	names := []string{rowPlainSingle, rowOursSingle, rowPlainBatch, rowOursBatch, rowPlainTake, rowOursTake}
	f := figure{name: figNats, title: "Over NATS JetStream, server and client in one process", note: "Both have the key in the subject. Processor time is that of server and client together."}
	durability := make(map[string]string)
	for _, n := range names {
		f.entries = append(f.entries, entry{name: n})
		durability[n] = notDurable // the server syncs every two minutes
	}
	ours := func(publishers, size int) func(context.Context, string) (outcome, error) {
		return func(ctx context.Context, dir string) (outcome, error) {
			return withNats(ctx, dir, func(log *natsstore.Store) (outcome, error) {
				return publishFor(ctx, p.publish, publishers, size, func(int) (publisher, error) { return logPublisher{log}, nil })
			})
		}
	}
	plain := func(publishers, size int) func(context.Context, string) (outcome, error) {
		return func(ctx context.Context, dir string) (outcome, error) {
			return plainNats(ctx, dir, p.publish, publishers, size)
		}
	}
	return b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowPlainSingle: plain(64, 1),
		rowOursSingle:  ours(64, 1),
		rowPlainBatch:  plain(4, natsBatch),
		rowOursBatch:   ours(4, natsBatch),
		rowPlainTake: func(ctx context.Context, dir string) (outcome, error) {
			return consumeJet(ctx, dir, p.events, true)
		},
		rowOursTake: func(ctx context.Context, dir string) (outcome, error) {
			return withNats(ctx, dir, func(log *natsstore.Store) (outcome, error) { return consumeOver(ctx, log, p.events) })
		},
	}, durability)
}

// timed adds the processor time that f takes.
func timed(f func() (outcome, error)) (outcome, error) {
	before, err := processorTime()
	if err != nil {
		return outcome{}, err
	}
	out, err := f()
	after, failed := processorTime()
	out.cpu = after - before
	return out, errors.Join(err, failed)
}

// withNats opens a store on a server of its own.
func withNats(ctx context.Context, dir string, f func(*natsstore.Store) (outcome, error)) (out outcome, err error) {
	s, stop, err := embeddedServer(dir, false)
	if err != nil {
		return out, err
	}
	defer stop()
	log, err := natsstore.Open(ctx, "nats://in-process", natsstore.Options{Connect: []nats.Option{nats.InProcessServer(s)}})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	return f(log)
}

// plainNats publishes with the plain client.
func plainNats(ctx context.Context, dir string, d time.Duration, publishers, size int) (out outcome, err error) {
	s, stop, err := embeddedServer(dir, false)
	if err != nil {
		return out, err
	}
	defer stop()
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return out, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return out, err
	}
	if _, err := jetTopic(ctx, js); err != nil {
		return out, err
	}
	return publishFor(ctx, d, publishers, size, func(int) (publisher, error) { return keyedPublisher{&jetPublisher{js: js, nc: nc}}, nil })
}

// keyedPublisher is the plain client with the key in the subject, as ours has
// it: it is what lets a server find the events of a key.
type keyedPublisher struct{ *jetPublisher }

// Publish implements publisher.
func (p keyedPublisher) Publish(ctx context.Context, evs []event.Event) error {
	for i := range evs {
		evs[i].Topic += "." + evs[i].Key
	}
	return p.jetPublisher.Publish(ctx, evs)
}

// logPublisher publishes to an engine.
type logPublisher struct{ log store.Log }

func (p logPublisher) Publish(ctx context.Context, evs []event.Event) error {
	_, err := p.log.Append(ctx, store.Batch{Events: evs})
	return err
}

func (logPublisher) Close() error { return nil }

// publishFor has publishers publish batches for a while.
func publishFor(ctx context.Context, d time.Duration, publishers, size int, of func(i int) (publisher, error)) (outcome, error) {
	return timed(func() (outcome, error) {
		var n atomic.Int64
		var wg sync.WaitGroup
		errs := make(chan error, publishers)
		start := time.Now()
		for i := range publishers {
			p, err := of(i)
			if err != nil {
				return outcome{}, err
			}
			wg.Go(func() {
				gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, i)
				for time.Since(start) < d && ctx.Err() == nil {
					batch := make([]event.Event, size)
					gen.fill(batch)
					if err := p.Publish(ctx, batch); err != nil {
						errs <- err
						return
					}
					n.Add(int64(size))
				}
			})
		}
		wg.Wait()
		out := outcome{events: n.Load(), elapsed: time.Since(start)}
		select {
		case err := <-errs:
			return out, err
		default:
			return out, ctx.Err()
		}
	})
}

// consumeOver has a hub over an engine handle n events that are there.
func consumeOver(ctx context.Context, log promethean.Log, n int) (out outcome, err error) {
	h, err := promethean.New(log, promethean.Options{})
	if err != nil {
		return out, err
	}
	if err := fillHub(ctx, h, n, nil); err != nil {
		return out, errors.Join(err, h.Close())
	}
	out, err = timed(func() (outcome, error) {
		start := time.Now()
		_, err := h.Subscribe(ctx, topicName(0), "g", nothing, promethean.FromEarliest(), promethean.MaxInFlight(1000))
		if err == nil {
			err = waitForLag(ctx, h, "g", 0)
		}
		return outcome{events: int64(n), elapsed: time.Since(start)}, err
	})
	return out, errors.Join(err, h.Close())
}

// sharedSection shows a figure of an engine with a server; each row is compared
// with the one that is named for it.
func sharedSection(m *measured, against map[string]string) section {
	s := section{title: m.title, note: m.note, columns: []string{"row", "durability", "events/s", "min–max", "processor time", "÷ plain"}}
	for _, r := range m.rows {
		cells := rateCells(r)
		ratio := "–"
		if base := m.row(against[r.name]); base != nil {
			ratio = orDash(pairwise(r.rates(), base.rates()))
		}
		cost := "–"
		if v := spreadOf(r.costs()).Median; v > 0 {
			cost = fmt.Sprintf("%.1f µs", 1e6*v)
		}
		s.rows = append(s.rows, []string{r.name, r.durability, cells[0], cells[1], cost, ratio})
		if r.err != nil {
			s.note += fmt.Sprintf(" %s failed: %v.", r.name, r.err)
		}
	}
	return s
}

var natsAgainst = map[string]string{rowOursSingle: rowPlainSingle, rowOursBatch: rowPlainBatch, rowOursTake: rowPlainTake}

// sharedFigures measures the engines with a server.
func (b *bench) sharedFigures(ctx context.Context) error {
	if b.figure(figNats) {
		m := b.measureNats(ctx)
		b.results.figures[figNats] = m
		b.note(m)
		b.show(sharedSection(m, natsAgainst))
	}
	if err := ctx.Err(); err != nil || !b.figure(figMongo) {
		return err
	}
	return b.mongoFigure(ctx)
}

func sharedGates(r results, ratio func(name string, limit float64, atLeast bool, q []float64) gate) []gate {
	n, m := r.figures[figNats], r.figures[figMongo]
	return []gate{
		ratio("over nats, 64 publishers, us ÷ plain client", 0.8, true, pairwise(n.row(rowOursSingle).rates(), n.row(rowPlainSingle).rates())),
		ratio("over nats, batches, us ÷ plain client", 0.8, true, pairwise(n.row(rowOursBatch).rates(), n.row(rowPlainBatch).rates())),
		ratio("over nats, consuming, us ÷ plain consumer", 1, true, pairwise(n.row(rowOursTake).rates(), n.row(rowPlainTake).rates())),
		ratio("over nats, processor time an event, us ÷ plain client", 1.15, false, pairwise(n.row(rowOursSingle).costs(), n.row(rowPlainSingle).costs())),
		ratio("over nats, processor time an event in batches, us ÷ plain client", 1.15, false, pairwise(n.row(rowOursBatch).costs(), n.row(rowPlainBatch).costs())),
		ratio("over mongodb, 64 publishers, us ÷ an insert for each event", 5, true, pairwise(m.row(rowOursMongo).rates(), m.row(rowInsertOne).rates())),
		ratio("over mongodb, us ÷ inserts of the mean commit", 0.6, true, pairwise(m.row(rowOursMongo).rates(), m.row(rowInsertMany).rates())),
	}
}
