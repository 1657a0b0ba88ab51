package mongofake

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// session is a logical session. The driver uses it for one operation at a time.
type session struct {
	number int64 // the transaction number that was used last
	txn    *txn  // of this number; nil if it is a retryable write's

	// The answer to the last retryable write, for when it is sent again
	// (retryable writes specification: the server does it at most once).
	answered int64
	answer   bson.Raw
}

// txn is a transaction (transactions specification).
type txn struct {
	number   int64
	state    txnState
	began    time.Time
	snapshot bson.Timestamp
	lsid     bson.Raw
	touched  []touched
	entries  []entry
}

type txnState int

const (
	running txnState = iota
	committed
	aborted
)

type touched struct {
	c *collection
	r *record
}

// session gives the session that a command names.
func (s *Server) session(lsid bson.Raw) *session {
	key := string(lsid)
	if s.sessions[key] == nil {
		s.sessions[key] = &session{number: -1, answered: -1}
	}
	return s.sessions[key]
}

// enlist finds the transaction that a command belongs to, or begins it. For a
// retryable write that was answered before it gives that answer.
func (c *call) enlist() (again bson.Raw, err error) {
	lsid, ok := c.body.Lookup("lsid").DocumentOK()
	if !ok {
		if c.has("txnNumber") {
			return nil, failf(codeInvalidOptions, "Transaction number requires a session ID to also be specified")
		}
		return nil, nil
	}
	c.sess = c.s.session(lsid)
	if !c.has("txnNumber") {
		return nil, nil
	}
	if c.s.o.Standalone {
		return nil, failf(codeIllegalOperation, "Transaction numbers are only allowed on a replica set member or mongos")
	}
	number, _ := whole(c.body.Lookup("txnNumber"))
	if number < c.sess.number {
		return nil, failf(codeTransactionTooOld, "Cannot start transaction %d on a session because a newer transaction %d has already started", number, c.sess.number)
	}
	if !c.has("autocommit") {
		if c.sess.answered == number {
			return c.sess.answer, nil
		}
		c.sess.supersede(c.s, number)
		return nil, nil
	}
	return nil, c.join(number, lsid)
}

func (c *call) join(number int64, lsid bson.Raw) error {
	s := c.s
	if truthy(c.body.Lookup("startTransaction")) {
		if number == c.sess.number {
			return failf(codeConflictingProgress, "Cannot start a transaction with the number %d a second time", number)
		}
		c.sess.supersede(s, number)
		c.txn = &txn{number: number, began: time.Now(), snapshot: s.time, lsid: slices.Clone(lsid)}
		c.sess.txn = c.txn
		s.txns[c.txn] = true
		return nil
	}
	c.txn = c.sess.txn
	if number != c.sess.number || c.txn == nil {
		c.txn = nil
		return failf(codeNoSuchTransaction, "Given transaction number %d does not match any in-progress transactions.", number)
	}
	ending := c.name == "commitTransaction" || c.name == "abortTransaction"
	if s.expired(c.txn) {
		s.abort(c.txn)
	}
	switch {
	case c.txn.state == aborted && c.name != "abortTransaction":
		return failf(codeNoSuchTransaction, "Transaction with { txnNumber: %d } has been aborted.", number)
	case c.txn.state == committed && !ending:
		return failf(codeTransactionCommitted, "Transaction with { txnNumber: %d } has been committed.", number)
	}
	return nil
}

// supersede goes on to a higher number, which aborts what was left open.
func (x *session) supersede(s *Server, number int64) {
	if x.txn != nil && number > x.number {
		s.abort(x.txn)
		x.txn = nil
	}
	x.number = number
}

func (s *Server) expired(t *txn) bool {
	return t.state == running && time.Since(t.began) > s.o.TransactionLifetime
}

// commit makes all that a transaction wrote visible at one cluster time.
func (s *Server) commit(t *txn) {
	if t.state != running {
		return
	}
	t.state = committed
	delete(s.txns, t)
	if len(t.entries) == 0 {
		return
	}
	at, wall := s.tick(), time.Now()
	for _, w := range t.touched {
		w.r.owner = nil
		doc := w.r.pending
		w.r.pending = nil
		s.store(w.c, w.r, doc, at)
	}
	for i, e := range t.entries {
		e.at, e.wall, e.index, e.lsid, e.number = at, wall, int32(i), t.lsid, t.number
		s.oplog = append(s.oplog, e)
	}
	t.entries, t.touched = nil, nil
	s.wake()
}

// abort undoes it.
func (s *Server) abort(t *txn) {
	if t.state != running {
		return
	}
	t.state = aborted
	delete(s.txns, t)
	for _, w := range t.touched {
		w.r.owner, w.r.pending = nil, nil
		if len(w.r.versions) == 0 {
			w.c.dead++
		}
	}
	for _, w := range t.touched {
		w.c.rebuild()
	}
	t.entries, t.touched = nil, nil
	s.wake()
}

// oldestSnapshot is that of the transaction which sees furthest back.
func (s *Server) oldestSnapshot() (oldest bson.Timestamp, any bool) {
	for t := range s.txns {
		if !any || t.snapshot.Before(oldest) {
			oldest, any = t.snapshot, true
		}
	}
	return oldest, any
}

func commitTransaction(c *call) (bson.D, error) {
	if c.txn == nil {
		return nil, failf(codeNoSuchTransaction, "commitTransaction needs a transaction")
	}
	c.s.commit(c.txn) // a second time it changes nothing
	return bson.D{}, nil
}

func abortTransaction(c *call) (bson.D, error) {
	switch {
	case c.txn == nil || c.txn.state == aborted:
		return nil, failf(codeNoSuchTransaction, "Transaction has been aborted.")
	case c.txn.state == committed:
		return nil, failf(codeTransactionCommitted, "Transaction has been committed.")
	}
	c.s.abort(c.txn)
	return bson.D{}, nil
}

func endSessions(c *call) (bson.D, error) {
	list, err := documents(c.body.Lookup("endSessions"))
	if err != nil {
		return nil, failf(codeTypeMismatch, "endSessions: %v", err)
	}
	for _, lsid := range list {
		if x := c.s.sessions[string(lsid)]; x != nil {
			if x.txn != nil {
				c.s.abort(x.txn)
			}
			delete(c.s.sessions, string(lsid))
		}
	}
	return bson.D{}, nil
}
