package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/store"
	"promethean/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// play runs the example and gives what it says.
func play(t *testing.T, set settings) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out, set); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	return out.String()
}

// wantLines looks for what was said.
func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
}

func TestPartitioned(t *testing.T) {
	wantLines(t, play(t, settings{members: 3, beats: 10}),
		"1. schemas are registered; a heartbeat of the wrong shape is refused for ",
		"3. 3 members share 8 partitions: worker-1 [",
		"4. one more has joined: worker-1 [",
		"   the first has left: worker-2 [",
		"5. 240 heartbeats of 24 processes are published, those of a host in one partition\n",
		"6. 240 states are analysed, ",
		"7. the view holds the last state of all 24 processes\n")
}

func TestOneMember(t *testing.T) {
	wantLines(t, play(t, settings{members: 1, beats: 2}),
		"3. 1 members share 8 partitions: worker-1 [0 1 2 3 4 5 6 7]\n", "   the first has left: worker-2 [0 1 2 3 4 5 6 7]\n", "6. 48 states are analysed, ")
}

// Another run on the same directory goes on, and what is stored is as was said.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		wantLines(t, play(t, settings{dir: dir, members: 3, beats: 4}), "6. 96 states are analysed, ")
	}
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := hub.Close(); err != nil {
			t.Error(err)
		}
	}()
	for topic, name := range map[string]string{process.HeartbeatTopic: process.Group, process.StateTopic: group} {
		if lag, err := hub.Lag(t.Context(), topic, name); err != nil || lag.Events != 0 || lag.Tail != 192 {
			t.Errorf("group %s of %s: %+v, %v", name, topic, lag, err)
		}
	}
	last := make(map[string]json.RawMessage)
	for e, err := range hub.Read(t.Context(), store.Query{Topic: process.StateTopic}) {
		if err != nil {
			t.Fatal(err)
		}
		last[e.Key] = e.Payload
	}
	v, err := process.Changelog(t.Context(), hub, view.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}()
	for key, payload := range last {
		doc, err := v.Source().Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if fields, _ := bytes.CutPrefix(payload, []byte("{")); !bytes.HasSuffix(doc.Body, fields) {
			t.Errorf("document %s, last state %s", doc.Body, payload)
		}
	}
	if len(last) != hosts*each {
		t.Errorf("%d processes", len(last))
	}
}

// stopper ends a run once it has said something.
type stopper struct {
	io.Writer
	at   string
	stop func()
}

// Write implements [io.Writer].
func (s stopper) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, []byte(s.at)) {
		s.stop()
	}
	return s.Writer.Write(b)
}

// A run that is interrupted ends soon and leaves nothing behind; the next one
// does what it left undone.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	for _, at := range []string{"1.", "3.", "4.", "6."} {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		if err := run(ctx, stopper{&out, at, cancel}, settings{dir: dir, members: 2, beats: 3}); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted at %q: %v\n%s", at, err, &out)
		}
		cancel()
	}
	wantLines(t, play(t, settings{dir: dir, members: 2, beats: 3}), "7. the view holds the last state of all 24 processes\n")
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if lag, err := hub.Lag(t.Context(), process.StateTopic, group); err != nil || lag.Events != 0 {
		t.Errorf("%+v, %v", lag, err)
	}
	if err := hub.Close(); err != nil {
		t.Error(err)
	}
}

func TestWrongSettings(t *testing.T) {
	for want, set := range map[string]settings{
		"-members 0 is not within 1 to 7":  {members: 0, beats: 1},
		"-members 8 is not within 1 to 7":  {members: 8, beats: 1},
		"-beats 0: there is at least 1":    {members: 1, beats: 0},
		"-members -1 is not within 1 to 7": {members: -1, beats: 1},
	} {
		if err := run(t.Context(), io.Discard, set); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", set, err, want)
		}
	}
}

