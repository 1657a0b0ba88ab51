package main

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"

	"promethean"
	"promethean/event"
	"promethean/examples/process"
	"promethean/partition/state"
)

// Analysis is what is known of a process.
type Analysis struct {
	States   int64   `json:"states"`
	Silences int64   `json:"silences"`
	CPU      float64 `json:"cpu"` // the sum of all states
	PeakMB   float64 `json:"peak_mb"`
	// Trail depends on every state and on their order: a state that is left
	// out, counted twice or out of order shows.
	Trail string `json:"trail"`
}

// newTable makes the table of what is known.
func newTable(hub *promethean.Hub, logger *slog.Logger) (*state.Table[string, Analysis], error) {
	return state.New[string, Analysis](hub, "analysis", state.Options{Source: process.StateTopic, Partitions: partitions, Logger: logger})
}

// rounds make the work heavy: about a millisecond.
const rounds = 10_000

// expensive is the heavy part of the work, which depends on the event alone.
func expensive(e *event.Event) [sha256.Size]byte {
	sum := sha256.Sum256(e.Payload)
	for range rounds {
		sum = sha256.Sum256(sum[:])
	}
	return sum
}

// with gives what is known after another state.
func (a Analysis) with(s *process.State, digest [sha256.Size]byte) Analysis {
	if s.Status == process.Stale {
		a.Silences++
	}
	a.States++
	a.CPU += s.CPUPct
	a.PeakMB = max(a.PeakMB, s.MemMB)
	trail := sha256.Sum256(append([]byte(a.Trail), digest[:]...))
	a.Trail = hex.EncodeToString(trail[:8])
	return a
}
