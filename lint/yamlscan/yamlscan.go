// Package yamlscan finds topics and the directories of their schemas in
// promethean.yaml.
//
// It looks at what names topics: topics, limits.topic_rate, views and changefeeds.
// Whether the rest is right is said by "promethean serve".
package yamlscan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"

	"promethean/lint"
)

// FileName is the name of a configuration.
const FileName = "promethean.yaml"

// SchemasName is the name of a directory that has a directory of schemas for
// each topic.
const SchemasName = "schemas"

// maxSize is more than any configuration needs.
const maxSize = 4 << 20

// Dir is a directory of schemas of one topic.
type Dir struct {
	Topic, Path string
	At          lint.Position // where it is named
}

// Result is what a configuration holds.
type Result struct {
	Uses []lint.Use
	// Dirs are directories that are there.
	Dirs     []Dir
	Findings []lint.Finding
}

// syntax matches the errors of the parser, which name the line.
var syntax = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// Scan looks at the text of a configuration. Directories of schemas are looked
// for beside the file, then where the program runs.
func Scan(name string, text []byte) Result {
	s := &scan{name: name}
	if len(text) > maxSize {
		s.wrong(lint.Position{File: name, Line: 1, Column: 1}, "the file has %d bytes, of which at most %d are looked at", len(text), maxSize)
		return s.out
	}
	var doc yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc)
	switch {
	case errors.Is(err, io.EOF):
		return s.out
	case err != nil:
		at, what := lint.Position{File: name, Line: 1, Column: 1}, err.Error()
		if m := syntax.FindStringSubmatch(what); m != nil {
			what = m[2]
			if n, err := strconv.Atoi(m[1]); err == nil {
				at.Line = n
			}
		}
		s.wrong(at, "no YAML: %s", what)
		return s.out
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) > 0 {
		root = doc.Content[0]
	}
	s.root(root)
	return s.out
}

type scan struct {
	name string
	out  Result
}

func (s *scan) at(n *yaml.Node) lint.Position {
	return lint.Position{File: s.name, Line: n.Line, Column: n.Column}
}

func (s *scan) wrong(at lint.Position, format string, args ...any) {
	s.out.Findings = append(s.out.Findings, lint.NewFinding(lint.ConfigInvalid, at, fmt.Sprintf(format, args...)))
}

func (s *scan) use(kind lint.Kind, n *yaml.Node) {
	s.out.Uses = append(s.out.Uses, lint.Use{Kind: kind, Topic: n.Value, At: s.at(n)})
}

// pairs goes over a map; whatever else is left to who reads the settings.
func pairs(n *yaml.Node, each func(key, value *yaml.Node)) {
	for range 10 {
		if n.Kind != yaml.AliasNode {
			break
		}
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Kind == yaml.ScalarNode {
			each(k, n.Content[i+1])
		}
	}
}

// text notes a topic that is the value of a key.
func (s *scan) text(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.Value != "" {
		s.use(lint.Mention, n)
	}
}

func (s *scan) root(n *yaml.Node) {
	pairs(n, func(k, v *yaml.Node) {
		switch k.Value {
		case "topics":
			pairs(v, s.topic)
		case "limits":
			pairs(v, func(k, v *yaml.Node) {
				if k.Value == "topic_rate" {
					pairs(v, func(k, _ *yaml.Node) { s.use(lint.Mention, k) })
				}
			})
		case "views", "changefeeds":
			pairs(v, func(_, v *yaml.Node) {
				pairs(v, func(k, v *yaml.Node) {
					if k.Value == "topic" {
						s.text(v)
					}
				})
			})
		}
	})
}

func (s *scan) topic(name, settings *yaml.Node) {
	s.use(lint.Configure, name)
	pairs(settings, func(k, v *yaml.Node) {
		switch k.Value {
		case "snapshot":
			pairs(v, func(k, v *yaml.Node) {
				if k.Value == "topic" {
					s.text(v)
				}
			})
		case "schemas":
			if v.Kind != yaml.ScalarNode || v.Value == "" {
				return
			}
			dir := s.beside(v.Value)
			if dir == "" {
				s.wrong(s.at(v), "topics.%s.schemas: there is no directory %s", name.Value, v.Value)
				return
			}
			s.out.Dirs = append(s.out.Dirs, Dir{Topic: name.Value, Path: dir, At: s.at(v)})
		}
	})
}

// beside finds a directory: beside the file, or where the program runs.
func (s *scan) beside(dir string) string {
	candidates := []string{filepath.Join(filepath.Dir(s.name), dir), dir}
	if filepath.IsAbs(dir) {
		candidates = []string{dir}
	}
	for _, c := range candidates {
		if info, err := os.Stat(c); err == nil && info.IsDir() {
			return c
		}
	}
	return ""
}

// Place is where schemas are said to be.
type Place struct {
	Config  string // a configuration, "" if there is none
	Schemas string // a directory of directories, "" if there is none
}

// Find looks for a configuration, and for a directory of schemas, in a directory
// and those above it. It stops at the first that has one of the two, or that is
// the top of a module or repository.
func Find(dir string) Place {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Place{}
	}
	for {
		var p Place
		if f := filepath.Join(dir, FileName); isFile(f) {
			p.Config = f
		}
		if d := filepath.Join(dir, SchemasName); len(topicDirs(d)) > 0 {
			p.Schemas = d
		}
		up := filepath.Dir(dir)
		if p != (Place{}) || up == dir || exists(filepath.Join(dir, ".git")) {
			return p
		}
		dir = up
	}
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// topicDirs lists the directories of schemas in a directory.
func topicDirs(dir string) (list []Dir) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if sub := filepath.Join(dir, e.Name()); e.IsDir() && lint.HoldsSchemas(sub) {
			list = append(list, Dir{Topic: e.Name(), Path: sub})
		}
	}
	return list
}

// Read lists the directories of schemas of a place. What is wrong with the
// configuration is not said.
func (p Place) Read() (list []Dir) {
	if p.Config != "" {
		if text, err := os.ReadFile(p.Config); err == nil {
			list = Scan(p.Config, text).Dirs
		}
		if p.Schemas == "" {
			list = append(list, topicDirs(filepath.Join(filepath.Dir(p.Config), SchemasName))...)
		}
	}
	if p.Schemas != "" {
		list = append(list, topicDirs(p.Schemas)...)
	}
	return list
}
