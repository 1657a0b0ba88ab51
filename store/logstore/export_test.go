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

// Frugal lets compactions look at few keys in one scan, and leave index entries
// that lead nowhere unless they are many.
func (o Options) Frugal() Options {
	o.mostSeen, o.fewEntries = 1, 1
	return o
}

// Stale says how many entries of each index may lead nowhere.
func (s *Store) Stale() (n uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.byNum {
		n += t.stale
	}
	return n
}
