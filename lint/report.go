package lint

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Format is how findings are written.
type Format string

// The formats.
const (
	Text  Format = "text"  // file:line:column: message [rule], and a line with the fix
	JSON  Format = "json"  // one object with all findings
	SARIF Format = "sarif" // SARIF 2.1.0, which code hosts show beside the lines
)

// Formats are all of them.
var Formats = []Format{Text, JSON, SARIF}

// Write writes findings, which have been sorted.
func Write(w io.Writer, f Format, list []Finding) error {
	switch f {
	case Text:
		return writeText(w, list)
	case JSON:
		return writeJSON(w, struct {
			Count    int       `json:"count"`
			Findings []Finding `json:"findings"`
		}{len(list), append([]Finding{}, list...)})
	case SARIF:
		return writeJSON(w, sarifLog(list))
	}
	return fmt.Errorf("lint: there is no format %q", f)
}

func writeText(w io.Writer, list []Finding) error {
	b := bufio.NewWriter(w)
	for _, f := range list {
		warning := ""
		if f.Severity == Warning {
			warning = "warning: "
		}
		fmt.Fprintf(b, "%s: %s%s [%s]\n", f.Position, warning, printable(f.Message), f.Rule)
		fmt.Fprintf(b, "    fix: %s\n", printable(f.Fix))
	}
	return b.Flush()
}

// String is file:line:column, without what is not known.
func (p Position) String() string {
	s := printable(p.File)
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
		if p.Column > 0 {
			s += fmt.Sprintf(":%d", p.Column)
		}
	}
	return s
}

// printable replaces what could steer a terminal: messages quote sources.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}
