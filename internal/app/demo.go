package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"promethean/compact"
	"promethean/examples/process"
	"promethean/internal/app/config"
)

func (a *app) demoCommand() *cobra.Command {
	var listen, dir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a hub with live events to look at",
		Long: `Demo runs a hub on a directory of its own, with a few simulated processes that
send heartbeats, the projector that makes their states of them, and a page that
shows it all. One of the processes dies and is found stale; another sends an
event that nobody can read, which becomes a dead letter.

It ends with Ctrl-C and removes its data, unless --dir keeps them. Pages of other
origins may call it where $PROMETHEAN_ORIGINS names them.`,
		Example: `  promethean demo
  promethean demo --listen 127.0.0.1:0 --dir ./demo-data`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address to serve on; port 0 takes a free one (default $PROMETHEAN_LISTEN, or else 127.0.0.1:7070)")
	cmd.Flags().StringVar(&dir, "dir", "", "directory for the data, which stay (default: a temporary one)")
	if err := cmd.MarkFlagDirname("dir"); err != nil {
		panic(err) // the flag is defined right above
	}
	cmd.RunE = a.begin(func(ctx context.Context, _ []string) error {
		listen = cmp.Or(listen, os.Getenv("PROMETHEAN_LISTEN"), "127.0.0.1:7070")
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(signals)
		return a.demo(ctx, listen, dir, signals)
	})
	return cmd
}

// demoEnv has the one variable that means something to a demo: a page of your
// own that calls it.
func demoEnv(name string) (string, bool) {
	if name != "PROMETHEAN_ORIGINS" {
		return "", false
	}
	return os.LookupEnv(name)
}

