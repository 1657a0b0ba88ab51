package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

func TestEvolve(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, want := range []string{
		"   refused without an upcaster: ",
		"4. a normalised reader handled 150 events, all of version 2\n   in the log 100 of them are still of version 1\n",
		"5. the cutover copied 150 events to heartbeat.received.v2 and found all of them there\n",
		"7. after more of both writers: heartbeat.received.v2 has the same 350 events in the same order, all of version 2\n",
		"8. dual write is off, and a new reader replays all 450 events, upcast\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}
