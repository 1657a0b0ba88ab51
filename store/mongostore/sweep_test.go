package mongostore_test

import (
	"testing"
	"time"

	"promethean/store"
	"promethean/store/mongostore"
)

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx := deadline(t)
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestRetention(t *testing.T) {
	onEach(t, func(t *testing.T, uri string) {
		o := mongostore.Options{Database: newDatabase(t, uri), SweepEvery: 20 * time.Millisecond}
		s := open(t, uri, o)
		open(t, uri, o) // sweeps as well
		bounds := func() store.Bounds {
			b, err := s.Bounds(deadline(t), topic)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		set := func(x store.Settings) {
			if err := s.SetTopic(deadline(t), topic, x); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			put(t, s, notes(10)...)
		}
		whole := bounds()
		// By size: in the middle of a commit too, and not further than need be.
		set(store.Settings{MaxBytes: whole.Bytes / 3})
		until(t, "events to be removed by size", func() bool { return bounds().Bytes <= whole.Bytes/3 })
		if b := bounds(); b.First < 60 || b.First > 70 || b.Last != 100 || b.Bytes < whole.Bytes/3-500 {
			t.Fatalf("of %+v a third was to stay, and %+v is left", whole, b)
		}
		var l ledger
		l.judge(t, s, bounds().First)
		// However small, the newest event stays.
		set(store.Settings{MaxBytes: 1})
		until(t, "all events but one to be removed", func() bool { return bounds().First == 100 })
		put(t, s, notes(3)...)
		until(t, "all events but one to be removed", func() bool { return bounds().First == 103 })
		// By age, to the last.
		set(store.Settings{Retention: time.Hour})
		put(t, s, notes(5)...)
		set(store.Settings{Retention: time.Millisecond})
		until(t, "events to expire", func() bool { b := bounds(); return b.Empty() && b.Last == 108 && b.Bytes == 0 })
		set(store.Settings{})
		if got := put(t, s, note(0)); got[0].Seq != 109 {
			t.Fatalf("seq %d, want 109", got[0].Seq)
		}
	})
}
