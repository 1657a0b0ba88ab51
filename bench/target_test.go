package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/event"
	"promethean/store"
)

func TestRawKeepsOrderAndCount(t *testing.T) {
	defer goleak.VerifyNone(t)
	// A segment does not end on a record, so some records lie across two.
	const size, segments, writers, each = 64<<10 + 100, 40, 8, 500
	dir := t.TempDir()
	w, err := openRaw(dir, size, segments, 1)
	if err != nil {
		t.Fatal(err)
	}
	publishAll(t, w, writers, each)
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	var all []byte
	names, err := filepath.Glob(filepath.Join(dir, "*.raw"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != size {
			t.Fatalf("%s has %d bytes", name, len(b))
		}
		all = append(all, b...)
	}
	last, count := map[byte]event.ID{}, map[byte]int{}
	for i := range writers * each {
		rec := all[i*eventBytes : (i+1)*eventBytes]
		id, writer := event.ID(rec[:16]), rec[eventBytes-1]
		if before := last[writer]; slices.Compare(before[:], id[:]) >= 0 {
			t.Fatalf("record %d of writer %d: %v after %v", i, writer, id, before)
		}
		last[writer] = id
		count[writer]++
	}
	for i := range writers {
		if count[byte(i)] != each {
			t.Errorf("writer %d has %d records, want %d", i, count[byte(i)], each)
		}
	}
	for i, b := range all[writers*each*eventBytes:] {
		if b != 0 {
			t.Fatalf("byte %d after the last record is not zero", i)
		}
	}
}

func publishAll(t *testing.T, w *rawWriter, writers, each int) {
	t.Helper()
	target := &rawTarget{w: w}
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			pub, err := target.Publisher(t.Context(), i)
			if err != nil {
				t.Error(err)
				return
			}
			evs := make([]event.Event, 1+i%2) // singles and pairs
			for range each / len(evs) {
				for j := range evs {
					evs[j].ID = event.NewID()
				}
				if err := pub.Publish(t.Context(), evs); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestRawUsesSegmentsAgain(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, zeroed := range []int{1, 3} {
		dir := t.TempDir()
		w, err := openRaw(dir, 16<<10, 3, zeroed)
		if err != nil {
			t.Fatal(err)
		}
		publishAll(t, w, 4, 400) // ten times what the segments hold
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
		if names, err := filepath.Glob(filepath.Join(dir, "*.raw")); err != nil || len(names) != 3 {
			t.Errorf("segments: %v, %v", names, err)
		}
		if err := w.write(make([]byte, eventBytes), make(chan error, 1)); !errors.Is(err, errRawClosed) {
			t.Errorf("write after close: %v", err)
		}
	}
}

// stored asks each target how many events it holds.
func stored(t *testing.T, target target) uint64 {
	t.Helper()
	switch x := target.(type) {
	case *redisTarget:
		c, err := x.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}()
		var n uint64
		for i := range loadTopics {
			if _, err := c.conn.Write(appendCommand(nil, "XLEN", topicName(i))); err != nil {
				t.Fatal(err)
			}
			text, err := readReply(c.in)
			if err != nil {
				t.Fatal(err)
			}
			k, err := strconv.ParseUint(string(text), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
		return n
	case *jetTarget:
		js, err := x.connect(0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := js.Stream(t.Context(), jetStream)
		if err != nil {
			t.Fatal(err)
		}
		return s.CachedInfo().State.Msgs
	case *asyncJet:
		return stored(t, &x.jetTarget)
	case *hubTarget:
		got, err := http.Get("http://" + x.addr + "/topics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = got.Body.Close() }()
		var list struct{ Topics []struct{ Events uint64 } }
		if err := json.NewDecoder(got.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		var n uint64
		for _, topic := range list.Topics {
			n += topic.Events
		}
		return n
	case *engineTarget:
		n, err := retained(t.Context(), x.log)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 0
}

func TestTargets(t *testing.T) {
	for _, name := range targetNames {
		t.Run(name, func(t *testing.T) {
			target := newTarget(name)
			if err := target.Available(); err != nil {
				t.Skip(err)
			}
			if err := target.Open(t.Context(), t.TempDir()); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := target.Close(); err != nil {
					t.Error(err)
				}
			}()
			var want uint64
			for _, l := range []load{{Publishers: 8, Batch: 1}, {Publishers: 2, Batch: 50}} {
				l.Topics, l.Keys = loadTopics, 100
				out, err := drive(t.Context(), target, l, limit{events: 300})
				if err != nil {
					t.Fatal(err)
				}
				if out.events != 300 || out.elapsed <= 0 || out.p50 <= 0 || out.p99 < out.p50 {
					t.Errorf("%+v: %+v", l, out)
				}
				want += 300
				if _, raw := target.(*rawTarget); !raw {
					if n := stored(t, target); n != want {
						t.Errorf("%d events are stored, want %d", n, want)
					}
				}
			}
		})
	}
}

func TestServersAreGoneAfterClose(t *testing.T) {
	for _, name := range []string{nameRedis, nameJetAlways} {
		t.Run(name, func(t *testing.T) {
			target := newTarget(name)
			if err := target.Available(); err != nil {
				t.Skip(err)
			}
			if err := target.Open(t.Context(), t.TempDir()); err != nil {
				t.Fatal(err)
			}
			var p *process
			switch x := target.(type) {
			case *redisTarget:
				p = x.server
			case *jetTarget:
				p = x.server.process
			}
			if err := target.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-p.done:
			default:
				t.Error("the server is still there")
			}
			if err := target.Close(); err != nil {
				t.Errorf("second close: %v", err)
			}
		})
	}
}

func TestRedisSyncsBeforeItAnswers(t *testing.T) {
	target := &redisTarget{}
	if err := target.Available(); err != nil {
		t.Skip(err)
	}
	if err := target.Open(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := target.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]string{"appendonly": "yes", "appendfsync": "always", "save": ""} {
		if _, err := c.conn.Write(appendCommand(nil, "CONFIG", "GET", name)); err != nil {
			t.Fatal(err)
		}
		got, err := parseCommand(c.in)
		if err != nil || len(got) != 2 || got[1] != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	target := &jetTarget{name: nameJetAlways, interval: "sometimes"}
	err := target.Open(t.Context(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "sync_interval") && !strings.Contains(err.Error(), "sometimes") {
		t.Errorf("got %v", err)
	}
	if target.server != nil {
		t.Error("the server is still there")
	}
}

func TestDriveStopsWithItsContext(t *testing.T) {
	target := newTarget(nameRaw)
	if err := target.Open(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := target.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := drive(ctx, target, load{Publishers: 2, Batch: 1}, limit{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestSettleSeesWhatIsMissing(t *testing.T) {
	for fault, want := range map[string]error{"": nil, faultBlind: store.ErrNotFound, faultStale: store.ErrNotFound} {
		t.Run("fault "+fault, func(t *testing.T) {
			withPlain(t, fault)
			target := &engineTarget{}
			if err := target.Open(t.Context(), t.TempDir()); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := target.Close(); err != nil {
					t.Error(err)
				}
			}()
			pub, err := target.Publisher(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			l := load{Topics: 2, Keys: 3}
			evs := make([]event.Event, 20)
			newGenerator(l, topicNames(l), 0).fill(evs)
			if err := pub.Publish(t.Context(), evs); err != nil {
				t.Fatal(err)
			}
			// A context that is over allows one look, and no waiting.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err = target.Settle(ctx, evs)
			if !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		})
	}
}
