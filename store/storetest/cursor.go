package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"promethean/store"
)

var cursorCases = []Case{
	{Name: "cursor/made, read and replaced", run: cursorReplaced},
	{Name: "cursor/only from the stored version", run: cursorVersion},
	{Name: "cursor/an old epoch is fenced", run: cursorEpoch},
	{Name: "cursor/deleted", run: cursorDeleted},
	{Name: "cursor/listed in order", run: cursorListed},
	{Name: "cursor/the caller owns what it gets", run: cursorOwned},
	{Name: "cursor/one of many takes over", run: cursorRace},
}

// makeGroup stores c as a new group.
func (t *trial) makeGroup(c store.Cursor) {
	t.Helper()
	version, err := t.e.PutCursor(t.ctx, c)
	t.ok(err, "put cursor of group %s on topic %s", c.Group, c.Topic)
	if version != 1 {
		t.Fatalf("a new group has version %d, want 1", version)
	}
}

func (t *trial) cursor(topic, group string) store.Cursor {
	t.Helper()
	c, err := t.e.Cursor(t.ctx, topic, group)
	t.ok(err, "cursor of group %s on topic %s", group, topic)
	return c
}

// wantCursor checks the stored state of a group.
func (t *trial) wantCursor(want store.Cursor) {
	t.Helper()
	if got := t.cursor(want.Topic, want.Group); !sameCursor(got, want) {
		t.Fatalf("cursor of group %s on topic %s:\n got %+v\nwant %+v", want.Group, want.Topic, got, want)
	}
}

// sameCursor says whether two states are equal; nil equals empty.
func sameCursor(a, b store.Cursor) bool {
	return a.Topic == b.Topic && a.Group == b.Group && a.Version == b.Version && a.Epoch == b.Epoch &&
		a.Generation == b.Generation && a.Floor == b.Floor && a.Handed == b.Handed &&
		slices.Equal(a.Settled, b.Settled) && maps.Equal(a.Attempts, b.Attempts) && bytes.Equal(a.Meta, b.Meta)
}

func cursorReplaced(t *trial) {
	if _, err := t.e.Cursor(t.ctx, topicA, "g"); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("cursor of an unknown group: %v, want not found", err)
	}
	// A group may stand on a topic that has no events yet.
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	want := store.Cursor{Topic: topicA, Group: "g", Version: 1}
	t.wantCursor(want)
	t.put(notes(topicA, 50)...)
	for _, c := range []store.Cursor{
		{Epoch: 1, Floor: 7},
		{Epoch: 1, Generation: 4, Floor: 10, Settled: store.Ranges{{First: 12, Last: 12}, {First: 20, Last: 31}}, Attempts: map[uint64]uint32{11: 3, 40: 1 << 31}, Handed: 45, Meta: []byte{0, 1, 0xff}},
		{Epoch: 1 << 60, Generation: 5, Floor: 2, Handed: 2, Meta: bytes.Repeat([]byte("meta"), 1000)},
		{Epoch: 1 << 60}, // everything is replaced, not merged
	} {
		c.Topic, c.Group, c.Version = topicA, "g", want.Version
		version, err := t.e.PutCursor(t.ctx, c)
		t.ok(err, "put cursor")
		if version != want.Version+1 {
			t.Fatalf("version %d after %d", version, want.Version)
		}
		want = c
		want.Version = version
		t.reopens(func(string) { t.wantCursor(want) })
	}
}

func (t *trial) wantPut(c store.Cursor, want error) {
	t.Helper()
	if version, err := t.e.PutCursor(t.ctx, c); !errors.Is(err, want) {
		t.Fatalf("put cursor with version %d and epoch %d: version %d, %v; want %q", c.Version, c.Epoch, version, err, want)
	}
}

func cursorVersion(t *trial) {
	c := store.Cursor{Topic: topicA, Group: "g"}
	for _, version := range []uint64{1, 7} {
		c.Version = version
		t.wantPut(c, store.ErrConflict) // there is no such group
	}
	c.Version = 0
	t.makeGroup(c)
	c.Meta = []byte("mine")
	t.wantPut(c, store.ErrConflict) // there is one now
	c.Version = 2
	t.wantPut(c, store.ErrConflict)
	t.reopens(func(string) {
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1})
		c.Version = 0
		t.wantPut(c, store.ErrConflict)
	})
	c.Version = 1
	if version, err := t.e.PutCursor(t.ctx, c); err != nil || version != 2 {
		t.Fatalf("put cursor: version %d, %v; want 2", version, err)
	}
}

func cursorEpoch(t *trial) {
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Epoch: 5})
	t.reopens(func(string) {
		t.wantPut(store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 4}, store.ErrFenced)
		t.wantPut(store.Cursor{Topic: topicA, Group: "g", Version: 1}, store.ErrFenced)
		t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: 1, Epoch: 5})
	})
	for version, epoch := range []uint64{5, 6, 6, 100} {
		c := store.Cursor{Topic: topicA, Group: "g", Version: uint64(version + 1), Epoch: epoch}
		got, err := t.e.PutCursor(t.ctx, c)
		if err != nil || got != c.Version+1 {
			t.Fatalf("put cursor with epoch %d: version %d, %v", epoch, got, err)
		}
	}
}

