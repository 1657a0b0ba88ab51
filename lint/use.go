package lint

import "strconv"

// Kind is what a place does with a topic.
type Kind string

// The kinds.
const (
	Publish   Kind = "publish"   // writes events
	Subscribe Kind = "subscribe" // handles events; the topic may be a pattern
	Mention   Kind = "mention"   // reads or asks; the topic may be a pattern
	Configure Kind = "configure" // sets the topic up
	Register  Kind = "register"  // gives the topic a schema that is not in a file
)

// Use is a place that names a topic.
type Use struct {
	Kind  Kind
	Topic string
	At    Position
	// Payload is what is published, or what a handler decodes into; nil if that
	// cannot be seen.
	Payload *Shape
	// PayloadAt is where it stands.
	PayloadAt Position
	// Version is the version of the schema that the event is stamped with: 0 if it
	// is not, so that the latest counts, and -1 if that cannot be seen.
	Version int
}

// VersionHeader is the header that stamps an event with a version.
const VersionHeader = "x-schema-version"

// ParseVersion reads the value of [VersionHeader]; -1 if it is not known, or no
// version.
func ParseVersion(value string, known bool) int {
	n, err := strconv.Atoi(value)
	if !known || err != nil || n < 1 {
		return -1
	}
	return n
}

// Header is a place that names a header.
type Header struct {
	Name string
	At   Position
}

// Shape is what can be said of a JSON value without running the program. Its
// zero value says nothing.
type Shape struct {
	// Name is how a person calls it, such as the name of a Go type.
	Name string
	// Type is the JSON type: object, array, string, number, boolean or null; ""
	// if it is not known.
	Type string
	// Fields are those of an object.
	Fields []Field
	// Open says that there may be more fields than these.
	Open bool
	// Items is what an array holds, nil if that is not known.
	Items *Shape
}

// Field is a member of an object.
type Field struct {
	Name  string
	Shape *Shape // nil if not known
	// Optional says that it may be left out, and by what: "omitempty".
	Optional string
	// At is where it stands, if it has a place of its own.
	At Position
}
