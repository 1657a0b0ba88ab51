package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"promethean/event"
)

func TestCommandEncoding(t *testing.T) {
	got := string(appendCommand(nil, "XLEN", "a.b", ""))
	if want := "*3\r\n$4\r\nXLEN\r\n$3\r\na.b\r\n$0\r\n\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// parseCommand reads a command as a server does.
func parseCommand(r *bufio.Reader) ([]string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(line, "*"), "\r\n"))
	if err != nil {
		return nil, err
	}
	var args []string
	for range n {
		arg, err := readReply(r)
		if err != nil {
			return nil, err
		}
		args = append(args, string(arg))
	}
	return args, nil
}

func TestXADDCarriesTheEvent(t *testing.T) {
	e := event.New("process.state", []byte(`{"a":"\r\n"}`))
	e.Key = "dev:1"
	e.Headers = event.Headers{{Name: "x-a", Value: "1"}, {Name: "x-b", Value: "zwei"}}
	r := bufio.NewReader(bytes.NewReader(appendXADD(appendXADD(nil, &e), &e)))
	want := []string{"XADD", "process.state", "*", "id", e.ID.String(), "ts", strconv.FormatInt(e.TS, 10),
		"key", "dev:1", "x-a", "1", "x-b", "zwei", "payload", `{"a":"\r\n"}`}
	for range 2 {
		got, err := parseCommand(r)
		if err != nil || strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("got %q, %v\nwant %q", got, err, want)
		}
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("bytes are left over: %v", err)
	}
}

func TestReplies(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, c := range []struct {
		in, want string
		err      error
	}{
		{"+PONG\r\n", "PONG", nil},
		{":42\r\n", "42", nil},
		{"$5\r\nab\r\nc\r\n", "ab\r\nc", nil},
		{"$0\r\n\r\n", "", nil},
		{"$-1\r\n", "", nil},
		{"$100000\r\n" + long + "\r\n", long, nil},
		{"-ERR wrong\r\n", "", replyError("ERR wrong")},
		{"$5\r\nab", "", io.ErrUnexpectedEOF},
		{"$x\r\n", "", errReply},
		{"$99999999999\r\n", "", errReply},
		{"?\r\n", "", errReply},
		{"+no end", "", io.EOF},
		{"+\n", "", errReply},
		{"", "", io.EOF},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(c.in)))
		if string(got) != c.want || !errors.Is(err, c.err) {
			t.Errorf("%.40q: got %.40q, %v; want %.40q, %v", c.in, got, err, c.want, c.err)
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add([]byte("+PONG\r\n"))
	f.Add([]byte("$3\r\nabc\r\n:1\r\n-ERR x\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(in), 16)
		for {
			text, err := readReply(r)
			var reply replyError
			if err != nil && !errors.As(err, &reply) {
				return
			}
			if len(text) > len(in) {
				t.Fatalf("%d bytes out of %d", len(text), len(in))
			}
		}
	})
}
