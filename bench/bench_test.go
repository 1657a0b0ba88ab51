package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"promethean/event"
)

func TestEventsHaveTheStatedSize(t *testing.T) {
	l := load{Publishers: 1, Topics: loadTopics, Keys: loadKeys}
	g := newGenerator(l, topicNames(l), 3)
	evs := make([]event.Event, 2*loadTopics)
	g.fill(evs)
	seen := map[event.ID]bool{}
	topics := map[string]int{}
	for i := range evs {
		e := &evs[i]
		if err := e.Check(event.Limits{}); err != nil {
			t.Fatal(err)
		}
		if n := len(event.AppendBinary(nil, e, true)); n != eventBytes {
			t.Errorf("event %d has %d bytes, want %d: %+v", i, n, eventBytes, e)
		}
		if len(e.Payload) != payloadBytes || !json.Valid(e.Payload) {
			t.Errorf("event %d: payload of %d bytes: %s", i, len(e.Payload), e.Payload)
		}
		if at, ok := e.ID.Time(); !ok || at.UnixMilli() != e.TS {
			t.Errorf("event %d: ts %d, id of %v", i, e.TS, at)
		}
		seen[e.ID] = true
		topics[e.Topic]++
	}
	if len(seen) != len(evs) {
		t.Errorf("%d ids for %d events", len(seen), len(evs))
	}
	for i := range loadTopics {
		if n := topics[topicName(i)]; n != 2 {
			t.Errorf("topic %d got %d of the events, want 2", i, n)
		}
	}
	if first, last := g.stock.key(0), g.stock.key(loadKeys-1); first != "k0000000" || last != "k0999999" {
		t.Errorf("keys run from %s to %s", first, last)
	}
}

func TestHistogramIsWithinTwoPercent(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var whole, part histogram
	var exact []time.Duration
	for i := range 20_000 {
		d := time.Duration(rng.ExpFloat64() * float64(time.Duration(1)<<rng.IntN(35)))
		exact = append(exact, d)
		if i%2 == 0 {
			whole.add(d)
		} else {
			part.add(d)
		}
	}
	whole.merge(&part)
	slices.Sort(exact)
	for _, p := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		want := float64(exact[int(p*float64(len(exact)))-1])
		got := float64(whole.percentile(p))
		if got < want || got > want*1.02+1 {
			t.Errorf("p%g is %v, exactly %v", 100*p, got, want)
		}
	}
	if got := new(histogram).percentile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestHistogramBuckets(t *testing.T) {
	for _, v := range []uint64{0, 1, 63, 64, 65, 127, 128, 1000, 1 << 40, 1<<63 - 1} {
		i := bucketOf(v)
		if top := bucketTop(i); v > top || i > 0 && v <= bucketTop(i-1) {
			t.Errorf("%d falls into bucket %d, which ends at %d", v, i, top)
		}
	}
}

func TestSpreadAndRatios(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want spread
	}{
		{nil, spread{}},
		{[]float64{4}, spread{4, 4, 4}},
		{[]float64{9, 1, 4}, spread{4, 1, 9}},
		{[]float64{8, 1, 4, 2}, spread{3, 1, 8}},
	} {
		if got := spreadOf(c.in); got != c.want {
			t.Errorf("spread of %v is %v, want %v", c.in, got, c.want)
		}
	}
	// Rounds are paired: both halved in the second, the ratio stays.
	if got := pairwise([]float64{100, 50, 80}, []float64{200, 100}); !slices.Equal(got, []float64{0.5, 0.5}) {
		t.Errorf("ratios are %v", got)
	}
}

