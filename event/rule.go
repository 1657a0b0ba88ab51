package event

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The limits of an event. Sizes are in bytes.
const (
	MaxTopic       = 200             // a topic, not counting one leading "dlq."
	MaxKey         = 1 << 10         // a key
	MaxHeaders     = 64              // number of headers
	MaxHeaderBytes = 16 << 10        // all names and values of headers together
	MaxSID         = 256             // a sid
	MaxTags        = 64              // number of tags
	MaxTag         = 256             // one tag
	MaxCauses      = 64              // number of entries in caused_by
	MaxCause       = 256             // one entry in caused_by
	MaxDepth       = 1000            // nesting of a JSON value
	MaxTS          = 253402300799999 // the last millisecond of the year 9999

	// DefaultPayload is the payload limit where Limits names none.
	DefaultPayload = 1 << 20
)

// Limits are the limits of Check that a hub can configure.
type Limits struct {
	// Payload is the largest payload in bytes. Default: DefaultPayload, 1 MiB.
	Payload int
}

// Internal returns the limits for records that the hub itself writes (dead
// letters, snapshots): they wrap a payload of a user, so theirs may be twice
// as large plus 64 KiB.
func (l Limits) Internal() Limits {
	return Limits{Payload: 2*l.payload() + 64<<10}
}

func (l Limits) payload() int {
	if l.Payload <= 0 {
		return DefaultPayload
	}
	return l.Payload
}

// What a RuleError is about; errors.Is finds these.
var (
	ErrInvalidTopic    = errors.New("invalid topic")
	ErrInvalidHeader   = errors.New("invalid header")
	ErrInvalidArgument = errors.New("invalid argument")
	ErrPayloadTooLarge = errors.New("payload too large")
	ErrBadJSON         = errors.New("bad JSON")
)

// RuleError tells which rule of an event or of a JSON text is broken.
type RuleError struct {
	Field  string // as in JSON, with the place in lists: "topic", "tags[3]"; "" for a bare JSON text
	Rule   string // what must hold
	Limit  int    // the limit that was passed, 0 where the rule has none
	Got    int    // what was measured against Limit, 0 where the rule has none
	Found  string // the offending text, quoted and shortened; "" where it says nothing
	Offset int    // byte offset into the JSON text, where Kind is ErrBadJSON
	Kind   error  // one of the sentinels of this package
}

// Error names the field, the rule, the limit and what was found.
func (e *RuleError) Error() string {
	var b strings.Builder
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteString(": ")
	}
	b.WriteString(e.Rule)
	if e.Limit != 0 || e.Got != 0 {
		b.WriteString(" (limit ")
		b.WriteString(strconv.Itoa(e.Limit))
		b.WriteString(", got ")
		b.WriteString(strconv.Itoa(e.Got))
		b.WriteString(")")
	}
	if e.Found != "" {
		b.WriteString(", found ")
		b.WriteString(e.Found)
	}
	if errors.Is(e.Kind, ErrBadJSON) {
		b.WriteString(" at byte ")
		b.WriteString(strconv.Itoa(e.Offset))
	}
	return b.String()
}

// Unwrap returns Kind.
func (e *RuleError) Unwrap() error { return e.Kind }

// mostFound is how much of an offending text an error shows.
const mostFound = 48

// quote returns s quoted for a message, cut to what fits on a line.
func quote(s string) string {
	if cut := cutText(s); cut < len(s) {
		return strconv.QuoteToASCII(s[:cut]) + "…"
	}
	return strconv.QuoteToASCII(s)
}

// plainName returns a name that somebody chose in a form that is safe to show
// in the Field of an error.
func plainName(s string) string {
	return strings.ReplaceAll(quote(s), `"`, "")
}

// shorten returns s as it stands, cut to what fits on a line.
func shorten(s string) string {
	if cut := cutText(s); cut < len(s) {
		return strings.Clone(s[:cut]) + "…"
	}
	return strings.Clone(s)
}

func cutText(s string) int {
	if len(s) <= mostFound {
		return len(s)
	}
	cut := mostFound
	for cut > mostFound-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return cut
}

// Check tells whether e keeps all rules for an event that is about to be
// stored, and returns the first broken one as a *RuleError. Seq is not judged:
// the log gives it. Whether a reserved topic may be written, and whether the
// partition is within the topic's count, depends on the caller. Where all is
// well Check allocates no more than CheckJSON does, which is mostly nothing.
func (e *Event) Check(l Limits) error {
	if e.ID.IsZero() {
		return &RuleError{Field: "id", Rule: "must be set", Kind: ErrInvalidArgument}
	}
	if uint64(e.TS) > MaxTS {
		return &RuleError{Field: "ts", Rule: "must be epoch milliseconds from 0 to the end of the year 9999", Found: strconv.FormatInt(e.TS, 10), Kind: ErrInvalidArgument}
	}
	if err := CheckTopic(e.Topic); err != nil {
		return err
	}
	if err := checkText("key", e.Key, MaxKey); err != nil {
		return err
	}
	if e.Partition > MaxPartitions {
		return &RuleError{Field: "partition", Rule: "must be from 0 to " + strconv.Itoa(MaxPartitions-1), Kind: ErrInvalidArgument}
	}
	if err := checkText("sid", e.SID, MaxSID); err != nil {
		return err
	}
	if len(e.Headers) > 0 {
		if err := e.Headers.check(); err != nil {
			return err
		}
	}
	if most := l.payload(); len(e.Payload) > most {
		return &RuleError{Field: "payload", Rule: "is too large", Limit: most, Got: len(e.Payload), Kind: ErrPayloadTooLarge}
	}
	if err := checkValue("payload", e.Payload); err != nil {
		return err
	}
	if err := checkList("caused_by", e.CausedBy, MaxCauses, MaxCause); err != nil {
		return err
	}
	return checkList("tags", e.Tags, MaxTags, MaxTag)
}

