package main

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

// kind is a way to do harm.
type kind string

// The kinds of faults.
const (
	killLeader   kind = "kill-leader"   // kill -9 the server that leads a topic's stream; it is back after a while
	stopLeader   kind = "stop-leader"   // SIGSTOP that server, so that it comes back with what it believed before
	restartNodes kind = "restart-nodes" // end and start each server, one after the other
	slowDisk     kind = "slow-disk"     // stop and continue a server many times a second
	// A hub, here, is the program or a worker that brings a hub of its own.
	killHub    kind = "kill-hub"      // kill -9 a hub; it is back after a while
	stopHub    kind = "stop-hub"      // SIGSTOP a hub: it does not know that time passes
	cutHub     kind = "cut-hub"       // end its connections to the servers, and refuse new ones
	freezeHub  kind = "freeze-hub"    // keep its connections, and carry nothing
	slowHub    kind = "slow-hub"      // hold back each packet between it and the servers
	killWorker kind = "kill-consumer" // kill -9 a consumer; it is back after a while
)

// fault is one step of a plan.
type fault struct {
	N    int
	Kind kind
	// Whom decides which node, hub, topic or consumer is hit: it is taken modulo
	// how many there are.
	Whom int
	For  time.Duration
	// Calm is how long nothing is done after it is recovered from.
	Calm time.Duration
}

func (f fault) String() string {
	return fmt.Sprintf("%d %s %d for %v", f.N, f.Kind, f.Whom, f.For)
}

// lengths are how long a fault of a kind lasts: from, and below. Those of hubs
// go from less to more than what a hub owns a group for without renewing.
var lengths = map[kind][2]time.Duration{
	killLeader:   {1 * time.Second, 10 * time.Second},
	stopLeader:   {1 * time.Second, 15 * time.Second},
	restartNodes: {0, 3 * time.Second}, // between one and the next
	slowDisk:     {5 * time.Second, 15 * time.Second},
	killHub:      {0, 12 * time.Second},
	stopHub:      {2 * time.Second, 20 * time.Second},
	cutHub:       {1 * time.Second, 20 * time.Second},
	freezeHub:    {2 * time.Second, 20 * time.Second},
	slowHub:      {3 * time.Second, 10 * time.Second},
	killWorker:   {0, 4 * time.Second},
}

// kinds are all of them, in the order in which the first deck is shuffled.
var kinds = []kind{
	killLeader, stopLeader, restartNodes, slowDisk, killHub, stopHub, cutHub, freezeHub, slowHub, killWorker,
}

// plan gives the faults of a seed, without end. Every kind comes before one
// comes again.
func plan(seed uint64) iter.Seq[fault] {
	return func(yield func(fault) bool) {
		r := rand.New(rand.NewPCG(seed, 0x70726f6d))
		for n := 1; ; {
			deck := append([]kind(nil), kinds...)
			r.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
			for _, k := range deck {
				between := func(from, below time.Duration) time.Duration {
					return (from + time.Duration(r.Int64N(int64(below-from)))).Truncate(time.Millisecond)
				}
				f := fault{N: n, Kind: k, Whom: r.IntN(1 << 20)}
				f.For = between(lengths[k][0], lengths[k][1])
				f.Calm = between(500*time.Millisecond, 3*time.Second)
				if !yield(f) {
					return
				}
				n++
			}
		}
	}
}