func TestTables(t *testing.T) {
	s := section{title: "T", note: "N.", columns: []string{"target", "p50", "÷ raw"},
		rows: [][]string{{"raw", "60 µs", "1.00×"}, {"a|b", "1.25 ms", "–"}}}
	var text, md bytes.Buffer
	s.text(&text)
	s.markdown(&md)
	wantText := "\nT\n  target      p50  ÷ raw\n  raw       60 µs  1.00×\n  a|b     1.25 ms      –\n  N.\n"
	if text.String() != wantText {
		t.Errorf("text:\n%s\nwant:\n%s", text.String(), wantText)
	}
	wantMD := "\n### T\n\n| target | p50 | ÷ raw |\n|---|---:|---:|\n| raw | 60 µs | 1.00× |\n| a\\|b | 1.25 ms | – |\n\nN.\n"
	if md.String() != wantMD {
		t.Errorf("markdown:\n%s\nwant:\n%s", md.String(), wantMD)
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		count(12): "12", count(8812): "8.8k", count(373_400): "373k", count(4_712_000): "4.71M",
		latency(65e-6): "65 µs", latency(0.00034): "340 µs", latency(0.0135): "13.50 ms", latency(2.5): "2.50 s",
		mebibytes(600 << 20): "600 MiB", times(0.5): "0.50×",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// steady makes rows whose rate is the given one in every round.
func steady(rates map[string]float64) *measured {
	m := &measured{}
	for name, rate := range rates {
		s := &series{entry: entry{name: name}}
		for range 3 {
			s.rounds = append(s.rounds, outcome{events: int64(rate), elapsed: time.Second, p50: time.Duration(1e9 / rate), p99: time.Duration(1e9 / rate), cpu: time.Duration(rate) * time.Microsecond})
		}
		m.rows = append(m.rows, s)
	}
	return m
}

func TestGates(t *testing.T) {
	for _, g := range gates(results{}) {
		if g.verdict() != "NOT RUN" {
			t.Errorf("with nothing measured: %v", g)
		}
	}
	r := results{
		figures: map[string]*measured{
			figC1:    steady(map[string]float64{nameRaw: 15_000, nameUs: 12_000}),                                            // p50 1.25
			figC64:   steady(map[string]float64{nameRaw: 400_000, nameUs: 200_000, nameRedis: 70_000, nameJetAlways: 9_000}), // 0.5, 2.86, 22.2
			figBatch: steady(map[string]float64{nameUs: 600_000, rowRedisDeep: 150_000, rowRedisWide: 210_000}),              // 2.86 of the better
			figC256:  steady(map[string]float64{nameUs: 300_000}),                                                            // no raw

			figConsume:  steady(map[string]float64{rowOneGroup: 400_000, rowFourGroups: 400_000, rowJetExplict: 100_000}),
			figLive:     steady(map[string]float64{rowAlone: 2, rowBeside: 1}),
			figStuck:    steady(map[string]float64{rowFree: 100_000, rowStuck: 80_000}),
			figNats:     steady(map[string]float64{rowPlainSingle: 10, rowOursSingle: 8, rowPlainTake: 10, rowOursTake: 9}),
			figDelivery: steady(map[string]float64{rowFsync: 15_000, rowUsDeliver: 12_000}),

			figWS:        steady(map[string]float64{nameWS: 60_000, nameJet: 70_000, nameJetAlways: 10_000}),
			figWSBatch:   steady(map[string]float64{nameWS: 300_000, nameHTTP: 500_000, nameJetAsync: 200_000}),
			figWSDeliver: steady(map[string]float64{rowWSDeliver: 10_000, rowJetOutside: 5_000}),
			figExport:    steady(map[string]float64{rowExport: 300_000}),
		},
		history: &historyResult{
			fill:  fillResult{Tail: []float64{4e6, 2e6, 5e6}, PeakRSS: 100 << 20},
			clean: []openResult{{Opening: time.Second, Scanned: 1e6, ScanTime: time.Second, PeakRSS: 600 << 20}, {Opening: 2 * time.Second, Scanned: 1e6, ScanTime: time.Second}},
			crash: openResult{Opening: 14 * time.Second},
		},
		allocs: &allocResult{Allocs: 3},
		crowd:  &crowdResult{IdleBytes: 8 << 10, IdleCPU: 0.01},
		models: &modelResult{
			Changelog: []float64{150_000}, Half: []float64{4}, Full: []float64{5}, Constant: []float64{10}, Snap: []float64{6}, NotModified: []float64{7},
			List: []float64{0.005}, Merge: []float64{0.001}, Alone: []float64{10}, Beside: []float64{6},
		},
	}
	want := []string{
		"PASS     c1 p50 of us ÷ raw ≤ 1.40×: 1.25×",
		"PASS     c64 us ÷ raw ≥ 0.50×: 0.50×",
		"FAIL     c64 us ÷ redis-always ≥ 3.00×: 2.86×",
		"PASS     c64 us ÷ jetstream-always ≥ 15.00×: 22.22×",
		"NOT RUN  c256 us ÷ raw ≥ 0.30×",
		"FAIL     batches us ÷ best of redis-always ≥ 3.00×: 2.86×",
		"PASS     consuming, us ÷ embedded jetstream ≥ 3.00×: 4.00×",
		"FAIL     four groups ÷ one ≥ 1.20×: 1.00×",
		"PASS     publishing while a group consumes ÷ alone ≥ 0.50×: 0.50×",
		"FAIL     age of the oldest event handled while publishing < 1.00 s: 1.00 s",
		"PASS     publish to handler, p50 ÷ raw fdatasync ≤ 1.50×: 1.25×",
		"NOT RUN  publish to handler, p99 ÷ jetstream always ≤ 1.00×",
		"PASS     beside a stuck key ÷ without ≥ 0.80×: 0.80×",
		"PASS     memory that a stuck key adds < 64 MiB: 0 MiB",
		"FAIL     memory of an idle group < 8.0 KiB: 8.0 KiB",
		"PASS     processor time of idle groups, of one processor < 2.00 %: 1.00 %",
		"PASS     over nats, 64 publishers, us ÷ plain client ≥ 0.80×: 0.80×",
		"NOT RUN  over nats, batches, us ÷ plain client ≥ 0.80×",
		"FAIL     over nats, consuming, us ÷ plain consumer ≥ 1.00×: 0.90×",
		"PASS     over nats, processor time an event, us ÷ plain client ≤ 1.15×: 1.00×",
		"NOT RUN  over nats, processor time an event in batches, us ÷ plain client ≤ 1.15×",
		"NOT RUN  over mongodb, 64 publishers, us ÷ an insert for each event ≥ 5.00×",
		"NOT RUN  over mongodb, us ÷ inserts of the mean commit ≥ 0.60×",
		"FAIL     over the wire, 64 connections, us ÷ jetstream-default ≥ 1.00×: 0.86×",
		"PASS     over the wire, 64 connections, us ÷ jetstream-always ≥ 5.00×: 6.00×",
		"PASS     over the wire, batches, us ÷ jetstream-async ≥ 2.00×: 2.50×",
		"NOT RUN  over the wire, consuming, us ÷ jetstream ≥ 1.50×",
		"PASS     over the wire, publish to delivery p50, us ÷ jetstream-always ≤ 1.00×: 0.50×",
		"NOT RUN  memory of a hub with 10,000 idle subscribers < 400 MiB",
		"PASS     export, events/s ≥ 300k: 300k",
		"PASS     changelog view, events/s ≥ 150k: 150k",
		"NOT RUN  transactional view, events/s ≥ 60.0k",
		"PASS     heap at the end ÷ in the middle of a projection ≤ 1.25×: 1.25×",
		"FAIL     GET snap ÷ constant handler ≥ 0.70×: 0.60×",
		"PASS     304 ÷ 200 ≥ 1.00×: 1.17×",
		"FAIL     list with an indexed filter, p50 < 5.00 ms: 5.00 ms",
		"PASS     time travel over 100 events of a key, p50 < 2.00 ms: 1.00 ms",
		"PASS     publishing beside a compaction ÷ alone ≥ 0.60×: 0.60×",
		"PASS     cold scan, events/s ≥ 1.00M: 1.00M",
		"PASS     tail reads, events/s ≥ 3.00M: 4.00M",
		"FAIL     peak memory < 600 MiB: 600 MiB",
		"FAIL     slowest opening after a clean close < 2.00 s: 2.00 s",
		"PASS     opening after a kill < 15.00 s: 14.00 s",
		"PASS     allocations an append ≤ 3.00: 3.00",
	}
	got := gates(r)
	if len(got) != len(want) {
		t.Fatalf("%d gates, want %d", len(got), len(want))
	}
	for i, g := range got {
		if g.String() != want[i] {
			t.Errorf("got  %s\nwant %s", g, want[i])
		}
	}
}

func TestSelection(t *testing.T) {
	s, err := parseSelection(" c64,us, raw")
	if err != nil || !s.figure(figC64) || s.figure(figC1) || !s.target(nameUs) || s.target(nameRedis) {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := parseSelection(""); err != nil || !s.figure(figScan) || !s.target(nameJet) {
		t.Errorf("nothing named: %+v, %v", s, err)
	}
	if _, err := parseSelection("c64,kafka"); err == nil || !strings.Contains(err.Error(), `"kafka"`) {
		t.Errorf("unknown name: %v", err)
	}
}

// newBench is a bench for tests: tiny, and gentle to the machine's cache.
func newBench(t *testing.T) (*bench, *bytes.Buffer) {
	log := new(bytes.Buffer)
	return &bench{
		duration: 20 * time.Millisecond, rounds: 2, work: t.TempDir(), absent: map[string]error{}, out: new(bytes.Buffer), log: log,
		dropCaches: func(dir string) (string, error) { return "files dropped from the page cache", forgetFiles(dir) },
	}, log
}

func TestRoundsAreInterleaved(t *testing.T) {
	withPlain(t)
	b, log := newBench(t)
	for _, name := range []string{nameRecycled, nameRedis, nameJetAlways, nameJet} {
		b.absent[name] = errLeftOut
	}
	m, err := b.measure(t.Context(), publishFigures()[0])
	if err != nil {
		t.Fatal(err)
	}
	want := "· c1: round 1 of 2, raw\n· c1: round 1 of 2, us\n· c1: round 2 of 2, raw\n· c1: round 2 of 2, us\n"
	if log.String() != want {
		t.Errorf("order:\n%s", log)
	}
	for _, s := range m.rows {
		if s.err != nil || len(s.rounds) != 2 || s.rounds[0].events == 0 || s.rounds[0].elapsed < 10*time.Millisecond {
			t.Errorf("%s: %+v, %v", s.name, s.rounds, s.err)
		}
	}
	if left, err := os.ReadDir(b.work); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	md := filepath.Join(t.TempDir(), "out.md")
	var out, log bytes.Buffer
	code := program(t.Context(), []string{"-only", "c1,raw", "-rounds", "1", "-duration", "10ms", "-dir", dir, "-markdown", md}, &out, &log)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, log.String())
	}
	text, err := os.ReadFile(md)
	if err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string]string{"table": out.String(), "markdown": string(text)} {
		if !regexp.MustCompile(`(?m)^[ |]*raw[ |]+fsync before ack`).MatchString(got) || !strings.Contains(got, "NOT RUN") {
			t.Errorf("%s:\n%s", what, got)
		}
		if strings.Contains(got, dir) {
			t.Errorf("%s names a path of this machine:\n%s", what, got)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestProgramEnds(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		args string
		code int
		log  string
	}{
		{t.Context(), "-only kafka", 2, "kafka"},
		{t.Context(), "-rounds 0", 2, "-rounds"},
		{t.Context(), "-duration -1s", 2, "-duration"},
		{t.Context(), "everything", 2, "everything"},
		{t.Context(), "-help", 0, "-markdown"},
		{gone, "-only c1,raw", 1, "context canceled"},
	} {
		t.Run(c.args, func(t *testing.T) {
			dir := t.TempDir()
			var out, log bytes.Buffer
			args := append(strings.Fields(c.args), "-dir", dir)
			if c.code == 2 || c.args == "-help" {
				args = strings.Fields(c.args)
			}
			if code := program(c.ctx, args, &out, &log); code != c.code || !strings.Contains(log.String(), c.log) {
				t.Errorf("exit %d, want %d: %s", code, c.code, log.String())
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestTenths(t *testing.T) {
	r := &run{limit: limit{events: 40}, start: time.Now()}
	for done := int64(3); done <= 39; done += 3 { // batches that do not end on a tenth
		r.mark(done, 3)
	}
	r.mark(40, 1)
	for i, at := range r.tenths {
		if at <= 0 || i > 0 && at < r.tenths[i-1] {
			t.Fatalf("tenth %d at %v: %v", i, at, fmt.Sprint(r.tenths))
		}
	}
}
