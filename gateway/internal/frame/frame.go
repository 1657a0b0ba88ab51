// Package frame is the hub's end of a WebSocket: it reads the frames of clients
// and writes those of the hub. What the two ends share, such as operations and
// codes, is in package wire.
package frame

import (
	"time"

	"promethean/event"
	"promethean/group"
	"promethean/wire"
)

// Frame is what a client sent. Which fields are set depends on Op. Corr and the
// payloads of events share memory with the text that was decoded; all else is
// its own.
type Frame struct {
	Op wire.Op
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
