package logstore

import "runtime"

// WaitMarked waits until the journal ends with a durable mark, which an idle
// store writes by itself.
func (s *Store) WaitMarked() {
	for !s.w.marked.Load() {
		runtime.Gosched()
	}
}

// WaitTidy waits until nothing is left to be sealed, folded or merged.
func (s *Store) WaitTidy() {
	for s.oldestFrozen() != nil {
		runtime.Gosched()
	}
	if err := s.tidy(); err != nil {
		panic(err)
	}
}
