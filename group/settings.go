package group

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"promethean/event"
)

// Ordering says which events of a group wait for each other.
type Ordering string

const (
	// ByKey hands out the events of one key in log order, the next one when
	// the one before is settled. It is the default.
	ByKey Ordering = "key"
	// ByTopic hands out the whole topic in log order.
	ByTopic Ordering = "topic"
	// Unordered hands out whatever is there.
	Unordered Ordering = "none"
)

// Policy says what becomes of an event that has failed for good.
type Policy string

const (
	// DeadEvent moves the one event to the dead letters. It is the default.
	DeadEvent Policy = "event"
	// DeadKey parks the key: its later events follow into the dead letters
	// until they are replayed.
	DeadKey Policy = "key"
	// DeadBlock lets the key wait for ever.
	DeadBlock Policy = "block"
)

// Defaults of the settings.
const (
	DefaultAckTimeout  = 30 * time.Second
	DefaultMaxAttempts = 5
	DefaultMaxInFlight = 1000
	DefaultBatchSize   = 100
)

// Settings belong to a group and are kept with it. A zero field is one that
// was left out: it contradicts nothing, and a new group gets the default.
type Settings struct {
	Ordering    Ordering
	DeadLetter  Policy
	MaxAttempts int
	AckTimeout  time.Duration
	// Filter is a CEL expression; see [CompileFilter].
	Filter string
	// Partitions is how many partitions the group is divided into, each with one
	// member at a time; [FollowTopic] means those of the topic. 0 is a group that
	// is not partitioned.
	Partitions int

	// term is which number of partitions a group that follows its topic is at.
	term int
}

// ErrConflict says that a group exists with other settings.
var ErrConflict = errors.New("group exists with other settings")

// ErrInvalid says that a setting or an argument is none.
var ErrInvalid = errors.New("invalid argument")

func (s Settings) check() error {
	switch s.Ordering {
	case "", ByKey, ByTopic, Unordered:
	default:
		return fmt.Errorf("%w: ordering %q is none of key, topic, none", ErrInvalid, s.Ordering)
	}
	switch s.DeadLetter {
	case "", DeadEvent, DeadKey, DeadBlock:
	default:
		return fmt.Errorf("%w: deadLetter %q is none of event, key, block", ErrInvalid, s.DeadLetter)
	}
	if s.MaxAttempts < 0 || s.MaxAttempts > maxAttempts {
		return fmt.Errorf("%w: maxAttempts %d is not within 1 to %d", ErrInvalid, s.MaxAttempts, maxAttempts)
	}
	if s.AckTimeout < 0 || s.AckTimeout > maxAckTimeout || s.AckTimeout > 0 && s.AckTimeout < time.Millisecond {
		return fmt.Errorf("%w: ackTimeoutMs %d is not within 1 to %d", ErrInvalid, s.AckTimeout.Milliseconds(), maxAckTimeout.Milliseconds())
	}
	if s.Partitions < FollowTopic || s.Partitions > event.MaxPartitions {
		return fmt.Errorf("%w: partitions %d is not within 1 to %d", ErrInvalid, s.Partitions, event.MaxPartitions)
	}
	return nil
}

const (
	maxAttempts   = 1_000_000
	maxAckTimeout = 24 * time.Hour
)

func (s Settings) withDefaults() Settings {
	if s.Ordering == "" {
		s.Ordering = ByKey
	}
	if s.DeadLetter == "" {
		s.DeadLetter = DeadEvent
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = DefaultMaxAttempts
	}
	if s.AckTimeout == 0 {
		s.AckTimeout = DefaultAckTimeout
	}
	return s
}

// fits says whether asked contradicts s, the settings that a group has.
func (s Settings) fits(asked Settings) error {
	differ := func(name string, has, wants any) error {
		return fmt.Errorf("%w: %s is %v, not %v", ErrConflict, name, has, wants)
	}
	switch {
	case asked.Ordering != "" && asked.Ordering != s.Ordering:
		return differ("ordering", s.Ordering, asked.Ordering)
	case asked.DeadLetter != "" && asked.DeadLetter != s.DeadLetter:
		return differ("deadLetter", s.DeadLetter, asked.DeadLetter)
	case asked.MaxAttempts != 0 && asked.MaxAttempts != s.MaxAttempts:
		return differ("maxAttempts", s.MaxAttempts, asked.MaxAttempts)
	case asked.AckTimeout != 0 && asked.AckTimeout != s.AckTimeout:
		return differ("ackTimeoutMs", s.AckTimeout.Milliseconds(), asked.AckTimeout.Milliseconds())
	case asked.Filter != "" && asked.Filter != s.Filter:
		return differ("filter", s.Filter, asked.Filter)
	case asked.Partitions != 0 && s.Partitions == 0:
		return differ("partitioned", s.Partitions != 0, asked.Partitions != 0)
	case asked.Partitions != 0 && asked.Partitions != s.Partitions:
		return differ("partitions", divided(s.Partitions), divided(asked.Partitions))
	}
	return nil
}

// divided says how a group is.
func divided(n int) string {
	if n == FollowTopic {
		return "as many as the topic's"
	}
	return strconv.Itoa(n)
}

// meta is what a cursor's Meta holds.
type meta struct {
	Ordering     Ordering `json:"ordering"`
	DeadLetter   Policy   `json:"deadLetter"`
	MaxAttempts  int      `json:"maxAttempts"`
	AckTimeoutMs int64    `json:"ackTimeoutMs"`
	Filter       string   `json:"filter,omitempty"`
	Partitions   int      `json:"partitions,omitempty"`
	Term         int      `json:"term,omitempty"`
}

func (s Settings) encode() []byte {
	b, err := json.Marshal(meta{Ordering: s.Ordering, DeadLetter: s.DeadLetter, MaxAttempts: s.MaxAttempts, AckTimeoutMs: s.AckTimeout.Milliseconds(), Filter: s.Filter, Partitions: s.Partitions, Term: s.term})
	if err != nil {
		panic(err) // plain fields: it cannot fail
	}
	return b
}

func decodeSettings(b []byte) (Settings, error) {
	var m meta
	if len(b) > 0 {
		if err := json.Unmarshal(b, &m); err != nil {
			return Settings{}, fmt.Errorf("settings of the group do not decode: %w", err)
		}
	}
	s := Settings{Ordering: m.Ordering, DeadLetter: m.DeadLetter, MaxAttempts: m.MaxAttempts, AckTimeout: time.Duration(m.AckTimeoutMs) * time.Millisecond, Filter: m.Filter, Partitions: m.Partitions, term: m.Term}
	return s.withDefaults(), nil
}
