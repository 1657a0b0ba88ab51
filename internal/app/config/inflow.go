package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"promethean/event"
	"promethean/internal/jq"
)

// Database is where one of the file's change feeds or outboxes reads: its
// address, or where that is found.
type Database struct {
	URI, URIEnv, URIFile string
}

// Address gives the address.
func (d *Database) Address() (string, error) {
	switch {
	case d.URIEnv != "":
		if s := os.Getenv(d.URIEnv); s != "" {
			return s, checkDatabase(s)
		}
		return "", fmt.Errorf("uri_env: the variable %s is not set", d.URIEnv)
	case d.URIFile != "":
		b, err := os.ReadFile(d.URIFile)
		if err != nil {
			return "", fmt.Errorf("uri_file: %w", err)
		}
		s := strings.TrimSpace(string(b))
		return s, checkDatabase(s)
	}
	return d.URI, nil
}

// Changefeed is a feed that the file names. A collection is MongoDB's, a table
// PostgreSQL's.
type Changefeed struct {
	Name string
	Database
	DatabaseName string // of MongoDB; may stand in the address
	Collection   string
	Table        string
	Slot         string
	Publication  string
	Topic        string
	FullDocument string
	Filter, Map  string
	Key          string // of its token
	Snapshot     bool
	Resnapshot   bool
	Refused      string // wait or skip
	MaxSlotBytes int
	DropSlotOver int // rather than let the server's disk fill up
	// Place is where the file names it.
	Place string
}

// Outbox is one that the file names, which the hub drains.
type Outbox struct {
	Name string
	Database
	DatabaseName string // of MongoDB; may stand in the address
	Collection   string
	Table        string
	Setup        bool
	Batch        int
	Every        time.Duration
	Lease        time.Duration
	MaxAttempts  int
	Keep         time.Duration // how long sent rows stay; 0 for ever
	// Place is where the file names it.
	Place string
}

// schemes are those of databases.
var schemes = []string{"mongodb", "mongodb+srv", "postgres", "postgresql", "sqlite"}

func checkDatabase(s string) error {
	scheme, rest, found := strings.Cut(s, "://")
	if !found || rest == "" || !slices.Contains(schemes, scheme) {
		return fmt.Errorf("%q is no address such as postgres://host/database, mongodb://host/database or sqlite://FILE", Redact(s))
	}
	return nil
}

// field is one key of a feed or an outbox.
type field struct {
	key string
	value
}

func databaseFields(d *Database) []field {
	return []field{
		{"uri", textValue{at: &d.URI, check: checkDatabase}},
		{"uri_env", textValue{at: &d.URIEnv, check: checkVariable}},
		{"uri_file", textValue{at: &d.URIFile}},
	}
}

func (f *Changefeed) fields() []field {
	return append(databaseFields(&f.Database), []field{
		{"database", textValue{at: &f.DatabaseName}},
		{"collection", textValue{at: &f.Collection}},
		{"table", textValue{at: &f.Table}},
		{"slot", textValue{at: &f.Slot, check: checkSlot}},
		{"publication", textValue{at: &f.Publication}},
		{"topic", textValue{at: &f.Topic, needed: true, check: event.CheckTopic}},
		{"full_document", textValue{at: &f.FullDocument, check: oneOf("updateLookup", "whenAvailable", "required")}},
		{"filter", textValue{at: &f.Filter, check: checkJQ}},
		{"map", textValue{at: &f.Map, check: checkJQ}},
		{"key", textValue{at: &f.Key}},
		{"snapshot", boolValue{&f.Snapshot}},
		{"resnapshot", boolValue{&f.Resnapshot}},
		{"refused", textValue{at: &f.Refused, check: oneOf("wait", "skip")}},
		{"max_slot_bytes", sizeValue{&f.MaxSlotBytes, 0, math.MaxInt64}},
		{"drop_slot_over", sizeValue{&f.DropSlotOver, 0, math.MaxInt64}},
	}...)
}

