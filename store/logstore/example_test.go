package logstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
)

// A program that stores events and is killed loses none that Append has
// acknowledged: the next one that opens the directory reads them all.
func Example_killed() {
	dir := os.Getenv("EXAMPLE_DIR")
	if dir == "" { // this is the parent: it lets a child append and die, then reads
		dir, _ = os.MkdirTemp("", "example")
		defer func() { _ = os.RemoveAll(dir) }()
		child := exec.Command(os.Args[0], "-test.run=^Example_killed$")
		child.Env = append(os.Environ(), "EXAMPLE_DIR="+dir)
		fmt.Println("child:", child.Run())
	}
	s, err := logstore.Open(dir, logstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if os.Getenv("EXAMPLE_DIR") != "" { // this is the child
		for i := range 100 {
			e := event.New("process.state", json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)))
			if _, err := s.Append(context.Background(), store.Batch{Events: []event.Event{e}}); err != nil {
				log.Fatal(err)
			}
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // no Close, no deferred call, nothing
	}
	n := 0
	for e, err := range s.Read(context.Background(), store.Query{Topic: "process.state"}) {
		if err != nil || string(e.Payload) != fmt.Sprintf(`{"n":%d}`, n) {
			log.Fatalf("event %d: %s, %v", n, e.Payload, err)
		}
		n++
	}
	fmt.Println(n, "events read back")
	fmt.Println("close:", s.Close())
	// Output:
	// child: signal: killed
	// 100 events read back
	// close: <nil>
}

// The memory engine is the same code on a file system in memory.
func ExampleOpenMemory() {
	s, err := logstore.OpenMemory(logstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	e := event.New("process.state", json.RawMessage(`{"status":"alive"}`))
	e.Key = "dev:stt:1"
	for range 2 { // a retry is harmless: the id is known
		a, err := s.Append(ctx, store.Batch{Events: []event.Event{e}})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(a[0].Seq, a[0].Duplicate)
	}
	for e, err := range s.Read(ctx, store.Query{Topic: "process.state", Key: "dev:stt:1", Reverse: true, Limit: 1}) {
		fmt.Println(e.Seq, e.Key, string(e.Payload), err)
	}
	// Output:
	// 1 false
	// 1 true
	// 1 dev:stt:1 {"status":"alive"} <nil>
}
