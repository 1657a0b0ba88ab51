package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"promethean/event"
)

// What an acknowledgement means, as printed beside each figure.
const (
	durable    = "fsync before ack"
	notDurable = "not durable"
)

// target is one thing that is measured. Open and Close bracket one round; a
// target can be opened again after Close. Only the publishers are used from
// several goroutines.
type target interface {
	Name() string
	// Durability says what an acknowledgement promises.
	Durability() string
	// Available is the reason why the target cannot run here, if there is one.
	Available() error
	// Open starts the target with its data in dir, which exists and is empty
	// unless an earlier Open of the same target wrote to it.
	Open(ctx context.Context, dir string) error
	// Publisher makes the i-th publisher, for use by one goroutine.
	Publisher(ctx context.Context, i int) (publisher, error)
	Close() error
}

// publisher hands events over and returns once all of them are acknowledged.
// It does not keep the slice.
type publisher interface {
	Publish(ctx context.Context, evs []event.Event) error
	Close() error
}

// settler is a target whose clock runs on after the last acknowledgement.
type settler interface {
	// Settle returns once each of the events answers by id and by key.
	Settle(ctx context.Context, last []event.Event) error
}

// Names of targets, as -only takes them.
const (
	nameRaw       = "raw"
	nameRecycled  = "raw-recycled"
	nameUs        = "us"
	nameRedis     = "redis-always"
	nameJetAlways = "jetstream-always"
	nameJet       = "jetstream-default"
	nameJetAsync  = "jetstream-async"
	nameWS        = "us-ws"
	nameHTTP      = "us-http"
)

// targetNames is also the order within a round.
var targetNames = []string{nameRaw, nameRecycled, nameUs, nameRedis, nameJetAlways, nameJet, nameJetAsync, nameWS, nameHTTP}

func newTarget(name string) target {
	switch name {
	case nameRaw:
		return &rawTarget{name: name}
	case nameRecycled:
		return &rawTarget{name: name, recycled: true}
	case nameUs:
		return &engineTarget{}
	case nameRedis:
		return &redisTarget{}
	case nameJetAlways:
		return &jetTarget{name: name, durability: durable, interval: "always"}
	case nameJet:
		return &jetTarget{name: name, durability: notDurable}
	case nameJetAsync:
		return &asyncJet{jetTarget{name: name, durability: notDurable}}
	case nameWS:
		return &hubTarget{name: name}
	case nameHTTP:
		return &hubTarget{name: name, http: true}
	}
	panic("bench: no target " + name)
}

// Names of figures, as -only takes them.
const (
	figC1     = "c1"
	figC64    = "c64"
	figC256   = "c256"
	figBatch  = "batch"
	figScan   = "scan"
	figGrowth = "growth"
	figAllocs = "allocs"

	figConsume  = "consume"
	figLive     = "live"
	figDelivery = "delivery"
	figStuck    = "stuck"
	figCrowd    = "crowd"
	figNats     = "nats"
	figMongo    = "mongodb"

	figWS        = "ws"
	figWSBatch   = "ws-batch"
	figWSTake    = "ws-consume"
	figWSDeliver = "ws-delivery"
	figWSIdle    = "ws-idle"
	figExport    = "export"
	figProject   = "project"
	figSnap      = "snap"
	figAt        = "at"
	figCompact   = "compact"
)

var figureNames = []string{figC1, figC64, figC256, figBatch, figConsume, figLive, figDelivery, figStuck, figCrowd, figNats, figMongo, figWS, figWSBatch, figWSTake, figWSDeliver, figWSIdle, figExport, figProject, figSnap, figAt, figCompact, figScan, figGrowth, figAllocs}

// selection is what -only leaves. Names of figures and of targets are told
// apart by the names themselves; none of a kind means all of that kind.
type selection struct{ figures, targets []string }

func parseSelection(s string) (selection, error) {
	var sel selection
	for name := range strings.SplitSeq(s, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "":
		case slices.Contains(figureNames, name):
			sel.figures = append(sel.figures, name)
		case slices.Contains(targetNames, name):
			sel.targets = append(sel.targets, name)
		default:
			return selection{}, fmt.Errorf("-only: %q is neither a figure (%s) nor a target (%s)",
				name, strings.Join(figureNames, " "), strings.Join(targetNames, " "))
		}
	}
	return sel, nil
}

func (s selection) figure(name string) bool {
	return len(s.figures) == 0 || slices.Contains(s.figures, name)
}

func (s selection) target(name string) bool {
	return len(s.targets) == 0 || slices.Contains(s.targets, name)
}

// errLeftOut marks a target that the user did not ask for, which is nothing to
// report.
var errLeftOut = errors.New("left out by -only")