func (o *Outbox) fields() []field {
	return append(databaseFields(&o.Database), []field{
		{"database", textValue{at: &o.DatabaseName}},
		{"collection", textValue{at: &o.Collection}},
		{"table", textValue{at: &o.Table}},
		{"setup", boolValue{&o.Setup}},
		{"batch", intValue{&o.Batch, 1, 10_000}},
		{"every", durationValue{&o.Every}},
		{"lease", durationValue{&o.Lease}},
		{"max_attempts", intValue{&o.MaxAttempts, 0, math.MaxInt32}},
		{"keep", durationValue{&o.Keep}},
	}...)
}

var slots = regexp.MustCompile(`^[a-z0-9_]{1,61}$`)

func checkSlot(s string) error {
	if !slots.MatchString(s) {
		return errors.New("the name of a slot has 1 to 61 small letters, digits and _")
	}
	return nil
}

func checkJQ(s string) error {
	_, err := jq.Compile(s)
	return err
}

// named reads a map whose keys are names, and whose values have fields.
func (r *reader) named(n *yaml.Node, path, what string, each func(k *yaml.Node, key string) (fields []field, end func(at map[string]*yaml.Node))) {
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		if !viewNames.MatchString(k.Value) {
			r.wrong(k, "%s: the name of %s has 1 to 100 letters, digits and . _ -, and begins with a letter or digit", key, what)
			return
		}
		fields, end := each(k, key)
		at := map[string]*yaml.Node{"": k}
		before := len(r.problems)
		if v = resolve(v); !isNull(v) {
			r.pairs(v, key, func(k, v *yaml.Node) { r.field(fields, k, v, key, at) })
		}
		if len(r.problems) == before {
			end(at)
		}
	})
}

func (r *reader) field(fields []field, k, v *yaml.Node, path string, at map[string]*yaml.Node) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.key == k.Value })
	if i < 0 {
		var known []string
		for _, f := range fields {
			known = append(known, f.key)
		}
		slices.Sort(known)
		r.unknown(k, path, known)
		return
	}
	key := join(path, k.Value)
	text, ok := r.text(v, key)
	if !ok {
		return
	}
	at[k.Value] = v
	if err := fields[i].set(text); err != nil {
		r.wrong(v, "%s: %v", key, err)
	}
}

// database wants one address, and the names that go with it. It says whether it
// is MongoDB's.
func (r *reader) database(d *Database, key string, at map[string]*yaml.Node, collection, table string) (mongo, ok bool) {
	given := 0
	for _, s := range []string{d.URI, d.URIEnv, d.URIFile} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		r.wrong(at[""], "%s: name the database by one of uri, uri_env and uri_file", key)
		return false, false
	}
	if collection != "" && table != "" {
		r.wrong(at["table"], "%s.table: a collection is MongoDB's, a table is not; name one", key)
		return false, false
	}
	scheme, _, known := strings.Cut(d.URI, "://")
	mongo = strings.HasPrefix(scheme, "mongodb")
	switch {
	case !known:
		mongo = collection != ""
	case mongo && table != "":
		r.wrong(at["table"], "%s.table: MongoDB has collections: name a collection", key)
		return false, false
	case !mongo && collection != "":
		r.wrong(at["collection"], "%s.collection: only MongoDB has collections: name a table", key)
		return false, false
	}
	return mongo, true
}

// changefeeds reads the change feeds.
func (r *reader) changefeeds(n *yaml.Node, path string) {
	r.named(n, path, "a change feed", func(k *yaml.Node, key string) ([]field, func(map[string]*yaml.Node)) {
		f := &Changefeed{Name: k.Value, Place: r.place(k), Key: "changefeed:" + k.Value, Snapshot: true, Refused: "wait"}
		return f.fields(), func(at map[string]*yaml.Node) {
			mongo, ok := r.database(&f.Database, key, at, f.Collection, f.Table)
			switch {
			case !ok:
				return
			case strings.HasPrefix(f.URI, "sqlite:"):
				r.wrong(at["uri"], "%s.uri: SQLite does not tell its changes: feeds read MongoDB and PostgreSQL", key)
				return
			case f.Topic == "":
				r.wrong(k, "%s: name the topic that gets the changes", key)
				return
			case f.Collection == "" && f.Table == "":
				r.wrong(k, "%s: name the collection (MongoDB) or table (PostgreSQL) whose changes are published", key)
				return
			}
			if !r.apply(f.fields(), key, at, mongo) {
				return
			}
			for i := range r.c.Changefeeds {
				if o := &r.c.Changefeeds[i]; o.Key == f.Key {
					r.wrong(at["key"], "%s.key: %s keeps its place under %q already", key, o.Name, f.Key)
					return
				}
			}
			r.c.Changefeeds = append(r.c.Changefeeds, *f)
		}
	})
}

