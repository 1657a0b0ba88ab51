package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
	"unsafe"
)

// openTerminal makes a pseudo terminal with the given number of columns: the
// side that a program writes to, and the one that shows it.
func openTerminal(t *testing.T, columns uint16) (program, screen *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo terminal: ", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	control := func(request uintptr, arg unsafe.Pointer) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, screen.Fd(), request, uintptr(arg)); errno != 0 {
			t.Skip("needs a pseudo terminal: ", errno)
		}
	}
	var unlock, number int32
	size := [4]uint16{25, columns}
	control(syscall.TIOCSPTLCK, unsafe.Pointer(&unlock))
	control(syscall.TIOCGPTN, unsafe.Pointer(&number))
	control(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs a pseudo terminal: ", err)
	}
	return program, screen
}

// shown runs the program on a terminal, and gives all that it wrote there.
func shown(t *testing.T, columns uint16, args ...string) (text string, code int) {
	t.Helper()
	program, screen := openTerminal(t, columns)
	cmd := exec.Command("promethean", args...)
	cmd.Stdout, cmd.Stderr = program, program
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

func TestTerminal(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // short names, as people type them
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	if err := makeStore("data"); err != nil {
		t.Fatal(err)
	}
	const columns = 40
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"check", "data"}, 0, []string{"\rchecking …", "problems   0\r\n", "topics     2\r\n"}},
		{[]string{"check", "-o", "json", "data"}, 0, []string{`{"kind":"summary",`}},
		{[]string{"log", "dump", "data", "--topic", "users", "--from", "900"}, 0, []string{"TOPIC ", "\r\nusers                900 "}},
		{[]string{"log", "dump", "data", "--journal"}, 0, []string{"LSN ", " cursor "}},
		{[]string{"backup", "data", "copy"}, 0, []string{"\rbacking up …", "backup  copy\r\n"}},
		{[]string{"restore", "copy", "new"}, 0, []string{"\rrestoring …", "\rrestoring  [", "%", "restored  new\r\n"}},
		{[]string{"check", "broken"}, 1, []string{"damage  broken/", "\r\n  the file is missing\r\n", "promethean: check broken: problems found: "}},
	} {
		if c.args[len(c.args)-1] == "broken" {
			if err := os.Rename("new", "broken"); err != nil {
				t.Fatal(err)
			}
			runs, err := filepath.Glob("broken/*.run")
			if err != nil || len(runs) == 0 {
				t.Fatal(runs, err)
			}
			if err := os.Remove(runs[0]); err != nil {
				t.Fatal(err)
			}
		}
		text, code := shown(t, columns, c.args...)
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
		if c.args[1] == "-o" {
			continue
		}
		for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' }) {
			// Errors, and what they advise, are sentences: the terminal breaks them.
			advice := strings.HasPrefix(line, "promethean: ") || strings.HasPrefix(line, "  what is lost")
			if utf8.RuneCountInString(line) > columns && !advice {
				t.Errorf("%v: a line is too long: %q", c.args, line)
			}
		}
	}
}
