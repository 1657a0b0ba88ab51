package natsstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"promethean/event"
	"promethean/internal/netfault"
	"promethean/store"
	"promethean/store/natsstore"
)

// said keeps what is logged.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

// TestSlowAnswerLosesNothing: who asks a server for long, while others publish,
// gets an answer that their events may not be in yet. That is no reason to
// believe that they are lost, and nobody sees the end of the topic go back.
func TestSlowAnswerLosesNothing(t *testing.T) {
	t.Parallel()
	p, url, _ := behind(t)
	var log said
	s := open(t, url, natsstore.Options{
		AttemptTimeout: 100 * time.Millisecond, RetryFor: 30 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	mustAppend(t, s, store.Batch{Events: []event.Event{newEvent("k", 0)}})
	ctx, cancel := context.WithTimeout(deadline(t), 8*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { // publishers
			for n := 1; ctx.Err() == nil; n++ {
				if _, err := s.Append(ctx, store.Batch{Events: []event.Event{newEvent("k", n)}}); err != nil && !errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() { // who asks
			for last := uint64(0); ctx.Err() == nil; {
				b, err := s.Bounds(ctx, topic)
				if err == nil && b.Last < last {
					t.Errorf("the last seq was %d, and is %d now", last, b.Last)
				}
				if err == nil {
					last = b.Last
				}
			}
		})
	}
	// Questions are lost with their connection for longer than one may take.
	begun := time.Now()
	p.Judge(func(chunk []byte) netfault.Fate {
		if time.Since(begun).Milliseconds()%400 < 250 && bytes.Contains(chunk, []byte("STREAM.INFO")) {
			return netfault.LoseRequest
		}
		return netfault.Pass
	})
	all.Wait()
	p.Judge(nil)
	log.mu.Lock()
	defer log.mu.Unlock()
	if n := strings.Count(log.b.String(), "has lost events"); n > 0 {
		t.Errorf("%d times it was said that events are lost:\n%s", n, log.b.String())
	}
}
