package main

import (
	"fmt"
	"math"
)

// results is everything that was measured; what was not is nil.
type results struct {
	figures  map[string]*measured // by name
	variants *measured
	history  *historyResult
	allocs   *allocResult
	crowd    *crowdResult
	models   *modelResult
}

// gate is a promise with its threshold.
type gate struct {
	name      string
	value     float64
	measured  bool
	atLeast   bool // else the value has to stay at or below, or below, the threshold
	strict    bool // below, not at
	threshold float64
	format    func(float64) string
}

func (g gate) pass() bool {
	switch {
	case math.IsNaN(g.value):
		return false
	case g.atLeast:
		return g.value >= g.threshold
	case g.strict:
		return g.value < g.threshold
	}
	return g.value <= g.threshold
}

func (g gate) verdict() string {
	switch {
	case !g.measured:
		return "NOT RUN"
	case g.pass():
		return "PASS"
	}
	return "FAIL"
}

func (g gate) limit() string {
	sign := "≤"
	if g.atLeast {
		sign = "≥"
	} else if g.strict {
		sign = "<"
	}
	return sign + " " + g.format(g.threshold)
}

func (g gate) String() string {
	if !g.measured {
		return fmt.Sprintf("%-7s  %s %s", g.verdict(), g.name, g.limit())
	}
	return fmt.Sprintf("%-7s  %s %s: %s", g.verdict(), g.name, g.limit(), g.format(g.value))
}

// gates judges the results. A gate whose figures are missing is listed too, so
// that a run without a peer does not look like a run that passed.
func gates(r results) []gate {
	ratio := func(name string, limit float64, atLeast bool, q []float64) gate {
		return gate{name: name, threshold: limit, atLeast: atLeast, format: times, measured: len(q) > 0, value: spreadOf(q).Median}
	}
	against := func(fig, other string) []float64 {
		m := r.figures[fig]
		return pairwise(m.row(nameUs).rates(), m.row(other).rates())
	}
	c1 := r.figures[figC1]
	batches := r.figures[figBatch]
	gs := []gate{
		ratio("c1 p50 of us ÷ raw", 1.4, false, pairwise(c1.row(nameUs).p50s(), c1.row(nameRaw).p50s())),
		ratio("c64 us ÷ raw", 0.5, true, against(figC64, nameRaw)),
		ratio("c64 us ÷ redis-always", 3, true, against(figC64, nameRedis)),
		ratio("c64 us ÷ jetstream-always", 15, true, against(figC64, nameJetAlways)),
		ratio("c256 us ÷ raw", 0.3, true, against(figC256, nameRaw)),
		ratio("batches us ÷ best of redis-always", 3, true, pairwise(batches.row(nameUs).rates(), bestRedis(batches))),
	}

	gs = append(gs, deliveryGates(r, ratio)...)
	gs = append(gs, crowdGates(r, ratio)...)
	gs = append(gs, sharedGates(r, ratio)...)
	gs = append(gs, gatewayGates(r, ratio)...)
	gs = append(gs, modelGates(r, ratio)...)

	scan := gate{name: "cold scan, events/s", threshold: 1e6, atLeast: true, format: count}
	tail := gate{name: "tail reads, events/s", threshold: 3e6, atLeast: true, format: count}
	rss := gate{name: "peak memory", threshold: 600 << 20, strict: true, format: mebibytes}
	clean := gate{name: "slowest opening after a clean close", threshold: 2, strict: true, format: seconds}
	crash := gate{name: "opening after a kill", threshold: 15, strict: true, format: seconds}
	if h := r.history; h != nil {
		scan.measured, scan.value = true, spreadOf(h.scans()).Median
		tail.measured, tail.value = true, spreadOf(h.fill.Tail).Median
		rss.measured, rss.value = true, float64(h.peakRSS())
		clean.measured, clean.value = true, maxOf(h.openings()...)
		crash.measured, crash.value = true, h.crash.Opening.Seconds()
	}
	allocs := gate{name: "allocations an append", threshold: 3, format: decimal}
	if r.allocs != nil {
		allocs.measured, allocs.value = true, r.allocs.Allocs
	}
	return append(gs, scan, tail, rss, clean, crash, allocs)
}

// bestRedis gives, for each round, the better of the rows of Redis. It needs
// both: with one of them missing the best is not known.
func bestRedis(m *measured) []float64 {
	deep, wide := m.row(rowRedisDeep).rates(), m.row(rowRedisWide).rates()
	best := make([]float64, min(len(deep), len(wide)))
	for i := range best {
		best[i] = max(deep[i], wide[i])
	}
	return best
}