func cursorDeleted(t *trial) {
	if err := t.e.DeleteCursor(t.ctx, topicA, "g", 1); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("delete an unknown group: %v, want not found", err)
	}
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g", Meta: []byte("old")})
	t.makeGroup(store.Cursor{Topic: topicB, Group: "g"})
	for _, version := range []uint64{0, 2} {
		if err := t.e.DeleteCursor(t.ctx, topicA, "g", version); !errors.Is(err, store.ErrConflict) {
			t.Fatalf("delete version %d of a group with version 1: %v, want a conflict", version, err)
		}
	}
	t.ok(t.e.DeleteCursor(t.ctx, topicA, "g", 1), "delete cursor")
	t.reopens(func(string) {
		if _, err := t.e.Cursor(t.ctx, topicA, "g"); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("cursor of a deleted group: %v, want not found", err)
		}
		t.wantCursor(store.Cursor{Topic: topicB, Group: "g", Version: 1})
	})
	version, err := t.e.PutCursor(t.ctx, store.Cursor{Topic: topicA, Group: "g", Generation: 3})
	t.ok(err, "make a deleted group again")
	t.wantCursor(store.Cursor{Topic: topicA, Group: "g", Version: version, Generation: 3})
}

func cursorListed(t *trial) {
	groups := []string{"b", "a", "a:b", "ab", "10", "9", "changelog:processes", "ä", "A"}
	topics := []string{topicB, topicA, topicC}
	var want []string
	for _, topic := range topics {
		for _, group := range groups {
			t.makeGroup(store.Cursor{Topic: topic, Group: group, Meta: []byte(topic + group)})
			want = append(want, topic+" "+group)
		}
	}
	slices.Sort(want) // a blank sorts before everything that a topic can hold
	list := func(topic string) (got []string) {
		for c, err := range t.e.Cursors(t.ctx, topic) {
			t.ok(err, "cursors")
			if string(c.Meta) != c.Topic+c.Group {
				t.Fatalf("group %s of topic %s is listed with the state of %s", c.Group, c.Topic, c.Meta)
			}
			got = append(got, c.Topic+" "+c.Group)
		}
		return got
	}
	t.reopens(func(when string) {
		if got := list(""); !slices.Equal(got, want) {
			t.Fatalf("%s: all groups: %q, want %q", when, got, want)
		}
		for i, topic := range []string{topicA, topicB, topicC} {
			part := want[i*len(groups) : (i+1)*len(groups)]
			if got := list(topic); !slices.Equal(got, part) {
				t.Fatalf("%s: groups of topic %s: %q, want %q", when, topic, got, part)
			}
		}
		if got := list("storetest"); got != nil {
			t.Fatalf("%s: a topic without groups has %q", when, got)
		}
	})
}

func cursorOwned(t *trial) {
	t.put(notes(topicA, 30)...)
	want := store.Cursor{Topic: topicA, Group: "g", Floor: 1, Settled: store.Ranges{{First: 5, Last: 6}, {First: 9, Last: 9}}, Attempts: map[uint64]uint32{3: 1}, Meta: []byte("meta")}
	t.makeGroup(want)
	want.Version = 1
	scribble := func(c store.Cursor) {
		c.Settled[0].Last = 8
		c.Settled[1] = store.Range{First: 20, Last: 25}
		c.Attempts[3], c.Attempts[4] = 9, 9
		c.Meta[0] = '!'
	}
	scribble(t.cursor(topicA, "g"))
	t.wantCursor(want)
	for c, err := range t.e.Cursors(t.ctx, topicA) {
		t.ok(err, "cursors")
		scribble(c)
	}
	t.wantCursor(want)
}

// cursorRace is the way in which hubs take over a group: read, raise the
// epoch, put. Of all who saw the same version, one may succeed.
func cursorRace(t *trial) {
	const hubs, each = 8, 10
	t.makeGroup(store.Cursor{Topic: topicA, Group: "g"})
	var won atomic.Uint64
	var all sync.WaitGroup
	for hub := range hubs {
		all.Go(func() {
			for n := 0; n < each; {
				c, err := t.e.Cursor(t.ctx, topicA, "g")
				if err != nil {
					t.Errorf("cursor: %v", err)
					return
				}
				c.Epoch++
				c.Meta = fmt.Appendf(nil, "hub %d", hub)
				switch version, err := t.e.PutCursor(t.ctx, c); {
				case err == nil && version == c.Version+1:
					won.Add(1)
					n++
				case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrFenced):
					t.Errorf("put cursor: version %d after %d, %v", version, c.Version, err)
					return
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if c := t.cursor(topicA, "g"); c.Version != won.Load()+1 || c.Epoch != won.Load() {
		t.Fatalf("%d takeovers succeeded, and the group has version %d and epoch %d", won.Load(), c.Version, c.Epoch)
	}
}
