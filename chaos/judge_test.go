package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"promethean/client"
	"promethean/event"
)

// story is a history that is written by hand; time goes on by 10 ms a line.
type story struct {
	history
	now int64
}

const milli = int64(1e6)

func (s *story) add(e entry) {
	s.now += 10 * milli
	e.T, e.Topic = s.now, "t"
	if e.Do == doGot {
		e.Out = e.T - milli
	}
	if e.Do == doGot || e.Do == doAck || e.Do == doAcked {
		e.Group = "g"
	}
	s.entries = append(s.entries, e)
}

func id(n int) event.ID { return event.NameID(event.ID{}, fmt.Sprint(n)) }

// store puts an event of key k into the log.
func (s *story) store(seq uint64, n int) {
	if s.logs == nil {
		s.logs = make(map[string][]event.Event)
	}
	s.logs["t"] = append(s.logs["t"], event.Event{ID: id(n), Seq: seq, Topic: "t", Key: "k", Payload: fmt.Appendf(nil, `{"n":%d}`, n)})
}

// sound is a history in which two events are published, handed out and acked.
func sound() *story {
	s := &story{}
	for n := 1; n <= 2; n++ {
		s.add(entry{Do: doPublish, ID: id(n), Key: "k", N: n})
		s.add(entry{Do: doStored, ID: id(n), Seq: uint64(n)})
		s.store(uint64(n), n)
	}
	for n := 1; n <= 2; n++ {
		s.add(entry{Do: doGot, ID: id(n), Key: "k", Seq: uint64(n)})
		s.add(entry{Do: doAck, ID: id(n), Key: "k", Seq: uint64(n)})
		s.add(entry{Do: doAcked, ID: id(n), Key: "k", Seq: uint64(n)})
	}
	return s
}

// drop leaves out the entries that do something with event n.
func (s *story) drop(n int, do ...string) {
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool { return e.ID == id(n) && slices.Contains(do, e.Do) })
}

func TestJudgeFindsWhatIsBroken(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(s *story)
		rule string // "": nothing is broken
	}{
		{"sound", func(*story) {}, ""},
		{"redelivered before the ack was answered", func(s *story) {
			e := s.entries[4]
			s.add(entry{Do: doGot, ID: e.ID, Key: "k", Seq: 1})
			s.entries[len(s.entries)-1].Out = e.Out + 5*milli
		}, ""},
		{"an unanswered publish that was stored", func(s *story) { s.drop(2, doStored) }, ""},
		{"lost", func(s *story) { s.logs["t"] = s.logs["t"][:1]; s.drop(2, doGot, doAck, doAcked) }, "no acknowledged publish is lost"},
		{"told another seq", func(s *story) { s.entries[1].Seq = 7 }, "no acknowledged publish is lost"},
		{"stored twice", func(s *story) { s.store(3, 2) }, "stored once"},
		{"made up", func(s *story) { s.drop(2, doPublish) }, "nothing is made up"},
		{"other payload", func(s *story) { s.logs["t"][1].Payload = []byte(`{"n":9}`) }, "content is kept"},
		{"refused", func(s *story) { s.add(entry{Do: doRefused, ID: id(9), Code: "forbidden"}) }, "no publish is refused"},
		{"refused and stored", func(s *story) { s.add(entry{Do: doRefused, ID: id(2), Code: "seq_conflict"}) }, "a refused publish is not stored"},
		{"half a batch", func(s *story) {
			s.add(entry{Do: doPublish, ID: id(8), Key: "k", N: 8, Batch: []event.ID{id(8), id(1)}})
		}, "a batch is stored as a whole"},
		{"publisher's order", func(s *story) { s.entries[0].N, s.logs["t"][0].Payload = 3, []byte(`{"n":3}`) }, "a key's events keep the order of their publisher"},
		{"not handed out", func(s *story) { s.drop(2, doGot, doAck, doAcked) }, "everything is handed out"},
		{"not in the log", func(s *story) { s.add(entry{Do: doGot, ID: id(9), Key: "k", Seq: 9}) }, "what is handed out is in the log"},
		{"acked, again", func(s *story) { s.add(entry{Do: doGot, ID: id(2), Key: "k", Seq: 2}) }, "what was acked never comes back"},
		{"before the one before it was acked", func(s *story) { s.entries[5].T = s.entries[7].T + 10*milli }, "a key's events are handed out in order"},
		{"the one before it was never acked", func(s *story) { s.drop(1, doAck, doAcked) }, "a key's events are handed out in order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound()
			c.harm(s)
			var v verdict
			s.judgePublishes(&v)
			s.judgeGroup("t", "g", &v)
			if len(v.findings) == 0 {
				if c.rule != "" {
					t.Errorf("nothing was found; want %q", c.rule)
				}
				return
			}
			if c.rule == "" || v.counts[c.rule] == 0 {
				t.Errorf("found %v; want %q", v.findings, c.rule)
			}
		})
	}
}

