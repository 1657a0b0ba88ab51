package lint

import (
	"bytes"
	"errors"
	"regexp"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"promethean/event"
)

// lineColumn gives line and column of an offset into a text.
func lineColumn(text []byte, offset int) (line, column int) {
	offset = min(max(offset, 0), len(text))
	line = bytes.Count(text[:offset], []byte("\n")) + 1
	start := bytes.LastIndexByte(text[:offset], '\n') + 1
	return line, utf8.RuneCount(text[start:offset]) + 1
}

// pointerAt finds where the value stands that a JSON pointer names, or the last
// on the way to it that is there.
func pointerAt(file string, text []byte, pointer string) Position {
	at := Position{File: file, Line: 1, Column: 1}
	d := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
	longest := -1
	for {
		if _, err := d.ReadToken(); err != nil {
			return at // the end, or no JSON from here on
		}
		p := string(d.StackPointer())
		if len(p) <= longest || p != pointer && (len(p) >= len(pointer) || pointer[:len(p)] != p || pointer[len(p)] != '/') {
			continue
		}
		longest = len(p)
		// The token has been read; it begins behind what is no value.
		end := int(d.InputOffset())
		start := end
		for start > 0 && text[start-1] != '\n' {
			start--
		}
		for start < end && (text[start] == ' ' || text[start] == '\t') {
			start++
		}
		at.Line, at.Column = lineColumn(text, start)
		if p == pointer {
			return at
		}
	}
}

// faultPath matches the place in a schema that an error names.
var faultPath = regexp.MustCompile(`: (/[^:;\s]*): `)

// faultAt finds where a schema is wrong: at the value or the byte that its error
// names.
func faultAt(file string, text []byte, err error) Position {
	if m := faultPath.FindStringSubmatch(err.Error()); m != nil {
		return pointerAt(file, text, m[1])
	}
	at := Position{File: file, Line: 1, Column: 1}
	var rule *event.RuleError
	if errors.As(err, &rule) && errors.Is(rule.Kind, event.ErrBadJSON) {
		at.Line, at.Column = lineColumn(text, rule.Offset)
	}
	return at
}
