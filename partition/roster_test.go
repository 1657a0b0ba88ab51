package partition

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"promethean/group"
)

var testLimits = limits{ttl: 15 * time.Second}

// rosterWorld drives a roster as a coordinator would.
type rosterWorld struct {
	t   *testing.T
	r   *roster
	now time.Time
}

func newRosterWorld(t *testing.T, partitions int) *rosterWorld {
	w := &rosterWorld{t: t, r: new(roster), now: time.UnixMilli(1_000_000)}
	w.do(func() { w.r.divide(group.Plan{ID: "1", Count: partitions}) })
	return w
}

func (w *rosterWorld) do(f func()) {
	f()
	w.r.sweep(w.now, testLimits, func(m *member) time.Time { return time.UnixMilli(m.Away) })
	w.r.balance(w.now, testLimits)
	again, err := decodeRoster(w.r.encode())
	if err != nil {
		w.t.Fatal(err)
	}
	w.r = again
}

func (w *rosterWorld) join(id string, session uint64) {
	w.do(func() { w.r.join(member{ID: id, Static: true, Hub: "h", Session: session}, w.now, testLimits) })
}

// settle has every holder let go of what is not its own.
func (w *rosterWorld) settle() {
	w.do(func() {
		for p, id := range w.r.holders {
			if id != "" && id != w.r.owners[p] {
				w.r.release(id, w.r.find(id).Session, p)
			}
		}
	})
}

func (w *rosterWorld) has(id string) (list []int) {
	for p := range w.r.holders {
		if w.r.holders[p] == id && w.r.owners[p] == id {
			list = append(list, p)
		}
	}
	return list
}

// A partition that moves stays with who has it until he lets go of it.
func TestRosterMoves(t *testing.T) {
	w := newRosterWorld(t, 8)
	w.join("a", 1)
	if got := w.has("a"); len(got) != 8 {
		t.Fatalf("the only member has %v", got)
	}
	generation := w.r.generation
	w.join("b", 2)
	if w.r.generation != generation+1 {
		t.Errorf("generation %d after %d", w.r.generation, generation)
	}
	if a, b := w.has("a"), w.has("b"); len(a) != 4 || len(b) != 0 {
		t.Fatalf("before anything is let go of: a has %v, b has %v", a, b)
	}
	w.settle()
	if a, b := w.has("a"), w.has("b"); len(a) != 4 || len(b) != 4 {
		t.Fatalf("a has %v, b has %v", a, b)
	}
	if w.r.last.Moved != 4 || w.r.last.TookMs != -1 {
		t.Errorf("last rebalance %+v", w.r.last)
	}
	w.now = w.now.Add(70 * time.Millisecond)
	w.do(func() {
		for p, id := range w.r.holders {
			w.r.runs(id, w.r.find(id).Session, p, w.now)
		}
	})
	if w.r.last.TookMs != 70 || len(w.r.last.Pending) != 0 {
		t.Errorf("last rebalance %+v", w.r.last)
	}

	// Leaving lets go as well, and only then the member is gone.
	w.do(func() { w.r.leave("a", 1) })
	if w.r.find("a") == nil || len(w.has("b")) != 4 {
		t.Fatal("a is gone before it has let go")
	}
	w.settle()
	if w.r.find("a") != nil || len(w.has("b")) != 8 {
		t.Fatal("a has let go and is not gone")
	}
}

// A member that chose its id keeps its partitions for the TTL when it is
// dropped, and whoever comes with that id gets them; another leaves at once.
func TestRosterDrop(t *testing.T) {
	w := newRosterWorld(t, 8)
	w.join("a", 1)
	w.join("b", 2)
	w.settle()
	mine, generation := w.has("a"), w.r.generation
	w.do(func() { w.r.drop("a", 1, w.now, testLimits) })
	w.now = w.now.Add(14 * time.Second)
	w.do(func() {})
	if got := w.has("a"); !slices.Equal(got, mine) || w.r.generation != generation {
		t.Fatalf("while it is away, a has %v, generation %d", got, w.r.generation)
	}
	w.join("a", 3)
	w.now = w.now.Add(14 * time.Second)
	w.do(func() { w.r.drop("a", 1, w.now, testLimits) }) // the old connection is late
	if got := w.has("a"); !slices.Equal(got, mine) || w.r.find("a").Away != 0 || w.r.generation != generation {
		t.Fatalf("back again, a has %v: %+v", got, w.r.find("a"))
	}
	w.do(func() { w.r.drop("a", 3, w.now, testLimits) })
	w.now = w.now.Add(15 * time.Second)
	w.do(func() {})
	if w.r.find("a") != nil || len(w.has("b")) != 8 {
		t.Fatal("after the TTL a is still there")
	}
	w.do(func() {
		w.r.join(member{ID: "x", Hub: "h", Session: 9}, w.now, testLimits)
	})
	w.settle()
	w.do(func() { w.r.drop("x", 9, w.now, testLimits) })
	if w.r.find("x") != nil || len(w.has("b")) != 8 {
		t.Fatal("a member without an id of its own is there after it was dropped")
	}
}

