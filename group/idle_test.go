package group_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"promethean/group"
	"promethean/store/logstore"
)

// A group that has nothing to do costs its state: no goroutine, and little
// memory, whether it shares its topic or not. What the pool keeps is for all.
func TestIdleGroups(t *testing.T) {
	for _, topics := range []int{1, 10_000} {
		t.Run(fmt.Sprint(topics, " topics"), func(t *testing.T) { idleGroups(t, topics) })
	}
}

func idleGroups(t *testing.T, topics int) {
	groups := 10_000
	if testing.Short() {
		groups = 1000
	}
	log, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := group.New(log, group.Options{})
	defer func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}()
	measure := func() (heap uint64, goroutines int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse, runtime.NumGoroutine()
	}
	heap, goroutines := measure()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	for i := range groups {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if _, err := e.Join(context.Background(), fmt.Sprint("idle.t", i%topics), fmt.Sprint("g", i), group.Settings{}, group.Start{}, group.MemberOptions{Notify: func() {}}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	after, running := measure()
	each := (int64(after) - int64(heap)) / int64(groups)
	t.Logf("%d bytes for each of %d idle groups, %d goroutines for all", each, groups, running-goroutines)
	if each > 8<<10 {
		t.Errorf("an idle group takes %d bytes", each)
	}
	if running > goroutines+100 {
		t.Errorf("%d goroutines for idle groups", running-goroutines)
	}
}
