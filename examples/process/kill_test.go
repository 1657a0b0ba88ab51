package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/view"
)

// victim is the variable that makes the test program one that projects until it
// is killed.
const victim = "PROMETHEAN_TEST_PROJECT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		if err := projectUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// views starts both kinds over one topic; their documents are elsewhere.
func views(ctx context.Context, hub *promethean.Hub) (both, latest *view.View, err error) {
	// Documents are synced often here, so that a kill falls between syncs too.
	o := view.Options{FlushEvery: 20 * time.Millisecond}
	if both, err = Transactional(ctx, hub, o); err != nil {
		return nil, nil, err
	}
	latest, err = view.Changelog(ctx, hub, view.ChangelogOptions{
		Options: o, Topic: StateTopic, Collection: "latest", Indexes: Indexes(),
	})
	return both, latest, err
}

// projectUntilKilled publishes states and projects them.
func projectUntilKilled(dir string) error {
	ctx := context.Background()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	if _, _, err := views(ctx, hub); err != nil {
		return err
	}
	fmt.Println("ready")
	for n := 0; ; n++ {
		batch := make([]event.Event, 0, 50)
		for range cap(batch) {
			host, pid := fmt.Sprintf("h%d", rand.IntN(5)), rand.Int64N(40)
			s := State{Name: "x", Host: host, PID: pid, Status: Alive, LastSeenTS: time.Now().UnixMilli()}
			s.ProcessID = fmt.Sprintf("%s:x:%d", host, pid)
			if rand.IntN(3) == 0 {
				s.Status = Stale
			}
			e := event.New(StateTopic, []byte("null"))
			if rand.IntN(10) > 0 { // else it is deleted
				if e.Payload, err = json.Marshal(s); err != nil {
					return err
				}
			}
			e.Key, e.TS = s.ProcessID, time.Now().UnixMilli()-rand.Int64N(1000)
			batch = append(batch, e)
		}
		if _, err := hub.Publish(ctx, batch...); err != nil {
			return err
		}
	}
}

// Views are exact however often their process is killed: they equal what a fold
// of the whole log gives, and counters count every event once.
func TestKilledViews(t *testing.T) {
	kills := 8
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		kills = 30
	}
	if testing.Short() {
		kills = 3
	}
	dir := t.TempDir()
	for i := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victim+"="+dir)
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
			_ = cmd.Wait()
			t.Fatalf("start %d: %q, %v\n%s", i, line, err, &said)
		}
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond) // when it dies is chance, as in life
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if said.Len() > 0 {
			t.Fatalf("start %d: %s", i, &said)
		}
	}
	n := checkViews(t, dir)
	t.Logf("%d kills, %d events", kills, n)
}

// checkViews compares both views with a fold of the log.
func checkViews(t *testing.T, dir string) (events uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hub.Close() }()
	both, latest, err := views(ctx, hub)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(both.Close(), latest.Close()) }()

	docs := make(map[string]State)
	seen := make(map[string]int64)
	last := uint64(0)
	for e, err := range hub.Read(ctx, store.Query{Topic: StateTopic}) {
		if err != nil {
			t.Fatal(err)
		}
		last, events = e.Seq, events+1
		if string(e.Payload) == "null" {
			delete(docs, e.Key)
			continue
		}
		var s State
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			t.Fatal(err)
		}
		docs[e.Key] = s
		seen[s.Host]++
	}
	for _, v := range []*view.View{both, latest} {
		if err := v.Wait(ctx, last); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*view.Collection{both.Collection(ProcessesView), latest.Collection("latest")} {
		found := 0
		for d, err := range c.List(ctx, store.DocQuery{}) {
			var s State
			if err = errors.Join(err, json.Unmarshal(d.Body, &s)); err != nil {
				t.Fatal(err)
			}
			if found++; s != docs[d.Key] {
				t.Errorf("%s: %s is %+v, the log says %+v", c.Name(), d.Key, s, docs[d.Key])
			}
		}
		if found != len(docs) {
			t.Errorf("%s has %d documents, the log says %d", c.Name(), found, len(docs))
		}
		alive := 0
		for d, err := range c.List(ctx, store.DocQuery{Filter: map[string][]json.RawMessage{"status": {json.RawMessage(`"alive"`)}}}) {
			if err != nil {
				t.Fatal(err)
			}
			if alive++; docs[d.Key].Status != Alive {
				t.Errorf("%s: %s is found as alive", c.Name(), d.Key)
			}
		}
		for _, s := range docs {
			if s.Status == Alive {
				alive--
			}
		}
		if alive != 0 {
			t.Errorf("%s: the index has %d too many that are alive", c.Name(), alive)
		}
	}
	for host, n := range seen {
		d, err := both.Collection(HostsView).Get(ctx, host)
		var h HostStats
		if err = errors.Join(err, json.Unmarshal(d.Body, &h)); err != nil || h.Seen != n {
			t.Errorf("%s was seen %d times, the log says %d (%v)", host, h.Seen, n, err)
		}
	}
	return events
}
