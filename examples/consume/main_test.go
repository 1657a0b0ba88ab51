package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The program is killed again and again while it consumes. Every event is
// handled, none that was acked comes back, and the order by key holds.
func TestCrashKill(t *testing.T) {
	count, kills := 10_000, 10
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		count, kills = 100_000, 50
	}
	bin := filepath.Join(t.TempDir(), "consume")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	w := watcher{t: t, handled: make([]int, count+1), acked: make([]bool, count+1), first: make(map[string][]int)}
	for n := range count {
		k := fmt.Sprint("k", n*7919%1000)
		w.first[k] = append(w.first[k], n+1)
	}
	dir := t.TempDir()
	for life := 0; ; life++ {
		cmd := exec.Command(bin, dir, fmt.Sprint(count))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		left := count // lines until it is killed
		if life < kills {
			left = rand.N(3*count/kills) + 1
		}
		lines := bufio.NewScanner(out)
		killed := false
		for lines.Scan() {
			w.line(lines.Text())
			if left--; left == 0 && life < kills {
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = cmd.Wait()
		if killed {
			continue
		}
		if err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		t.Logf("%d lives", life+1)
		break
	}
	again := 0
	for seq := 1; seq <= count; seq++ {
		if w.handled[seq] == 0 {
			t.Fatalf("seq %d was never handled", seq)
		}
		again += w.handled[seq] - 1
	}
	t.Logf("%d events, %d handled again", count, again)
}

// watcher checks what the program says.
type watcher struct {
	t       *testing.T
	handled []int
	acked   []bool
	first   map[string][]int // the key's events, in order
}

func (w *watcher) line(s string) {
	var what, key string
	var seq int
	if _, err := fmt.Sscan(s, &what, &seq, &key); err != nil || what != "handled" && what != "acked" {
		return // cut off in the middle
	}
	if what == "acked" {
		w.acked[seq] = true
		return
	}
	if w.acked[seq] {
		w.t.Fatalf("seq %d is handled again, and it was acked", seq)
	}
	w.handled[seq]++
	for _, before := range w.first[key] {
		if before == seq {
			break
		}
		if w.handled[before] == 0 {
			w.t.Fatalf("key %s: seq %d is handled before seq %d", key, seq, before)
		}
	}
	for _, after := range w.first[key] {
		if after > seq && w.acked[after] {
			w.t.Fatalf("key %s: seq %d is handled after seq %d was acked", key, seq, after)
		}
	}
}
