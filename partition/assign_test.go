package partition

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"promethean/event"
)

// fewest is how many partitions must change hands at least for an even
// assignment, by trying who gets one more.
func fewest(members, previous []string) int {
	have := make(map[string]int)
	for _, id := range previous {
		have[id]++
	}
	least, larger := len(previous)/len(members), len(previous)%len(members)
	kept := 0
	for _, id := range members {
		kept += min(have[id], least)
		if have[id] > least && larger > 0 {
			larger--
			kept++
		}
	}
	return len(previous) - kept
}

func moved(previous, next []string) (n int) {
	for p := range next {
		if next[p] != previous[p] {
			n++
		}
	}
	return n
}

func loads(members, owners []string) (least, most int) {
	count := make(map[string]int)
	for _, id := range owners {
		count[id]++
	}
	least = len(owners)
	for _, id := range members {
		least, most = min(least, count[id]), max(most, count[id])
	}
	return least, most
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("worker-%d", i)
	}
	return out
}

// Whatever was before, the assignment is complete and even, moves the fewest,
// and does not depend on the order of the members.
func TestAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := names(rapid.IntRange(1, 12).Draw(t, "members"))
		all := append(names(15), "")
		previous := rapid.SliceOfN(rapid.SampledFrom(all), 0, 80).Draw(t, "previous")
		before := slices.Clone(previous)
		got := Assign(members, previous)
		if !slices.Equal(before, previous) {
			t.Fatal("what was before is changed")
		}
		for p, id := range got {
			if !slices.Contains(members, id) {
				t.Fatalf("partition %d is given to %q", p, id)
			}
		}
		if least, most := loads(members, got); len(got) > 0 && most-least > 1 {
			t.Fatalf("a member has %d partitions and another %d", most, least)
		}
		if n, want := moved(previous, got), fewest(members, previous); n != want {
			t.Fatalf("%d partitions moved, where %d had to", n, want)
		}
		mixed := append(rapid.Permutation(members).Draw(t, "order"), members[0], "")
		if again := Assign(mixed, previous); !slices.Equal(again, got) {
			t.Fatal("another order of the members gives another assignment")
		}
		if again := Assign(members, got); !slices.Equal(again, got) {
			t.Fatal("an even assignment is changed")
		}
	})
}

// One more member gets its share, and nothing else moves.
func TestAssignOneMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "members")
		count := rapid.IntRange(0, 300).Draw(t, "partitions")
		members := names(n + 1)
		before := Assign(members[:n], make([]string, count))
		after := Assign(members, before)
		if got, bound := moved(before, after), (count+n-1)/n+1; got > bound {
			t.Fatalf("%d partitions moved, more than %d", got, bound)
		}
		for p := range after {
			if after[p] != before[p] && after[p] != members[n] {
				t.Fatalf("partition %d went from %s to %s", p, before[p], after[p])
			}
		}
	})
}

func TestAssignNobody(t *testing.T) {
	if got := Assign(nil, []string{"a", "b"}); !slices.Equal(got, []string{"", ""}) {
		t.Errorf("without members: %q", got)
	}
	if got := Assign([]string{""}, []string{"a"}); !slices.Equal(got, []string{""}) {
		t.Errorf("with a member without a name: %q", got)
	}
	if got := Assign([]string{"a"}, nil); len(got) != 0 {
		t.Errorf("without partitions: %q", got)
	}
}

// A member gets no partition that is barred to it, unless nobody else is there.
func TestAssignBarred(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := names(rapid.IntRange(1, 5).Draw(t, "members"))
		previous := rapid.SliceOfN(rapid.SampledFrom(append(names(5), "")), 1, 20).Draw(t, "previous")
		bars := make(map[string]bool)
		for range rapid.IntRange(0, 30).Draw(t, "bars") {
			bars[fmt.Sprint(rapid.SampledFrom(members).Draw(t, "member"), rapid.IntRange(0, len(previous)-1).Draw(t, "p"))] = true
		}
		barred := func(id string, p int) bool { return bars[fmt.Sprint(id, p)] }
		for p, id := range assign(members, previous, barred) {
			if !slices.Contains(members, id) {
				t.Fatalf("partition %d is given to %q", p, id)
			}
			if barred(id, p) && slices.ContainsFunc(members, func(o string) bool { return !barred(o, p) }) {
				t.Fatalf("partition %d is given to %s, to which it is barred", p, id)
			}
		}
	})
}

// The bound is generous: the figure is in the benchmark.
func TestAssignIsQuick(t *testing.T) {
	members, none := names(256), make([]string, 4096)
	best := time.Hour
	for range 5 {
		began := time.Now()
		Assign(members, none)
		best = min(best, time.Since(began))
	}
	if best > 20*time.Millisecond && !raceEnabled {
		t.Errorf("4,096 partitions over 256 members take %v", best)
	}
}

func BenchmarkAssign(b *testing.B) {
	members, none := names(256), make([]string, 4096)
	b.Run("anew", func(b *testing.B) {
		for b.Loop() {
			Assign(members, none)
		}
	})
	before := Assign(members[:255], none)
	b.Run("one more", func(b *testing.B) {
		for b.Loop() {
			Assign(members, before)
		}
	})
}

func BenchmarkPartitionFor(b *testing.B) {
	for b.Loop() {
		event.PartitionFor("device:stt:00042", event.ID{}, 4096)
	}
}
