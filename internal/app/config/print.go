package config

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"promethean/compact"
)

// YAML gives the settings in force as a file that says the same. Secrets are
// left out.
func (c *Config) YAML() ([]byte, error) {
	root := mapping()
	for i := range settings {
		s := &settings[i]
		if s.NotInFile {
			continue
		}
		v := s.value(c)
		if l, isList := v.(list); isList {
			put(root, s.Key, texts(l.all()))
			continue
		}
		text := v.text()
		if s.Key == "store" {
			text = Redact(text)
		}
		n := scalar(text)
		switch v.(type) {
		case boolValue:
			n.Tag = "!!bool"
		case intValue:
			n.Tag = "!!int"
		}
		put(root, s.Key, n)
	}
	if len(c.Auth.Tokens) > 0 {
		put(root, "auth.tokens", tokensNode(c.Auth.Tokens))
	}
	if len(c.Limits.TopicRate) > 0 {
		rates := mapping()
		for _, t := range slices.Sorted(maps.Keys(c.Limits.TopicRate)) {
			rates.Content = append(rates.Content, scalar(t), scalar(formatRate(c.Limits.TopicRate[t])))
		}
		put(root, "limits.topic_rate", rates)
	}
	if len(c.Topics) > 0 {
		put(root, "topics", topicsNode(c.Topics))
	}
	if len(c.Views) > 0 {
		put(root, "views", viewsNode(c.Views))
	}
	c.inflowNodes(root)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return nil, fmt.Errorf("write the configuration: %w", err)
	}
	return b.Bytes(), e.Close()
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }

func scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

func texts(all []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
	for _, s := range all {
		n.Content = append(n.Content, scalar(s))
	}
	return n
}

// put sets a key, and makes the sections above it.
func put(n *yaml.Node, key string, v *yaml.Node) {
	first, rest, below := strings.Cut(key, ".")
	if !below {
		n.Content = append(n.Content, scalar(first), v)
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == first {
			put(n.Content[i+1], rest, v)
			return
		}
	}
	section := mapping()
	n.Content = append(n.Content, scalar(first), section)
	put(section, rest, v)
}

func tokensNode(tokens []Token) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, t := range tokens {
		n := mapping()
		put(n, "name", scalar(t.Name))
		if t.TokenEnv != "" {
			put(n, "token_env", scalar(t.TokenEnv))
		} else {
			put(n, "token_file", scalar(t.TokenFile))
		}
		put(n, "scopes", texts(t.Scopes))
		list.Content = append(list.Content, n)
	}
	return list
}

func topicsNode(topics []Topic) *yaml.Node {
	all := mapping()
	for _, t := range topics {
		n := mapping()
		if t.Retention != nil {
			put(n, "retention", scalar(t.Retention.String()))
		}
		if t.MaxBytes != nil {
			put(n, "max_bytes", scalar(formatSize(*t.MaxBytes)))
		}
		if t.Partitions != nil {
			put(n, "partitions", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(*t.Partitions)})
		}
		if t.Async != nil {
			put(n, "durability", scalar(map[bool]string{true: "async", false: "sync"}[*t.Async]))
		}
		if t.Schemas != nil {
			put(n, "schemas", scalar(*t.Schemas))
		}
		if t.Strict != nil {
			put(n, "strict_schema", truth(*t.Strict))
		}
		if t.LegacyVersion != nil {
			put(n, "legacy_version", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(*t.LegacyVersion)})
		}
		if t.Compaction != nil {
			put(n, "compaction", truth(*t.Compaction))
		}
		if t.History != nil {
			put(n, "history", scalar(t.History.String()))
		}
		if t.Tombstones != nil {
			put(n, "tombstones", scalar(t.Tombstones.String()))
		}
		if t.Snapshot != nil {
			put(n, "snapshot", snapshotNode(*t.Snapshot))
		}
		switch w := t.DualWrite; {
		case w == nil:
		case w.Until.IsZero():
			put(n, "dual_write", truth(w.On))
		default:
			put(n, "dual_write", scalar(w.Until.Format(time.RFC3339)))
		}
		all.Content = append(all.Content, scalar(t.Name), n)
	}
	return all
}

func snapshotNode(s *compact.Snapshot) *yaml.Node {
	if s == nil {
		return truth(false)
	}
	n := mapping()
	n.Style = yaml.FlowStyle
	if s.Topic != "" {
		put(n, "topic", scalar(s.Topic))
	}
	if s.Every > 0 {
		put(n, "every", scalar(time.Duration(s.Every).String()))
	}
	return n
}

func truth(on bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: fmt.Sprint(on)}
}
