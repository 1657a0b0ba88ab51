package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// format is how results are written; "" means that the terminal decides.
type format string

const (
	formatJSON  format = "json"
	formatTable format = "table"
)

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Set implements pflag.Value.
func (f *format) Set(s string) error {
	if format(s) != formatJSON && format(s) != formatTable {
		return fmt.Errorf("must be json or table")
	}
	*f = format(s)
	return nil
}

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// table says whether results are written as a table, and how wide it may be.
func (a *app) table() (width int, yes bool) {
	width, terminal := terminalWidth(a.screen)
	if !terminal {
		width = 120
	}
	return max(width, 40), a.format == formatTable || a.format == "" && terminal
}

// field is one value of a result, by name.
type field struct {
	name  string
	value any
}

// result writes one result: as a JSON line, or a name and a value per line.
func (a *app) result(fields ...field) error {
	var b bytes.Buffer
	if _, yes := a.table(); yes {
		widest := 0
		for _, f := range fields {
			widest = max(widest, len(f.name))
		}
		for _, f := range fields {
			fmt.Fprintf(&b, "%-*s  %s\n", widest, f.name, printable(fmt.Sprint(f.value)))
		}
	} else {
		sep := byte('{')
		for _, f := range fields {
			v, err := encode(f.value)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "%c%q:%s", sep, f.name, v)
			sep = ','
		}
		b.WriteString("}\n")
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// encode is JSON without escapes that only HTML needs.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// printable replaces what could steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}

// wrapped breaks a text at spaces into lines of the given width, each of
// which begins with indent. A longer word has a line of its own.
func wrapped(s, indent string, width int) string {
	var b strings.Builder
	line := indent
	for word := range strings.SplitSeq(s, " ") {
		switch {
		case line == indent:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	b.WriteString(line + "\n")
	return b.String()
}

// clipped shortens a line to the given width.
func clipped(s string, width int) string {
	if r := []rune(s); len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s
}

// rows turns JSON lines into the lines of a table. It is a writer for what
// writes whole lines, if not one at a time.
type rows struct {
	out   io.Writer
	width int
	head  string
	// row makes a line of the table from a JSON line.
	row   func(line []byte) (string, error)
	begun bool
	rest  []byte
}

// Write implements io.Writer.
func (t *rows) Write(p []byte) (int, error) {
	t.rest = append(t.rest, p...)
	var b bytes.Buffer
	for {
		line, rest, whole := bytes.Cut(t.rest, []byte("\n"))
		if !whole {
			break
		}
		text, err := t.row(line)
		if err != nil {
			return 0, err
		}
		if !t.begun {
			t.begun = true
			fmt.Fprintln(&b, clipped(t.head, t.width))
		}
		fmt.Fprintln(&b, clipped(printable(text), t.width))
		t.rest = rest
	}
	t.rest = bytes.Clone(t.rest)
	if _, err := t.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}
