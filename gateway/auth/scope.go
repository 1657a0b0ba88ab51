package auth

import (
	"fmt"
	"strings"

	"promethean/event"
)

// Scope allows one action for the topics that fit a pattern: "*" stands for one
// segment, "**" for any number of them, also none.
//
// A pattern that begins with a wildcard never fits the hub's own topics under
// dlq. and system., as everywhere in the hub: "subscribe:**" does not reach
// system.audit, "subscribe:system.audit" and "subscribe:system.**" do.
type Scope struct {
	action  Action
	pattern string // "" for Admin
	form    form
}

// maxPattern bounds a pattern in bytes, as the name of a topic is bounded.
const maxPattern = 200

// ParseScope reads "action:pattern", or "admin".
func ParseScope(s string) (Scope, error) {
	action, pattern, has := strings.Cut(s, ":")
	switch a := Action(action); a {
	case Admin:
		if has {
			return Scope{}, fmt.Errorf("scope %q: admin has no pattern", clip(s))
		}
		return Scope{action: Admin}, nil
	case Publish, Subscribe, Read:
		if !has || pattern == "" {
			return Scope{}, fmt.Errorf("scope %q: %s needs a pattern, such as %s:**", clip(s), a, a)
		}
		if len(pattern) > maxPattern {
			return Scope{}, fmt.Errorf("scope %q: the pattern has %d bytes, the limit is %d", clip(s), len(pattern), maxPattern)
		}
		segments := strings.Split(pattern, ".")
		for _, x := range segments {
			if x != "*" && x != "**" && !plain(x) {
				return Scope{}, fmt.Errorf("scope %q: segment %q is neither a name of a-z0-9 nor * nor **", clip(s), clip(x))
			}
		}
		return Scope{action: a, pattern: pattern, form: formOf(segments)}, nil
	}
	return Scope{}, fmt.Errorf("scope %q: the action is none of publish, subscribe, read, admin", clip(s))
}

// ParseScopes reads several. The error names the first that is wrong.
func ParseScopes(list []string) ([]Scope, error) {
	out := make([]Scope, 0, len(list))
	for _, s := range list {
		scope, err := ParseScope(s)
		if err != nil {
			return nil, err
		}
		out = append(out, scope)
	}
	return out, nil
}

// String gives the scope as it was read.
func (s Scope) String() string {
	if s.pattern == "" {
		return string(s.action)
	}
	return string(s.action) + ":" + s.pattern
}

func plain(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Covers says whether the scope allows an action for a topic, or for every
// topic that fits a pattern. What is no name of a topic is covered by wildcards
// alone; nothing of that name exists.
func (s Scope) Covers(a Action, topic string) bool {
	switch {
	case s.action != a || a == Open:
		return false
	case a == Admin:
		return true
	case !strings.Contains(topic, "*"):
		return event.MatchPattern(s.pattern, topic)
	case len(topic) > maxPattern:
		return false // no subscription takes it, and the comparison stays short
	}
	return s.coversPattern(strings.Split(topic, "."))
}

// coversPattern says whether every topic that fits b fits the pattern of s.
// That the hub's own topics fit no pattern that begins with a wildcard makes the
// difference at the front; the rest is [form.includes].
func (s Scope) coversPattern(b []string) bool {
	if !isWild(b[0]) {
		// Whatever is longer than the bare word is the hub's own.
		if (b[0] == "dlq" || b[0] == "system") && isWild(s.pattern[:1]) && len(b) > 1 {
			return false
		}
		return s.form.includes(b)
	}
	front := 0
	for front < len(b) && b[front] == "**" {
		front++
	}
	if front == 0 || front < len(b) && b[front] == "*" {
		return s.form.includes(b) // any first segment will do, also one that is not the hub's
	}
	// Either something stands before the first name, or nothing does.
	rest := b[front:]
	if !s.form.includes(append([]string{"*", "**"}, rest...)) {
		return false
	}
	switch {
	case len(rest) == 0:
		return true // a topic has a segment at least
	case rest[0] != "dlq" && rest[0] != "system":
		return s.form.includes(rest)
	}
	for _, x := range rest[1:] {
		if x != "**" {
			return true // only topics of the hub, which do not fit b
		}
	}
	return event.MatchPattern(s.pattern, rest[0])
}
