package view

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"promethean/store"
)

// Set is the views of a hub, by the names of their collections.
type Set struct {
	mu     sync.Mutex
	views  map[string]*View
	byName map[string]*Collection
}

// NewSet makes an empty one.
func NewSet() *Set {
	return &Set{views: make(map[string]*View), byName: make(map[string]*Collection)}
}

// Add takes a view in. A name that is taken is an error.
func (s *Set) Add(v *View) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.views[v.name] != nil {
		return fmt.Errorf("%w: there is a view %s", store.ErrConflict, v.name)
	}
	for _, c := range v.handles {
		if was := s.byName[c.c.Name]; was != nil {
			return fmt.Errorf("%w: collection %s belongs to view %s", store.ErrConflict, c.c.Name, was.v.name)
		}
	}
	s.views[v.name] = v
	for _, c := range v.handles {
		s.byName[c.c.Name] = c
	}
	return nil
}

// Collection gives one by name, or nil.
func (s *Set) Collection(name string) *Collection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byName[name]
}

// Views gives all views by name.
func (s *Set) Views() []*View {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*View, 0, len(s.views))
	for _, v := range s.views {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *View) int { return strings.Compare(a.name, b.name) })
	return out
}

// Low is the first seq that some view of the topic has not passed, durably;
// math.MaxUint64 if there is no view. All of them have read what is below it.
func (s *Set) Low(topic string) uint64 {
	low := uint64(math.MaxUint64)
	for _, v := range s.Views() {
		if v.topic == topic {
			low = min(low, v.low()+1)
		}
	}
	return low
}

// Close closes all.
func (s *Set) Close() error {
	views := s.Views()
	errs := make([]error, len(views))
	var wg sync.WaitGroup
	for i, v := range views {
		wg.Go(func() { errs[i] = v.Close() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