// Nothing new is given to who is away.
func TestRosterAwayGetsNothing(t *testing.T) {
	w := newRosterWorld(t, 9)
	for i, id := range []string{"a", "b", "c"} {
		w.join(id, uint64(i+1))
		w.settle()
	}
	mine := w.has("a")
	w.do(func() { w.r.drop("a", 1, w.now, testLimits) })
	w.do(func() { w.r.leave("c", 3) })
	w.settle()
	if a, b := w.has("a"), w.has("b"); !slices.Equal(a, mine) || len(b) != 6 {
		t.Fatalf("a has %v, b has %v", a, b)
	}
	w.join("a", 4)
	w.settle()
	if a, b := len(w.has("a")), len(w.has("b")); a+b != 9 || a-b > 1 || b-a > 1 {
		t.Fatalf("a has %d, b has %d", a, b)
	}
}

// A hub that is gone takes its members along.
func TestRosterHubGone(t *testing.T) {
	w := newRosterWorld(t, 4)
	w.do(func() {
		w.r.join(member{ID: "a", Static: true, Hub: "h1", Session: 1}, w.now, testLimits)
		w.r.join(member{ID: "x", Hub: "h1", Session: 2}, w.now, testLimits)
		w.r.join(member{ID: "b", Static: true, Hub: "h2", Session: 3}, w.now, testLimits)
	})
	w.settle()
	w.do(func() { w.r.hubGone("h1", w.now, testLimits) })
	if a := w.r.find("a"); a == nil || a.Away == 0 || w.r.find("x") != nil || w.r.find("b").Away != 0 {
		t.Fatalf("members: %+v", w.r.members)
	}
}

// Who comes and goes all the time gets nothing for a while, unless nobody else
// is there, and is forgiven.
func TestRosterFlapping(t *testing.T) {
	w := newRosterWorld(t, 4)
	w.join("a", 1)
	session := uint64(10)
	cycle := func() (damped time.Duration) {
		session++
		w.join("f", session)
		if until := w.r.find("f").Damped; until != 0 {
			damped = time.UnixMilli(until).Sub(w.now)
		}
		w.settle()
		if n := len(w.has("f")); (n == 0) != (damped > 0) {
			t.Fatalf("damped for %v, f has %d partitions", damped, n)
		}
		return damped
	}
	leave := func() {
		w.do(func() { w.r.leave("f", session) })
		w.settle()
		w.now = w.now.Add(time.Second)
	}
	for range 4 {
		if d := cycle(); d != 0 {
			t.Fatalf("damped for %v after a few times", d)
		}
		leave()
	}
	var before time.Duration
	for range 3 {
		d := cycle()
		if d <= before {
			t.Fatalf("damped for %v after %v", d, before)
		}
		before = d
		leave()
	}
	d := cycle()
	w.now = w.now.Add(d)
	w.do(func() {})
	w.settle()
	if n := len(w.has("f")); n != 2 {
		t.Fatalf("after the while f has %d partitions", n)
	}
	leave()
	cycle()
	w.do(func() { w.r.leave("a", 1) })
	w.settle()
	if n := len(w.has("f")); n != 4 {
		t.Fatalf("alone, f has %d partitions", n)
	}
	leave()
	w.now = w.now.Add(time.Hour)
	w.do(func() {})
	if len(w.r.flaps) != 0 {
		t.Errorf("after an hour it is not forgotten: %+v", w.r.flaps)
	}
}

// A partition that a member could not take goes to another, and back to it only
// if there is nobody else.
func TestRosterRefuse(t *testing.T) {
	w := newRosterWorld(t, 2)
	w.join("a", 1)
	w.do(func() { w.r.refuse("a", 1, 0, w.now) })
	if w.r.holders[0] != "a" || w.r.barred("a", 0) != w.now.Add(time.Second).UnixMilli() {
		t.Fatalf("holder %q, barred until %d", w.r.holders[0], w.r.barred("a", 0))
	}
	w.join("b", 2)
	w.settle()
	if w.r.holders[0] != "b" || w.r.holders[1] != "a" {
		t.Fatalf("holders %q", w.r.holders)
	}
	w.do(func() { w.r.refuse("a", 1, 1, w.now) })
	if len(w.has("b")) != 2 {
		t.Fatalf("holders %q", w.r.holders)
	}
	w.now = w.now.Add(time.Second)
	w.do(func() {})
	w.settle()
	if len(w.has("a")) != 1 {
		t.Fatalf("after the while: holders %q", w.r.holders)
	}
}