// Keys that one kind of database has.
var (
	ofMongo    = []string{"database", "full_document"}
	ofPostgres = []string{"slot", "publication", "max_slot_bytes", "drop_slot_over"}
)

// apply wants no key that belongs to the other kind of database.
func (r *reader) apply(fields []field, key string, at map[string]*yaml.Node, mongo bool) bool {
	foreign, whose := ofMongo, "MongoDB"
	if mongo {
		foreign, whose = ofPostgres, "PostgreSQL"
	}
	for _, f := range fields {
		if n := at[f.key]; n != nil && slices.Contains(foreign, f.key) {
			r.wrong(n, "%s.%s: that is a setting of %s", key, f.key, whose)
			return false
		}
	}
	return true
}

// outboxes reads the outboxes.
func (r *reader) outboxes(n *yaml.Node, path string) {
	r.named(n, path, "an outbox", func(k *yaml.Node, key string) ([]field, func(map[string]*yaml.Node)) {
		o := &Outbox{
			Name: k.Value, Place: r.place(k), Setup: true, Batch: 100, Every: 250 * time.Millisecond,
			Lease: 30 * time.Second, Keep: 24 * time.Hour,
		}
		return o.fields(), func(at map[string]*yaml.Node) {
			mongo, ok := r.database(&o.Database, key, at, o.Collection, o.Table)
			if !ok || !r.apply(o.fields(), key, at, mongo || o.URI == "") {
				return
			}
			if o.Every <= 0 || o.Lease <= 0 {
				r.wrong(k, "%s: every and lease must be more than nothing", key)
				return
			}
			r.c.Outboxes = append(r.c.Outboxes, *o)
		}
	})
}

// fieldsNode writes fields that are not empty as the file has them. An address
// comes without its secrets.
func fieldsNode(fields []field) *yaml.Node {
	n := mapping()
	collection := slices.ContainsFunc(fields, func(f field) bool { return f.key == "collection" && f.text() != "" })
	for _, f := range fields {
		text := f.text()
		if f.key == "uri" {
			text = Redact(text)
		}
		if text == "" || collection && slices.Contains(ofPostgres, f.key) {
			continue
		}
		v := scalar(text)
		switch f.value.(type) {
		case boolValue:
			v.Tag = "!!bool"
		case intValue:
			v.Tag = "!!int"
		}
		put(n, f.key, v)
	}
	return n
}

// inflowNodes writes change feeds and outboxes.
func (c *Config) inflowNodes(root *yaml.Node) {
	if len(c.Changefeeds) > 0 {
		all := mapping()
		for i := range c.Changefeeds {
			f := &c.Changefeeds[i]
			all.Content = append(all.Content, scalar(f.Name), fieldsNode(f.fields()))
		}
		put(root, "changefeeds", all)
	}
	if len(c.Outboxes) > 0 {
		all := mapping()
		for i := range c.Outboxes {
			o := &c.Outboxes[i]
			all.Content = append(all.Content, scalar(o.Name), fieldsNode(o.fields()))
		}
		put(root, "outboxes", all)
	}
}

// inflow is change feeds and outboxes without where they stand.
func (c *Config) inflow() (all []any) {
	for _, f := range c.Changefeeds {
		f.Place = ""
		all = append(all, f)
	}
	for _, o := range c.Outboxes {
		o.Place = ""
		all = append(all, o)
	}
	return all
}
