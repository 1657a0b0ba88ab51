package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"promethean"
	"promethean/event"
)

// Rows of the figure about a key that is stuck.
const (
	rowFree  = "no key is stuck"
	rowStuck = "one key is stuck"
)

// crowdPlan is the size of the figures about many groups and a stuck key.
type crowdPlan struct {
	idle   int           // groups
	quiet  time.Duration // how long their processor time is watched
	groups int           // on one topic
	each   int           // events for every one of them
	behind int           // events in the log, one in stuckShare of the stuck key
}

// stuckShare of the events have the key that is stuck.
const stuckShare = 10

func planCrowd(short bool) crowdPlan {
	if short {
		return crowdPlan{idle: 1000, quiet: time.Second, groups: 100, each: 200, behind: 50_000}
	}
	return crowdPlan{idle: 10_000, quiet: 10 * time.Second, groups: 1000, each: 2000, behind: 1_000_000}
}

// crowdResult is what many groups cost.
type crowdResult struct {
	IdleBytes  float64 // of one idle group
	IdleCPU    float64 // of all of them, as a share of one processor
	Goroutines int     // of all of them
	Deliveries float64 // a second, of all groups on one topic
	BusyBytes  float64 // of one of those groups while they work, at most
}

// measureStuck compares consumption with and without a stuck key.
func (b *bench) measureStuck(ctx context.Context) *measured {
	p := planCrowd(b.short)
	f := figure{
		name: figStuck, title: fmt.Sprintf("Consumption of %s events, one in %d of a key whose first event comes back after an hour", count(float64(p.behind)), stuckShare),
		note:    "The rate is that of the other events.",
		entries: []entry{{name: rowFree}, {name: rowStuck}},
	}
	return b.roundsOf(ctx, f, map[string]func(context.Context, string) (outcome, error){
		rowFree: func(ctx context.Context, dir string) (outcome, error) {
			return consumeBeside(ctx, dir, p.behind, false)
		},
		rowStuck: func(ctx context.Context, dir string) (outcome, error) { return consumeBeside(ctx, dir, p.behind, true) },
	}, map[string]string{rowFree: "acks synced", rowStuck: "acks synced"})
}

// consumeBeside has a group handle n events. With stuck, one in stuckShare
// waits behind a key whose first event fails and comes back after an hour.
func consumeBeside(ctx context.Context, dir string, n int, stuck bool) (out outcome, err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	const key = "stuck"
	if err := fillHub(ctx, h, n, func(i int, e *event.Event) {
		if stuck && i%stuckShare == 0 {
			e.Key = key
		}
	}); err != nil {
		return out, err
	}
	left := uint64(0)
	if stuck {
		left = uint64(n / stuckShare)
	}
	runtime.GC()
	peak := watchLive()
	start := time.Now()
	_, err = h.Subscribe(ctx, topicName(0), "g", func(_ context.Context, e event.Event, _ *promethean.Delivery) error {
		if stuck && e.Key == key {
			return promethean.Retry(time.Hour, errors.New("not now"))
		}
		return nil
	}, promethean.FromEarliest(), promethean.MaxInFlight(1000))
	if err == nil {
		err = waitForLag(ctx, h, "g", left)
	}
	out = outcome{events: int64(n) - int64(left), elapsed: time.Since(start)}
	out.peak = peak()
	return out, err
}

// watchLive samples what the garbage collector found to be in use. The function
// it returns ends that and gives the highest.
func watchLive() func() int64 {
	stop, result := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		var peak uint64
		for {
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64())
			select {
			case <-tick.C:
			case <-stop:
				result <- int64(peak)
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-result
	}
}

// measureCrowd measures what many groups cost.
func (b *bench) measureCrowd(ctx context.Context) (res crowdResult, err error) {
	p := planCrowd(b.short)
	b.progress("%s: %d idle groups", figCrowd, p.idle)
	if err := b.inScratch(func(dir string) error { return idleCrowd(ctx, dir, p, &res) }); err != nil {
		return res, err
	}
	b.progress("%s: %d groups on one topic", figCrowd, p.groups)
	return res, b.inScratch(func(dir string) error { return busyCrowd(ctx, dir, p, &res) })
}

