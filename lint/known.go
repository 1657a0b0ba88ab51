package lint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/itchyny/gojq"

	"promethean/event"
	"promethean/internal/spell"
	"promethean/schema"
	"promethean/schema/compat"
)

// Known is what is known about topics: their schemas, which may be without one,
// and which are used. It is not safe for concurrent use.
type Known struct {
	// Partial says that not all schemas are known, so that a topic without one
	// is no finding.
	Partial bool

	topics  map[string]*topicSchemas
	allow   []string
	used    map[string]bool
	pattern []string // of subscriptions
	dirs    map[string]bool
}

// topicSchemas is the versions of one topic.
type topicSchemas struct {
	versions []version
	// registered says that a program registers more.
	registered bool
}

// version is one version of a topic's schema.
type version struct {
	schema.Definition
	file   string
	parsed *schema.Schema // nil if it is invalid
}

// NewKnown makes one that knows nothing.
func NewKnown() *Known {
	return &Known{topics: make(map[string]*topicSchemas), used: make(map[string]bool), dirs: make(map[string]bool)}
}

// Allow lets topics that fit a pattern be without a schema.
func (k *Known) Allow(pattern string) error {
	if err := checkPattern(pattern); err != nil {
		return err
	}
	k.allow = append(k.allow, pattern)
	return nil
}

// Allowed says whether a topic may be without a schema.
func (k *Known) Allowed(topic string) bool {
	return slices.ContainsFunc(k.allow, func(p string) bool { return event.MatchPattern(p, topic) })
}

// Has says whether a topic has a schema.
func (k *Known) Has(topic string) bool {
	t := k.topics[topic]
	return t != nil && (t.registered || len(t.versions) > 0)
}

// Note remembers what a use says about its topic. It comes before [Known.Judge]
// of any use, so that the order of files does not matter.
func (k *Known) Note(u Use) {
	if strings.Contains(u.Topic, "*") {
		k.pattern = append(k.pattern, u.Topic)
		return
	}
	k.used[u.Topic] = true
	k.used[strings.TrimPrefix(u.Topic, "dlq.")] = true
	if base, _, versioned := event.TopicVersion(u.Topic); versioned {
		k.used[base] = true
	}
	if u.Kind == Register {
		k.topic(u.Topic).registered = true
	}
}

func (k *Known) topic(name string) *topicSchemas {
	t := k.topics[name]
	if t == nil {
		t = &topicSchemas{}
		k.topics[name] = t
	}
	return t
}

// version gives a version of a topic's schema, the latest for 0; nil if it is not
// known, or cannot be used.
func (k *Known) version(topic string, n int) *version {
	t := k.topics[topic]
	if t == nil || t.registered || len(t.versions) == 0 {
		return nil
	}
	v := &t.versions[len(t.versions)-1]
	if n != 0 {
		i := slices.IndexFunc(t.versions, func(v version) bool { return v.Version == n })
		if i < 0 {
			return nil
		}
		v = &t.versions[i]
	}
	if v.parsed == nil {
		return nil
	}
	return v
}

// schemaFile is the name of a file that counts among the schemas of a topic.
var schemaFile = regexp.MustCompile(`^v[1-9][0-9]{0,8}\.(json|upcast\.jq)$`)

// HoldsSchemas says whether a directory has schemas of one topic.
func HoldsSchemas(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return !e.IsDir() && schemaFile.MatchString(e.Name())
	})
}

// ReadTree reads the schemas of a directory that has one directory for each
// topic.
func (k *Known) ReadTree(dir string) []Finding {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []Finding{NewFinding(SchemaInvalid, Position{File: dir}, plain(err))}
	}
	var list []Finding
	for _, e := range entries {
		if sub := filepath.Join(dir, e.Name()); e.IsDir() && HoldsSchemas(sub) {
			list = append(list, k.ReadTopic(e.Name(), sub)...)
		}
	}
	return list
}

// ReadTopic reads the schemas of one topic. A directory that was read before is
// not read again.
func (k *Known) ReadTopic(topic, dir string) []Finding {
	id := topic + "\n" + filepath.Clean(dir)
	if abs, err := filepath.Abs(dir); err == nil {
		id = topic + "\n" + abs
	}
	if k.dirs[id] {
		return nil
	}
	k.dirs[id] = true
	if err := event.CheckTopic(topic); err != nil {
		return []Finding{NewFinding(TopicName, Position{File: dir}, err.Error())}
	}
	defs, err := schema.ReadDir(topic, dir)
	if err != nil {
		return []Finding{NewFinding(SchemaInvalid, Position{File: dir}, plain(err))}
	}
	var list []Finding
	var read []version
	for _, d := range defs {
		v := version{Definition: d, file: filepath.Join(dir, fmt.Sprintf("v%d.json", d.Version))}
		list = append(list, v.parse(dir)...)
		read = append(read, v)
	}
	next := 1
	for _, v := range read {
		if v.Version != next {
			list = append(list, NewFinding(SchemaGap, Position{File: v.file, Line: 1, Column: 1}, missing(topic, next, v.Version-1)))
		}
		next = v.Version + 1
	}
	list = append(list, judgeVersions(read)...)
	t := k.topic(topic)
	for _, v := range read {
		i := slices.IndexFunc(t.versions, func(o version) bool { return o.Version == v.Version })
		if i < 0 {
			t.versions = append(t.versions, v)
			continue
		}
		if other := t.versions[i]; !sameJSON(other.Schema, v.Schema) {
			list = append(list, NewFinding(SchemaDouble, Position{File: v.file, Line: 1, Column: 1}, fmt.Sprintf("version %d of topic %s is another one in %s", v.Version, topic, other.file)))
		}
	}
	slices.SortFunc(t.versions, func(a, b version) int { return a.Version - b.Version })
	return list
}

