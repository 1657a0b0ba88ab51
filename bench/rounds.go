package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// entry is one row of a publishing figure: a target under a load.
type entry struct {
	name   string // of the row; unique within the figure
	target string
	load   load
}

// figure is a set of rows that are measured in interleaved rounds.
type figure struct {
	name, title, note string
	entries           []entry
}

const (
	loadTopics = 10
	loadKeys   = 1_000_000
)

func singles(name string, publishers int, title string, targets ...string) figure {
	f := figure{name: name, title: title}
	for _, t := range targets {
		f.entries = append(f.entries, entry{name: t, target: t, load: load{Publishers: publishers, Batch: 1, Topics: loadTopics, Keys: loadKeys}})
	}
	return f
}

func batched(name, target string, publishers, batch int) entry {
	return entry{name: name, target: target, load: load{Publishers: publishers, Batch: batch, Topics: loadTopics, Keys: loadKeys}}
}

// Rows of the batch figure. Redis is fastest with many connections on some
// machines and with few on others, so both are run and the better one counts.
const (
	rowRedisDeep = "redis-always 4 × 1000"
	rowRedisWide = "redis-always 64 × 256"
)

func publishFigures() []figure {
	batches := figure{
		name: figBatch, title: "Batches, 4 publishers × 1000 events",
		note: "Redis pipelines, which is not atomic; JetStream uses atomic batches.",
		entries: []entry{
			batched(nameRaw, nameRaw, 4, 1000),
			batched(nameRecycled, nameRecycled, 4, 1000),
			batched(nameUs, nameUs, 4, 1000),
			batched(rowRedisDeep, nameRedis, 4, 1000),
			batched(rowRedisWide, nameRedis, 64, 256),
			batched(nameJetAlways, nameJetAlways, 4, 1000),
		},
	}
	return []figure{
		singles(figC1, 1, "Single events, 1 publisher", nameRaw, nameUs, nameRedis, nameJetAlways),
		singles(figC64, 64, "Single events, 64 publishers", nameRaw, nameRecycled, nameUs, nameRedis, nameJetAlways, nameJet),
		singles(figC256, 256, "Single events, 256 publishers", nameRaw, nameRecycled, nameUs, nameRedis, nameJetAlways),
		batches,
	}
}

// series is what the rounds of one row gave. A row that fails is not tried
// again; the rounds before stay, so that index i is round i in every row.
type series struct {
	entry
	durability string
	rounds     []outcome
	closing    []float64 // seconds that Close took
	err        error
}

func (s *series) rates() []float64 {
	return s.each(func(o outcome) float64 { return o.rate() })
}

func (s *series) p50s() []float64 {
	return s.each(func(o outcome) float64 { return o.p50.Seconds() })
}

func (s *series) p99s() []float64 {
	return s.each(func(o outcome) float64 { return o.p99.Seconds() })
}

// costs are the processor time of an event, in seconds.
func (s *series) costs() []float64 {
	return s.each(func(o outcome) float64 { return o.cpu.Seconds() / float64(max(o.events, 1)) })
}

func (s *series) peaks() []float64 {
	return s.each(func(o outcome) float64 { return float64(o.peak) })
}

func (s *series) each(f func(outcome) float64) []float64 {
	if s == nil {
		return nil
	}
	var v []float64
	for _, o := range s.rounds {
		v = append(v, f(o))
	}
	return v
}

// measured is a figure with its rows in order.
type measured struct {
	figure
	rows []*series
}

func (m *measured) row(name string) *series {
	if m == nil {
		return nil
	}
	for _, s := range m.rows {
		if s.name == name {
			return s
		}
	}
	return nil
}

// measure runs the figure's rows in interleaved rounds that share total time.
func (b *bench) measure(ctx context.Context, f figure) (*measured, error) {
	m := &measured{figure: f}
	for _, e := range f.entries {
		if b.absent[e.target] == nil {
			m.rows = append(m.rows, &series{entry: e, durability: newTarget(e.target).Durability()})
		}
	}
	for round := range b.rounds {
		for _, s := range m.rows {
			if s.err != nil {
				continue
			}
			b.progress("%s: round %d of %d, %s", f.name, round+1, b.rounds, s.name)
			s.err = b.round(ctx, s)
			if err := ctx.Err(); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

// grace is how long a round may take beyond its time before it is given up.
const grace = 60 * time.Second

// round opens the row's target in an empty directory, drives it and removes
// what it left.
func (b *bench) round(ctx context.Context, s *series) (err error) {
	each := b.duration / time.Duration(b.rounds)
	ctx, cancel := context.WithTimeout(ctx, each+grace)
	defer cancel()
	dir, err := os.MkdirTemp(b.work, "round-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, discard(dir)) }()
	t := newTarget(s.target)
	if err := t.Open(ctx, dir); err != nil {
		return fmt.Errorf("open %s: %w", s.target, err)
	}
	o, err := drive(ctx, t, s.load, limit{time: each})
	start := time.Now()
	if err := errors.Join(err, t.Close()); err != nil {
		return err
	}
	s.rounds = append(s.rounds, o)
	s.closing = append(s.closing, time.Since(start).Seconds())
	return nil
}

// discard removes dir and waits for the file system to have done so: freeing
// blocks later would slow down the first syncs of the next round.
func discard(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	parent, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
