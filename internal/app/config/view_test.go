package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"promethean/compact"
	"promethean/store"
	"promethean/view/jqview"
)

const viewsFile = `topics:
  process.state: {compaction: true, history: 24h, tombstones: 2h, snapshot: {topic: process.state.snapshot, every: 30s}}
  kv.set: {compaction: true, snapshot: true}
  orders.placed: {snapshot: false}
views:
  processes: {topic: process.state, key: .processId, map: ".", indexes: [{fields: [host, name]}, status, {fields: [pid], unique: true}]}
  carts: {topic: cart.changed, tombstone: .gone, version: .v, reduce: merge, from: latest}
`

func TestViewsOfTheFile(t *testing.T) {
	c, err := load(t, viewsFile, Source{})
	if err != nil {
		t.Fatal(err)
	}
	want := []View{
		{Name: "processes", Definition: jqview.Definition{Topic: "process.state", Key: ".processId", Map: ".", Indexes: []store.Index{
			{Fields: []string{"host", "name"}}, {Fields: []string{"status"}}, {Fields: []string{"pid"}, Unique: true},
		}}},
		{Name: "carts", Definition: jqview.Definition{Topic: "cart.changed", Tombstone: ".gone", Version: ".v", Reduce: "merge", From: "latest"}},
	}
	if got := placeless(c.Views); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	s := c.Topics[0]
	if !*s.Compaction || *s.History != 24*time.Hour || *s.Tombstones != 2*time.Hour ||
		**s.Snapshot != (compact.Snapshot{Topic: "process.state.snapshot", Every: compact.Age(30 * time.Second)}) {
		t.Errorf("%+v", s)
	}
	if **c.Topics[1].Snapshot != (compact.Snapshot{}) || *c.Topics[2].Snapshot != nil {
		t.Errorf("%+v", c.Topics[1:])
	}
	// What is printed says the same.
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := load(t, string(text), Source{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !reflect.DeepEqual(placeless(again.Views), want) || **again.Topics[0].Snapshot != **s.Snapshot {
		t.Errorf("printed:\n%s", text)
	}
	if d := Differences(c, again); len(d) > 0 {
		t.Errorf("places differ, and that counts: %v", d)
	}
	again.Views = again.Views[:1]
	if d := Differences(c, again); len(d) != 1 || d[0] != "views" {
		t.Errorf("%v", d)
	}
}

func TestWrongViews(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"no topic", "views: {p: {key: .a}}", "p.yaml:1: views.p: name the topic that it is made from"},
		{"nothing", "views: {p: }", "p.yaml:1: views.p: name the topic that it is made from"},
		{"bad topic", "views: {p: {topic: Process}}", "p.yaml:1: views.p.topic: "},
		{"bad name", "views: {a/b: {topic: a.b}}", "p.yaml:1: views.a/b: the name of a view has"},
		{"twice", "views:\n  p: {topic: a.b}\n  p: {topic: a.c}\n", "p.yaml:3: views.p comes twice, first on line 2"},
		{"unknown", "views: {p: {topic: a.b, keys: .a}}", `p.yaml:1: unknown key "views.p.keys", did you mean key?`},
		{"program", "views:\n  p:\n    topic: a.b\n    key: \".[\"\n    map: env\n", "p.yaml:4: views.p.key: "},
		{"index", "views: {p: {topic: a.b, indexes: [a.b]}}", `p.yaml:1: views.p.indexes: "a.b" is no field of the document itself`},
		{"indexes", "views: {p: {topic: a.b, indexes: status}}", "p.yaml:1: views.p.indexes: must be a list"},
		{"merge", "topics: {a.b: {compaction: true}}\nviews: {p: {topic: a.b, reduce: merge}}", "p.yaml:2: views.p.reduce: merge needs all events of a key, and topic a.b keeps the latest only"},
		{"reduce", "views: {p: {topic: a.b, reduce: sum}}", `p.yaml:1: views.p.reduce: "sum" is neither replace nor merge`},
		{"snapshot", "topics: {a.b: {snapshot: 5}}", "p.yaml:1: topics[a.b].snapshot: "},
		{"every", "topics: {a.b: {snapshot: {every: 0s}}}", "p.yaml:1: topics[a.b].snapshot.every: must be more than nothing"},
		{"snapshot topic", "topics: {a.b: {snapshot: {topic: X}}}", "p.yaml:1: topics[a.b].snapshot.topic: "},
		{"history", "topics: {a.b: {history: soon}}", "p.yaml:1: topics[a.b].history: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, c.file, Source{})
			if err == nil || !strings.Contains(said(err), c.want) {
				t.Errorf("got\n%s\nwant\n%s", said(err), c.want)
			}
		})
	}
}
