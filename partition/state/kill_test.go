package state_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"promethean"
	"promethean/compact"
	"promethean/event"
	"promethean/partition/state"
	"promethean/store"
)

// victim is the variable that makes the test program one that counts until it is
// killed.
const victim = "PROMETHEAN_TEST_COUNT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victim); dir != "" {
		if err := countUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// tally counts the events of a key, and adds up their seqs.
type tally struct {
	Events int    `json:"events"`
	Seqs   uint64 `json:"seqs"`
}

// parts is how many partitions the source has.
const parts = 4

// counting is a group that counts the events of every key. Its handler fails now
// and then after it has counted.
func counting(ctx context.Context, hub *promethean.Hub, counted func()) (*state.Table[string, tally], error) {
	tab, err := state.New[string, tally](hub, "sums", state.Options{Source: source})
	if err != nil {
		return nil, err
	}
	for n := range parts {
		if err := tab.Assigned(ctx, n); err != nil {
			return nil, err
		}
	}
	_, err = hub.Subscribe(ctx, source, "counters", func(ctx context.Context, e event.Event, d *promethean.Delivery) error {
		err := tab.Update(ctx, e, d, func(v tally, _ bool) (tally, error) {
			if string(e.Payload) == `"forget"` {
				return v, state.Delete
			}
			return tally{v.Events + 1, v.Seqs + e.Seq}, nil
		})
		if err == nil && d.Attempt == 1 && rand.IntN(20) == 0 {
			return promethean.Retry(0, errors.New("after all"))
		}
		if counted(); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return err
	}, promethean.FromEarliest(), promethean.MaxAttempts(1000))
	return tab, err
}

// countUntilKilled publishes events and counts them, and says so after every
// hundred.
func countUntilKilled(dir string) error {
	ctx := context.Background()
	hub, err := promethean.Open(dir, promethean.Options{})
	if err != nil {
		return err
	}
	if err := hub.SetTopic(ctx, source, store.Settings{Partitions: parts}); err != nil {
		return err
	}
	// Snapshots and compactions are made all the time.
	var set store.Settings
	every := compact.Age(10 * time.Millisecond)
	if err := (compact.Settings{Compaction: true, Snapshot: &compact.Snapshot{Every: every}}).Put(&set); err != nil {
		return err
	}
	if hub.Settings("sums.changelog").Meta == nil {
		if err := hub.SetTopic(ctx, "sums.changelog", set); err != nil {
			return err
		}
	}
	if _, err := compact.Start(ctx, hub, compact.Options{Every: time.Duration(every)}); err != nil {
		return err
	}
	var n atomic.Int64
	room := make(chan struct{}, 500) // so many are published ahead
	if _, err := counting(ctx, hub, func() {
		if n.Add(1)%100 == 0 {
			fmt.Println("more")
		}
		select {
		case <-room:
		default: // published by one who was killed
		}
	}); err != nil {
		return err
	}
	for {
		batch := make([]event.Event, 0, 20)
		for range cap(batch) {
			e := event.New(source, []byte(`"count"`))
			if rand.IntN(20) == 0 {
				e.Payload = []byte(`"forget"`)
			}
			e.Key = fmt.Sprint("k", rand.IntN(50))
			batch = append(batch, e)
			room <- struct{}{}
		}
		if _, err := hub.Publish(ctx, batch...); err != nil {
			return err
		}
	}
}

// Counters are exact however often their process is killed.
func TestCrashKilledCounters(t *testing.T) {
	kills := 6
	if long {
		kills = 40
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
		ok(t, err)
		ok(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 1 + rand.IntN(20) { // when it dies is chance, as in life
			if !lines.Scan() {
				_ = cmd.Wait()
				t.Fatalf("start %d: it ended by itself\n%s", i, &said)
			}
		}
		ok(t, cmd.Process.Kill())
		_ = cmd.Wait()
		if said.Len() > 0 {
			t.Fatalf("start %d: %s", i, &said)
		}
	}
	hub, err := promethean.Open(dir, promethean.Options{})
	ok(t, err)
	defer func() { _ = hub.Close() }()
	tab, err := counting(t.Context(), hub, func() {})
	ok(t, err)
	wait(t, func() bool {
		lag, err := hub.Lag(t.Context(), source, "counters")
		ok(t, err)
		return lag.Events == 0
	})
	fold, n := make(map[string]tally), 0
	for e, err := range hub.Read(t.Context(), store.Query{Topic: source}) {
		ok(t, err)
		n++
		if string(e.Payload) == `"forget"` {
			delete(fold, e.Key)
			continue
		}
		fold[e.Key] = tally{fold[e.Key].Events + 1, fold[e.Key].Seqs + e.Seq}
	}
	for when, tab := range map[string]*state.Table[string, tally]{"at work": tab, "restored": table[tally](t, hub, state.Options{Source: source}, 0, 1, 2, 3)} {
		got := make(map[string]tally)
		for n := range parts {
			for x, err := range tab.Range(n) {
				ok(t, err)
				got[x.Key] = x.Value
			}
		}
		if !maps.Equal(got, fold) {
			t.Errorf("%s: %v\nwant %v", when, got, fold)
		}
	}
	t.Logf("%d kills, %d events, %d records left, %d snapshots", kills, n, len(records(t, hub, "sums.changelog")), len(records(t, hub, "sums.changelog.snapshot")))
}

// wait asks until it is so.
func wait(t testing.TB, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); !so(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatal("it does not come about")
		}
	}
}
