package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"promethean"
	"promethean/examples/process"
)

// output is written by handlers.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// TestRun lets it run for a minute, with a process of an earlier run that has
// gone silent.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub, err := promethean.OpenMemory(promethean.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hub.Emit(t.Context(), process.HeartbeatTopic, process.Heartbeat{PID: 0, Name: "heartbeat", Host: "gone"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out output
		if err := run(ctx, hub, &out); err != nil {
			t.Fatal(err)
		}
		if err := hub.Close(); err != nil {
			t.Fatal(err)
		}
		text := out.buf.String()
		own := regexp.MustCompile(fmt.Sprintf(`(?m)^\d\d:\d\d:\d\d  alive  \S+:heartbeat:%d  \d+\.\d %%  \d+\.\d MB$`, os.Getpid()))
		if n := len(own.FindAllString(text, -1)); n < 12 || n > 13 {
			t.Errorf("%d lines of its own in\n%s", n, text)
		}
		if strings.Count(text, "stale  gone:heartbeat:0  ") != 1 || strings.Count(text, "stale") != 1 {
			t.Error(text)
		}
	})
}