// CheckTopic tells whether s is a topic: segments of a-z and 0-9 joined by
// single dots, at most MaxTopic bytes. One leading "dlq." is not counted, so
// that every topic can have its dead letters.
func CheckTopic(s string) error {
	if most := maxTopic(s); len(s) > most {
		return &RuleError{Field: "topic", Rule: "is too long", Limit: most, Got: len(s), Found: quote(s), Kind: ErrInvalidTopic}
	}
	dot := true // whether a segment must start here
	for i := 0; i < len(s); i++ {
		switch topicByte[s[i]] {
		case topicWord:
			dot = false
		case topicDot:
			if dot {
				return badTopic(s)
			}
			dot = true
		default:
			return badTopic(s)
		}
	}
	if dot {
		return badTopic(s)
	}
	return nil
}

func maxTopic(s string) int {
	if strings.HasPrefix(s, deadPrefix) {
		return len(deadPrefix) + MaxTopic
	}
	return MaxTopic
}

func badTopic(s string) error {
	return &RuleError{Field: "topic", Rule: "must be segments of a-z and 0-9 joined by single dots", Found: quote(s), Kind: ErrInvalidTopic}
}

const (
	topicBad = iota
	topicWord
	topicDot
)

var topicByte = func() (t [256]byte) {
	for c := byte('a'); c <= 'z'; c++ {
		t[c] = topicWord
	}
	for c := byte('0'); c <= '9'; c++ {
		t[c] = topicWord
	}
	t['.'] = topicDot
	return t
}()

const (
	deadPrefix   = "dlq."
	systemPrefix = "system."
)

// ReservedTopic tells whether only the hub writes to s: topics under "dlq."
// and "system.". The bare words dlq and system are ordinary topics.
func ReservedTopic(s string) bool {
	return strings.HasPrefix(s, deadPrefix) || strings.HasPrefix(s, systemPrefix)
}

// TopicVersion splits a topic whose last segment is a version, v1, v2 and so
// on without leading zeros and below v1000000000, into what stands before it
// and the number. For any other topic it returns s, 0 and false; a topic that
// is nothing but a version has no base and is one of those.
func TopicVersion(s string) (base string, v int, ok bool) {
	dot := strings.LastIndexByte(s, '.')
	if dot <= 0 {
		return s, 0, false
	}
	digits, ok := strings.CutPrefix(s[dot+1:], "v")
	if !ok || len(digits) == 0 || len(digits) > 9 || digits[0] == '0' {
		return s, 0, false
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return s, 0, false
		}
		v = v*10 + int(c-'0')
	}
	return s[:dot], v, true
}

// CheckHeader tells whether one header keeps the rules: a name that is
// ^x-[a-z0-9-]+$, content-type, traceparent or tracestate, and a value that is
// valid UTF-8.
func CheckHeader(name, value string) error {
	if !validHeaderName(name) {
		return &RuleError{Field: "headers", Rule: "a name must be x- followed by a-z, 0-9 and -, or content-type, traceparent, tracestate", Found: quote(name), Kind: ErrInvalidHeader}
	}
	if !utf8.ValidString(value) {
		return &RuleError{Field: "headers." + name, Rule: "must be valid UTF-8", Found: quote(value), Kind: ErrInvalidHeader}
	}
	return nil
}

func (h Headers) check() error {
	if len(h) > MaxHeaders {
		return &RuleError{Field: "headers", Rule: "are too many", Limit: MaxHeaders, Got: len(h), Kind: ErrInvalidHeader}
	}
	size, sorted := 0, true
	for i := range h {
		size += len(h[i].Name) + len(h[i].Value)
	}
	if size > MaxHeaderBytes {
		return &RuleError{Field: "headers", Rule: "are too large together", Limit: MaxHeaderBytes, Got: size, Kind: ErrInvalidHeader}
	}
	for i := range h {
		if err := CheckHeader(h[i].Name, h[i].Value); err != nil {
			return err
		}
		sorted = sorted && (i == 0 || h[i-1].Name < h[i].Name)
	}
	if sorted {
		return nil
	}
	for i := range h { // at most MaxHeaders squared
		for j := range i {
			if h[i].Name == h[j].Name {
				return &RuleError{Field: "headers", Rule: "a name must stand once", Found: quote(h[i].Name), Kind: ErrInvalidHeader}
			}
		}
	}
	return nil
}

func checkText(field, s string, most int) error {
	if len(s) > most {
		return &RuleError{Field: field, Rule: "is too long", Limit: most, Got: len(s), Found: quote(s), Kind: ErrInvalidArgument}
	}
	if !utf8.ValidString(s) {
		return &RuleError{Field: field, Rule: "must be valid UTF-8", Found: quote(s), Kind: ErrInvalidArgument}
	}
	return nil
}

func checkList(field string, list []string, most, each int) error {
	if len(list) > most {
		return &RuleError{Field: field, Rule: "has too many entries", Limit: most, Got: len(list), Kind: ErrInvalidArgument}
	}
	for i, s := range list {
		if len(s) > each || !utf8.ValidString(s) {
			return checkText(field+"["+strconv.Itoa(i)+"]", s, each)
		}
	}
	return nil
}
