package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/timetravel"
	"promethean/view"
)

// modelPlan is the size of the figures about read models.
type modelPlan struct {
	events, keys int           // of a projection
	documents    int           // of a view that is listed
	history      int           // events of the topic that is travelled in
	each         int           // events of a key in it
	asks         int           // how often something is asked
	serve        time.Duration // how long documents are asked for over HTTP, a round
	squeeze      int           // events of the topic that is compacted
	left         int           // keys that are left of it
}

func planModels(short bool) modelPlan {
	if short {
		return modelPlan{events: 50_000, keys: 5_000, documents: 20_000, history: 100_000, each: 100, asks: 200, serve: 300 * time.Millisecond, squeeze: 100_000, left: 1_000}
	}
	return modelPlan{events: 1_000_000, keys: 100_000, documents: 1_000_000, history: 10_000_000, each: 100, asks: 2_000, serve: 2 * time.Second, squeeze: 10_000_000, left: 100_000}
}

// modelResult is what was measured; what was not is empty.
type modelResult struct {
	Changelog, Transactional []float64 // events a second
	Half, Full               []float64 // memory in the middle and at the end of a projection, bytes

	Constant, Snap, NotModified []float64 // answers a second
	List                        []float64 // seconds
	ListTwo                     []float64 // with two filters and an offset

	Replace, Merge []float64 // seconds

	Alone, Beside []float64 // events a second that are published without and beside a compaction
	Squeezed      float64   // seconds
	Kept          uint64
	Bytes         [2]int64 // before and after
}

