package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"promethean"
	"promethean/event"
)

// Rows of the consumption figures.
const (
	rowOneGroup   = "us, 1 group"
	rowFourGroups = "us, 4 groups"
	rowJetExplict = "jetstream embedded, explicit acks"
	rowAlone      = "us, publishing alone"
	rowBeside     = "us, publishing while a group consumes"
	rowFsync      = "raw append + fdatasync"
	rowUsDeliver  = "us"
	rowJetDeliver = "jetstream-always embedded"
)

const consumeKeys = 10_000

// consumePlan is the size of the consumption figures.
type consumePlan struct {
	events  int           // already in the log
	live    time.Duration // of one round of publishing
	latency time.Duration // of one round at 1,000/s
}

func planConsume(short bool) consumePlan {
	if short {
		return consumePlan{events: 50_000, live: time.Second, latency: time.Second}
	}
	return consumePlan{events: 500_000, live: 8 * time.Second, latency: 6 * time.Second}
}

// inScratch runs f with an empty directory, which is removed afterwards.
func (b *bench) inScratch(f func(dir string) error) error {
	dir, err := os.MkdirTemp(b.work, "round-")
	if err != nil {
		return err
	}
	return errors.Join(f(dir), discard(dir))
}

// roundsOf runs the rows of a figure in interleaved rounds, each in an empty
// directory.
func (b *bench) roundsOf(ctx context.Context, f figure, run map[string]func(ctx context.Context, dir string) (outcome, error), durability map[string]string) *measured {
	m := &measured{figure: f}
	for _, e := range f.entries {
		m.rows = append(m.rows, &series{entry: e, durability: durability[e.name]})
	}
	for round := range b.rounds {
		for _, s := range m.rows {
			if s.err != nil || ctx.Err() != nil {
				continue
			}
			b.progress("%s: round %d of %d, %s", f.name, round+1, b.rounds, s.name)
			s.err = b.inScratch(func(dir string) error {
				o, err := run[s.name](ctx, dir)
				if err == nil {
					s.rounds = append(s.rounds, o)
				}
				return err
			})
		}
	}
	return m
}

// measureConsume measures how fast groups get through what is in the log.
func (b *bench) measureConsume(ctx context.Context) *measured {
	p := planConsume(b.short)
	f := figure{
		name: figConsume, title: fmt.Sprintf("Consumption of %s events that are in the log, %s keys, explicit acks", count(float64(p.events)), count(consumeKeys)),
		note:    "Ours is in order by key, and an ack is durable before the event counts. JetStream acks are not synced.",
		entries: []entry{{name: rowOneGroup}, {name: rowFourGroups}, {name: rowJetExplict}},
	}
	return b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowOneGroup:   func(ctx context.Context, dir string) (outcome, error) { return consumeUs(ctx, dir, p.events, 1) },
		rowFourGroups: func(ctx context.Context, dir string) (outcome, error) { return consumeUs(ctx, dir, p.events, 4) },
		rowJetExplict: func(ctx context.Context, dir string) (outcome, error) { return consumeJet(ctx, dir, p.events, false) },
	}, map[string]string{rowOneGroup: "acks synced", rowFourGroups: "acks synced", rowJetExplict: notDurable})
}

// fillHub publishes n events to one topic, each as change leaves it, if that is
// given.
func fillHub(ctx context.Context, h *promethean.Hub, n int, change func(i int, e *event.Event)) error {
	gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
	batch := make([]event.Event, 1000)
	for done := 0; done < n; done += len(batch) {
		batch = batch[:min(len(batch), n-done)]
		gen.fill(batch)
		for i := range batch {
			if change != nil {
				change(done+i, &batch[i])
			}
		}
		if _, err := h.Publish(ctx, batch...); err != nil {
			return err
		}
	}
	return nil
}

// waitForLag returns when so many events of the group are not settled.
func waitForLag(ctx context.Context, h *promethean.Hub, group string, events uint64) error {
	for {
		l, err := h.Lag(ctx, topicName(0), group)
		if err != nil || l.Events == events {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond): // asking costs a server something
		}
	}
}

