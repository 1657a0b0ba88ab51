package wire

import "time"

// Op is what a client's frame asks for.
type Op byte

// The operations.
const (
	OpNone Op = iota
	OpAuth
	OpPublish
	OpSubscribe
	OpUnsubscribe
	OpAck
	OpNack
	OpModAck
	OpPause
	OpResume
)

var opNames = [...]string{"", "AUTH", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK", "MODACK", "PAUSE", "RESUME"}

// String gives the name that stands in frames.
func (o Op) String() string { return opNames[o] }

// OpOf finds an operation by its name, OpNone if there is none.
func OpOf(name []byte) Op {
	for o := OpAuth; int(o) < len(opNames); o++ {
		if opNames[o] == string(name) {
			return o
		}
	}
	return OpNone
}

// Bounds of what a frame may ask for. Larger numbers are cut to them.
const (
	// MaxCorr is the length of corr in bytes, quotes included. A longer one is
	// refused.
	MaxCorr = 1 << 10
	// MaxBatch is how many events one PUBLISH may have, or one EVENTS.
	MaxBatch = 10_000
	// MaxTopics is how many topics one SUBSCRIBE or UNSUBSCRIBE may name. More
	// are refused: each of them is a group to be made.
	MaxTopics = 1000
	// MaxInFlight is the most that one member may hold.
	MaxInFlight = 100_000
	// MaxExtend is how long a lease may be made to last.
	MaxExtend = 24 * time.Hour
	// MaxDelay is how long an event that was given back may stay away.
	MaxDelay = 30 * 24 * time.Hour
)
