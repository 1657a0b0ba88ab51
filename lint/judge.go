package lint

import (
	"fmt"
	"strings"
	"unicode"

	"promethean/event"
	"promethean/internal/spell"
)

// checkPattern says what is wrong with a topic or a pattern: segments of a topic,
// "*" for any one and "**" for any number of them.
func checkPattern(p string) error {
	plain := strings.Split(p, ".")
	for i, s := range plain {
		if s == "*" || s == "**" {
			plain[i] = "x"
		}
	}
	if err := event.CheckTopic(strings.Join(plain, ".")); err != nil {
		return fmt.Errorf("pattern %q: %w", p, err)
	}
	return nil
}

// Judge says what is wrong with a use.
func (k *Known) Judge(u Use) []Finding {
	if strings.Contains(u.Topic, "*") && (u.Kind == Subscribe || u.Kind == Mention) {
		if err := checkPattern(u.Topic); err != nil {
			return []Finding{newFinding(TopicName, u.At, err.Error(), topicFix(u.Topic))}
		}
		return nil // which topics fit it is not known
	}
	if err := event.CheckTopic(u.Topic); err != nil {
		return []Finding{newFinding(TopicName, u.At, err.Error(), topicFix(u.Topic))}
	}
	if event.ReservedTopic(u.Topic) {
		if u.Kind == Publish {
			return []Finding{NewFinding(TopicReserved, u.At, fmt.Sprintf("topic %s: only the hub itself writes under dlq. and system.", u.Topic))}
		}
		return nil // the hub gives it its form
	}
	if u.Kind == Mention || u.Kind == Register {
		return nil
	}
	base, n, versioned := event.TopicVersion(u.Topic)
	if !versioned && !k.Has(u.Topic) {
		if k.Partial || k.Allowed(u.Topic) {
			return nil
		}
		return []Finding{k.noSchema(u)}
	}
	if u.Payload == nil {
		return nil
	}
	if u.Version < 0 {
		return nil // which schema counts is not known
	}
	v := k.version(u.Topic, u.Version)
	if v == nil && versioned {
		v = k.version(base, n)
	}
	if v == nil {
		return nil
	}
	c := comparison{topic: v.Topic, version: v.Version, at: u.PayloadAt, reads: u.Kind == Subscribe, name: u.Payload.Name}
	c.compare(u.Payload, v.parsed.Tree(), "", 0)
	return c.list
}

func (k *Known) noSchema(u Use) Finding {
	message := fmt.Sprintf("topic %s has no schema", u.Topic)
	best := ""
	for name := range k.topics {
		if spell.Distance(name, u.Topic) <= 2 && (best == "" || name < best) {
			best = name
		}
	}
	if best != "" {
		message += fmt.Sprintf("; %s has one", best)
	}
	return newFinding(TopicSchema, u.At, message, fmt.Sprintf("write schemas/%s/v1.json, or allow it: promethean:allow REASON in a comment", u.Topic))
}

// topicFix suggests the topic that was likely meant.
func topicFix(topic string) string {
	segments := strings.FieldsFunc(strings.ToLower(topic), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '*'
	})
	if s := strings.Join(segments, "."); s != topic && checkPattern(s) == nil {
		return fmt.Sprintf("write %q, or another name of segments of a-z and 0-9 joined by single dots", s)
	}
	return ruleOf(TopicName).Help
}

// JudgeHeader says what is wrong with the name of a header.
func JudgeHeader(h Header) []Finding {
	if err := event.CheckHeader(h.Name, ""); err != nil {
		fix := ruleOf(HeaderName).Help
		if s := headerFix(h.Name); s != "" {
			fix = fmt.Sprintf("write %q", s)
		}
		return []Finding{newFinding(HeaderName, h.At, err.Error(), fix)}
	}
	return nil
}

// headerFix suggests the name that was likely meant, "" if there is none.
func headerFix(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) {
		return ""
	}
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	s := strings.Join(words, "-")
	if event.CheckHeader(s, "") != nil {
		s = "x-" + s
	}
	if event.CheckHeader(s, "") != nil {
		return ""
	}
	return s
}
