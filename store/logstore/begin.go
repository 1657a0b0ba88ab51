package logstore

import (
	"context"
	"fmt"

	"promethean/store"
)

type beginOp struct {
	topic string
	seq   uint64
	t     *topic // nil if there is nothing to write
}

// Begin implements [store.Begins].
func (s *Store) Begin(ctx context.Context, name string, seq uint64) error {
	if err := store.CheckBegin(name, seq); err != nil {
		return err
	}
	r := s.newRequest()
	r.begin = &beginOp{topic: name, seq: seq}
	r.bytes = 2*entryHead + len(name) + 8
	if err := s.control(ctx, r); err != nil {
		return fmt.Errorf("begin topic %s: %w", name, err)
	}
	return nil
}

func (w *writer) judgeBegin(op *beginOp) error {
	if t := w.s.topics[op.topic]; t != nil {
		if t.next == op.seq && t.cut == t.next {
			return nil
		}
		if t.next != 1 {
			return fmt.Errorf("its next seq is %d, not %d: %w", t.next, op.seq, store.ErrConflict)
		}
	}
	op.t = w.topic(op.topic)
	op.t.next, op.t.cut = op.seq, op.seq
	return nil
}

// begin moves a topic that has had no event to its first seq: it is then as if
// all below had been sealed and trimmed. What is behind that already stays. mu
// must be held.
func (t *topic) begin(seq uint64) {
	t.changed = true
	if t.last >= seq-1 {
		return
	}
	t.last, t.sealed, t.first, t.low = seq-1, seq-1, seq, seq
}
