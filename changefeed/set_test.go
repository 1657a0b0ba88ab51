package changefeed_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"promethean/changefeed"
	"promethean/store"
)

// Of two hubs one runs the feed; when it ends, the other goes on where it was.
func TestSetOfTwoHubs(t *testing.T) {
	in(t, 20, func(w *world) {
		leases, ok := store.As[store.Leases](w.bus.Log())
		if !ok {
			t.Fatal("the engine has no leases")
		}
		open := func() (changefeed.Source, changefeed.Tokens, error) { return w.src, w.keep, nil }
		var sets []*changefeed.Set
		for _, owner := range []string{"a", "b"} {
			s := changefeed.NewSet(changefeed.SetOptions{Leases: leases, Owner: owner})
			defer func() { _ = s.Close() }()
			if err := s.Add(w.bus, open, changefeed.Options{Name: "things", Topic: topic}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			sets = append(sets, s)
		}
		time.Sleep(time.Minute) // leases are renewed
		synctest.Wait()
		if a, b := sets[0].List()[0], sets[1].List()[0]; a.State != changefeed.Streaming || a.Published != 20 || b.State != changefeed.Elsewhere {
			t.Fatalf("%+v\n%+v", a, b)
		}
		if err := sets[1].Resync("things"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("resync elsewhere: %v", err)
		}
		where := func(s *changefeed.Set) string {
			owner, err := s.Where(t.Context(), "things")
			if err != nil {
				return err.Error()
			}
			return owner
		}
		if a, b := where(sets[0]), where(sets[1]); a != "a" || b != "a" {
			t.Errorf("it runs at %s, and at %s", a, b)
		}
		if err := sets[0].Close(); err != nil {
			t.Error(err)
		}
		if got := where(sets[1]); !strings.Contains(got, "no hub runs change feed things at the moment") {
			t.Errorf("after the end of its hub it runs at %s", got)
		}
		w.src.add(5)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if a, b := sets[0].List()[0], sets[1].List()[0]; a.State != changefeed.Stopped || b.State != changefeed.Streaming || b.Published != 5 || b.Duplicates != 0 {
			t.Errorf("%+v\n%+v", a, b)
		}
		if n := len(w.stored()); n != 25 {
			t.Errorf("%d events", n)
		}
		if a, b := where(sets[0]), where(sets[1]); a != "b" || b != "b" {
			t.Errorf("it runs at %s, and at %s", a, b)
		}
		if _, err := sets[1].Where(t.Context(), "none"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("a feed that there is not: %v", err)
		}
		if err := sets[1].Resync("things"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if b := sets[1].List()[0]; b.Duplicates != 25 {
			t.Errorf("%+v", b)
		}
	})
}

func TestSetRefusals(t *testing.T) {
	in(t, 1, func(w *world) {
		s := changefeed.NewSet(changefeed.SetOptions{})
		open := func() (changefeed.Source, changefeed.Tokens, error) { return w.src, w.keep, nil }
		if err := s.Add(w.bus, open, changefeed.Options{Name: "one", Topic: topic, Key: "k"}); err != nil {
			t.Fatal(err)
		}
		for want, o := range map[string]changefeed.Options{
			"already": {Name: "one", Topic: topic, Key: "other"},
			"one key": {Name: "two", Topic: topic, Key: "k"},
			"topic":   {Name: "three"},
		} {
			if err := s.Add(w.bus, open, o); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
		if err := s.Resync("none"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("resync of none: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := s.Add(w.bus, open, changefeed.Options{Name: "late", Topic: topic}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("add after close: %v", err)
		}
	})
}

// A source that cannot be opened is tried again, and its error is seen.
func TestSetOpens(t *testing.T) {
	in(t, 4, func(w *world) {
		tries := 0
		s := changefeed.NewSet(changefeed.SetOptions{})
		defer func() { _ = s.Close() }()
		if err := s.Add(w.bus, func() (changefeed.Source, changefeed.Tokens, error) {
			if tries++; tries < 3 {
				return nil, nil, errors.New("no such file")
			}
			return w.src, w.keep, nil
		}, changefeed.Options{Name: "things", Topic: topic}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if st := s.List()[0]; st.State != changefeed.Waiting || st.Error != "no such file" {
			t.Errorf("%+v", st)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if st := s.List()[0]; st.State != changefeed.Streaming || st.Published != 4 {
			t.Errorf("%+v", st)
		}
	})
}
