package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"promethean/event"
)

// Rows of the figures about the gateway, each with its server in a process of
// its own.
const (
	rowWSTake     = "us over a WebSocket, batches of 500, acks synced"
	rowJetTake    = "jetstream, explicit acks"
	rowWSDeliver  = "us over WebSockets"
	rowJetOutside = "jetstream-always"
	rowExport     = "us, GET /export"
)

// gatewayPlan is the size of the figures.
type gatewayPlan struct {
	consume int
	latency time.Duration
	idle    int
	export  int
}

func planGateway(short bool) gatewayPlan {
	if short {
		return gatewayPlan{consume: 20_000, latency: time.Second, idle: 500, export: 20_000}
	}
	return gatewayPlan{consume: 300_000, latency: 6 * time.Second, idle: 10_000, export: 1_000_000}
}

func gatewayPublishing() []figure {
	return []figure{
		singles(figWS, 64, "Over the wire, single events, 64 connections", nameWS, nameJet, nameJetAlways),
		{
			name: figWSBatch, title: "Over the wire, batches of 1000, 4 connections",
			note: "JetStream's client sends a thousand and then waits for their answers; its batches are not atomic.",
			entries: []entry{
				batched(nameWS, nameWS, 4, 1000), batched(nameHTTP, nameHTTP, 4, 1000), batched(nameJetAsync, nameJetAsync, 4, 1000),
			},
		},
	}
}

// fillOver publishes n events to one topic of a hub.
func fillOver(ctx context.Context, addr string, n int) error {
	p := &ndjsonPublisher{url: "http://" + addr + "/publish", client: &http.Client{Transport: &http.Transport{}}}
	gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
	batch := make([]event.Event, 1000)
	for done := 0; done < n; done += len(batch) {
		batch = batch[:min(len(batch), n-done)]
		gen.fill(batch)
		if err := p.Publish(ctx, batch); err != nil {
			return err
		}
	}
	return p.Close()
}

// withHub runs f with a hub in another process.
func withHub(ctx context.Context, dir string, f func(ready hubReady) (outcome, error)) (outcome, error) {
	server, ready, err := startHub(ctx, dir)
	if err != nil {
		return outcome{}, err
	}
	out, err := f(ready)
	return out, errors.Join(err, server.end())
}

