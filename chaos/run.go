package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"promethean/client"
	"promethean/event"
)

// options of a run.
type options struct {
	program string
	seed    uint64
	length  time.Duration
	steps   int // of a churn, in place of faults
	hubs    int
	dir     string
	keep    bool // the directory, also if all is well
}

// group is one that is judged.
type group struct{ topic, name string }

// workload is a sort of work and what it promises.
type workload struct {
	workers []workerConfig // those that publish end first
	topics  []string       // whose logs are read at the end
	groups  []group        // that must get everything
	owned   []group        // divided into partitions, each of which has one owner
	linear  []string       // topics whose last seq is a register
	tables  []table        // that must be exact
	parts   int            // partitions of the topics; 0 are 1
}

// workloads are all that a run with faults does.
func workloads(hubs int) (list []workload) {
	events := workload{topics: []string{"chaos.events"}, groups: []group{{"chaos.events", "pushed"}, {"chaos.events", "pulled"}}}
	for i := range hubs {
		for _, w := range []workerConfig{
			{Kind: "publish", Topic: "chaos.events", Every: 60 * time.Millisecond},
			{Kind: "push", Topic: "chaos.events", Group: "pushed"},
			{Kind: "pull", Topic: "chaos.events", Group: "pulled"},
		} {
			w.First, w.Name = i, fmt.Sprintf("%s%d", w.Kind, i+1)
			events.workers = append(events.workers, w)
		}
	}
	registers := workload{}
	for i := range 2 {
		topic := fmt.Sprintf("chaos.register%d", i+1)
		registers.topics, registers.linear = append(registers.topics, topic), append(registers.linear, topic)
		registers.workers = append(registers.workers, workerConfig{Kind: "register", Topic: topic, First: i, Name: fmt.Sprintf("register%d", i+1)})
	}
	return append(list, events, registers, counted(hubs))
}

// counted are two partitioned groups: one whose members bring hubs of their own,
// and one at the hubs.
func counted(hubs int) workload {
	parted := []group{{"chaos.counted", "counted"}, {"chaos.counted", "divided"}}
	counts := workload{
		topics: []string{"chaos.counted"}, parts: 8, groups: parted, owned: parted,
		tables: []table{{source: "chaos.counted", changelog: countsName + ".changelog"}},
	}
	for i := range 2 {
		counts.workers = append(counts.workers, workerConfig{Kind: "publish", Topic: "chaos.counted", Every: 150 * time.Millisecond, First: i, Name: fmt.Sprintf("source%d", i+1)})
	}
	for i := range 3 {
		counts.workers = append(counts.workers, workerConfig{Kind: "count", Topic: "chaos.counted", Group: "counted", First: i, Name: fmt.Sprintf("count%d", i+1)})
	}
	for i := range hubs {
		counts.workers = append(counts.workers, workerConfig{Kind: "member", Topic: "chaos.counted", Group: "divided", First: i, Name: fmt.Sprintf("member%d", i+1)})
	}
	return counts
}

