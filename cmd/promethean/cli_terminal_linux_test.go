package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

// Commands that speak to a hub, on a terminal of 40 columns: tables that fit,
// bars where work takes long, no colours whatever NO_COLOR says.
func TestTerminalOfCommands(t *testing.T) {
	p := startHub(t, "--store", "memory://")
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	t.Setenv("PROMETHEAN_ADDR", p.url)
	ndjson(t, filepath.Join(dir, "in"), 2000)
	p.publish("a.b", "?key=%1b%5B31mred", `{"text":"`+strings.Repeat("long ", 40)+`"}`)
	p.publish("a.b", "?key=dev:stt:1", `{"n":2}`)
	p.get(nil, 201, "POST", "/schemas/s.beat", `{"schema":`+heartbeatV1+`}`)
	for range 50 {
		p.publish("s.beat", "", beatV1)
	}
	p.get(nil, 201, "POST", "/schemas/s.beat", register(2, heartbeatV2, "backward", renameMem))
	const columns = 40
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"import", "in.to", "in"}, 0, []string{"\rimporting …", "stored      2000\r\n", "duplicates  0\r\n"}},
		{[]string{"export", "in.to", "--out", "out"}, 0, []string{"\rexporting …", "\rexporting  [", "%", "events  2000\r\n"}},
		{[]string{"replay", "in.to", "--to", "in.copy"}, 0, []string{"\rreplaying …", "copied      2000\r\n"}},
		{[]string{"bench", "--store", "memory://", "--duration", "700ms"}, 0, []string{"\rmeasuring …", "/s, ", " to go", "publish_p99_9_ms "}},
		{[]string{"tail", "a.b", "--from", "earliest", "--count", "2"}, 0, []string{"UTC      SEQ   KEY       PAYLOAD\r\n", " 1     \uFFFD[31mred  {\"text\"", " 2     dev:stt:1 {\"n\":2}\r\n"}},
		{[]string{"sub", "a.b", "-g", "g", "--from", "earliest", "--count", "1"}, 0, []string{"UTC ", " 1     "}},
		{[]string{"history", "a.b", "dev:stt:1"}, 0, []string{" 2     dev:stt:1 "}},
		{[]string{"replay", "a.b"}, 0, []string{" 2     dev:stt:1 "}},
		{[]string{"topics"}, 0, []string{"TOPIC ", "a.b "}},
		{[]string{"groups"}, 0, []string{"TOPIC  GROUP  LAG", "a.b    g "}},
		{[]string{"lag"}, 0, []string{"OLDEST"}},
		{[]string{"cursor", "get", "a.b"}, 0, []string{"PENDING"}},
		{[]string{"schema", "list"}, 0, []string{"TOPIC   LATEST  VERSIONS  COMPAT\r\n", "s.beat  2       1 2       backward\r\n"}},
		{[]string{"schema", "show", "s.beat", "1"}, 0, []string{"s.beat version 1, backward, of\r\n20", "\r\n{\r\n  \"type\": \"object\",\r\n"}},
		{[]string{"schema", "diff", "s.beat"}, 0, []string{"  + /required  \"mem_mib\"\r\n", "problems"}},
		{[]string{"schema", "cutover", "s.beat", "--to", "s.beat.v2"}, 0, []string{"\rcopying …", "verified    50\r\n"}},
		{[]string{"pub", "a.b", "1"}, 0, []string{"SEQ "}},
		{[]string{"sub", "a.b", "-g", "dead", "--max-attempts", "1", "--from", "earliest", "--count", "1", "--exec", "echo it cannot be done in this way at all >&2; exit 1"}, 0, nil},
		{[]string{"dlq", "list"}, 0, []string{"LETTERS"}},
		{[]string{"dlq", "show", "a.b"}, 0, []string{"\r\n  exit status 1: it cannot be done in\r\n  this way at all\r\n"}},
		{[]string{"topics", "-o", "json"}, 0, []string{`{"topic":"a.b",`}},
		{[]string{"pub", "a.b"}, 2, []string{"promethean: pub: missing: JSON, or - to read"}},
		{[]string{"import", "a.b"}, 2, []string{"promethean: import: missing: FILE"}},
	} {
		for _, colour := range []string{"", "1"} {
			t.Setenv("NO_COLOR", colour)
			text, code := onTerminal(t, columns, c.args...)
			if code != c.code {
				t.Errorf("%v: exit code %d, want %d:\n%s", c.args, code, c.code, text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("%v: no %q in\n%q", c.args, want, text)
				}
			}
			if strings.Contains(text, "\x1b") {
				t.Errorf("%v: control sequences in\n%q", c.args, text)
			}
			for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
				sentence := strings.HasPrefix(line, "promethean: ") || strings.HasPrefix(line, "  run '") || strings.HasPrefix(line, "it cannot")
				if utf8.RuneCountInString(line) > columns && !sentence && !strings.Contains(strings.Join(c.args, " "), "json") {
					t.Errorf("%v: a line is too long: %q", c.args, line)
				}
			}
			if c.args[0] == "import" || c.args[0] == "export" || c.args[0] == "sub" || c.args[0] == "replay" || c.args[0] == "bench" {
				break // a second time it has other work to do, or takes long
			}
		}
	}
}

// onTerminal runs the program with all its streams on a terminal.
func onTerminal(t *testing.T, columns uint16, args ...string) (text string, code int) {
	t.Helper()
	program, screen := openTerminal(t, columns)
	cmd := command(t, os.Getenv("PROMETHEAN_ADDR"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	// The terminal ends with an error when the last program has closed it.
	_, _ = io.Copy(&b, screen)
	_ = cmd.Wait() // the exit code says it
	return b.String(), cmd.ProcessState.ExitCode()
}