// takeWS consumes what is in the log over one WebSocket, and acks a frame's
// events together.
func takeWS(ctx context.Context, dir string, n int) (outcome, error) {
	return withHub(ctx, dir, func(ready hubReady) (out outcome, err error) {
		if err := fillOver(ctx, ready.Addr, n); err != nil {
			return out, err
		}
		c, err := dialWS(ready.Addr)
		if err != nil {
			return out, err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		defer context.AfterFunc(ctx, func() { _ = c.close() })()
		start := time.Now()
		if err := c.send([]byte(`{"op":"SUBSCRIBE","corr":1,"topic":"` + topicName(0) + `","group":"g","opts":{"from":"earliest","batch":500,"maxInFlight":5000}}`)); err != nil {
			return out, err
		}
		seen, settled := 0, 0
		var ack []byte
		var sizes []int // of the acks that are on their way
		for settled < n {
			f, err := c.next()
			if err != nil {
				return out, err
			}
			switch {
			case bytes.HasPrefix(f, []byte(`{"op":"EVENTS"`)), bytes.HasPrefix(f, []byte(`{"op":"EVENT"`)):
				ack = append(ack[:0], `{"op":"ACK","corr":2,"topic":"`+topicName(0)+`","group":"g","ids":[`...)
				count := 0
				for rest := f; ; count++ {
					i := bytes.Index(rest, []byte(`"event":{"id":"`))
					if i < 0 {
						break
					}
					id := rest[i+len(`"event":{"id":"`):]
					if count > 0 {
						ack = append(ack, ',')
					}
					ack = append(append(append(ack, '"'), id[:36]...), '"')
					rest = id[36:]
				}
				seen += count
				sizes = append(sizes, count)
				if err := c.send(append(ack, "]}"...)); err != nil {
					return out, err
				}
			case bytes.Contains(f[:min(len(f), 60)], []byte(`"corr":2`)) && bytes.Contains(f[:min(len(f), 60)], []byte(`"op":"OK"`)):
				settled += sizes[0]
				sizes = sizes[1:]
			case !bytes.Contains(f[:min(len(f), 60)], []byte(`"op":"OK"`)):
				return out, fmt.Errorf("the hub sends %.300s", f)
			}
		}
		if seen != n {
			return out, fmt.Errorf("%d events came, %d were published", seen, n)
		}
		return outcome{events: int64(n), elapsed: time.Since(start)}, nil
	})
}

// outsideJet runs f with a stream on a NATS server in another process.
func outsideJet(ctx context.Context, dir, interval string, f func(js jetstream.JetStream, s jetstream.Stream) (outcome, error)) (out outcome, err error) {
	t := &jetTarget{name: nameJet, interval: interval}
	if err := t.Open(ctx, dir); err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	js, err := t.connect(0)
	if err != nil {
		return out, err
	}
	s, err := js.Stream(ctx, jetStream)
	if err != nil {
		return out, err
	}
	return f(js, s)
}

// deliverWS publishes on one connection and takes on another.
func deliverWS(ctx context.Context, dir string, d time.Duration) (outcome, error) {
	return withHub(ctx, dir, func(ready hubReady) (out outcome, err error) {
		var s spans
		at := stamps{at: make(map[event.ID]time.Time)}
		taker, err := dialWS(ready.Addr)
		if err != nil {
			return out, err
		}
		defer func() { _ = taker.close() }()
		if err := taker.send([]byte(`{"op":"SUBSCRIBE","corr":1,"topic":"` + topicName(0) + `","group":"g"}`)); err != nil {
			return out, err
		}
		if err := taker.ok(); err != nil {
			return out, err
		}
		go func() {
			for {
				f, err := taker.next()
				if err != nil {
					return // it was closed
				}
				i := bytes.Index(f, []byte(`"event":{"id":"`))
				if i < 0 {
					continue // the answer to an ack
				}
				text := string(f[i+len(`"event":{"id":"`):][:36])
				id, err := event.ParseID(text)
				if err != nil {
					return
				}
				s.add(at.take(id))
				if err := taker.send([]byte(`{"op":"ACK","topic":"` + topicName(0) + `","group":"g","id":"` + text + `"}`)); err != nil {
					return
				}
			}
		}()
		c, err := dialWS(ready.Addr)
		if err != nil {
			return out, err
		}
		pub := &wsPublisher{c: c}
		defer func() { _ = pub.Close() }()
		gen := newGenerator(load{Keys: consumeKeys}, []string{topicName(0)}, 0)
		batch := make([]event.Event, 1)
		start := time.Now()
		_, err = pace(ctx, d, func() error {
			gen.fill(batch)
			at.put(batch[0].ID)
			return pub.Publish(ctx, batch)
		})
		return s.outcome(time.Since(start)), err
	})
}

// idleWS is what a hub holds in memory for each of so many subscribers that get
// nothing, as the peak of an outcome.
func idleWS(ctx context.Context, dir string, n int) (outcome, error) {
	return withHub(ctx, dir, func(ready hubReady) (out outcome, err error) {
		clients := make([]*wsClient, 0, n)
		defer func() {
			for _, c := range clients {
				_ = c.close()
			}
		}()
		start := time.Now()
		for i := range n {
			c, err := dialWS(ready.Addr)
			if err != nil {
				return out, fmt.Errorf("connection %d: %w", i+1, err)
			}
			clients = append(clients, c)
			if err := c.send(fmt.Appendf(nil, `{"op":"SUBSCRIBE","corr":1,"topic":"%s","group":"g%d"}`, topicName(i%10), i)); err != nil {
				return out, err
			}
			if err := c.ok(); err != nil {
				return out, err
			}
		}
		peak, err := residentOf(ready.PID)
		return outcome{events: int64(n), elapsed: time.Since(start), peak: peak}, err
	})
}

// exportAll reads a topic by GET /export, and what the hub holds meanwhile.
func exportAll(ctx context.Context, dir string, n int) (outcome, error) {
	return withHub(ctx, dir, func(ready hubReady) (out outcome, err error) {
		if err := fillOver(ctx, ready.Addr, n); err != nil {
			return out, err
		}
		before, err := residentOf(ready.PID)
		if err != nil {
			return out, err
		}
		start := time.Now()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ready.Addr+"/export?ndjson=1&topic="+topicName(0), nil)
		if err != nil {
			return out, err
		}
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			return out, err
		}
		defer func() { _ = got.Body.Close() }()
		lines, most := int64(0), before
		in := bufio.NewReaderSize(got.Body, 1<<20)
		for {
			chunk, err := in.ReadSlice('\n')
			if err != nil {
				break
			}
			if len(chunk) > 1 {
				lines++
			}
			if lines%100_000 == 0 {
				now, err := residentOf(ready.PID)
				if err != nil {
					return out, err
				}
				most = max(most, now)
			}
		}
		if lines != int64(n) {
			return out, fmt.Errorf("%d of %d events came", lines, n)
		}
		return outcome{events: lines, elapsed: time.Since(start), peak: most - before}, nil
	})
}

// residentOf is what a process holds in memory.
func residentOf(pid int) (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("no VmRSS in the status of the process")
}

func processID() int { return os.Getpid() }

