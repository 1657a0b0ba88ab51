package main

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// The program is killed again and again; what it said is stored is there.
func TestCrashKill(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "log")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	dir := t.TempDir()
	stored := 0
	for round := range 20 {
		cmd := exec.Command(bin, dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatalf("round %d: the program ends without a word", round)
		}
		found := 0
		if _, err := fmt.Sscanf(lines.Text(), "found %d", &found); err != nil || found < stored {
			t.Fatalf("round %d: %q, but %d were stored", round, lines.Text(), stored)
		}
		for n := 0; n < 50+37*round && lines.Scan(); n++ {
			if _, err := fmt.Sscanf(lines.Text(), "stored %d", &stored); err != nil {
				t.Fatalf("round %d: %q", round, lines.Text())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it had printed before it died counts too
			if _, err := fmt.Sscanf(lines.Text(), "stored %d", &stored); err != nil {
				break // cut in the middle of a line
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the program was not killed")
		}
	}
	t.Logf("%d events over 20 kills", stored)
}
