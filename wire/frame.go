package wire

import (
	"time"

	"promethean/event"
	"promethean/group"
)

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

// opOf finds an operation by its name.
func opOf(name []byte) Op {
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

// Frame is what a client sent. Which fields are set depends on Op. Corr and the
// payloads of events share memory with the text that was decoded; all else is
// its own.
type Frame struct {
	Op Op
	// Corr is the JSON string or number that the answer has to carry, as it
	// was written; nil if there was none.
	Corr []byte

	// Token is that of AUTH.
	Token string

	// Topic is a topic, or for SUBSCRIBE and what is about subscriptions
	// perhaps a pattern. Topics is what SUBSCRIBE and UNSUBSCRIBE name: the
	// list, or Topic alone.
	Topic  string
	Topics []string
	Group  string

	// Events are those of PUBLISH: one, or those of a batch.
	Events []event.Event
	Batch  bool
	// Expect is the seq that must be the topic's last, if HasExpect is set.
	Expect    uint64
	HasExpect bool

	// Options of SUBSCRIBE. Settings and Start are as in package group; the
	// others are 0 where none was given.
	Settings    group.Settings
	Start       group.Start
	BatchSize   int
	MaxInFlight int
	// PerFrame is how many events one frame may bring: above 1 they come as
	// EVENTS.
	PerFrame int
	// Member is the name that the member gives itself.
	Member string
	// Partitioned and Normalise ask for what a hub may not have.
	Partitioned, Normalise bool

	// IDs are what ACK, NACK and MODACK are about. Many says that they came as
	// a list, so that each wants an answer of its own.
	IDs  []group.Selected
	Many bool
	// Nack is how it failed; Extend is how long the lease shall last from now.
	Nack   group.Nack
	Extend time.Duration
}

// reset forgets all but the memory.
func (f *Frame) reset() {
	events, ids, topics := f.Events[:0], f.IDs[:0], f.Topics[:0]
	*f = Frame{Events: events, IDs: ids, Topics: topics}
}