func (a *app) demo(ctx context.Context, listen, dir string, signals <-chan os.Signal) (err error) {
	if !config.Loopback(listen) {
		return advised{fmt.Errorf("demo: %s can be reached by other machines, and a demo asks nobody for a token", listen), "use an address such as 127.0.0.1:7070, or 'promethean serve'"}
	}
	kept := dir != ""
	if !kept {
		if dir, err = os.MkdirTemp("", "promethean-demo-"); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	load := func() (*config.Config, error) {
		return config.Load(config.Source{Env: demoEnv, Flags: map[string]string{
			"listen": listen, "store": "file://" + dir, "log.level": "warn",
		}})
	}
	c, err := load()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	err = a.serve(ctx, c, load, signals, func(s *server) (func(context.Context) error, error) {
		if err := a.tellDemo(s.where(), kept); err != nil {
			return nil, err
		}
		return startDemo(ctx, s)
	})
	if errors.Is(err, syscall.EADDRINUSE) {
		err = advised{err, "something else listens there: try 'promethean demo --listen 127.0.0.1:0'"}
	}
	return err
}

// tellDemo says what there is to see, and lines to try. It comes after the line
// that says that the hub is ready.
func (a *app) tellDemo(where string, kept bool) error {
	end := "Ctrl-C ends it and removes the data."
	if kept {
		end = "Ctrl-C ends it; the data stay."
	}
	addr := ""
	if where != "http://127.0.0.1:7070" {
		addr = " --addr " + where
	}
	_, err := fmt.Fprintf(a.stdout, `
A few processes send heartbeats, and a projector keeps their state. "crawler"
dies after 20 s and is found stale 15 s later; "sensor" sends a heartbeat now
and then that nobody can read: a dead letter.

  look at it     %[1]s
  watch          curl -N '%[1]s/subscribe?topic=process.state&from=latest'
                 promethean tail process.state%[2]s
  one process    curl %[1]s/views/processes/snap/demo:web:101
  who is alive   curl '%[1]s/views/processes/list?status=alive'
  in the past    curl '%[1]s/at?topic=process.state&key=demo:web:101&asOf=5'
  join in        curl -d '{"pid":7,"name":"mine","host":"here","cpu_pct":1,"mem_mb":2}' %[1]s/publish/heartbeat.received
  who is behind  curl '%[1]s/lag?topic=heartbeat.received&group=process-projector'
  dead letters   curl %[1]s/dlq/heartbeat.received
  replay them    curl -d '{}' %[1]s/dlq/heartbeat.received/replay

%[3]s
`, where, addr, end)
	return err
}

// simulated is a process that exists in its heartbeats only.
type simulated struct {
	name   string
	pid    int64
	cpu    float64
	mem    float64
	lives  time.Duration // how long it lives before it is silent; 0 for ever
	silent time.Duration // and then for how long
	poison time.Duration // how often a heartbeat is spoiled; 0 never
}

// cast are the processes of the demo.
var cast = []simulated{
	{name: "web", pid: 101, cpu: 22, mem: 310},
	{name: "stt", pid: 102, cpu: 71, mem: 1900},
	{name: "indexer", pid: 103, cpu: 45, mem: 820},
	{name: "crawler", pid: 104, cpu: 12, mem: 240, lives: 20 * time.Second, silent: 45 * time.Second},
	{name: "sensor", pid: 105, cpu: 1, mem: 18, poison: 30 * time.Second},
}

// beat is how often a process sends a heartbeat.
const beat = 2 * time.Second

// demoHistory is how far back one can travel in the demo.
const demoHistory = 24 * time.Hour

// startDemo starts the projector and the processes. What it gives stops them.
func startDemo(ctx context.Context, s *server) (func(context.Context) error, error) {
	kept, history, yes, snapshots := process.HeartbeatRetention, demoHistory, true, new(compact.Snapshot)
	topics := []config.Topic{
		{Name: process.HeartbeatTopic, Retention: &kept},
		{Name: process.StateTopic, Compaction: &yes, History: &history, Snapshot: &snapshots},
	}
	if err := setTopics(ctx, s.hub, s.schemas, s.squeezer, &config.Config{Topics: topics}, s.log); err != nil {
		return nil, err
	}
	states, err := process.Transactional(ctx, s.hub, s.models.options(s.schemas, s.log))
	if err == nil {
		err = s.models.add(states)
	}
	if err != nil {
		return nil, err
	}
	projector, err := process.Start(ctx, s.hub, process.Options{Logger: s.log})
	if err != nil {
		return nil, err
	}
	acting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var actors sync.WaitGroup
	for i := range cast {
		actors.Go(func() { cast[i].act(acting, s) })
	}
	return func(ctx context.Context) error {
		cancel()
		actors.Wait()
		return projector.Stop(ctx)
	}, nil
}

// act sends the heartbeats of a process until ctx ends.
func (p *simulated) act(ctx context.Context, s *server) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	pid, born, spoiled := p.pid, time.Now(), time.Time{}
	for n := 0; ; n++ {
		now := time.Now()
		var payload any = process.Heartbeat{PID: pid, Name: p.name, Host: "demo", CPUPct: wave(p.cpu, n), MemMB: wave(p.mem, n/3)}
		silent := false
		switch age := now.Sub(born); {
		case p.lives > 0 && age > p.lives+p.silent:
			born, pid = now, pid+100 // it is started again, as another process
		case p.lives > 0 && age > p.lives:
			silent = true
		case p.poison > 0 && now.Sub(spoiled) >= p.poison && n > 0:
			spoiled = now
			payload = map[string]any{"pid": "one hundred and five", "name": p.name, "host": "demo", "cpu_pct": "hot"}
		}
		if !silent {
			if _, err := s.hub.Emit(ctx, process.HeartbeatTopic, payload); err != nil && ctx.Err() == nil {
				s.log.Warn("a heartbeat of the demo was not stored", "process", p.name, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// wave lets a figure go up and down by a fifth.
func wave(mean float64, n int) float64 {
	step := float64((n*7)%11-5) / 25
	return float64(int(mean*(1+step)*10)) / 10
}
