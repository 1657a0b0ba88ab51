package ts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// outcome is one line of test/reporter.mjs.
type outcome struct {
	File  string  `json:"file"`
	Name  string  `json:"name"`
	OK    bool    `json:"ok"`
	Skip  *string `json:"skip"`
	MS    int     `json:"ms"`
	Error string  `json:"error"`
}

// TestClient runs the tests of the client, each as a subtest. Where there is no
// Node they are skipped one by one, so that a report names what did not run.
func TestClient(t *testing.T) {
	want := listed(t)
	if broken := os.Getenv("PROMETHEAN_TEST_NODE_BROKEN"); broken != "" {
		t.Fatal(broken) // no want of a server: the client itself is wrong
	}
	node := os.Getenv("PROMETHEAN_TEST_NODE")
	if node == "" {
		for _, name := range want {
			t.Run(name, func(t *testing.T) { t.Skip("needs node: PROMETHEAN_TEST_NODE is not set") })
		}
		return
	}

	bin := filepath.Join(t.TempDir(), "promethean")
	if out, err := exec.Command("go", "build", "-o", bin, "promethean/cmd/promethean").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "test/run.mjs", "--test-reporter=./test/reporter.mjs", "--test-reporter-destination=stdout")
	cmd.Env = append(os.Environ(), "PROMETHEAN_BIN="+bin)
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	var ran []string
	failed := false
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			t.Logf("node: %s", lines.Text())
			continue
		}
		name := o.File + "/" + o.Name
		ran = append(ran, name)
		failed = failed || !o.OK
		t.Run(name, func(t *testing.T) {
			switch {
			case o.Skip != nil:
				t.Skip(*o.Skip)
			case !o.OK:
				t.Fatalf("after %d ms: %s", o.MS, o.Error)
			}
			t.Logf("%d ms", o.MS)
		})
	}
	if err := lines.Err(); err != nil {
		t.Errorf("read the results: %v", err)
	}
	if err := cmd.Wait(); err != nil && !failed {
		t.Errorf("node: %v\n%s", err, stderr.String())
	}

	// A file that does not load, or a test that is lost on the way, must not
	// look like success.
	slices.Sort(ran)
	for _, name := range want {
		if _, found := slices.BinarySearch(ran, name); !found {
			t.Errorf("%s did not run\n%s", name, stderr.String())
		}
	}
	if len(ran) != len(want) {
		t.Errorf("%d tests ran, the sources have %d", len(ran), len(want))
	}
}

var (
	testName     = regexp.MustCompile(`(?m)^test\('([^']+)'`)
	scenarioName = regexp.MustCompile(`(?m)^  '([^']+)': `)
)

// listed gives the names of all tests, as the sources have them: Node alone
// could say it better, but may not be there.
func listed(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("test/*.test.ts")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no tests (%v)", err)
	}
	var names []string
	add := func(file, prefix, source string, pattern *regexp.Regexp) {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		found := pattern.FindAllSubmatch(text, -1)
		for _, m := range found {
			names = append(names, file+"/"+prefix+string(m[1]))
		}
	}
	for _, file := range files {
		add(strings.TrimSuffix(filepath.Base(file), ".test.ts"), "", file, testName)
	}
	// The scenarios are played twice.
	add("node", "", "test/scenarios.ts", scenarioName)
	add("browser", "in a page: ", "test/scenarios.ts", scenarioName)
	return names
}