// consumeUs has groups handle n events.
func consumeUs(ctx context.Context, dir string, n, groups int) (out outcome, err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := fillHub(ctx, h, n, nil); err != nil {
		return out, err
	}
	runtime.GC()
	start := time.Now()
	for g := range groups {
		if _, err := h.Subscribe(ctx, topicName(0), fmt.Sprint("g", g), nothing, promethean.FromEarliest(), promethean.MaxInFlight(1000)); err != nil {
			return out, err
		}
	}
	for g := range groups {
		if err := waitForLag(ctx, h, fmt.Sprint("g", g), 0); err != nil {
			return out, err
		}
	}
	return outcome{events: int64(n * groups), elapsed: time.Since(start)}, nil
}

// embeddedServer is a NATS server with JetStream in this process, reached
// without a socket.
func embeddedServer(dir string, always bool) (*server.Server, func(), error) {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench", JetStream: true, StoreDir: dir, DontListen: true, NoSigs: true, NoLog: true, SyncAlways: always, MaxPayload: 4 << 20,
	})
	if err != nil {
		return nil, nil, err
	}
	stop := func() {
		s.Shutdown()
		s.WaitForShutdown()
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		stop()
		return nil, nil, errors.New("the embedded server does not come up")
	}
	return s, stop, nil
}

// embeddedJet is a connection to such a server.
func embeddedJet(dir string, always bool) (jetstream.JetStream, func(), error) {
	s, end, err := embeddedServer(dir, always)
	if err != nil {
		return nil, nil, err
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		end()
		return nil, nil, err
	}
	stop := func() {
		nc.Close()
		end()
	}
	js, err := jetstream.New(nc)
	if err != nil {
		stop()
		return nil, nil, err
	}
	return js, stop, nil
}

// jetTopic makes a stream that is kept in files.
func jetTopic(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	return js.CreateStream(ctx, jetstream.StreamConfig{Name: jetStream, Subjects: []string{jetStream + ".>"}, Storage: jetstream.FileStorage, AllowAtomicPublish: true})
}

// jetGroup makes a consumer with explicit acks.
func jetGroup(ctx context.Context, s jetstream.Stream) (jetstream.Consumer, error) {
	return s.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "g", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1000})
}

// consumeJet has a plain consumer handle n events. With keyed, the key is part
// of the subject.
func consumeJet(ctx context.Context, dir string, n int, keyed bool) (out outcome, err error) {
	js, stop, err := embeddedJet(dir, false)
	if err != nil {
		return out, err
	}
	defer stop()
	stream, err := jetTopic(ctx, js)
	if err != nil {
		return out, err
	}
	return takeJet(ctx, js, stream, n, keyed)
}

// takeJet fills a stream and has a plain consumer handle what is in it.
func takeJet(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, n int, keyed bool) (out outcome, err error) {
	gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
	batch := make([]event.Event, 1)
	for range n {
		gen.fill(batch)
		if keyed {
			batch[0].Topic += "." + batch[0].Key
		}
		if _, err := js.PublishMsgAsync(jetMessage(&batch[0])); err != nil {
			return out, err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return out, ctx.Err()
	}
	cons, err := jetGroup(ctx, stream)
	if err != nil {
		return out, err
	}
	runtime.GC()
	var seen atomic.Int64
	done := make(chan struct{})
	start := time.Now()
	cc, err := cons.Consume(func(m jetstream.Msg) {
		_ = m.Ack() // an ack that is lost shows as a missing event at the end
		if seen.Add(1) == int64(n) {
			close(done)
		}
	})
	if err != nil {
		return out, err
	}
	defer cc.Stop()
	select {
	case <-done:
	case <-ctx.Done():
		return out, ctx.Err()
	}
	for {
		i, err := cons.Info(ctx)
		if err != nil {
			return out, err
		}
		if i.NumAckPending == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return outcome{events: int64(n), elapsed: time.Since(start)}, nil
}

// measureLive measures what a consuming group takes from publishers.
func (b *bench) measureLive(ctx context.Context) *measured {
	p := planConsume(b.short)
	f := figure{name: figLive, title: "Publishing while a group consumes, 64 publishers", entries: []entry{{name: rowAlone}, {name: rowBeside}}}
	return b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowAlone:  func(ctx context.Context, dir string) (outcome, error) { return publishLive(ctx, dir, p.live, false) },
		rowBeside: func(ctx context.Context, dir string) (outcome, error) { return publishLive(ctx, dir, p.live, true) },
	}, map[string]string{rowAlone: durable, rowBeside: durable})
}

