package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"promethean/event"
)

// What an entry tells.
const (
	doPublish = "publish" // a publish is about to be sent
	doStored  = "stored"  // it was acknowledged
	doUnknown = "unknown" // it may have been stored or not
	doRefused = "refused" // it was refused for good
	doGot     = "got"     // an event was handed out
	doAck     = "ack"     // an ack is about to be sent
	doAcked   = "acked"   // it was answered
	doUnacked = "unacked" // it was not, or refused
	doNack    = "nack"    // a nack is about to be sent
	doTake    = "take"    // a partition is assigned
	doYield   = "yield"   // it is revoked
	doNote    = "note"    // something to know
	doLast    = "last"    // the last seq of a topic was read, as Seq
)

// entry is one line of a journal. Fields that do not apply are left out.
type entry struct {
	T     int64    `json:"t"` // epoch nanoseconds
	Who   string   `json:"who"`
	Do    string   `json:"do"`
	Hub   int      `json:"hub"`
	Topic string   `json:"topic,omitempty"`
	Group string   `json:"group,omitempty"`
	ID    event.ID `json:"id,omitzero"`
	Key   string   `json:"key,omitempty"`
	N     int      `json:"n,omitempty"`   // the publisher's number of the event, within its key
	Seq   uint64   `json:"seq,omitempty"` // of a stored event
	Op    int64    `json:"op,omitempty"`  // names a call; the entries before and after it have the same

	Dup    bool       `json:"dup,omitempty"`
	Batch  []event.ID `json:"batch,omitempty"`  // all events of the publish
	Expect *uint64    `json:"expect,omitempty"` // the condition of a publish
	Out    int64      `json:"out,omitempty"`    // when an event was handed out, epoch nanoseconds
	Try    int        `json:"try,omitempty"`    // the attempt
	Code   string     `json:"code,omitempty"`
	Err    string     `json:"err,omitempty"`

	Part *int `json:"part,omitempty"` // that was given, or given up
}

// journal is the file of one worker. An entry is one write, so that a process
// that is killed leaves what it wrote.
type journal struct {
	who string
	mu  sync.Mutex
	f   *os.File
	err error
}

// openJournal goes on with a journal, or begins one.
func openJournal(dir, who string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, who+".jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return &journal{who: who, f: f}, nil
}

// add writes an entry, with the time of now unless it has one.
func (j *journal) add(e entry) {
	e.Who = j.who
	if e.T == 0 {
		e.T = time.Now().UnixNano()
	}
	line, err := json.Marshal(&e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		_, err = j.f.Write(append(line, '\n'))
	}
	if j.err == nil {
		j.err = err
	}
}

// close ends the journal and says whether all of it was written.
func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.f.Close()
	if j.err != nil {
		err = j.err
	}
	if err != nil {
		return fmt.Errorf("journal of %s: %w", j.who, err)
	}
	return nil
}

// readJournals gives the entries of all journals of a directory, by time.
func readJournals(dir string) ([]entry, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []entry
	same := make(map[string]string) // one string for all equal ones
	intern := func(s *string) {
		if v, ok := same[*s]; ok {
			*s = v
			return
		}
		same[strings.Clone(*s)] = *s
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for n := 1; len(b) > 0; n++ {
			line, rest, _ := bytes.Cut(b, []byte("\n"))
			b = rest
			var e entry
			if err := json.Unmarshal(line, &e); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			for _, s := range []*string{&e.Who, &e.Do, &e.Topic, &e.Group, &e.Key, &e.Code, &e.Err} {
				intern(s)
			}
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int {
		switch {
		case a.T < b.T:
			return -1
		case a.T > b.T:
			return 1
		}
		return 0
	})
	return all, nil
}
