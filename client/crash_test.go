package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/client"
	"promethean/event"
	"promethean/internal/app"
)

// process is a hub in a process of its own, the program itself.
type process struct {
	*testing.T
	args []string
	cmd  *exec.Cmd
	said logBook
	addr string
}

var listening = regexp.MustCompile(`http://([^\s/]+:\d+)`)

// asProgram is set where the test's binary shall be the program.
const asProgram = "PROMETHEAN_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(app.Main("test"))
	}
	goleak.VerifyTestMain(m)
}

// startProcess starts a hub on a directory.
func startProcess(t *testing.T) *process {
	t.Helper()
	p := &process{T: t, args: []string{"serve", "--listen", "127.0.0.1:0", "--store", "file://" + t.TempDir()}}
	p.start()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the hub said:\n%s", &p.said)
		}
	})
	return p
}

func (p *process) start() {
	p.Helper()
	p.cmd = exec.Command(os.Args[0], p.args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.Stderr = &p.said
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			p.addr = m[1]
			p.args[2] = m[1] // the next start takes the same port
			go func() {
				for lines.Scan() { // so that it never waits for us
				}
			}()
			return
		}
	}
	p.Fatalf("the hub ended before it was ready:\n%s", &p.said)
}

// kill ends the process as a crash does.
func (p *process) kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// stored reads a topic from the hub.
func (p *process) stored(topic string) (list []event.Event) {
	p.Helper()
	for after := uint64(0); ; {
		var page struct {
			Events []event.Event
			Next   uint64
		}
		got, err := http.Get(fmt.Sprintf("http://%s/replay?topic=%s&from=seq&seq=%d&limit=10000", p.addr, topic, after))
		if err != nil {
			p.Fatal(err)
		}
		err = json.NewDecoder(got.Body).Decode(&page)
		_ = got.Body.Close()
		if err != nil {
			p.Fatal(err)
		}
		if len(page.Events) == 0 {
			http.DefaultClient.CloseIdleConnections()
			return list
		}
		list = append(list, page.Events...)
		after = page.Next
	}
}

// groups is what the hub says of its groups.
func (p *process) groups() []byte {
	got, err := http.Get("http://" + p.addr + "/groups")
	if err != nil {
		return []byte(err.Error())
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = got.Body.Close() }()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		return []byte(err.Error())
	}
	return body
}

// tally is what the clients have seen.
type tally struct {
	mu        sync.Mutex
	published map[string]event.ID // by payload: acknowledged
	handled   map[string]map[event.ID]int
	acked     map[event.ID]bool // of the group that acks by hand
}

func (n *tally) note(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// The hub is killed and started again under publishers and subscribers. Nothing
// that was acknowledged is lost, nothing is stored twice, everything is handled,
// and nothing that was acked comes again.
func TestCrashUnderClients(t *testing.T) {
	lasts := 4 * time.Second
	if os.Getenv("PROMETHEAN_CRASH") == "long" {
		lasts = 2 * time.Minute
	}
	hub := startProcess(t)
	o := client.Options{MinBackoff: 5 * time.Millisecond, MaxBackoff: 50 * time.Millisecond}
	ctx, cancel := context.WithTimeout(context.Background(), lasts+4*time.Minute)
	defer cancel()
	n := &tally{published: map[string]event.ID{}, handled: map[string]map[event.ID]int{"auto": {}, "hand": {}}, acked: map[event.ID]bool{}}

	first, second := connect(t, hub.addr, o), connect(t, hub.addr, o)
	common := []client.SubscribeOption{client.FromEarliest(), client.MaxAttempts(1_000_000), client.Workers(32)}
	for _, c := range []*client.Client{first, second} {
		if _, err := c.Subscribe(ctx, "load.*", "auto", func(_ context.Context, e event.Event, _ *client.Delivery) error {
			n.note(func() { n.handled["auto"][e.ID]++ })
			return nil
		}, common...); err != nil {
			t.Fatal(err)
		}
	}
	// One member, so that "comes again" can be told: what was on its way to
	// another member when the ack was answered would look the same.
	if _, err := second.Subscribe(ctx, "load.x", "hand", func(_ context.Context, e event.Event, d *client.Delivery) error {
		n.note(func() {
			n.handled["hand"][e.ID]++
			if n.acked[e.ID] {
				t.Errorf("%s was acked and comes again", e.ID)
			}
		})
		if err := d.Ack(ctx); err != nil {
			return err
		}
		n.note(func() { n.acked[e.ID] = true })
		return nil
	}, append(common, client.Topics("load.y"))...); err != nil {
		t.Fatal(err)
	}

	var over atomic.Bool
	var publishers sync.WaitGroup
	for who := range 8 {
		publishers.Go(func() {
			for i := 0; !over.Load(); i++ {
				topic := []string{"load.x", "load.y"}[i%2]
				if i%10 == 9 {
					batch := make([]event.Event, 5)
					for k := range batch {
						batch[k] = event.Event{Topic: topic, Payload: fmt.Appendf(nil, `"%d-%d-%d"`, who, i, k), Key: fmt.Sprint(who)}
					}
					got, err := first.PublishEvents(ctx, batch)
					if err != nil {
						t.Error(err)
						return
					}
					n.note(func() {
						for k, r := range got {
							n.published[string(batch[k].Payload)] = r.ID
						}
					})
					continue
				}
				text := fmt.Sprintf("%d-%d", who, i)
				r, err := first.Publish(ctx, topic, text, client.Key(fmt.Sprint(who)))
				if err != nil {
					t.Error(err)
					return
				}
				n.note(func() { n.published[`"`+text+`"`] = r.ID })
			}
		})
	}
	crashes := 0
	for end := time.Now().Add(lasts); crashes < 4 || time.Now().Before(end); crashes++ {
		<-time.After(100*time.Millisecond + rand.N(400*time.Millisecond)) // when it crashes is left to chance
		hub.kill()
		hub.start()
	}
	over.Store(true)
	publishers.Wait()

	all := map[string]event.ID{}
	for _, topic := range []string{"load.x", "load.y"} {
		seqs := uint64(0)
		for _, e := range hub.stored(topic) {
			if _, twice := all[string(e.Payload)]; twice {
				t.Errorf("%s is stored twice", e.Payload)
			}
			all[string(e.Payload)] = e.ID
			if e.Seq <= seqs {
				t.Errorf("seq %d after %d", e.Seq, seqs)
			}
			seqs = e.Seq
		}
	}
	for text, id := range n.published {
		if all[text] != id {
			t.Errorf("%s was acknowledged as %s and is stored as %s", text, id, all[text])
		}
	}
	// There may be much to do: it is late only when nothing happens any more.
	for last, since := 0, time.Now(); ; time.Sleep(time.Millisecond) {
		var handled, acked int
		n.note(func() { handled, acked = len(n.handled["auto"]), len(n.acked) })
		if handled == len(all) && acked == len(all) {
			break
		}
		if handled+acked > last {
			last, since = handled+acked, time.Now()
		}
		if time.Since(since) > 20*time.Second {
			t.Fatalf("of %d events %d were handled and %d acked by hand, and nothing more comes; the hub says %s", len(all), handled, acked, hub.groups())
		}
	}
	again := 0
	for _, times := range n.handled["auto"] {
		again += times - 1
	}
	if len(all) == 0 {
		t.Error("nothing was published")
	}
	t.Logf("%d crashes, %d events published, %d stored, %d deliveries repeated", crashes, len(n.published), len(all), again)
	if strings.Contains(hub.said.String(), "panic") {
		t.Error("the hub has panicked")
	}
}