func publishLive(ctx context.Context, dir string, d time.Duration, consume bool) (out outcome, err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	var worst atomic.Int64 // of the lags seen, in ns
	if consume {
		_, err := h.Subscribe(ctx, topicName(0), "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
			if age := int64(time.Since(e.Time())); age > worst.Load() {
				worst.Store(age)
			}
			return nil
		})
		if err != nil {
			return out, err
		}
	}
	var n atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	start := time.Now()
	for i := range 64 {
		wg.Go(func() {
			gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, i)
			batch := make([]event.Event, 1)
			for time.Since(start) < d {
				gen.fill(batch)
				if _, err := h.Publish(ctx, batch...); err != nil {
					errs <- err
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	out = outcome{events: n.Load(), elapsed: time.Since(start), p99: time.Duration(worst.Load())}
	select {
	case err := <-errs:
		return out, err
	default:
		return out, nil
	}
}

// measureDelivery measures the time from publish to handler at 1,000 events
// a second.
func (b *bench) measureDelivery(ctx context.Context) *measured {
	p := planConsume(b.short)
	f := figure{name: figDelivery, title: "From publish to handler at 1,000/s, durable", entries: []entry{{name: rowFsync}, {name: rowUsDeliver}, {name: rowJetDeliver}}}
	return b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowFsync:      func(ctx context.Context, dir string) (outcome, error) { return deliverRaw(ctx, dir, p.latency) },
		rowUsDeliver:  func(ctx context.Context, dir string) (outcome, error) { return deliverUs(ctx, dir, p.latency) },
		rowJetDeliver: func(ctx context.Context, dir string) (outcome, error) { return deliverJet(ctx, dir, p.latency) },
	}, map[string]string{rowFsync: durable, rowUsDeliver: durable, rowJetDeliver: durable})
}

// pace calls do a thousand times a second.
func pace(ctx context.Context, d time.Duration, do func() error) (int64, error) {
	start := time.Now()
	var n int64
	for due := start; due.Sub(start) < d; due = due.Add(time.Millisecond) {
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		if err := ctx.Err(); err != nil {
			return n, err
		}
		if err := do(); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// spans collects how long each took.
type spans struct {
	mu  sync.Mutex
	all []time.Duration
}

func (s *spans) add(d time.Duration) {
	s.mu.Lock()
	s.all = append(s.all, d)
	s.mu.Unlock()
}

func (s *spans) outcome(elapsed time.Duration) outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.all)
	if len(s.all) == 0 {
		return outcome{elapsed: elapsed}
	}
	return outcome{events: int64(len(s.all)), elapsed: elapsed, p50: s.all[len(s.all)/2], p99: s.all[len(s.all)*99/100]}
}

func deliverRaw(ctx context.Context, dir string, d time.Duration) (out outcome, err error) {
	w, err := openRaw(dir, rawSegmentSize, 2, 2)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	var s spans
	answer := make(chan error, 1)
	rec := make([]byte, eventBytes)
	start := time.Now()
	_, err = pace(ctx, d, func() error {
		began := time.Now()
		err := w.write(rec, answer)
		s.add(time.Since(began))
		return err
	})
	return s.outcome(time.Since(start)), err
}

// stamped is a generator's event whose moment of publishing is known.
type stamps struct {
	mu sync.Mutex
	at map[event.ID]time.Time
}

func (s *stamps) put(id event.ID) {
	s.mu.Lock()
	s.at[id] = time.Now()
	s.mu.Unlock()
}

func (s *stamps) take(id event.ID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := time.Since(s.at[id])
	delete(s.at, id)
	return d
}

func deliverUs(ctx context.Context, dir string, d time.Duration) (out outcome, err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	var s spans
	at := stamps{at: make(map[event.ID]time.Time)}
	if _, err := h.Subscribe(ctx, topicName(0), "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		s.add(at.take(e.ID))
		return nil
	}); err != nil {
		return out, err
	}
	gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
	batch := make([]event.Event, 1)
	start := time.Now()
	_, err = pace(ctx, d, func() error {
		gen.fill(batch)
		at.put(batch[0].ID)
		_, err := h.Publish(ctx, batch...)
		return err
	})
	return s.outcome(time.Since(start)), err
}