func missing(topic string, from, to int) string {
	if from == to {
		return fmt.Sprintf("topic %s has no version %d", topic, from)
	}
	return fmt.Sprintf("topic %s has no versions %d to %d", topic, from, to)
}

// parse compiles a version and its upcaster.
func (v *version) parse(dir string) (list []Finding) {
	var err error
	if v.parsed, err = schema.Parse(v.Schema); err != nil {
		list = append(list, NewFinding(SchemaInvalid, faultAt(v.file, v.Schema, err), plain(err)))
	}
	if v.Compat != "" {
		if _, err := compat.ParseMode(string(v.Compat)); err != nil {
			list = append(list, NewFinding(SchemaInvalid, pointerAt(v.file, v.Schema, "/x-compat"), plain(err)))
			v.Compat = compat.None
		}
	}
	if v.Upcast != "" {
		q, err := gojq.Parse(v.Upcast)
		if err == nil {
			_, err = gojq.Compile(q)
		}
		if err != nil {
			at := Position{File: filepath.Join(dir, fmt.Sprintf("v%d.upcast.jq", v.Version)), Line: 1, Column: 1}
			var bad *gojq.ParseError
			if errors.As(err, &bad) {
				at.Line, at.Column = lineColumn([]byte(v.Upcast), min(max(bad.Offset-len(bad.Token), 0), len(v.Upcast)))
			}
			list = append(list, NewFinding(SchemaInvalid, at, "no jq program: "+plain(err)))
		}
	}
	return list
}

// judgeVersions compares each version with those before it.
func judgeVersions(read []version) (list []Finding) {
	for i, v := range read {
		mode := v.Compat
		if mode == "" {
			mode = compat.Backward
		}
		if mode == compat.None || v.parsed == nil {
			continue
		}
		upcast := false
		for j := i - 1; j >= 0; j-- {
			// What was written under j reaches i through the upcasters between
			// them, so that the schema alone does not say whether it is valid.
			upcast = upcast || read[j+1].Upcast != ""
			if old := read[j]; old.parsed != nil {
				for _, p := range compat.Check(old.parsed.Tree(), v.parsed.Tree(), judgedMode(mode, upcast), v.Lenient) {
					where := p.Path
					if where == "" {
						where = "the top"
					}
					list = append(list, newFinding(SchemaCompat, pointerAt(v.file, v.Schema, p.Path),
						fmt.Sprintf("version %d of topic %s is not %s compatible with version %d: at %s, %s: %s", v.Version, v.Topic, mode, old.Version, where, p.Rule, p.Detail),
						compatFix(mode, v.Version)))
				}
			}
			if !mode.Transitive() {
				break
			}
		}
	}
	return list
}

// judgedMode is what is left to judge of a mode where an upcaster mends what is
// not backward.
func judgedMode(m compat.Mode, upcast bool) compat.Mode {
	if !upcast {
		return m
	}
	switch m {
	case compat.Full, compat.FullTransitive, compat.Forward, compat.ForwardTransitive:
		return compat.Forward
	}
	return compat.None
}

func compatFix(m compat.Mode, n int) string {
	if m == compat.Backward || m == compat.BackwardTransitive {
		return fmt.Sprintf("make the change compatible, or write v%d.upcast.jq beside it", n)
	}
	return `make the change compatible, or say a weaker mode in "x-compat"`
}

// Dead gives the schemas whose topics no use has named, of those in files for
// which within is true. All uses must have been noted.
func (k *Known) Dead(within func(file string) bool) (list []Finding) {
	for name, t := range k.topics {
		if k.used[name] || slices.ContainsFunc(k.pattern, func(p string) bool { return event.MatchPattern(p, name) }) {
			continue
		}
		if len(t.versions) == 0 || !within(t.versions[0].file) {
			continue
		}
		list = append(list, NewFinding(SchemaDead, Position{File: t.versions[0].file, Line: 1, Column: 1}, fmt.Sprintf("no source and no configuration names topic %s%s", name, k.near(name))))
	}
	return list
}

// near suggests a topic that may have been meant.
func (k *Known) near(name string) string {
	best := ""
	for u := range k.used {
		if !k.Has(u) && spell.Distance(u, name) <= 2 && (best == "" || u < best) {
			best = u
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; %s is used and has no schema", best)
}

func sameJSON(a, b []byte) bool {
	x, err := event.CompactJSON(nil, a)
	if err != nil {
		return bytes.Equal(a, b)
	}
	y, err := event.CompactJSON(nil, b)
	return err == nil && bytes.Equal(x, y)
}

// plain is an error on one line.
func plain(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
