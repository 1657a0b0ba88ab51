package storetest

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"promethean/event"
	"promethean/store"
)

var topicCases = []Case{
	{Name: "topic/settings come back", run: settingsComeBack},
	{Name: "topic/sorted by name", run: topicsSorted},
	{Name: "topic/bounds in the list", run: topicsBounds},
	{Name: "topic/settings leave the log alone", run: settingsLeaveLog},
	{Name: "topic/bad names", run: topicBadNames},
}

func (t *trial) topics() []store.Topic {
	t.Helper()
	var out []store.Topic
	for topic, err := range t.e.Topics(t.ctx) {
		t.ok(err, "topics")
		out = append(out, topic)
	}
	return out
}

func (t *trial) wantSettings(name string, want store.Settings) {
	t.Helper()
	all := t.topics()
	i := slices.IndexFunc(all, func(row store.Topic) bool { return row.Name == name })
	if i < 0 {
		t.Fatalf("topic %s is not listed", name)
	}
	got := all[i].Settings
	equal := bytes.Equal(got.Meta, want.Meta)
	got.Meta, want.Meta = nil, nil
	if !equal || got.Retention != want.Retention || got.MaxBytes != want.MaxBytes || got.Async != want.Async ||
		max(got.Partitions, 1) != max(want.Partitions, 1) {
		t.Fatalf("settings of topic %s: %+v, want %+v; meta equal: %v", name, got, want, equal)
	}
}

func settingsComeBack(t *trial) {
	meta := make([]byte, 3000)
	for i := range meta {
		meta[i] = byte(i)
	}
	for _, s := range []store.Settings{
		{},
		{Retention: 72 * time.Hour, MaxBytes: 1 << 40, Partitions: 8, Async: true, Meta: []byte(`{"compaction":true}`)},
		{Retention: time.Hour + time.Nanosecond, Meta: meta},
		{Partitions: event.MaxPartitions, Meta: []byte{0}},
		{Partitions: 3},
	} {
		t.ok(t.e.SetTopic(t.ctx, topicA, s), "set topic")
		t.reopens(func(string) { t.wantSettings(topicA, s) })
	}
}

func topicsSorted(t *trial) {
	names := []string{"storetest.b", "storetest.a", "storetest", "storetest.a.b", "storetest.ab", "storetest.10", "storetest.9", "z", "0", "dlq.storetest"}
	for i, name := range names {
		if i%2 == 0 {
			t.ok(t.e.SetTopic(t.ctx, name, store.Settings{}), "set topic")
		} else {
			t.put(note(name, i))
		}
	}
	slices.Sort(names)
	t.reopens(func(when string) {
		var got []string
		for _, topic := range t.topics() {
			got = append(got, topic.Name)
		}
		if !slices.Equal(got, names) {
			t.Fatalf("%s: topics %q, want %q", when, got, names)
		}
	})
}

func topicsBounds(t *trial) {
	t.put(notes(topicA, 9)...)
	t.put(notes(topicB, 4)...)
	t.ok(t.e.Trim(t.ctx, topicA, 4), "trim")
	t.ok(t.e.Trim(t.ctx, topicB, 9), "trim")
	t.ok(t.e.SetTopic(t.ctx, topicC, store.Settings{}), "set topic")
	t.reopens(func(when string) {
		for i, want := range []store.Bounds{{First: 4, Last: 9}, {First: 5, Last: 4}, {First: 1, Last: 0}} {
			name := []string{topicA, topicB, topicC}[i]
			// Bytes may change by itself while the engine tidies up: the
			// row counts when the bounds around it are the same.
			before, row, after := store.Bounds{}, t.topics()[i], t.bounds(name)
			for before != after {
				before, row, after = after, t.topics()[i], t.bounds(name)
			}
			if row.Name != name || row.Bounds.First != want.First || row.Bounds.Last != want.Last {
				t.Fatalf("%s: topic %s is listed with %+v, want %s with %+v", when, row.Name, row.Bounds, name, want)
			}
			if row.Bounds != after {
				t.Fatalf("%s: topic %s is listed with %+v, and its bounds are %+v", when, row.Name, row.Bounds, after)
			}
		}
	})
}

func settingsLeaveLog(t *trial) {
	log := t.put(notes(topicA, 5)...)
	t.wantSettings(topicA, store.Settings{})
	t.ok(t.e.SetTopic(t.ctx, topicA, store.Settings{Partitions: 4}), "set topic")
	t.wantLog(topicA, log)
	log = append(log, t.put(note(topicA, 6))...)
	t.reopens(func(string) {
		t.wantLog(topicA, log)
		t.wantSettings(topicA, store.Settings{Partitions: 4})
		t.wantDuplicate(log[0])
	})
}

func topicBadNames(t *trial) {
	for _, name := range []string{"", "A", "a..b", "a/b", "a\x00"} {
		if err := t.e.SetTopic(t.ctx, name, store.Settings{}); !errors.Is(err, event.ErrInvalidTopic) {
			t.Fatalf("set topic %q: %v, want %q", name, err, event.ErrInvalidTopic)
		}
	}
	if got := t.topics(); len(got) != 0 {
		t.Fatalf("refused names have made %d topics", len(got))
	}
}