func deliverJet(ctx context.Context, dir string, d time.Duration) (out outcome, err error) {
	js, stop, err := embeddedJet(dir, true)
	if err != nil {
		return out, err
	}
	defer stop()
	stream, err := jetTopic(ctx, js)
	if err != nil {
		return out, err
	}
	return deliverOver(ctx, js, stream, d)
}

// deliverOver publishes to a stream and takes from it.
func deliverOver(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, d time.Duration) (out outcome, err error) {
	cons, err := jetGroup(ctx, stream)
	if err != nil {
		return out, err
	}
	var s spans
	at := stamps{at: make(map[event.ID]time.Time)}
	cc, err := cons.Consume(func(m jetstream.Msg) {
		if id, err := event.ParseID(m.Headers().Get(nats.MsgIdHdr)); err == nil {
			s.add(at.take(id))
		}
		_ = m.Ack() // not what is measured
	})
	if err != nil {
		return out, err
	}
	defer cc.Stop()
	gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
	batch := make([]event.Event, 1)
	start := time.Now()
	_, err = pace(ctx, d, func() error {
		gen.fill(batch)
		at.put(batch[0].ID)
		_, err := js.PublishMsg(ctx, jetMessage(&batch[0]))
		return err
	})
	return s.outcome(time.Since(start)), err
}

// deliveryFigures measures what groups do.
func (b *bench) deliveryFigures(ctx context.Context) error {
	for _, f := range []struct {
		name    string
		measure func(context.Context) *measured
	}{{figConsume, b.measureConsume}, {figLive, b.measureLive}, {figDelivery, b.measureDelivery}} {
		if !b.figure(f.name) {
			continue
		}
		m := f.measure(ctx)
		b.results.figures[f.name] = m
		b.note(m)
		b.show(deliverySection(m))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// deliverySection shows a figure of groups; each row is compared with the
// first.
func deliverySection(m *measured) section {
	s := section{title: m.title, note: m.note, columns: []string{"row", "durability", "events/s", "min–max", "p50", "p99", "÷ first"}}
	for _, r := range m.rows {
		cells := rateCells(r)
		for i, values := range [][]float64{r.p50s(), r.p99s()} {
			if maxOf(values...) == 0 {
				cells[2+i] = "–"
			}
		}
		s.rows = append(s.rows, append(append([]string{r.name, r.durability}, cells...), orDash(pairwise(r.rates(), m.rows[0].rates()))))
		if r.err != nil {
			s.note = strings.TrimSpace(fmt.Sprintf("%s %s failed in round %d: %v.", s.note, r.name, len(r.rounds)+1, r.err))
		}
	}
	return s
}

func deliveryGates(r results, ratio func(name string, limit float64, atLeast bool, q []float64) gate) []gate {
	c, l, d := r.figures[figConsume], r.figures[figLive], r.figures[figDelivery]
	lag := gate{name: "age of the oldest event handled while publishing", threshold: 1, strict: true, format: seconds}
	if v := l.row(rowBeside).p99s(); len(v) > 0 {
		lag.measured, lag.value = true, maxOf(v...)
	}
	return []gate{
		ratio("consuming, us ÷ embedded jetstream", 3, true, pairwise(c.row(rowOneGroup).rates(), c.row(rowJetExplict).rates())),
		ratio("four groups ÷ one", 1.2, true, pairwise(c.row(rowFourGroups).rates(), c.row(rowOneGroup).rates())),
		ratio("publishing while a group consumes ÷ alone", 0.5, true, pairwise(l.row(rowBeside).rates(), l.row(rowAlone).rates())),
		lag,
		ratio("publish to handler, p50 ÷ raw fdatasync", 1.5, false, pairwise(d.row(rowUsDeliver).p50s(), d.row(rowFsync).p50s())),
		ratio("publish to handler, p99 ÷ jetstream always", 1, false, pairwise(d.row(rowUsDeliver).p99s(), d.row(rowJetDeliver).p99s())),
	}
}
