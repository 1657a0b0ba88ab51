package mongostore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"promethean/event"
	"promethean/store"
	"promethean/store/mongostore"
)

// childDatabase names the database of a process that only appends.
const childDatabase = "PROMETHEAN_MONGOSTORE_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childDatabase); name != "" {
		if err := child(os.Getenv(childDatabase+"_URI"), name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	childAppenders = 3
	childBatches   = 60
)

// child appends, and prints id and seq of every event that was acknowledged.
// SID says who appended it as the how manieth.
func child(uri, name string) error {
	ctx := context.Background()
	s, err := mongostore.Open(ctx, uri, mongostore.Options{Database: name})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	var mu sync.Mutex
	var all sync.WaitGroup
	errs := make(chan error, childAppenders)
	for a := range childAppenders {
		all.Go(func() {
			for n := range childBatches {
				events := notes(1 + n%4)
				for i := range events {
					events[i].SID = fmt.Sprintf("%d/%d/%06d", os.Getpid(), a, 10*n+i)
				}
				got, err := s.Append(ctx, store.Batch{Events: events})
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				for i := range got {
					fmt.Printf("%s %d\n", events[i].ID, got[i].Seq)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

// TestProcesses has three processes with nine appenders write one topic, and
// kills one of them in the middle.
func TestProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		name := newDatabase(t, uri)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		var l ledger
		var all sync.WaitGroup
		for p := range 3 {
			cmd := exec.Command(self, "-test.run=^$")
			cmd.Env = append(os.Environ(), childDatabase+"="+name, childDatabase+"_URI="+uri)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				killed := false
				l.listen(t, out, func(lines int) {
					if p == 0 && lines == 80 {
						killed = cmd.Process.Kill() == nil
					}
				})
				if err := cmd.Wait(); err != nil && !killed {
					t.Errorf("process %d: %v", p, err)
				} else if err == nil && p == 0 {
					t.Errorf("process %d was through before it was killed", p)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		s := open(t, uri, mongostore.Options{Database: name})
		l.judge(t, s, 1)
		last := make(map[string]string)
		batch := make(map[string]int)
		for e, err := range s.Read(deadline(t), store.Query{Topic: topic}) {
			if err != nil {
				t.Fatal(err)
			}
			who := e.SID[:strings.LastIndexByte(e.SID, '/')]
			if e.SID <= last[who] {
				t.Fatalf("seq %d: %s comes after %s of the same appender", e.Seq, e.SID, last[who])
			}
			last[who] = e.SID
			batch[e.SID[:len(e.SID)-1]]++
		}
		for id, size := range batch { // of the killed process too: whole or not at all
			var n int
			if _, err := fmt.Sscanf(id[strings.LastIndexByte(id, '/')+1:], "%d", &n); err != nil {
				t.Fatal(err)
			}
			if want := 1 + n%4; size != want {
				t.Errorf("batch %s has %d events, want %d", id, size, want)
			}
		}
	})
}

// listen notes what a child says. The last line of one that was killed may be
// cut short.
func (l *ledger) listen(t *testing.T, out io.Reader, kill func(lines int)) {
	lines := bufio.NewReader(out)
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		var text string
		var seq uint64
		if _, err := fmt.Sscan(line, &text, &seq); err != nil {
			t.Errorf("a child says %q: %v", line, err)
			return
		}
		id, err := event.ParseID(text)
		if err != nil {
			t.Error(err)
			return
		}
		l.add([]event.Event{{ID: id}}, []store.Appended{{Seq: seq}})
		kill(n)
	}
}
