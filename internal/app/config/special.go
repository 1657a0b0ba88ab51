package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/schema"
)

// What the file holds beside single values and lists of texts.

// tokens reads auth.tokens.
func (r *reader) tokens(n *yaml.Node, path string) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, "%s: must be a list, not %s", path, kind(n))
		return
	}
	for i, x := range n.Content {
		r.token(x, fmt.Sprintf("%s[%d]", path, i))
	}
}

func (r *reader) token(n *yaml.Node, path string) {
	t := Token{Place: r.place(n)}
	before := len(r.problems)
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		var ok bool
		switch k.Value {
		case "name":
			t.Name, _ = r.text(v, key)
		case "token_env":
			if t.TokenEnv, ok = r.text(v, key); ok {
				if err := checkVariable(t.TokenEnv); err != nil {
					r.wrong(v, "%s: %v", key, err)
				}
			}
		case "token_file":
			t.TokenFile, _ = r.text(v, key)
		case "scopes":
			if t.Scopes, ok = r.texts(v, key); ok {
				for i, s := range t.Scopes {
					if _, err := auth.ParseScope(s); err != nil {
						r.wrong(resolve(v).Content[i], "%s: %v", key, err)
					}
				}
			}
		default:
			r.unknown(k, path, []string{"name", "scopes", "token_env", "token_file"})
		}
	})
	switch {
	case len(r.problems) > before:
		return
	case (t.TokenEnv == "") == (t.TokenFile == ""):
		r.wrong(n, "%s: name the token by either token_env or token_file", path)
		return
	case len(t.Scopes) == 0:
		r.wrong(n, "%s: without scopes the token allows nothing", path)
		return
	}
	if t.Name == "" {
		t.Name = strings.TrimPrefix(t.TokenEnv+t.TokenFile, "/")
	}
	r.c.Auth.Tokens = append(r.c.Auth.Tokens, t)
}

// topicRates reads limits.topic_rate.
func (r *reader) topicRates(n *yaml.Node, path string) {
	rates := make(map[string]float64)
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		if err := event.CheckTopic(k.Value); err != nil {
			r.wrong(k, "%s: %v", path, err)
			return
		}
		text, ok := r.text(v, key)
		if !ok {
			return
		}
		rate, err := ParseRate(text)
		if err != nil {
			r.wrong(v, "%s: %v", key, err)
			return
		}
		if rate > 0 {
			rates[k.Value] = rate
		}
	})
	r.c.Limits.TopicRate = rates
}

// topics reads the settings of topics.
func (r *reader) topics(n *yaml.Node, path string) {
	r.pairs(n, path, func(k, v *yaml.Node) {
		if err := event.CheckTopic(k.Value); err != nil {
			r.wrong(k, "%s: %v", path, err)
			return
		}
		t := Topic{Name: k.Value, Place: r.place(k)}
		r.topic(v, path, &t)
		r.c.Topics = append(r.c.Topics, t)
	})
}

func (r *reader) topic(n *yaml.Node, path string, t *Topic) {
	path = fmt.Sprintf("%s[%s]", path, t.Name)
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		if k.Value == "snapshot" {
			r.snapshot(v, key, t)
			return
		}
		read := topicSettings[k.Value]
		if read == nil {
			r.unknown(k, path, slices.Sorted(maps.Keys(withSnapshot)))
			return
		}
		if text, ok := r.text(v, key); ok {
			if err := read(t, text); err != nil {
				r.wrong(v, "%s: %v", key, err)
			}
		}
	})
}

var topicSettings = map[string]func(t *Topic, s string) error{
	"retention": func(t *Topic, s string) error {
		d, err := ParseDuration(s)
		t.Retention = &d
		return err
	},
	"max_bytes": func(t *Topic, s string) error {
		n, err := ParseSize(s)
		t.MaxBytes = &n
		return err
	},
	"partitions": func(t *Topic, s string) error {
		t.Partitions = new(int)
		return intValue{t.Partitions, 1, event.MaxPartitions}.set(s)
	},
	"durability": func(t *Topic, s string) error {
		async := s == "async"
		t.Async = &async
		return oneOf("sync", "async")(s)
	},
	"schemas": func(t *Topic, s string) error {
		t.Schemas = &s
		if s == "" {
			return errors.New("name a directory")
		}
		return nil
	},
	"compaction": func(t *Topic, s string) error {
		t.Compaction = new(bool)
		return boolValue{t.Compaction}.set(s)
	},
	"history": func(t *Topic, s string) error {
		d, err := ParseDuration(s)
		t.History = &d
		return err
	},
	"tombstones": func(t *Topic, s string) error {
		d, err := ParseDuration(s)
		t.Tombstones = &d
		return err
	},
	"strict_schema": func(t *Topic, s string) error {
		t.Strict = new(bool)
		return boolValue{t.Strict}.set(s)
	},
	"legacy_version": func(t *Topic, s string) error {
		t.LegacyVersion = new(int)
		return intValue{t.LegacyVersion, 1, schema.MaxVersion}.set(s)
	},
	"dual_write": func(t *Topic, s string) error {
		t.DualWrite = new(schema.Window)
		on := false
		if err := (boolValue{&on}).set(s); err == nil {
			t.DualWrite.On = on
			return nil
		}
		until, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return fmt.Errorf("%q is not true, false or a time such as 2026-12-31T18:00:00Z", s)
		}
		*t.DualWrite = schema.Window{On: true, Until: until.UTC()}
		return nil
	},
}
