package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
)

// line is one line of the journal.
type line struct {
	what, by, id, key string
	seq               uint64
}

func readJournal(t *testing.T, path string) (out []line) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The last line may be on its way.
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for s := range strings.Lines(string(text)) {
		var l line
		if _, err := fmt.Sscan(s, &l.what, &l.by, &l.id, &l.key, &l.seq); err != nil {
			t.Fatalf("line %d, %q: %v", len(out)+1, s, err)
		}
		out = append(out, l)
	}
	return out
}

// refused gives the lines that begin to handle what could not be acked then:
// its worker was no longer the owner, and somebody else may have begun.
func refused(lines []line) map[int]bool {
	type attempt struct{ by, id string }
	begun := make(map[attempt]int)
	out := make(map[int]bool)
	for n, l := range lines {
		switch a := (attempt{l.by, l.id}); l.what {
		case "handles":
			begun[a] = n
		case "refused":
			out[begun[a]] = true
		}
	}
	return out
}

// judge checks what the fleet did: what was published is there once and was
// handled, in the order of its key, and not again once its ack was durable. It
// gives how many were published and handled.
func judge(t *testing.T, path string) (published, handled int) {
	t.Helper()
	ids := make(map[string]uint64)     // published, by id
	seqs := make(map[uint64]string)    // and the other way round
	at := make(map[string]int)         // handled first in this line
	acked := make(map[string]string)   // durably, by whom
	settled := make(map[string]uint64) // the highest that is acked, by key
	highest := make(map[string]uint64) // the highest that was handled, by key
	lines := readJournal(t, path)
	late := refused(lines)
	for n, l := range lines {
		switch l.what {
		case "published":
			if other, ok := seqs[l.seq]; ok && other != l.id {
				t.Errorf("line %d: seq %d is of %s and of %s", n+1, l.seq, other, l.id)
			}
			ids[l.id], seqs[l.seq] = l.seq, l.id
		case "handles":
			if _, again := at[l.id]; !again {
				at[l.id] = n
			}
			switch {
			case late[n]:
				continue
			case acked[l.id] != "":
				t.Errorf("line %d: seq %d is handled again, and its ack was durable", n+1, l.seq)
			case l.seq <= settled[l.key]:
				t.Errorf("line %d: key %s: seq %d is handled after %d was settled", n+1, l.key, l.seq, settled[l.key])
			case l.seq < highest[l.key]:
				t.Errorf("line %d: key %s: seq %d is handled after %d", n+1, l.key, l.seq, highest[l.key])
			}
			highest[l.key] = max(highest[l.key], l.seq)
		case "acked":
			if by := acked[l.id]; by != "" {
				t.Errorf("line %d: seq %d is acked by %s and by %s", n+1, l.seq, by, l.by)
			}
			acked[l.id] = l.by
			settled[l.key] = max(settled[l.key], l.seq)
		}
	}
	for id, seq := range ids {
		if _, ok := at[id]; !ok {
			t.Errorf("seq %d was published and never handled", seq)
		}
	}
	return len(ids), len(at)
}
