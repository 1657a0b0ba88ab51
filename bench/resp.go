package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"

	"promethean/event"
)

// The Redis protocol, as far as publishing to a stream needs it: commands are
// arrays of bulk strings, answers are read and only errors are looked at.

// maxReply bounds a bulk string in an answer; ours are ids of stream entries.
const maxReply = 1 << 20

// replyError is an error that the server answered with.
type replyError string

func (e replyError) Error() string { return "redis: " + string(e) }

var errReply = errors.New("redis: unreadable answer")

func appendArray(b []byte, n int) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}

func appendBulk[T string | []byte](b []byte, s T) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(s)), 10)
	b = append(b, '\r', '\n')
	b = append(b, s...)
	return append(b, '\r', '\n')
}

func appendCommand(b []byte, args ...string) []byte {
	b = appendArray(b, len(args))
	for _, a := range args {
		b = appendBulk(b, a)
	}
	return b
}

// appendXADD adds the event to the stream named by its topic, with one field
// for each of its own.
func appendXADD(b []byte, e *event.Event) []byte {
	var num [20]byte
	var id [36]byte
	b = appendArray(b, 3+2*(4+len(e.Headers)))
	b = appendBulk(b, "XADD")
	b = appendBulk(b, e.Topic)
	b = appendBulk(b, "*")
	b = appendBulk(b, "id")
	text, _ := e.ID.AppendText(id[:0])
	b = appendBulk(b, text)
	b = appendBulk(b, "ts")
	b = appendBulk(b, strconv.AppendInt(num[:0], e.TS, 10))
	b = appendBulk(b, "key")
	b = appendBulk(b, e.Key)
	for _, h := range e.Headers {
		b = appendBulk(b, h.Name)
		b = appendBulk(b, h.Value)
	}
	b = appendBulk(b, "payload")
	return appendBulk(b, []byte(e.Payload))
}

// readReply reads one answer and gives the text of a simple string, a number
// or a bulk string. The text is valid until the next read.
func readReply(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: %q", errReply, line)
	}
	kind, text := line[0], line[1:len(line)-2]
	switch kind {
	case '+', ':':
		return text, nil
	case '-':
		return nil, replyError(text)
	case '$':
		n, err := strconv.Atoi(string(text))
		if err != nil || n < -1 || n > maxReply {
			return nil, fmt.Errorf("%w: %q", errReply, line)
		}
		if n == -1 {
			return nil, nil
		}
		return readBulk(r, n)
	}
	return nil, fmt.Errorf("%w: %q", errReply, line)
}

func readBulk(r *bufio.Reader, n int) ([]byte, error) {
	if n+2 > r.Size() {
		text := make([]byte, n+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, noEOF(err)
		}
		return text[:n], nil
	}
	text, err := r.Peek(n + 2)
	if err != nil {
		return nil, noEOF(err)
	}
	_, err = r.Discard(n + 2)
	return text[:n], err
}

// noEOF makes the end of the stream inside an answer the error that it is.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