func (b *bench) modelFigures(ctx context.Context) error {
	p := planModels(b.short)
	r := &modelResult{}
	b.results.models = r
	for _, f := range []struct {
		name string
		run  func(context.Context, modelPlan, *modelResult, string) error
	}{
		{figProject, b.measureProjection}, {figSnap, b.measureSnap}, {figAt, b.measureAt}, {figCompact, b.measureCompaction},
	} {
		if !b.figure(f.name) {
			continue
		}
		dir, err := os.MkdirTemp(b.work, f.name+"-")
		if err != nil {
			return err
		}
		if err := errors.Join(f.run(ctx, p, r, dir), discard(dir)); err != nil {
			b.failures = append(b.failures, fmt.Errorf("%s: %w", f.name, err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	b.show(modelSection(p, r))
	return nil
}

// fillKeys publishes n events; key gives those of their keys.
func fillKeys(ctx context.Context, h *promethean.Hub, n int, key func(i int) string) error {
	return fillHub(ctx, h, n, func(i int, e *event.Event) { e.Key = key(i) })
}

func keyName(i int) string { return fmt.Sprintf("k%07d", i) }

// modelIndexes are those of the views that are measured.
func modelIndexes() []store.Index {
	return []store.Index{{Fields: []string{"host", "status"}}, {Fields: []string{"status"}}, {Fields: []string{"pid"}}}
}

// resident is how much memory the program holds.
func resident() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

func (b *bench) measureProjection(ctx context.Context, p modelPlan, r *modelResult, dir string) error {
	for round := range b.rounds {
		b.progress("project: round %d", round+1)
		// Each has a hub of its own: what one leaves to be tidied up is no
		// burden on the next.
		for i, kind := range []struct {
			start func(*promethean.Hub) (*view.View, error)
			rates *[]float64
		}{
			{func(h *promethean.Hub) (*view.View, error) {
				return view.Changelog(ctx, h, view.ChangelogOptions{Topic: topicName(0), Collection: "latest", Indexes: modelIndexes()})
			}, &r.Changelog},
			{func(h *promethean.Hub) (*view.View, error) { return startCounting(ctx, h) }, &r.Transactional},
		} {
			rate, half, full, err := projectOn(ctx, filepath.Join(dir, fmt.Sprint(round, i)), p, kind.start)
			if err != nil {
				return err
			}
			*kind.rates = append(*kind.rates, rate)
			r.Half, r.Full = append(r.Half, half), append(r.Full, full)
		}
	}
	return nil
}

// projectOn fills a hub and has a view read all of it: how fast, and how much
// memory there was in the middle and at the end.
func projectOn(ctx context.Context, dir string, p modelPlan, start func(*promethean.Hub) (*view.View, error)) (rate, half, full float64, err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, h.Close(), discard(dir)) }()
	rng := rand.New(rand.NewPCG(3, 4))
	if err := fillKeys(ctx, h, p.events, func(int) string { return keyName(rng.IntN(p.keys)) }); err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	v, err := start(h)
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if err := v.Wait(ctx, uint64(p.events/2)); err != nil {
		return 0, 0, 0, err
	}
	half = resident()
	err = v.Wait(ctx, uint64(p.events))
	return float64(p.events) / time.Since(began).Seconds(), half, resident(), err
}

// startCounting starts a view with a document for each key and a counter for
// each host.
func startCounting(ctx context.Context, h *promethean.Hub) (*view.View, error) {
	const docs, hosts = "docs", "hosts"
	type counter struct {
		Seen int64 `json:"seen"`
		TS   int64 `json:"ts"`
	}
	return view.Transactional(ctx, h, view.TransactionalOptions{
		Topic: topicName(0), Name: docs, Collections: []store.Collection{{Name: docs, Indexes: modelIndexes()[:2]}, {Name: hosts}},
		Handler: func(_ context.Context, e event.Event, tx *view.Tx) error {
			var p struct {
				Host string `json:"host"`
			}
			if err := json.Unmarshal(e.Payload, &p); err != nil {
				return err
			}
			var c counter
			if _, err := tx.Get(hosts, p.Host, &c); err != nil {
				return err
			}
			c.Seen, c.TS = c.Seen+1, e.TS
			return errors.Join(tx.Put(docs, e.Key, e.Payload), tx.Put(hosts, p.Host, c))
		},
	})
}

func (b *bench) measureAt(ctx context.Context, p modelPlan, r *modelResult, dir string) (err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	keys := p.history / p.each
	b.progress("at: a topic of %s events", count(float64(p.history)))
	// Every key has an event in each stretch, so that its events lie all over
	// the topic.
	if err := fillKeys(ctx, h, p.history, func(i int) string { return keyName(i % keys) }); err != nil {
		return err
	}
	now := time.Now().UnixMilli()
	rng := rand.New(rand.NewPCG(5, 6))
	for _, how := range []struct {
		reduce timetravel.Reducer
		into   *[]float64
	}{{timetravel.Replace, &r.Replace}, {timetravel.Merge, &r.Merge}} {
		for range p.asks {
			q := timetravel.Query{Topic: topicName(0), Key: keyName(rng.IntN(keys)), TS: &now}
			began := time.Now()
			s, err := timetravel.At(ctx, h, q, timetravel.Options{Reduce: how.reduce})
			if err != nil {
				return err
			}
			*how.into = append(*how.into, time.Since(began).Seconds())
			if how.reduce == timetravel.Merge && s.Events != p.each {
				return fmt.Errorf("%d events were applied, want %d", s.Events, p.each)
			}
		}
	}
	return nil
}

func (b *bench) measureCompaction(ctx context.Context, p modelPlan, r *modelResult, dir string) (err error) {
	h, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	b.progress("compact: a topic of %s events", count(float64(p.squeeze)))
	if err := fillKeys(ctx, h, p.squeeze, func(i int) string { return keyName(i % p.left) }); err != nil {
		return err
	}
	before, err := h.Log().Bounds(ctx, topicName(0))
	if err != nil {
		return err
	}
	b.progress("compact: waiting until what was filled is sealed and merged")
	if err := quiet(ctx, dir); err != nil {
		return err
	}
	c, ok := store.As[store.Compacts](h.Log())
	if !ok {
		return errors.New("the engine does not compact")
	}
	beside := startPublishing(ctx, h)
	alone, err := beside.rate(2 * time.Second)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		got, err := c.Compact(ctx, topicName(0), store.Compaction{Before: before.Last + 1})
		r.Kept = got.Kept
		done <- err
	}()
	rate, busy := beside.until(done)
	r.Squeezed = time.Since(began).Seconds()
	again, err := beside.rate(2 * time.Second)
	if err = errors.Join(err, busy, beside.stop()); err != nil {
		return err
	}
	after, err := h.Log().Bounds(ctx, topicName(0))
	if err != nil {
		return err
	}
	r.Alone, r.Beside, r.Bytes = append(r.Alone, (alone+again)/2), append(r.Beside, rate), [2]int64{before.Bytes, after.Bytes}
	return nil
}

// quiet waits until the files of a data directory have stayed the same for two
// seconds: nothing is sealed, merged or rewritten any more.
func quiet(ctx context.Context, dir string) error {
	const still, look = 2 * time.Second, 100 * time.Millisecond
	var last string
	for since := time.Now(); time.Since(since) < still; {
		list, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		var now strings.Builder
		for _, f := range list {
			info, err := f.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since it was listed
			}
			if err != nil {
				return err
			}
			fmt.Fprintln(&now, f.Name(), info.Size())
		}
		if now.String() != last {
			last, since = now.String(), time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
	}
	return nil
}

// medianOf gives the middle one.
func medianOf(v []float64) float64 { return spreadOf(v).Median }

func p99Of(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)*99/100]
}
