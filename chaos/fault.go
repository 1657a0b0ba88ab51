package main

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"promethean/internal/netfault"
)

// strike does what a fault says, for as long as it says, and takes it back. It
// says whom it hit.
func (f *fleet) strike(ctx context.Context, x fault, topics []string, victims []*peer) (whom string, err error) {
	peers := f.peers()
	h := peers[x.Whom%len(peers)]
	n := f.nodes[x.Whom%len(f.nodes)]
	switch x.Kind {
	case killLeader, stopLeader:
		topic := topics[x.Whom%len(topics)]
		if n, err = f.leader(ctx, topic); err != nil {
			return topic, err
		}
		whom = n.name + ", leader of " + topic
		if x.Kind == stopLeader {
			return whom, stopped(ctx, &n.process, x.For)
		}
		return whom, killed(ctx, &n.process, x.For)
	case restartNodes:
		for i := range f.nodes {
			m := f.nodes[(x.Whom+i)%len(f.nodes)]
			if err := m.end(ctx, patience); err != nil {
				return m.name, err
			}
			if err := m.start(); err != nil {
				return m.name, err
			}
			if err := f.until(ctx, patience, f.nodesHealthy); err != nil {
				return m.name, err
			}
			pause(ctx, x.For)
		}
		return "all", nil
	case slowDisk:
		return n.name, pulsed(ctx, &n.process, x.For)
	case killHub:
		return h.name, killed(ctx, &h.process, x.For)
	case stopHub:
		return h.name, stopped(ctx, &h.process, x.For)
	case cutHub:
		return h.name, h.behind(ctx, x.For, func(p *netfault.Proxy, on bool) { p.Down(on) })
	case freezeHub:
		return h.name, h.behind(ctx, x.For, func(p *netfault.Proxy, on bool) { p.Freeze(on) })
	case slowHub:
		delay := time.Duration(20+x.Whom%180) * time.Millisecond
		return fmt.Sprintf("%s, %v", h.name, delay), h.behind(ctx, x.For, func(p *netfault.Proxy, on bool) {
			if on {
				p.Delay(delay)
			} else {
				p.Delay(0)
			}
		})
	case killWorker:
		w := victims[x.Whom%len(victims)]
		return w.name, killed(ctx, &w.process, x.For)
	}
	return "", fmt.Errorf("unknown fault %s", x.Kind)
}

// killed keeps a process from running for a while.
func killed(ctx context.Context, p *process, d time.Duration) error {
	p.kill()
	pause(ctx, d)
	return p.start()
}

// stopped has a process stand still for a while.
func stopped(ctx context.Context, p *process, d time.Duration) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pause(ctx, d)
	return p.signal(syscall.SIGCONT)
}

// pulsed has a process run for a fifth of the time.
func pulsed(ctx context.Context, p *process, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		if err := stopped(ctx, p, 40*time.Millisecond); err != nil {
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
	return nil
}

// behind does something to a peer's connections for a while.
func (h *peer) behind(ctx context.Context, d time.Duration, do func(p *netfault.Proxy, on bool)) error {
	for _, p := range h.proxies {
		do(p, true)
	}
	pause(ctx, d)
	for _, p := range h.proxies {
		do(p, false)
	}
	return nil
}