// run is one run.
type run struct {
	asked options
	*fleet
	out     io.Writer
	began   time.Time
	loads   []workload
	writers []*peer // workers that publish
	readers []*peer // workers that consume, which faults may kill
	verdict verdict
	faults  map[kind]int
	worst   time.Duration // the longest recovery
	worstOf fault
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.out, "%7.1fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// chaos does a run, and says whether all promises held.
func chaos(ctx context.Context, o options, out io.Writer) (ok bool, err error) {
	r := &run{asked: o, out: out, began: time.Now(), loads: workloads(o.hubs), faults: make(map[kind]int)}
	trouble, rule, long := r.trouble, "everything goes on after a fault", o.length.String()
	if o.steps > 0 {
		r.loads = []workload{counted(o.hubs)}
		trouble, rule, long = r.churn, "everything goes on after a churn", fmt.Sprintf("%d steps", o.steps)
	}
	fmt.Fprintf(out, "chaos: seed %d, %s, %d nodes, %d hubs, in %s\n", o.seed, long, nodes, o.hubs, o.dir)
	if r.fleet, err = newFleet(o.dir, o.program, o.hubs); err != nil {
		return false, err
	}
	defer r.close()
	if err := r.start(ctx); err != nil {
		return false, fmt.Errorf("start: %w", err)
	}
	r.say("servers and hubs are up")
	if err := r.hire(ctx); err != nil {
		return false, err
	}
	if err := trouble(ctx); err != nil {
		r.verdict.add(rule, "%v", err)
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if err := r.wind(ctx); err != nil {
		r.verdict.add("everything is handed out", "%v", err)
	}
	if err := r.failed(); err != nil {
		r.verdict.add("no process ends by itself", "%v", err)
	}
	if err := r.judge(ctx); err != nil {
		return false, fmt.Errorf("judge: %w", err)
	}
	r.close()
	if ok = len(r.verdict.findings) == 0; ok && !o.keep {
		err = os.RemoveAll(o.dir)
	}
	return ok, err
}

// hire makes the topics and starts the workers.
func (r *run) hire(ctx context.Context) error {
	for _, l := range r.loads {
		for _, topic := range l.topics {
			if _, err := r.hubs[0].client.SetTopic(ctx, topic, map[string]any{"partitions": max(l.parts, 1)}); err != nil {
				return err
			}
		}
		for _, c := range l.workers {
			c.Hubs, c.Journals = r.urls(), filepath.Join(r.asked.dir, "journal")
			c.Seed = r.asked.seed + uint64(len(r.crew))
			w := &peer{}
			if c.Kind == "count" {
				var err error
				if c.Store, err = r.connect(w); err != nil {
					return err
				}
			}
			w.name, w.log, w.make = c.Name, r.logOf(c.Name), func() *exec.Cmd { return self("worker", c) }
			r.crew = append(r.crew, w)
			if c.Group != "" {
				r.readers = append(r.readers, w)
			} else {
				r.writers = append(r.writers, w)
			}
			if err := w.start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// topics are those of all workloads.
func (r *run) topics() (list []string) {
	for _, l := range r.loads {
		list = append(list, l.topics...)
	}
	return list
}

// trouble makes one fault after the other until the time is over. After each,
// everything must go on.
func (r *run) trouble(ctx context.Context) error {
	if _, err := r.recovered(ctx); err != nil {
		return fmt.Errorf("before the first fault: %w", err)
	}
	r.say("events flow")
	end := time.Now().Add(r.asked.length)
	for f := range plan(r.asked.seed) {
		if time.Now().After(end) || !pause(ctx, f.Calm) {
			break
		}
		r.faults[f.Kind]++
		began := time.Now()
		whom, err := r.strike(ctx, f, r.topics(), r.readers)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("fault %v: %s: %w", f, whom, err)
		}
		over := time.Now()
		parts, err := r.recovered(ctx)
		took := time.Since(over)
		r.say("fault %d: %s (%s) at %s for %.1fs, recovered after %.1fs (%s)", f.N, f.Kind, whom, stamp(began.UnixNano()), over.Sub(began).Seconds(), took.Seconds(), parts)
		if err != nil {
			return fmt.Errorf("after fault %v (%s), which ended at %s: %w", f, whom, stamp(over.UnixNano()), err)
		}
		if took > r.worst {
			r.worst, r.worstOf = took, f
		}
	}
	return nil
}

// recovered waits until all servers have caught up, every hub stores events, and
// every group has handled what was there when that was so. It says how long each
// of these took.
func (r *run) recovered(ctx context.Context) (parts string, err error) {
	for _, p := range []struct {
		name string
		wait func(context.Context) error
	}{
		{"servers", func(ctx context.Context) error { return r.until(ctx, patience, r.nodesHealthy) }},
		{"hubs", func(ctx context.Context) error { return r.until(ctx, patience, r.hubsReady) }},
		{"publishing", r.probe},
		{"groups", r.caughtUp},
	} {
		began := time.Now()
		if err := p.wait(ctx); err != nil {
			return parts + p.name + " did not", err
		}
		parts += fmt.Sprintf("%s %.1fs, ", p.name, time.Since(began).Seconds())
	}
	return strings.TrimSuffix(parts, ", "), nil
}

// probe publishes through every hub.
func (r *run) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, h := range r.hubs {
		if _, err := h.client.Publish(ctx, "chaos.probe", h.name); err != nil {
			return fmt.Errorf("publish through %s: %w", h.name, err)
		}
	}
	return nil
}

// caughtUp waits until every group has settled what is in the log now. A group
// may be slow, but must not stand still.
func (r *run) caughtUp(ctx context.Context) error {
	for _, l := range r.loads {
		for _, g := range l.groups {
			tail, at := uint64(0), uint64(0)
			for {
				lag, err := r.lag(ctx, g)
				if err != nil {
					return err
				}
				if tail == 0 {
					tail = lag.Tail
				}
				if lag.Cursor >= tail || lag.Lag == 0 {
					break
				}
				at = lag.Cursor
				if err := r.until(ctx, patience, func(ctx context.Context) error {
					if lag, err := r.lag(ctx, g); err != nil || lag.Cursor == at && lag.Lag > 0 {
						return errors.Join(err, fmt.Errorf("group %s of %s stands at seq %d and does not go on to %d", g.name, g.topic, at, tail))
					}
					return nil
				}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lag asks one hub after the other how far a group is.
func (r *run) lag(ctx context.Context, g group) (lag client.LagInfo, err error) {
	err = r.until(ctx, patience, func(ctx context.Context) (err error) {
		for _, h := range r.hubs {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			lag, err = h.client.GroupLag(ctx, g.topic, g.name)
			cancel()
			if err == nil {
				return nil
			}
		}
		return fmt.Errorf("lag of %s: %w", g.name, err)
	})
	return lag, err
}

// wind ends the publishers, waits until the groups have everything, and ends the
// consumers.
func (r *run) wind(ctx context.Context) error {
	var list []error
	for _, w := range r.writers {
		list = append(list, w.end(ctx, patience))
	}
	r.say("the publishers have ended")
	list = append(list, r.caughtUp(ctx))
	for _, w := range r.readers {
		list = append(list, w.end(ctx, patience))
	}
	r.say("the consumers have ended")
	return errors.Join(list...)
}

// readLogs reads the topics through every hub; all must tell the same.
func (r *run) readLogs(ctx context.Context) (map[string][]event.Event, error) {
	logs := make(map[string][]event.Event)
	for _, topic := range r.topics() {
		for i, h := range r.hubs {
			var list []event.Event
			for e, err := range h.client.Read(ctx, topic, client.Place{From: client.Earliest}, client.ReadOptions{}) {
				if err != nil {
					return nil, fmt.Errorf("read %s through %s: %w", topic, h.name, err)
				}
				list = append(list, e)
			}
			if i == 0 {
				logs[topic] = list
				continue
			}
			if !slices.EqualFunc(list, logs[topic], func(a, b event.Event) bool { return a.ID == b.ID && a.Seq == b.Seq }) {
				r.verdict.add("all hubs tell the same", "%s: %s has %d events, %s has %d", topic, r.hubs[0].name, len(logs[topic]), h.name, len(list))
			}
		}
	}
	return logs, nil
}

// judge compares journals and logs, and prints what it found.
func (r *run) judge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	logs, err := r.readLogs(ctx)
	if err != nil {
		return err
	}
	entries, err := readJournals(filepath.Join(r.asked.dir, "journal"))
	if err != nil {
		return err
	}
	h := &history{entries: entries, logs: logs}
	h.judgePublishes(&r.verdict)
	if err := judgeLogs(filepath.Join(r.asked.dir, "log"), &r.verdict); err != nil {
		return err
	}
	published := 0
	for i := range entries {
		if entries[i].Do == doStored {
			published++
		}
	}
	var groups []string
	delivered, redelivered, longest := 0, 0, tally{}
	for _, l := range r.loads {
		for _, g := range l.groups {
			t := h.judgeGroup(g.topic, g.name, &r.verdict)
			delivered, redelivered = delivered+t.delivered, redelivered+t.redelivered
			if t.longest > longest.longest {
				longest = t
			}
			groups = append(groups, fmt.Sprintf("%s: %d delivered, %d of them again, %d acked, longest pause %.1fs at %s",
				g.name, t.delivered, t.redelivered, t.acked, t.longest.Seconds(), stamp(t.longestAt)))
		}
		for _, g := range l.owned {
			groups = append(groups, fmt.Sprintf("%s: %d times a partition was taken", g.name, h.judgeOwners(g.topic, g.name, l.parts, &r.verdict)))
		}
		for _, t := range l.tables {
			n, err := r.judgeTable(ctx, h, t)
			if err != nil {
				return err
			}
			groups = append(groups, fmt.Sprintf("%s: %d counters", t.changelog, n))
		}
		for _, topic := range l.linear {
			groups = append(groups, fmt.Sprintf("%s: %d calls", topic, h.judgeRegister(topic, r.asked.dir, &r.verdict)))
		}
	}
	for _, g := range groups {
		r.say("%s", g)
	}
	r.tell()
	result := "all promises held"
	if len(r.verdict.findings) > 0 {
		result = "FAILED, see " + r.asked.dir
	}
	harm := ""
	if r.asked.steps == 0 {
		harm = ", " + r.harm()
	}
	fmt.Fprintf(r.out, "chaos: seed %d: %s: %d published, %d delivered, %d redelivered%s, longest pause of delivery %.1fs\n",
		r.asked.seed, result, published, delivered, redelivered, harm, longest.longest.Seconds())
	return nil
}

// harm tells of the faults that were made.
func (r *run) harm() string {
	var list []string
	n := 0
	for _, k := range slices.Sorted(maps.Keys(r.faults)) {
		list = append(list, fmt.Sprintf("%s %d", k, r.faults[k]))
		n += r.faults[k]
	}
	return fmt.Sprintf("%d faults (%s), longest recovery %.1fs (%s)", n, strings.Join(list, ", "), r.worst.Seconds(), r.worstOf.Kind)
}

// tell prints the findings.
func (r *run) tell() {
	for _, f := range r.verdict.findings {
		fmt.Fprintf(r.out, "BROKEN  %s: %s\n", f.rule, f.text)
	}
	var rules []string
	for rule, n := range r.verdict.counts {
		if n > shown {
			rules = append(rules, fmt.Sprintf("BROKEN  %s: %d times in all\n", rule, n))
		}
	}
	sort.Strings(rules)
	fmt.Fprint(r.out, strings.Join(rules, ""))
}
