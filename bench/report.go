package main

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// section is a table with a title.
type section struct {
	title, note string
	columns     []string
	rows        [][]string
}

// text writes the table for a terminal: the first column to the left, all
// others to the right.
func (s section) text(w io.Writer) {
	width := make([]int, len(s.columns))
	for _, row := range append([][]string{s.columns}, s.rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	line := func(row []string) {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString("  " + cell + pad)
			} else {
				b.WriteString("  " + pad + cell)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	fmt.Fprintf(w, "\n%s\n", s.title)
	line(s.columns)
	for _, row := range s.rows {
		line(row)
	}
	if s.note != "" {
		fmt.Fprintf(w, "  %s\n", s.note)
	}
}

// markdown writes the table for the documentation.
func (s section) markdown(w io.Writer) {
	line := func(row []string) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.ReplaceAll(cell, "|", `\|`)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	fmt.Fprintf(w, "\n### %s\n\n", s.title)
	line(s.columns)
	fmt.Fprintf(w, "|---|%s\n", strings.Repeat("---:|", len(s.columns)-1))
	for _, row := range s.rows {
		line(row)
	}
	if s.note != "" {
		fmt.Fprintf(w, "\n%s\n", s.note)
	}
}

// publishSection shows a publishing figure.
func publishSection(m *measured) section {
	s := section{
		title: m.title, note: m.note,
		columns: []string{"target", "durability", "events/s", "min–max", "p50", "p99", "÷ raw", "us is"},
	}
	raw, us := m.row(nameRaw).rates(), m.row(nameUs).rates()
	for _, r := range m.rows {
		rates := r.rates()
		s.rows = append(s.rows, append([]string{r.name, r.durability}, append(rateCells(r),
			orDash(pairwise(rates, raw)), orDash(pairwise(us, rates)))...))
	}
	s.note = strings.TrimSpace(s.note + notes(m))
	return s
}

// rateCells gives rate, range and latencies of a row.
func rateCells(r *series) []string {
	if len(r.rounds) == 0 {
		return []string{"failed", "–", "–", "–"}
	}
	rate := spreadOf(r.rates())
	return []string{
		count(rate.Median), count(rate.Min) + "–" + count(rate.Max),
		latency(spreadOf(r.p50s()).Median), latency(spreadOf(r.p99s()).Median),
	}
}

// notes tells what does not fit into the table: failures, how much a round of
// our engine held, which says how far background work can have been put off,
// and how long the engine worked on after the clock had stopped.
func notes(m *measured) string {
	var b strings.Builder
	for _, r := range m.rows {
		if r.err != nil {
			fmt.Fprintf(&b, " %s failed in round %d: %v.", r.name, len(r.rounds)+1, r.err)
		}
	}
	if us := m.row(nameUs); us != nil && len(us.rounds) > 0 {
		settled := us.each(func(o outcome) float64 { return o.settled.Seconds() })
		volume := us.each(func(o outcome) float64 { return float64(o.events) * eventBytes })
		fmt.Fprintf(&b, " us took %s a round, answered by id and key %s after the last acknowledgement, and closed in %s.",
			mebibytes(spreadOf(volume).Median), latency(spreadOf(settled).Median), latency(spreadOf(us.closing).Median))
	}
	return b.String()
}

// variantSection shows what topics and keys change.
func variantSection(m *measured) section {
	s := section{title: m.title, columns: []string{"load", "durability", "events/s", "min–max", "p50", "p99", "ratio"}}
	few := map[string]string{rowManyTopics: rowOneTopic, rowManyKeys: rowFewKeys}
	for _, r := range m.rows {
		ratio := "–"
		if base, ok := few[r.name]; ok {
			ratio = orDash(pairwise(r.rates(), m.row(base).rates()))
		}
		s.rows = append(s.rows, append(append([]string{r.name, r.durability}, rateCells(r)...), ratio))
	}
	s.note = strings.TrimSpace("The ratio is to the row above." + notes(m))
	return s
}

// historySection shows what a long history does to us.
func historySection(h *historyResult) section {
	first, last := h.firstAndLast()
	row := func(name, unit string, format func(float64) string, values ...float64) []string {
		v := spreadOf(values)
		spread := "–"
		if len(values) > 1 {
			spread = format(v.Min) + "–" + format(v.Max)
		}
		return []string{name, format(v.Median), spread, unit}
	}
	p := h.plan
	return section{
		title: fmt.Sprintf("A history of %s events, %d topics, %s keys, published singly (%s)",
			count(float64(p.Events)), p.Load.Topics, count(float64(p.Load.Keys)), durable),
		columns: []string{"us", "median", "min–max", "unit"},
		rows: [][]string{
			row("append", "events/s", count, float64(p.Events)/h.fill.Elapsed.Seconds()),
			row("append, first tenth", "events/s", count, first),
			row("append, last tenth", "events/s", count, last),
			row("last tenth ÷ first", "", times, last/first),
			row("cold scan of one topic", "events/s", count, h.scans()...),
			row(fmt.Sprintf("newest %s of a topic", count(float64(p.TailEvents))), "events/s", count, h.fill.Tail...),
			row("peak memory", "", mebibytes, float64(h.peakRSS())),
			row("closing", "", seconds, h.fill.Closing.Seconds()),
			row("opening after a clean close, cold", "", seconds, h.openings()...),
			row("opening after a kill", "", seconds, h.crash.Opening.Seconds()),
		},
		note: fmt.Sprintf("Before each scan: %s. All %d events that were acknowledged before the kill were there after it.", h.dropped, h.acked),
	}
}

func allocSection(a *allocResult) section {
	return section{
		title: "Allocations, single appends by one goroutine", columns: []string{"us", "an append"},
		rows: [][]string{{"allocations", decimal(a.Allocs)}, {"bytes", count(a.Bytes)}},
	}
}

func gateSection(gs []gate) section {
	s := section{title: "Gates", columns: []string{"promise", "threshold", "measured", "verdict"}}
	for _, g := range gs {
		value := "–"
		if g.measured {
			value = g.format(g.value)
		}
		s.rows = append(s.rows, []string{g.name, g.limit(), value, g.verdict()})
	}
	return s
}

// Formats of values. Three digits are more than the spread allows.

func count(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case v >= 1e5:
		return fmt.Sprintf("%.0fk", v/1e3)
	case v >= 1e3:
		return fmt.Sprintf("%.1fk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

func latency(sec float64) string {
	d := time.Duration(sec * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return seconds(sec)
}

func times(v float64) string     { return fmt.Sprintf("%.2f×", v) }
func decimal(v float64) string   { return fmt.Sprintf("%.2f", v) }
func seconds(v float64) string   { return fmt.Sprintf("%.2f s", v) }
func kibibytes(v float64) string { return fmt.Sprintf("%.1f KiB", v/(1<<10)) }
func percent(v float64) string   { return fmt.Sprintf("%.2f %%", 100*v) }
func mebibytes(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }

func orDash(ratios []float64) string {
	if len(ratios) == 0 {
		return "–"
	}
	return times(spreadOf(ratios).Median)
}