// gatewayFigures measures what the hub does over the wire.
func (b *bench) gatewayFigures(ctx context.Context) error {
	for _, f := range gatewayPublishing() {
		if !b.figure(f.name) {
			continue
		}
		m, err := b.measure(ctx, f)
		b.results.figures[f.name] = m
		b.note(m)
		b.show(publishSection(m))
		if err != nil {
			return err
		}
	}
	p := planGateway(b.short)
	type runs = map[string]func(context.Context, string) (outcome, error)
	rounds := func(name, title, note string, rows []string, run runs, durability map[string]string) {
		if !b.figure(name) || ctx.Err() != nil {
			return
		}
		f := figure{name: name, title: title, note: note}
		for _, r := range rows {
			f.entries = append(f.entries, entry{name: r})
		}
		m := b.roundsOf(ctx, f, run, durability)
		b.results.figures[name] = m
		b.note(m)
		b.show(gatewaySection(m))
	}
	rounds(figWSTake, fmt.Sprintf("Over the wire, consumption of %s events that are in the log", count(float64(p.consume))), "", []string{rowWSTake, rowJetTake}, runs{
		rowWSTake: func(ctx context.Context, dir string) (outcome, error) { return takeWS(ctx, dir, p.consume) },
		rowJetTake: func(ctx context.Context, dir string) (outcome, error) {
			return outsideJet(ctx, dir, "", func(js jetstream.JetStream, s jetstream.Stream) (outcome, error) {
				return takeJet(ctx, js, s, p.consume, false)
			})
		},
	}, map[string]string{rowWSTake: "acks synced", rowJetTake: notDurable})
	rounds(figWSDeliver, "Over the wire, from publish to delivery at 1,000/s", "", []string{rowWSDeliver, rowJetOutside}, runs{
		rowWSDeliver: func(ctx context.Context, dir string) (outcome, error) { return deliverWS(ctx, dir, p.latency) },
		rowJetOutside: func(ctx context.Context, dir string) (outcome, error) {
			return outsideJet(ctx, dir, "always", func(js jetstream.JetStream, s jetstream.Stream) (outcome, error) {
				return deliverOver(ctx, js, s, p.latency)
			})
		},
	}, map[string]string{rowWSDeliver: durable, rowJetOutside: durable})
	idle := fmt.Sprintf("%s subscribers that get nothing", count(float64(p.idle)))
	rounds(figWSIdle, "Over the wire, "+idle, "Each has a connection and a group of its own.", []string{idle}, runs{
		idle: func(ctx context.Context, dir string) (outcome, error) { return idleWS(ctx, dir, p.idle) },
	}, nil)
	rounds(figExport, fmt.Sprintf("Export of %s events", count(float64(p.export))), "Memory is what the hub holds more than before.", []string{rowExport}, runs{
		rowExport: func(ctx context.Context, dir string) (outcome, error) { return exportAll(ctx, dir, p.export) },
	}, nil)
	return ctx.Err()
}

func gatewaySection(m *measured) section {
	s := section{title: m.title, note: m.note, columns: []string{"row", "durability", "events/s", "min–max", "p50", "p99", "memory"}}
	for _, r := range m.rows {
		cells := rateCells(r)
		dash := func(v float64, f func(float64) string) string {
			if v > 0 {
				return f(v)
			}
			return "–"
		}
		s.rows = append(s.rows, []string{
			r.name, r.durability, cells[0], cells[1],
			dash(spreadOf(r.p50s()).Median, latency), dash(spreadOf(r.p99s()).Median, latency), dash(spreadOf(r.peaks()).Median, mebibytes),
		})
		if r.err != nil {
			s.note += fmt.Sprintf(" %s failed: %v.", r.name, r.err)
		}
	}
	return s
}

func gatewayGates(r results, ratio func(name string, limit float64, atLeast bool, q []float64) gate) []gate {
	ws, batch, take, deliver := r.figures[figWS], r.figures[figWSBatch], r.figures[figWSTake], r.figures[figWSDeliver]
	best := func() []float64 {
		a, b := batch.row(nameWS).rates(), batch.row(nameHTTP).rates()
		out := make([]float64, min(len(a), len(b)))
		for i := range out {
			out[i] = max(a[i], b[i])
		}
		return out
	}
	idle := gate{name: "memory of a hub with 10,000 idle subscribers", threshold: 400 << 20, strict: true, format: mebibytes}
	if m := r.figures[figWSIdle]; m != nil && len(m.rows) > 0 && len(m.rows[0].rounds) > 0 {
		idle.measured, idle.value = true, spreadOf(m.rows[0].peaks()).Median
	}
	export := gate{name: "export, events/s", threshold: 300_000, atLeast: true, format: count}
	if m := r.figures[figExport]; m != nil && len(m.rows[0].rounds) > 0 {
		export.measured, export.value = true, spreadOf(m.rows[0].rates()).Median
	}
	return []gate{
		ratio("over the wire, 64 connections, us ÷ jetstream-default", 1, true, pairwise(ws.row(nameWS).rates(), ws.row(nameJet).rates())),
		ratio("over the wire, 64 connections, us ÷ jetstream-always", 5, true, pairwise(ws.row(nameWS).rates(), ws.row(nameJetAlways).rates())),
		ratio("over the wire, batches, us ÷ jetstream-async", 2, true, pairwise(best(), batch.row(nameJetAsync).rates())),
		ratio("over the wire, consuming, us ÷ jetstream", 1.5, true, pairwise(take.row(rowWSTake).rates(), take.row(rowJetTake).rates())),
		ratio("over the wire, publish to delivery p50, us ÷ jetstream-always", 1, false, pairwise(deliver.row(rowWSDeliver).p50s(), deliver.row(rowJetOutside).p50s())),
		idle, export,
	}
}
