package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// migrated runs a migration that must come to its end, and gives its summary.
func migrated(t *testing.T, from, to string, more ...string) (sum struct {
	Topics, Groups         int
	Copied, Compared, Gaps int64
	Resumed                bool
	Seconds                float64
}) {
	t.Helper()
	cmd := exec.Command("promethean", append([]string{"migrate", "--from", from, "--to", to}, more...)...)
	out, said, code := ended(t, cmd)
	if code != 0 || said != "" {
		t.Fatalf("migrate from %s to %s: exit code %d: %s%s", from, to, code, out, said)
	}
	if err := json.Unmarshal([]byte(out), &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}

// dumped is what log dump says of a directory, without the times of commits.
func dumped(t *testing.T, dir string) string {
	t.Helper()
	out, said, code := ended(t, exec.Command("promethean", "log", "dump", dir))
	if code != 0 {
		t.Fatalf("log dump: %s", said)
	}
	var b strings.Builder
	for line := range strings.Lines(out) {
		line, _, _ = strings.Cut(line, `,"_at":`)
		b.WriteString(line + "\n")
	}
	return b.String()
}

// A hub moves from a directory to a server and back to another directory: its
// consumers go on where they were, dead letters can be replayed, and what comes
// back is what there was.
func TestMigrateThereAndBack(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		if strings.HasPrefix(store, "memory:") {
			return // it ends with its process
		}
		first := "file://" + filepath.Join(t.TempDir(), "first")
		p := startHub(t, "--store", first)
		p.get(nil, 200, "PUT", "/topics/orders", `{"partitions":4,"retention":"72h"}`)
		p.get(nil, 200, "PUT", "/topics/state", `{"compaction":true,"history":"0s"}`)
		for i := range 30 {
			p.publish("orders", fmt.Sprintf("?key=k%d&tag=a", i%3), fmt.Sprintf(`{"n":%d}`, i))
			p.publish("state", fmt.Sprintf("?key=k%d", i%3), fmt.Sprint(i))
		}
		opts := `{"from":"earliest","maxAttempts":1,"ordering":"none"}`
		got := p.pull("orders", "mailer", 10, 1000, opts)
		if len(got) != 10 {
			t.Fatalf("%d events", len(got))
		}
		var ids []string
		for _, d := range got {
			ids = append(ids, d.Event.ID)
		}
		p.settle("nack", "orders", "mailer", `,"dead":true`, ids[0])
		p.settle("ack", "orders", "mailer", "", append(ids[1:4], ids[6:]...)...)
		p.stop()
		before := dumped(t, strings.TrimPrefix(first, "file://"))

		there := migrated(t, first, store)
		if there.Copied == 0 || there.Copied != there.Compared || there.Groups == 0 {
			t.Errorf("%+v", there)
		}
		second := "file://" + filepath.Join(t.TempDir(), "second")
		back := migrated(t, store, second)
		if back.Copied != there.Copied || back.Topics != there.Topics || back.Groups != there.Groups {
			t.Errorf("there %+v, back %+v", there, back)
		}
		if after := dumped(t, strings.TrimPrefix(second, "file://")); after != before {
			t.Errorf("came back\n%s\nwas\n%s", after, before)
		}
		migrated(t, first, second, "--verify-only")

		q := startHub(t, "--store", store)
		seen := map[uint64]bool{}
		for n := 0; len(seen) < 22 && n < 40; n++ {
			for _, d := range q.pull("orders", "mailer", 100, 500, "{}") {
				seen[d.Event.Seq] = true
				q.settle("ack", "orders", "mailer", "", d.Event.ID)
			}
		}
		if len(seen) != 22 || !seen[5] || !seen[6] || seen[2] {
			t.Errorf("the group went on with %v", seen)
		}
		if e := q.publish("orders", "", `1`); e.Seq != 31 {
			t.Errorf("the next seq is %d", e.Seq)
		}
		var replayed struct{ Replayed, Remaining int }
		q.get(&replayed, 200, "POST", "/dlq/orders/replay", `{"group":"mailer"}`)
		if replayed.Replayed != 1 {
			t.Errorf("%+v", replayed)
		}
		q.stop()
	})
}

// A migration that is killed again and again comes to its end.
func TestMigrateKilled(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		if strings.HasPrefix(store, "memory:") {
			return // it ends with its process
		}
		if strings.HasPrefix(store, "file:") {
			store += "/target"
		}
		dir := filepath.Join(t.TempDir(), "data")
		file := filepath.Join(t.TempDir(), "events")
		p := startHub(t, "--store", "file://"+dir)
		ndjson(t, file, 5_000)
		if out, said, code := ended(t, command(t, p.url, "import", "from", file)); code != 0 {
			t.Fatalf("%s%s", out, said)
		}
		p.stop()
		kills := 0
		for wait := 40 * time.Millisecond; ; wait += wait / 3 {
			cmd := exec.Command("promethean", "migrate", "--from", "file://"+dir, "--to", store)
			var said transcript
			cmd.Stderr = &said
			over := background(t, cmd)
			select {
			case <-over:
			case <-time.After(wait): // how far it comes is the trial
				_ = cmd.Process.Signal(syscall.SIGKILL)
				<-over
				kills++
				continue
			}
			if code := cmd.ProcessState.ExitCode(); code != 0 || kills == 0 {
				t.Fatalf("exit code %d after %d kills: %s", code, kills, &said)
			}
			break
		}
		if sum := migrated(t, "file://"+dir, store, "--verify-only"); sum.Compared != 5_000 {
			t.Errorf("%+v after %d kills", sum, kills)
		}
		t.Logf("killed %d times", kills)
	})
}

// A store that a hub serves groups of is left alone.
func TestMigrateBesideAHub(t *testing.T) {
	onEach(t, func(t *testing.T, store string) {
		if strings.HasPrefix(store, "memory:") || strings.HasPrefix(store, "file:") {
			return // it has no room for a hub beside
		}
		p := startHub(t, "--store", store)
		p.publish("orders", "", `1`)
		p.pull("orders", "mailer", 1, 1000, `{"from":"earliest"}`)
		to := "file://" + filepath.Join(t.TempDir(), "to")
		out, said, code := ended(t, exec.Command("promethean", "migrate", "--from", store, "--to", to))
		if code != 1 || !strings.Contains(said, "a hub serves group mailer of topic orders on the source") || !strings.Contains(said, "stop all hubs on it") {
			t.Errorf("exit code %d: %s%s", code, out, said)
		}
		migrated(t, store, to, "--force")
		p.stop()
	})
}
