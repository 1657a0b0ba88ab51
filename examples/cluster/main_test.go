package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const patience = time.Minute

var asked = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// TestMain lets the test program be a server too, as the program itself is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "node" || os.Args[1] == "heir") {
		main()
		return
	}
	os.Exit(m.Run())
}

// screen collects what a program says, for whoever looks for something in it.
type screen struct {
	mu   sync.Mutex
	text string
	over bool
	news chan struct{}
}

func (s *screen) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		s.add(lines.Text()+"\n", false)
	}
	s.add("", true)
}

func (s *screen) add(text string, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.over = s.text+text, over
	close(s.news)
	s.news = make(chan struct{})
}

// find waits for a text and gives its parts.
func (s *screen) find(t *testing.T, what string) []string {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		text, over, news := s.text, s.over, s.news
		s.mu.Unlock()
		if m := regexp.MustCompile(what).FindStringSubmatch(text); m != nil {
			return m
		}
		if over {
			t.Fatalf("it ended without %s:\n%s", what, text)
		}
		select {
		case <-news:
		case <-late:
			t.Fatalf("it does not say %s:\n%s", what, text)
		}
	}
}

// post sends a body until the hub takes it: one that has lost a server may need
// a moment.
func post(t *testing.T, url, body string) []byte {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		got, err := asked.Post(url, "application/json", strings.NewReader(body))
		var answer []byte
		if err == nil {
			answer, err = io.ReadAll(got.Body)
			_ = got.Body.Close()
		}
		if err == nil && got.StatusCode/100 == 2 {
			return answer
		}
		if time.Now().After(end) {
			t.Fatalf("POST %s: %v %s", url, err, answer)
		}
		time.Sleep(50 * time.Millisecond) // polling, up to a deadline
	}
}

// What is published at one hub is consumed at the other, also while a server is
// away; at the end no process and no file is left.
func TestCluster(t *testing.T) {
	bin := t.TempDir()
	for name, pkg := range map[string]string{"cluster": ".", "promethean": "promethean/cmd/promethean"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), pkg).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	temp := t.TempDir()
	cmd := exec.Command(filepath.Join(bin, "cluster"), "-promethean", filepath.Join(bin, "promethean"), "-hubs", "127.0.0.1:0,127.0.0.1:0")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := &screen{news: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { said.read(out) })
	var pids []int
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		reading.Wait()
	})

	said.find(t, "Ctrl-C ends all")
	for _, name := range []string{"node-1", "node-2", "node-3", "hub-1", "hub-2"} {
		pid, err := strconv.Atoi(said.find(t, name+` +process (\d+)`)[1])
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	one, two := said.find(t, `hub-1 .*(http://\S+)`)[1], said.find(t, `hub-2 .*(http://\S+)`)[1]
	for i := range 3 {
		post(t, fmt.Sprintf("%s/publish/orders?id=0192f7c1-0000-7000-8000-%012d", one, i), strconv.Itoa(i))
		if i == 1 {
			if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			said.find(t, "node-1 has ended")
		}
	}
	seqs := make(map[uint64]bool)
	for end := time.Now().Add(patience); len(seqs) < 3; {
		if time.Now().After(end) {
			t.Fatalf("the other hub gave the events %v", seqs)
		}
		var got struct {
			Events []struct {
				Event struct {
					ID  string
					Seq uint64
				}
			}
		}
		answer := post(t, two+"/pull", `{"topic":"orders","group":"mailer","max":10,"wait_ms":500,"opts":{"from":"earliest"}}`)
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatalf("%v: %s", err, answer)
		}
		for _, e := range got.Events {
			seqs[e.Event.Seq] = true
			post(t, two+"/ack", fmt.Sprintf(`{"topic":"orders","group":"mailer","ids":[%q]}`, e.Event.ID))
		}
	}

	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	again := said.find(t, `(?s)node-1 has ended.*node-1 +process (\d+)`)[1]
	if pids[0], err = strconv.Atoi(again); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, &complaints)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", pid, err)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// If it is killed, what it has started ends all the same.
func TestKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := newHeir()
	if err != nil {
		t.Fatal(err)
	}
	// A server whose input stays open ends by the heir alone.
	cmd := exec.Command(self, "node", "-port", "-1", "-dir", t.TempDir())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	said := &screen{news: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { said.read(out) })
	said.find(t, "ready")
	h.tell("+", cmd.Process.Pid)
	h.close()
	reading.Wait()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	_ = in.Close()
}

func TestBadInput(t *testing.T) {
	for _, args := range [][]string{{"extra"}, {"-nodes", "0"}, {"-nodes", "10"}, {"-promethean", "/no/such/program", "-nodes", "1"}} {
		if err := run(t.Context(), args, strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if err := runNode([]string{"-route", "1", "-routes", "x"}); err == nil || !strings.Contains(err.Error(), `"x" is no port`) {
		t.Errorf("a route that is none: %v", err)
	}
}
