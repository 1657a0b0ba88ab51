package app

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"promethean/event"
)

// flushAt is how much is gathered before it is written.
const flushAt = 64 << 10

// eventWriter writes events: as JSON lines, or as a table with one line for
// each. What it hands on are whole lines, so that an output that ends early
// still has no half of one.
type eventWriter struct {
	out   io.Writer
	table bool
	width int
	begun bool
	buf   []byte
	count int
	bytes int64
}

// events gives a writer of events to standard output.
func (a *app) events() *eventWriter {
	width, yes := a.table()
	return &eventWriter{out: a.stdout, table: yes, width: width}
}

// put adds an event. It is written when flush is called, or enough has come
// together.
func (w *eventWriter) put(e *event.Event) error {
	w.count++
	if w.table {
		if !w.begun {
			w.begun = true
			w.buf = append(append(w.buf, clipped(rowHead(w.width), w.width)...), '\n')
		}
		w.buf = append(append(w.buf, clipped(row(e, w.width), w.width)...), '\n')
	} else {
		var err error
		if w.buf, err = e.AppendStoredJSON(w.buf); err != nil {
			return err
		}
		w.buf = append(w.buf, '\n')
	}
	if len(w.buf) >= flushAt {
		return w.flush()
	}
	return nil
}

// flush writes what has come together.
func (w *eventWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.out.Write(w.buf)
	w.bytes += int64(len(w.buf))
	w.buf = w.buf[:0]
	return err
}

// narrow is the width below which a table leaves out what can be done without.
const narrow = 80

func rowHead(width int) string {
	if width < narrow {
		return fmt.Sprintf("%-8s %-5s %-9s %s", "UTC", "SEQ", "KEY", "PAYLOAD")
	}
	return fmt.Sprintf("%-23s  %-8s %-16s %s", "UTC", "SEQ", "KEY", "PAYLOAD")
}

// row is the line of a table for an event.
func row(e *event.Event, width int) string {
	at := e.Time().UTC()
	// No more of a payload than fits is looked at.
	payload := e.Payload[:min(len(e.Payload), 4*width)]
	var s string
	if width < narrow {
		s = fmt.Sprintf("%s %-5d %s %s", at.Format("15:04:05"), e.Seq, padded(e.Key, 9), payload)
	} else {
		s = fmt.Sprintf("%s  %-8d %s %s", at.Format("2006-01-02 15:04:05.000"), e.Seq, padded(e.Key, 16), payload)
	}
	return printable(s)
}

// padded fills a text up to a width, or cuts it.
func padded(s string, width int) string {
	n := utf8.RuneCountInString(s)
	if n > width {
		return clipped(s, width)
	}
	return s + strings.Repeat(" ", width-n)
}

// list writes what a command has found: each as a JSON line, or all as a
// table with these columns; without columns a table goes on.
func list[T any](a *app, items []T, columns []string, cells func(*T) []string) error {
	var b bytes.Buffer
	width, yes := a.table()
	if !yes {
		for i := range items {
			line, err := encode(&items[i])
			if err != nil {
				return err
			}
			b.Write(append(line, '\n'))
		}
		_, err := a.stdout.Write(b.Bytes())
		return err
	}
	var lines [][]string
	if columns != nil {
		lines = append(lines, columns)
	}
	for i := range items {
		line := cells(&items[i])
		for j := range line {
			line[j] = printable(line[j])
		}
		lines = append(lines, line)
	}
	var widest []int
	for _, line := range lines {
		widest = append(widest, make([]int, max(0, len(line)-len(widest)))...)
		for j, s := range line {
			widest[j] = max(widest[j], utf8.RuneCountInString(s))
		}
	}
	for _, line := range lines {
		text := ""
		for j, s := range line {
			text += padded(s, widest[j]) + "  "
		}
		b.WriteString(clipped(strings.TrimRight(text, " "), width) + "\n")
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// maxLine bounds a line of input: far above the largest payload that a hub can
// be set to.
const maxLine = 256 << 20

// readLines gives the lines of a text with their numbers, from 1 on. Empty ones
// are left out. A line is good until the next one.
func readLines(r io.Reader) iter.Seq2[numbered, error] {
	return func(yield func(numbered, error) bool) {
		b := bufio.NewReaderSize(r, 256<<10)
		var long []byte
		size := int64(0)
		for n := 1; ; n++ {
			line, err := b.ReadSlice('\n')
			long = long[:0]
			for errors.Is(err, bufio.ErrBufferFull) {
				if long = append(long, line...); len(long) > maxLine {
					yield(numbered{n: n}, fmt.Errorf("line %d has more than %d bytes", n, maxLine))
					return
				}
				line, err = b.ReadSlice('\n')
			}
			if len(long) > 0 {
				long = append(long, line...)
				line = long
			}
			size += int64(len(line))
			if err != nil && !errors.Is(err, io.EOF) {
				yield(numbered{n: n}, err)
				return
			}
			end := err != nil
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(numbered{n, line, size}, nil) {
				return
			}
			if end {
				return
			}
		}
	}
}

// numbered is a line of input.
type numbered struct {
	n    int
	text []byte
	end  int64 // how many bytes the input has up to its end
}

// ago is a duration for people, of which the largest two parts matter.
func ago(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 24*time.Hour:
		return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// number writes a number so that its size is seen.
func number[N int | int64 | uint64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
