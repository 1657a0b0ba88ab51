// Command log counts what earlier runs have stored in a directory, then stores
// one event after another until it is stopped, by kill -9 if you like. Every
// line it prints is an event that is on disk.
//
//	go run ./examples/log DIR
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: log DIR")
	}
	s, err := logstore.Open(os.Args[1], logstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	n := 0
	for e, err := range s.Read(context.Background(), store.Query{Topic: "demo.ticks"}) {
		if n++; err != nil || string(e.Payload) != fmt.Sprintf(`{"n":%d}`, n) {
			log.Fatalf("event %d: %s, %v", n, e.Payload, err)
		}
	}
	fmt.Println("found", n)
	for n++; ; n++ {
		//promethean:allow this shows the log alone, and no hub that could check a schema
		e := event.New("demo.ticks", json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)))
		if _, err := s.Append(context.Background(), store.Batch{Events: []event.Event{e}}); err != nil {
			log.Fatal(err)
		}
		fmt.Println("stored", n)
	}
}
