package natsstore

import (
	"encoding/base64"
	"fmt"
	"strings"

	"promethean/event"
)

// The longest subject that we publish to: prefix, topic and key token with two
// dots. With the verb, the reply subject and two sizes it must stay below
// maxControlLine, which is the server's default for a protocol line; a test
// holds us to it.
const (
	maxPrefix      = 32
	maxControlLine = 4096
	maxSubject     = maxPrefix + 1 + len("dlq.") + event.MaxTopic + 1 + maxToken
	// maxToken is the token of the longest key: two bytes that mark base64.
	maxToken = 2 + (event.MaxKey*4+2)/3
)

// CheckPrefix says whether s can begin the names of streams and subjects.
func checkPrefix(s string) error {
	ok := s != "" && len(s) <= maxPrefix
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] == '-' || s[i] == '_' || isWord(s[i])
	}
	if !ok {
		return fmt.Errorf("prefix %q: must have 1 to %d letters, digits, - or _", s, maxPrefix)
	}
	return nil
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// streamName is the stream of a topic. A topic has neither - nor _, so the
// last - ends the prefix, each _ was a dot, and no two topics share a stream.
func (s *Store) streamName(topic string) string {
	return s.o.Prefix + "-" + strings.ReplaceAll(topic, ".", "_")
}

// topicOf is the topic of a stream name, if it is one of ours.
func (s *Store) topicOf(stream string) (string, bool) {
	name, ok := strings.CutPrefix(stream, s.o.Prefix+"-")
	if !ok || strings.Contains(name, "-") {
		return "", false
	}
	name = strings.ReplaceAll(name, "_", ".")
	return name, event.CheckTopic(name) == nil
}

// allSubjects matches every event of a topic. A star stands for exactly one
// token, so the topics a and a.b do not overlap.
func (s *Store) allSubjects(topic string) string { return s.o.Prefix + "." + topic + ".*" }

// subject is where events of a key go.
func (s *Store) subject(topic, key string) string {
	return s.o.Prefix + "." + topic + "." + token(key, &subjectSafe)
}

// token encodes a key as one token of a subject, so that it stays readable and
// no two keys share one: safe bytes stand for themselves, others are = and two
// hex digits. Where that would be longer than base64, it is == and base64url
// instead: so the length is bounded by 4/3. No key is a lone =.
func token(key string, safe *[256]bool) string {
	if key == "" {
		return "="
	}
	long := len(key)
	for i := 0; i < len(key); i++ {
		if !safe[key[i]] {
			long += 2
		}
	}
	if long == len(key) {
		return key
	}
	if most := 2 + base64.RawURLEncoding.EncodedLen(len(key)); long > most {
		return "==" + base64.RawURLEncoding.EncodeToString([]byte(key))
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, long)
	for i := 0; i < len(key); i++ {
		if c := key[i]; safe[c] {
			b = append(b, c)
		} else {
			b = append(b, '=', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

// untoken reads what token wrote.
func untoken(t string) (string, error) {
	if t == "=" {
		return "", nil
	}
	if rest, ok := strings.CutPrefix(t, "=="); ok {
		b, err := base64.RawURLEncoding.DecodeString(rest)
		return string(b), err
	}
	if strings.IndexByte(t, '=') < 0 {
		return t, nil
	}
	b := make([]byte, 0, len(t))
	for i := 0; i < len(t); i++ {
		if t[i] != '=' {
			b = append(b, t[i])
			continue
		}
		if i+2 >= len(t) {
			return "", fmt.Errorf("token %q ends in an escape", t)
		}
		hi, lo := unhex(t[i+1]), unhex(t[i+2])
		if hi > 15 || lo > 15 {
			return "", fmt.Errorf("token %q has a bad escape", t)
		}
		b = append(b, hi<<4|lo)
		i += 2
	}
	return string(b), nil
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// subjectSafe are the bytes that stand for themselves in the token of a key:
// what is printable and has no meaning in a subject, and everything beyond
// ASCII. kvSafe are those that the key of a key-value bucket may have.
var subjectSafe, kvSafe = func() (subject, kv [256]bool) {
	for c := 0; c < 256; c++ {
		subject[c] = c > ' ' && c != 0x7f && !strings.ContainsRune(".*>=", rune(c))
		kv[c] = isWord(byte(c)) || c == '-' || c == '_' || c == '/'
	}
	return subject, kv
}()
