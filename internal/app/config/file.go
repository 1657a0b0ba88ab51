package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"promethean/internal/spell"
)

// maxFile is more than any file of settings needs.
const maxFile = 4 << 20

// reader fills a configuration from a file and gathers what is wrong. It goes
// over the nodes of the document itself, because they know their lines.
type reader struct {
	c        *Config
	name     string // of the file, as given
	problems Problems
}

// readFile reads the file at a path.
func (r *reader) readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if len(data) > maxFile {
		r.problems = append(r.problems, Problem{path, fmt.Sprintf("has more than %s", formatSize(maxFile))})
		return nil
	}
	r.name = path
	r.read(data)
	return nil
}

// syntax matches the errors of the parser, which name the line.
var syntax = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func (r *reader) read(data []byte) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := d.Decode(&doc)
	if errors.Is(err, io.EOF) {
		return // nothing in it
	}
	if err == nil {
		if err = d.Decode(&more); err == nil {
			r.wrong(&more, "a second document: there is one for each file")
			return
		}
	}
	if !errors.Is(err, io.EOF) {
		place, what := r.name, err.Error()
		if m := syntax.FindStringSubmatch(strings.ReplaceAll(what, "\n", " ")); m != nil {
			what = m[2]
			if m[1] != "" {
				place += ":" + m[1]
			}
		}
		r.problems = append(r.problems, Problem{place, "no YAML: " + what})
		return
	}
	if root := doc.Content[0]; !isNull(root) {
		r.section(root, "")
	}
}

func (r *reader) place(n *yaml.Node) string { return r.name + ":" + strconv.Itoa(n.Line) }

func (r *reader) wrong(n *yaml.Node, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.place(n), fmt.Sprintf(format, args...)})
}

// resolve follows an alias. The result keeps the line of where it is used.
func resolve(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && i < 10; i++ {
		target := *n.Alias
		target.Line = n.Line
		n = &target
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// kind names what a node is.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	}
	return "a single value"
}

// pairs goes over a map. A key that comes twice is wrong.
func (r *reader) pairs(n *yaml.Node, path string, each func(key, value *yaml.Node)) {
	n = resolve(n)
	if isNull(n) {
		return // a section without anything in it
	}
	if n.Kind != yaml.MappingNode {
		what := path
		if what == "" {
			what = "the file"
		}
		r.wrong(n, "%s: must be a map, not %s", what, kind(n))
		return
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode {
			r.wrong(k, "%s: a key must be a single value, not %s", join(path, "?"), kind(k))
			continue
		}
		if line, twice := seen[k.Value]; twice {
			r.wrong(k, "%s comes twice, first on line %d", join(path, k.Value), line)
			continue
		}
		seen[k.Value] = k.Line
		each(k, v)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// special are the keys that are no single value or list of texts.
var special = map[string]func(r *reader, n *yaml.Node, path string){
	"auth.tokens":       (*reader).tokens,
	"limits.topic_rate": (*reader).topicRates,
	"topics":            (*reader).topics,
	"views":             (*reader).views,
	"changefeeds":       (*reader).changefeeds,
	"outboxes":          (*reader).outboxes,
}

// section reads a map of settings and of sections below it.
func (r *reader) section(n *yaml.Node, path string) {
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		if read := special[key]; read != nil {
			read(r, v, key)
			return
		}
		for i := range settings {
			switch s := &settings[i]; {
			case s.NotInFile:
			case s.Key == key:
				r.setting(s, k, resolve(v))
				return
			case strings.HasPrefix(s.Key, key+"."):
				r.section(v, key)
				return
			}
		}
		r.unknown(k, path, keysOf(path))
	})
}

// keysOf lists the keys of a section.
func keysOf(path string) (keys []string) {
	add := func(key string) {
		if path != "" {
			var below bool
			if key, below = strings.CutPrefix(key, path+"."); !below {
				return
			}
		}
		key, _, _ = strings.Cut(key, ".")
		keys = append(keys, key)
	}
	for _, s := range settings {
		if !s.NotInFile {
			add(s.Key)
		}
	}
	for key := range special {
		add(key)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// unknown reports a key that is none, and what may have been meant.
func (r *reader) unknown(k *yaml.Node, path string, known []string) {
	hint := "; there are " + strings.Join(known, ", ")
	for _, name := range known {
		if spell.Distance(strings.ToLower(k.Value), name) <= 2 {
			hint = ", did you mean " + name + "?"
			break
		}
	}
	r.wrong(k, "unknown key %q%s", join(path, k.Value), hint)
}

// setting reads one row of the table.
func (r *reader) setting(s *Setting, k, v *yaml.Node) {
	r.c.places[s.Key] = r.place(k)
	var err error
	if l, isList := s.value(r.c).(list); isList {
		texts, ok := r.texts(v, s.Key)
		if !ok {
			return
		}
		err = l.setAll(texts)
	} else {
		text, ok := r.text(v, s.Key)
		if !ok {
			return
		}
		err = s.value(r.c).set(text)
	}
	if err != nil {
		r.wrong(v, "%s: %v", s.Key, err)
	}
}

// text reads a single value.
func (r *reader) text(n *yaml.Node, key string) (string, bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || isNull(n) {
		r.wrong(n, "%s: must be a single value, not %s", key, kind(n))
		return "", false
	}
	return n.Value, true
}

// texts reads a list of single values.
func (r *reader) texts(n *yaml.Node, key string) (out []string, ok bool) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, "%s: must be a list, not %s", key, kind(n))
		return nil, false
	}
	ok = true
	for i, x := range n.Content {
		s, good := r.text(x, fmt.Sprintf("%s[%d]", key, i))
		out, ok = append(out, s), ok && good
	}
	return out, ok
}