// A broken promise is noticed while it is broken.
func TestLedgerNotices(t *testing.T) {
	one, other := event.Event{Key: "a", Seq: 5}, event.Event{Key: "a", Seq: 6}
	n := event.PartitionFor("a", event.ID{}, partitions)
	first, again := &promethean.Delivery{Attempt: 1}, &promethean.Delivery{Attempt: 2}
	handled := func(l *ledger, e event.Event, d *promethean.Delivery) error {
		return errors.Join(l.begin("x", &e, d), l.end("x", &e, "", nil))
	}
	for _, c := range []struct {
		name, want string
		do         func(l *ledger) error
	}{
		{"in order, and again", "", func(l *ledger) error {
			return errors.Join(handled(l, one, first), handled(l, one, again), handled(l, other, first))
		}},
		{"moved", "", func(l *ledger) error {
			return errors.Join(handled(l, one, first), l.revoked(n, "x"), l.assigned(n, "y"), l.begin("y", &other, first))
		}},
		{"two have a partition", "comes to y while x has it", func(l *ledger) error { return l.assigned(n, "y") }},
		{"taken from somebody else", `is taken from y while "x" has it`, func(l *ledger) error { return l.revoked(n, "y") }},
		{"two at work on a key", "comes to x while x is at work on it", func(l *ledger) error {
			return errors.Join(l.begin("x", &one, first), l.begin("x", &other, first))
		}},
		{"at the wrong member", `is at "x"`, func(l *ledger) error { return l.begin("y", &one, first) }},
		{"out of order", "seq 5 of a comes after 6", func(l *ledger) error {
			return errors.Join(handled(l, other, first), handled(l, one, first))
		}},
		{"twice without need", "seq 5 of a comes after 5", func(l *ledger) error {
			return errors.Join(handled(l, one, first), handled(l, one, first))
		}},
		{"failed", "x analyses seq 5 of a: EOF", func(l *ledger) error {
			return errors.Join(l.begin("x", &one, first), l.end("x", &one, "", io.EOF))
		}},
		{"fenced", "EOF", func(l *ledger) error { l.fault(io.EOF); return io.EOF }},
	} {
		l := newLedger()
		if err := l.assigned(n, "x"); err != nil {
			t.Fatal(err)
		}
		err := c.do(l)
		verdict := l.verdict(nil)
		switch {
		case c.want == "" && (err != nil || verdict != nil):
			t.Errorf("%s: %v, %v", c.name, err, verdict)
		case c.want != "" && (err == nil || verdict == nil || !strings.Contains(verdict.Error(), c.want)):
			t.Errorf("%s: %v, %v, want %q", c.name, err, verdict, c.want)
		}
		if waited := l.wait(t.Context(), func() bool { return true }); (waited == nil) != (c.want == "") {
			t.Errorf("%s: whoever waits is told %v", c.name, waited)
		}
	}
}

// Work that stands still is noticed, and work that goes on is waited for.
func TestLedgerStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		began := time.Now()
		time.AfterFunc(patience-time.Second, func() { _ = l.assigned(3, "x") })
		err := l.wait(t.Context(), func() bool { return false })
		if took := time.Since(began); took != 2*patience-time.Second || err == nil || !strings.Contains(err.Error(), "x [3]") {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// What was not done, or is not in the view, fails the run.
func TestJudgeNotices(t *testing.T) {
	hub, err := promethean.OpenMemory(promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := &example{settings: settings{members: 2, beats: 2}, out: io.Discard, hub: hub, ledger: newLedger(), subs: make(map[string]promethean.Subscription)}
	defer func() {
		if err := x.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, step := range []func(context.Context) error{x.topics, x.schemas, x.project, x.show, x.share, x.work, x.drain, x.judge} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	last := make(map[string]event.Event)
	for e, err := range hub.Read(t.Context(), store.Query{Topic: process.StateTopic}) {
		if err != nil {
			t.Fatal(err)
		}
		last[e.Key] = e
	}
	const key = "host1:stt:1"
	want := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	fewer := maps.Clone(last)
	delete(fewer, key)
	want(fmt.Sprintf("the view has %q, of which there is no state", key), x.compare(t.Context(), fewer))
	more := maps.Clone(last)
	more["x"] = event.Event{}
	want("1 processes of 25 are not in the view", x.compare(t.Context(), more))
	older := maps.Clone(last)
	e := older[key]
	e.Payload = bytes.Replace(e.Payload, []byte("101"), []byte("100"), 1)
	older[key] = e
	want("whose last state is", x.compare(t.Context(), older))
	want("the last state is", x.ledger.verdict(older))
	delete(x.ledger.seqs, last[key].Seq)
	want(fmt.Sprintf("states that nobody analysed: [%d]", last[key].Seq), x.judge(t.Context()))
}
