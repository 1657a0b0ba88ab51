package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"promethean/client"
)

// move is what a step of a churn does to one member.
type move string

// The moves.
const (
	join  move = "join"  // start its process
	part  move = "leave" // SIGTERM
	die   move = "die"   // kill -9
	stall move = "stall" // SIGSTOP
	wake  move = "wake"  // SIGCONT
	stay  move = "stay"  // nothing
)

// step is one of a churn.
type step struct {
	Whom  int     // which member, modulo how many there are
	Toss  float64 // decides the move, among those that its state allows
	Pause time.Duration
}

// steps gives the steps of a seed, without end.
func steps(seed uint64) func() step {
	r := rand.New(rand.NewPCG(seed, 0x63687572))
	return func() step {
		return step{Whom: r.IntN(1 << 20), Toss: r.Float64(), Pause: time.Duration(r.IntN(40)) * time.Millisecond}
	}
}

// moveOf is what a step does to a member that is away, stalled, or there. A
// member is there for some seconds on average; some stand still for longer than
// a membership lasts without a sign of life, most do not.
func (s step) moveOf(away, stalled bool) move {
	switch {
	case away && s.Toss < 0.40:
		return join
	case away:
		return stay
	case stalled && s.Toss < 0.12:
		return wake
	case stalled && s.Toss < 0.15:
		return die
	case stalled:
		return stay
	case s.Toss < 0.05:
		return part
	case s.Toss < 0.10:
		return die
	case s.Toss < 0.15:
		return stall
	}
	return stay
}

// actor is a member of a churn.
type actor struct {
	*peer
	stalled bool
	gone    chan struct{} // it was asked to leave: closed when it has
}

// away says whether the member's process does not run.
func (a *actor) away() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.wanted
}

// leaving says whether the member is about to be gone.
func (a *actor) leaving() bool {
	if a.gone == nil {
		return false
	}
	select {
	case <-a.gone:
		a.gone = nil
		return false
	default:
		return true
	}
}

func (a *actor) do(m move) error {
	switch m {
	case join:
		return a.start()
	case part:
		a.gone = a.ask()
	case die:
		a.kill()
		a.stalled = false
	case stall:
		a.stalled = true
		return a.signal(syscall.SIGSTOP)
	case wake:
		a.stalled = false
		return a.signal(syscall.SIGCONT)
	case stay:
	}
	return nil
}

// churn has members join, leave, die and stall, one of them at each step.
func (r *run) churn(ctx context.Context) error {
	if _, err := r.recovered(ctx); err != nil {
		return fmt.Errorf("before the first step: %w", err)
	}
	r.say("events flow")
	var actors []*actor
	for _, w := range r.readers {
		actors = append(actors, &actor{peer: w})
	}
	seen := make(map[group]client.GroupPartitions)
	moves := make(map[move]int)
	next := steps(r.asked.seed)
	for n := range r.asked.steps {
		s := next()
		a := actors[s.Whom%len(actors)]
		m := stay
		if !a.leaving() {
			m = s.moveOf(a.away(), a.stalled)
		}
		moves[m]++
		if err := a.do(m); err != nil {
			return fmt.Errorf("step %d, %s %s: %w", n+1, m, a.name, err)
		}
		if err := r.failed(); err != nil {
			return fmt.Errorf("step %d: %w", n+1, err)
		}
		if n%25 == 0 {
			r.look(ctx, seen)
		}
		if (n+1)%1000 == 0 {
			r.say("%d steps", n+1)
		}
		if !pause(ctx, s.Pause) {
			return context.Cause(ctx)
		}
	}
	// Whoever is away comes back, so that the rest can be handled.
	for _, a := range actors {
		if a.gone != nil {
			<-a.gone
		}
		if a.stalled {
			if err := a.do(wake); err != nil {
				return err
			}
		}
		if a.away() {
			if err := a.do(join); err != nil {
				return err
			}
		}
	}
	var list []string
	for _, m := range slices.Sorted(maps.Keys(moves)) {
		list = append(list, fmt.Sprintf("%s %d", m, moves[m]))
	}
	r.say("%d steps: %s", r.asked.steps, strings.Join(list, ", "))
	parts, err := r.recovered(ctx)
	r.say("everything goes on (%s)", parts)
	return err
}

// look asks a hub who owns what. Generations and epochs never go back, and a
// partition is given to one member at most.
func (r *run) look(ctx context.Context, seen map[group]client.GroupPartitions) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for _, l := range r.loads {
		for _, g := range l.owned {
			// One hub alone: another may not have heard of the last change.
			list, err := r.hubs[0].client.GroupPartitions(ctx, g.topic, g.name)
			if err != nil || len(list) != 1 {
				continue // the end is judged by what was handed out, whoever answered
			}
			for _, text := range compare(seen[g], list[0]) {
				r.verdict.add("a partition has one owner", "%s of %s: %s", g.name, g.topic, text)
			}
			seen[g] = list[0]
		}
	}
}

// compare says what is wrong with what a hub tells of a group now, given what it
// told before.
func compare(was, now client.GroupPartitions) (wrong []string) {
	if now.Generation < was.Generation {
		wrong = append(wrong, fmt.Sprintf("generation %d after %d", now.Generation, was.Generation))
	}
	of := make(map[int]string)
	for _, m := range now.Members {
		for _, n := range m.Partitions {
			if other, ok := of[n]; ok {
				wrong = append(wrong, fmt.Sprintf("generation %d gives partition %d to %s and to %s", now.Generation, n, other, m.ID))
			}
			of[n] = m.ID
		}
	}
	for i := range min(len(was.Partitions), len(now.Partitions)) {
		if a, b := was.Partitions[i], now.Partitions[i]; b.Epoch < a.Epoch {
			wrong = append(wrong, fmt.Sprintf("partition %d is at epoch %d after %d", b.Partition, b.Epoch, a.Epoch))
		}
	}
	return wrong
}