func TestJudgeReadsWhatProcessesSay(t *testing.T) {
	dir := t.TempDir()
	text := "time=x level=WARN msg=a\ntime=x level=ERROR msg=b\npanic: c\n"
	if err := os.WriteFile(filepath.Join(dir, "hub1.log"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var v verdict
	if err := judgeLogs(dir, &v); err != nil || len(v.findings) != 2 || v.findings[0].text != "hub1.log: time=x level=ERROR msg=b" {
		t.Errorf("%v, %v", v.findings, err)
	}
}

func TestJudgeCounts(t *testing.T) {
	s := sound()
	s.add(entry{Do: doGot, ID: id(2), Key: "k", Seq: 2})
	var v verdict
	if got := s.judgeGroup("t", "g", &v); got.delivered != 3 || got.redelivered != 1 || got.acked != 2 || got.longest != 30e6 {
		t.Errorf("%+v", got)
	}
	for range 2 * shown {
		v.add("a rule", "text")
	}
	if len(v.findings) != 1+shown || v.counts["a rule"] != 2*shown {
		t.Errorf("%d findings, %v", len(v.findings), v.counts)
	}
}

// swap is a conditional publish: seq 0 is a conflict.
func (s *story) swap(op int64, expect, seq uint64) (call, answer entry) {
	call = entry{Do: doPublish, ID: id(int(op)), Key: "k", Expect: &expect, Op: op}
	answer = entry{Do: doStored, ID: id(int(op)), Seq: seq, Expect: &expect, Op: op}
	if seq == 0 {
		answer.Do, answer.Code = doRefused, "seq_conflict"
	}
	return call, answer
}

func TestRegister(t *testing.T) {
	for _, c := range []struct {
		name string
		tell func(s *story)
		ok   bool
	}{
		{"one after the other", func(s *story) {
			for n := range uint64(3) {
				call, answer := s.swap(int64(n+1), n, n+1)
				s.add(call)
				s.add(answer)
				s.add(entry{Do: doLast, Seq: n + 1, Op: int64(10 + n), Out: s.now + milli})
			}
		}, true},
		{"both win", func(s *story) {
			for op := range int64(2) {
				call, answer := s.swap(op+1, 0, uint64(op+1))
				s.add(call)
				s.add(answer)
			}
		}, false},
		{"a conflict with nothing", func(s *story) {
			call, answer := s.swap(1, 0, 0)
			s.add(call)
			s.add(answer)
		}, false},
		{"one is not answered, and seen", func(s *story) {
			call, _ := s.swap(1, 0, 1)
			s.add(call)
			s.store(1, 1)
			s.add(entry{Do: doLast, Op: 2, Out: s.now + milli})
			s.add(entry{Do: doLast, Seq: 1, Op: 3, Out: s.now + milli})
		}, true},
		{"one is not answered, and did not happen", func(s *story) {
			call, _ := s.swap(1, 0, 1)
			s.add(call)
			s.add(entry{Do: doLast, Seq: 1, Op: 3, Out: s.now + milli})
		}, false},
		{"an old value is read", func(s *story) {
			call, answer := s.swap(1, 0, 1)
			s.add(call)
			s.add(answer)
			s.add(entry{Do: doLast, Seq: 0, Op: 3, Out: s.now + milli})
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &story{}
			c.tell(s)
			var v verdict
			s.judgeRegister("t", t.TempDir(), &v)
			if ok := len(v.findings) == 0; ok != c.ok {
				t.Errorf("%v: %v", ok, v.findings)
			}
			if !c.ok && !strings.Contains(v.findings[0].text, ".html") {
				t.Errorf("no picture: %v", v.findings)
			}
		})
	}
}

// What a hub tells of owners is found fault with.
func TestCompareOwners(t *testing.T) {
	tell := func(generation, epoch uint64, members ...client.PartitionMember) client.GroupPartitions {
		return client.GroupPartitions{Generation: generation, Members: members, Partitions: []client.PartitionInfo{{Partition: 0, Epoch: epoch}}}
	}
	a, b := client.PartitionMember{ID: "a", Partitions: []int{0}}, client.PartitionMember{ID: "b", Partitions: []int{0}}
	for _, c := range []struct {
		name     string
		was, now client.GroupPartitions
		wrong    int
	}{
		{"nothing before", client.GroupPartitions{}, tell(1, 1, a), 0},
		{"the next owner", tell(1, 1, a), tell(2, 2, b), 0},
		{"two owners", tell(1, 1, a), tell(2, 2, a, b), 1},
		{"an older generation", tell(2, 1, a), tell(1, 1, a), 1},
		{"an older epoch", tell(2, 2, a), tell(3, 1, a), 1},
	} {
		if wrong := compare(c.was, c.now); len(wrong) != c.wrong {
			t.Errorf("%s: %q", c.name, wrong)
		}
	}
}
