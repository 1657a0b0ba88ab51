package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Schemas of a directory are registered at start, and those that came later by
// SIGHUP; a directory that does not fit is named with its line.
func TestSchemasOfTheFile(t *testing.T) {
	dir := t.TempDir()
	schemas := filepath.Join(dir, "schemas", "a.beat")
	if err := os.MkdirAll(schemas, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "promethean.yaml")
	write(t, filepath.Join(schemas, "v1.json"), heartbeatV1)
	write(t, file, fmt.Sprintf("store: file://%s\ntopics:\n  a.beat: {schemas: schemas/a.beat, strict_schema: true}\n", filepath.Join(dir, "data")))
	p := startHub(t, "--config", file)
	p.refused(422, "schema_invalid", "POST", "/publish/a.beat", `{}`)
	p.get(nil, 201, "POST", "/publish/a.beat", beatV1)

	// What does not fit leaves what is there.
	write(t, filepath.Join(schemas, "v2.json"), heartbeatV2)
	hangUp := func(want string) {
		t.Helper()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		p.until(want, func() bool { return strings.Contains(p.said.String(), want) })
	}
	hangUp("some topics keep their settings")
	if got := p.said.String(); !strings.Contains(got, file+":3") || !strings.Contains(got, "version 2") {
		t.Errorf("%s", got)
	}
	p.refused(404, "not_found", "GET", "/schemas/a.beat/2", "")

	write(t, filepath.Join(schemas, "v2.upcast.jq"), renameMem)
	hangUp("schemas registered\",\"topic\":\"a.beat\",\"directory\":\"" + schemas + "\",\"latest\":2")
	p.get(nil, 201, "POST", "/publish/a.beat", beatV2)
	p.stop()

	// A file that changed under its number is not started with.
	write(t, filepath.Join(schemas, "v1.json"), heartbeatV2)
	out, err := exec.Command("promethean", "serve", "--listen", "127.0.0.1:0", "--config", file).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), file+":3") || !strings.Contains(string(out), "a version never changes") {
		t.Errorf("%v: %s", err, out)
	}
}