// A new plan is begun by nobody before all are through with the old one.
func TestRosterPlan(t *testing.T) {
	w := newRosterWorld(t, 4)
	w.join("a", 1)
	w.join("b", 2)
	w.settle()
	w.do(func() { w.r.divide(group.Plan{ID: "2", Count: 6}) })
	if len(w.has("a"))+len(w.has("b")) != 0 || len(w.r.holders) != 6 {
		t.Fatalf("holders %q", w.r.holders)
	}
	w.do(func() { w.r.closed("a", 1) })
	if len(w.has("a")) != 0 {
		t.Fatal("a begins while b is not through")
	}
	w.do(func() { w.r.closed("b", 2) })
	if len(w.has("a")) != 3 || len(w.has("b")) != 3 {
		t.Fatalf("holders %q", w.r.holders)
	}
}

// Whatever happens, holders and owners are members, nobody loses a partition
// that it did not let go of, and once all have let go everything is even.
func TestRosterModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newRosterWorld(t, rapid.IntRange(0, 20).Draw(rt, "partitions"))
		session := uint64(0)
		ids := names(5)
		for range 60 {
			id := rapid.SampledFrom(ids).Draw(rt, "id")
			var s uint64
			if m := w.r.find(id); m != nil {
				s = m.Session
			}
			before, gone, generation := slices.Clone(w.r.holders), "", w.r.generation
			op := rapid.SampledFrom([]string{"join", "join", "leave", "drop", "release", "hub", "plan", "closed", "refuse", "time"}).Draw(rt, "op")
			w.do(func() {
				switch op {
				case "join":
					session++
					w.r.join(member{ID: id, Static: len(id)%2 == 0 || id < "worker-3", Hub: "h" + id[7:], Session: session}, w.now, testLimits)
				case "leave":
					w.r.leave(id, s)
				case "drop":
					gone = id
					w.r.drop(id, s, w.now, testLimits)
				case "hub":
					gone = id
					w.r.hubGone("h"+id[7:], w.now, testLimits)
				case "release":
					gone = id
					for p, h := range w.r.holders {
						if h == id && w.r.owners[p] != id {
							w.r.release(id, s, p)
						}
					}
				case "plan":
					before = nil
					w.r.divide(group.Plan{ID: fmt.Sprint(session, id), Count: rapid.IntRange(0, 20).Draw(rt, "count")})
				case "closed":
					w.r.closed(id, s)
				case "refuse":
					gone = id
					if len(w.r.holders) > 0 {
						w.r.refuse(id, s, rapid.IntRange(0, len(w.r.holders)-1).Draw(rt, "p"), w.now)
					}
				case "time":
					w.now = w.now.Add(time.Duration(rapid.IntRange(1, 20).Draw(rt, "s")) * time.Second)
				}
			})
			for p := range w.r.holders {
				for _, x := range []string{w.r.owners[p], w.r.holders[p]} {
					if x != "" && w.r.find(x) == nil {
						rt.Fatalf("partition %d: %q is no member", p, x)
					}
				}
				if op == "time" || before == nil {
					continue
				}
				if h := before[p]; h != "" && h != gone && w.r.holders[p] != h {
					rt.Fatalf("%s %s: partition %d went from %q to %q", op, id, p, h, w.r.holders[p])
				}
			}
			if w.r.generation < generation {
				rt.Fatal("the generation falls")
			}
		}
		for i := range w.r.members {
			w.r.members[i].Damped, w.r.members[i].Away = 0, 0
		}
		w.r.bars = nil
		w.do(func() {
			w.r.stale = true
			for _, id := range slices.Clone(w.r.closing) {
				w.r.closed(id, w.r.find(id).Session)
			}
		})
		w.settle()
		w.settle()
		var members []string
		for _, m := range w.r.members {
			members = append(members, m.ID)
		}
		if !slices.Equal(w.r.owners, w.r.holders) {
			rt.Fatalf("owners %q, holders %q", w.r.owners, w.r.holders)
		}
		if least, most := loads(members, w.r.owners); len(members) > 0 && len(w.r.owners) > 0 && most-least > 1 {
			rt.Fatalf("owners %q", w.r.owners)
		}
	})
}

// A list that was damaged is an error, not a panic.
func FuzzRoster(f *testing.F) {
	r := new(roster)
	r.divide(group.Plan{ID: "1", Count: 3})
	r.join(member{ID: "a", Session: 1}, time.UnixMilli(5), testLimits)
	r.balance(time.UnixMilli(5), testLimits)
	f.Add(r.encode())
	f.Add([]byte(`{"v":1,"owners":[0],"moving":{"7":1}}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRoster(b)
		if err != nil {
			return
		}
		one := r.encode()
		again, err := decodeRoster(one)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.encode(), one) {
			t.Fatal("it does not come back as it was")
		}
	})
}
