package mongofake

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Fault is what goes wrong with a command. It is what a server's failCommand
// fail point does, and a little more.
type Fault struct {
	// Command is the name of the command, as in "getMore".
	Command string
	// Skip lets so many pass first.
	Skip int
	// Times is how often it happens; 0 means once, and less means always.
	Times int
	// When says of a command whether it is one of them; nil takes all.
	When func(command bson.Raw) bool

	// Code is what the command fails with. 0 lets it succeed, for a fault that
	// delays or cuts only.
	Code int32
	// Message replaces the text of the error.
	Message string
	// Labels are those of the error. If nil, it has those that the server gives
	// the code.
	Labels []string
	// After has the command done first: only its answer is wrong.
	After bool
	// WriteConcern has the command done, and the error told as one of the write
	// concern.
	WriteConcern bool
	// Statement has one statement of a write fail alone, by its number from 1;
	// the error is one of those that the answer lists.
	Statement int
	// Cut ends the connection instead of answering.
	Cut bool
	// Delay holds the command back before anything happens.
	Delay time.Duration
}

// Fail has a fault happen. Of several that fit a command the oldest does.
func (s *Server) Fail(f Fault) {
	if f.Times == 0 {
		f.Times = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Pending is how many faults have not yet happened as often as they should.
func (s *Server) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.faults)
}

// Heal forgets all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// fault gives what is to go wrong with a command.
func (s *Server) fault(c *call) *Fault {
	for i, f := range s.faults {
		if f.Command != c.name || f.When != nil && !f.When(c.body) {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				s.faults = slices.Delete(s.faults, i, i+1)
			}
		}
		return f
	}
	return nil
}

// failure is the error of a fault.
func (f *Fault) failure() *failure {
	e := failf(f.Code, "Failing command via 'failCommand' failpoint")
	if f.Message != "" {
		e.message = f.Message
	}
	e.labels, e.final = f.Labels, f.Labels != nil
	return e
}

// before is what goes wrong before a command is done.
func (f *Fault) before(c *call) (cut bool, err error) {
	if f.Delay > 0 {
		for until := time.Now().Add(f.Delay); ; {
			if late, err := c.wait(until); err != nil || late {
				if err != nil {
					return true, err
				}
				break
			}
		}
	}
	switch {
	case f.After || f.WriteConcern || f.Statement > 0:
		return false, nil
	case f.Cut:
		return true, nil
	case f.Code != 0:
		return false, f.failure()
	}
	return false, nil
}

// after is what goes wrong with the answer of a command that was done.
func (f *Fault) after(c *call, reply bson.D) (cut bool, _ bson.D, err error) {
	switch {
	case f.After && f.Cut:
		return true, nil, nil
	case f.After && f.Code != 0:
		return false, nil, f.failure()
	case f.WriteConcern:
		e := f.failure()
		c.label(e)
		reply = append(reply, bson.E{Key: "writeConcernError", Value: bson.D{
			{Key: "code", Value: e.code}, {Key: "codeName", Value: codeName(e.code)}, {Key: "errmsg", Value: e.message},
		}})
		if len(e.labels) > 0 {
			reply = append(reply, bson.E{Key: "errorLabels", Value: e.labels})
		}
	}
	return false, reply, nil
}

// KillCursors forgets all cursors, so that the next getMore finds none.
func (s *Server) KillCursors() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.cursors {
		x.killed = true
	}
	clear(s.cursors)
	s.wake()
}

// Cursors is how many cursors are open.
func (s *Server) Cursors() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cursors)
}

// ClusterTime is that of the last change.
func (s *Server) ClusterTime() bson.Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.time
}

// TrimHistory forgets all changes up to a cluster time, as an oplog does that is
// too small. Whoever wants to go on from there learns that history is lost; an
// open stream that has not read them has lost its position.
func (s *Server) TrimHistory(upTo bson.Timestamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < len(s.oplog) && !s.oplog[n].at.After(upTo) {
		n++
	}
	s.oplog = slices.Delete(s.oplog, 0, n)
	s.trimmed += int64(n)
	if upTo.After(s.lost) {
		s.lost = upTo
	}
	s.wake()
}

// StepDown has the server be a secondary. Transactions are aborted, whatever
// waits is interrupted, and commands for a primary are refused with a code:
// 10107 (NotWritablePrimary), 189 (PrimarySteppedDown), 91 (ShutdownInProgress)
// or another of the kind; 0 stands for 10107.
func (s *Server) StepDown(code int32) {
	if code == 0 {
		code = codeNotWritablePrimary
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepped = code
	s.topology++
	for t := range s.txns {
		s.abort(t)
	}
	s.wake()
}

// StepUp has it be the primary again.
func (s *Server) StepUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stepped == 0 {
		return
	}
	s.stepped = 0
	s.topology++
	s.election++
	s.wake()
}

// Down has the server be away: connections end and none is taken. What it holds
// stays for when it is back.
func (s *Server) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
	if down {
		s.cut()
	}
}

// CutConnections ends all connections; new ones are taken.
func (s *Server) CutConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut()
}

// Calls is how many commands of a name have come so far, those included that
// failed by a fault.
func (s *Server) Calls(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[command]
}

// Await waits until n commands of a name have come since the start.
func (s *Server) Await(ctx context.Context, command string, n int) error {
	for {
		s.mu.Lock()
		have, news := s.calls[command], s.news
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("mongofake: %d of %d commands %s have come: %w", have, n, command, ctx.Err())
		case <-s.life.Done():
			return fmt.Errorf("mongofake: %d of %d commands %s have come, and the server is closed", have, n, command)
		}
	}
}
