package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// historyPlan is the size of the measurements over a long history.
type historyPlan struct {
	Events     int64
	TailEvents int64
	TailTime   time.Duration
	Scans      int
	// CrashEvents are acknowledged before the process is killed.
	CrashEvents int64
	Load        load
}

func planHistory(short bool) historyPlan {
	p := historyPlan{
		Events: 10_000_000, TailEvents: 50_000, TailTime: 10 * time.Second, Scans: 5, CrashEvents: 500_000,
		Load: load{Publishers: 256, Batch: 1, Topics: loadTopics, Keys: loadKeys},
	}
	if short {
		p.Events, p.TailTime, p.Scans, p.CrashEvents = 1_000_000, time.Second, 2, 100_000
	}
	return p
}

// historyResult is what one history answered for.
type historyResult struct {
	plan    historyPlan
	fill    fillResult
	dropped string // how the cache was emptied
	clean   []openResult
	crash   openResult
	acked   int64 // before the kill, as last reported
}

// historyTime bounds the whole: ten million events at a tenth of the rate that
// is expected.
const historyTime = 30 * time.Minute

// measureHistory fills a store once and asks it everything that needs a long
// history: rates along the way, reads of the tail, memory, opening after a
// clean close and cold scans, and opening after a kill.
func (b *bench) measureHistory(ctx context.Context, p historyPlan) (res *historyResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, historyTime)
	defer cancel()
	dir, err := os.MkdirTemp(b.work, "history-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, discard(dir)) }()
	res = &historyResult{plan: p}

	b.progress("history: %d single events over %d topics", p.Events, p.Load.Topics)
	res.fill, err = ask[fillResult](ctx, "fill", fillOrder{Dir: dir, Load: p.Load, Events: p.Events, TailEvents: p.TailEvents, TailTime: p.TailTime})
	if err != nil {
		return nil, err
	}
	if want := uint64(p.Events + p.TailEvents); res.fill.Retained != want {
		return nil, fmt.Errorf("history: %d events are retained, %d were acknowledged", res.fill.Retained, want)
	}
	for i := range p.Scans {
		b.progress("history: cold scan %d of %d", i+1, p.Scans)
		if res.dropped, err = b.dropCaches(dir); err != nil {
			return nil, err
		}
		open, err := ask[openResult](ctx, "open", openOrder{Dir: dir, Scan: topicName(p.Load.FirstTopic + i%p.Load.Topics)})
		if err != nil {
			return nil, err
		}
		if open.Retained != res.fill.Retained {
			return nil, fmt.Errorf("history: %d events after opening, %d before", open.Retained, res.fill.Retained)
		}
		res.clean = append(res.clean, open)
	}
	b.progress("history: kill while appending")
	if res.acked, err = crash(ctx, dir, p); err != nil {
		return nil, err
	}
	res.crash, err = ask[openResult](ctx, "open", openOrder{Dir: dir})
	if err != nil {
		return nil, err
	}
	if want := res.fill.Retained + uint64(res.acked); res.crash.Retained < want {
		return nil, fmt.Errorf("history: %d events after a kill, at least %d were acknowledged", res.crash.Retained, want)
	}
	return res, nil
}

// crash appends in a child until enough is acknowledged, and kills it.
func crash(ctx context.Context, dir string, p historyPlan) (acked int64, err error) {
	c, err := startChild("crash", crashOrder{Dir: dir, Load: p.Load})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.end()) }()
	var r crashReport
	for r.Acked < p.CrashEvents {
		if err := c.hear(ctx, &r); err != nil {
			return 0, err
		}
	}
	return r.Acked, nil
}

// scans, openings and the others give the values behind the medians.
func (r *historyResult) scans() (v []float64) {
	for _, o := range r.clean {
		v = append(v, float64(o.Scanned)/o.ScanTime.Seconds())
	}
	return v
}

func (r *historyResult) openings() (v []float64) {
	for _, o := range r.clean {
		v = append(v, o.Opening.Seconds())
	}
	return v
}

// peakRSS is the largest of appending, reading the tail and scanning.
func (r *historyResult) peakRSS() int64 {
	peak := max(r.fill.PeakRSS, r.crash.PeakRSS)
	for _, o := range r.clean {
		peak = max(peak, o.PeakRSS)
	}
	return peak
}

// firstAndLast gives the rates of appending in the first and the last tenth.
func (r *historyResult) firstAndLast() (first, last float64) {
	tenth := float64(r.plan.Events) / 10
	t := r.fill.Tenths
	return tenth / t[0].Seconds(), tenth / (t[9] - t[8]).Seconds()
}

// Rows of the growth figure: what a rate must not depend on.
const (
	rowOneTopic   = "1 topic, 1M keys"
	rowManyTopics = "10,000 topics, 1M keys"
	rowFewKeys    = "10 topics, 1k keys"
	rowManyKeys   = "10 topics, 1M keys"
)

// variants is a publishing figure of our engine alone.
func variants() figure {
	row := func(name string, topics, keys int) entry {
		return entry{name: name, target: nameUs, load: load{Publishers: 64, Batch: 1, Topics: topics, Keys: keys}}
	}
	return figure{
		name: figGrowth, title: "Topics and keys, single events, 64 publishers",
		entries: []entry{
			row(rowOneTopic, 1, 1_000_000),
			row(rowManyTopics, 10_000, 1_000_000),
			row(rowFewKeys, 10, 1_000),
			row(rowManyKeys, 10, 1_000_000),
		},
	}
}

// maxOf is the largest value, 0 of none.
func maxOf(values ...float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Max(values)
}