// held is what the heap and the stacks take.
func held() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// idleCrowd subscribes many groups, half of them on topics of their own, and
// lets them wait.
func idleCrowd(ctx context.Context, dir string, p crowdPlan, res *crowdResult) (err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	before, running := held(), runtime.NumGoroutine()
	for i := range p.idle {
		topic := topicName(0)
		if i%2 == 1 {
			topic = topicName(i)
		}
		if _, err := h.Subscribe(ctx, topic, fmt.Sprint("g", i), nothing); err != nil {
			return err
		}
	}
	res.IdleBytes = float64(held()-before) / float64(p.idle)
	res.Goroutines = runtime.NumGoroutine() - running
	used, err := processorTime()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(p.quiet):
	}
	after, err := processorTime()
	res.IdleCPU = (after - used).Seconds() / p.quiet.Seconds()
	return err
}

func nothing(context.Context, event.Event, *promethean.Delivery) error { return nil }

// busyCrowd has many groups handle all events of one topic.
func busyCrowd(ctx context.Context, dir string, p crowdPlan, res *crowdResult) (err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := fillHub(ctx, h, p.each, nil); err != nil {
		return err
	}
	var handled atomic.Int64
	before := held()
	var most int64
	start := time.Now()
	for g := range p.groups {
		if _, err := h.Subscribe(ctx, topicName(0), fmt.Sprint("g", g), func(context.Context, event.Event, *promethean.Delivery) error {
			if n := handled.Add(1); n == int64(p.groups)*int64(p.each)/2 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = int64(m.HeapAlloc + m.StackInuse)
			}
			return nil
		}, promethean.FromEarliest()); err != nil {
			return err
		}
	}
	for g := range p.groups {
		if err := waitForLag(ctx, h, fmt.Sprint("g", g), 0); err != nil {
			return err
		}
	}
	res.Deliveries = float64(handled.Load()) / time.Since(start).Seconds()
	res.BusyBytes = float64(most-before) / float64(p.groups)
	return nil
}

// crowdFigures measures many groups and a stuck key.
func (b *bench) crowdFigures(ctx context.Context) error {
	if b.figure(figStuck) {
		m := b.measureStuck(ctx)
		b.results.figures[figStuck] = m
		b.note(m)
		s := section{title: m.title, note: m.note, columns: []string{"row", "events/s", "min–max", "memory, at most", "÷ first"}}
		for _, r := range m.rows {
			cells := rateCells(r)
			s.rows = append(s.rows, []string{r.name, cells[0], cells[1], mebibytes(maxOf(r.peaks()...)), orDash(pairwise(r.rates(), m.rows[0].rates()))})
		}
		b.show(s)
	}
	if err := ctx.Err(); err != nil || !b.figure(figCrowd) {
		return err
	}
	res, err := b.measureCrowd(ctx)
	if err != nil {
		b.failures = append(b.failures, fmt.Errorf("%s: %w", figCrowd, err))
		return ctx.Err()
	}
	b.results.crowd = &res
	p := planCrowd(b.short)
	b.show(section{
		title:   "Many groups",
		columns: []string{"what", "figure"},
		rows: [][]string{
			{fmt.Sprintf("memory of one of %s idle groups", count(float64(p.idle))), kibibytes(res.IdleBytes)},
			{"goroutines of all of them", fmt.Sprint(res.Goroutines)},
			{"their processor time, of one processor", fmt.Sprintf("%.2f %%", 100*res.IdleCPU)},
			{fmt.Sprintf("deliveries a second, %s groups on one topic, acks synced", count(float64(p.groups))), count(res.Deliveries)},
			{"memory of one of them half way, garbage included", kibibytes(res.BusyBytes)},
		},
	})
	return nil
}

func crowdGates(r results, ratio func(name string, limit float64, atLeast bool, q []float64) gate) []gate {
	m := r.figures[figStuck]
	more := gate{name: "memory that a stuck key adds", threshold: 64 << 20, strict: true, format: mebibytes}
	if free, stuck := m.row(rowFree).peaks(), m.row(rowStuck).peaks(); len(free) > 0 && len(stuck) > 0 {
		more.measured, more.value = true, max(maxOf(stuck...)-maxOf(free...), 0)
	}
	idle := gate{name: "memory of an idle group", threshold: 8 << 10, strict: true, format: kibibytes}
	cpu := gate{name: "processor time of idle groups, of one processor", threshold: 0.02, strict: true, format: percent}
	if r.crowd != nil {
		idle.measured, idle.value = true, r.crowd.IdleBytes
		cpu.measured, cpu.value = true, r.crowd.IdleCPU
	}
	return []gate{ratio("beside a stuck key ÷ without", 0.8, true, pairwise(m.row(rowStuck).rates(), m.row(rowFree).rates())), more, idle, cpu}
}
