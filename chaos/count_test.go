package main

import "testing"

// lot is a hand-out of partition 0.
func (s *story) lot(who string, n int) {
	s.add(entry{Who: who, Do: doGot, ID: id(n), Key: "k", Seq: uint64(n)})
}

// take gives partition 0 to somebody.
func (s *story) take(who string) {
	part := 0
	s.add(entry{Who: who, Do: doTake, Part: &part})
	s.entries[len(s.entries)-1].Group = "g"
}

func TestOwners(t *testing.T) {
	for _, c := range []struct {
		name string
		tell func(s *story)
		ok   bool
	}{
		{"one after the other", func(s *story) {
			for n, who := range []string{"a", "b", "a"} {
				s.take(who)
				s.lot(who, 2*n+1)
				s.lot(who, 2*n+2)
			}
		}, true},
		{"a stale owner goes on", func(s *story) {
			s.take("a")
			s.lot("a", 1)
			s.take("b")
			s.lot("b", 2)
			s.lot("a", 3)
		}, false},
		{"nobody gave it", func(s *story) {
			s.take("a")
			s.lot("a", 1)
			s.lot("b", 2)
		}, false},
		{"handed out in time, and told late", func(s *story) {
			s.take("a")
			s.lot("a", 1)
			s.take("b")
			s.lot("b", 2)
			s.lot("a", 3)
			s.entries[4].Out = s.entries[1].Out + milli
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{}
			c.tell(s)
			var v verdict
			s.judgeOwners("t", "g", 1, &v)
			if ok := len(v.findings) == 0; ok != c.ok {
				t.Errorf("%v: %v", ok, v.findings)
			}
		})
	}
}

func TestSums(t *testing.T) {
	right := sum{}.with(id(1)).with(id(2))
	for _, c := range []struct {
		name string
		got  map[string]sum
		ok   bool
	}{
		{"exact", map[string]sum{"k": right}, true},
		{"one is missing", map[string]sum{"k": sum{}.with(id(1))}, false},
		{"one counts twice", map[string]sum{"k": right.with(id(2))}, false},
		{"other order", map[string]sum{"k": sum{}.with(id(2)).with(id(1))}, false},
		{"lost", nil, false},
		{"made up", map[string]sum{"k": right, "x": right}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v verdict
			sound().judgeSums(table{source: "t", changelog: "c"}, c.got, &v)
			if ok := len(v.findings) == 0; ok != c.ok {
				t.Errorf("%v: %v", ok, v.findings)
			}
		})
	}
}
