package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"

	"promethean/event"
)

// An event has 300 bytes in all: 200 of JSON, and 100 of id, time, topic, key,
// two headers and lengths. That is its length in the binary form of package
// event, and the length of a record of the raw writer.
const (
	eventBytes   = 300
	payloadBytes = 200
	payloadCount = 1024
	keyBytes     = 8
)

// load says how events are published.
type load struct {
	Publishers int
	Batch      int
	// Topics are taken in turn, beginning with the topic FirstTopic.
	Topics, FirstTopic int
	// Keys are taken at random.
	Keys int
}

// stock is what all generators share. It is made once, so that making an event
// costs little beside publishing one, and the same for every target.
type stock struct {
	payloads [][]byte
	keys     string // all keys one after the other, keyBytes each
	headers  event.Headers
}

var stocks = sync.OnceValue(func() *stock { return newStock(1_000_000) })

func newStock(keys int) *stock {
	s := &stock{headers: event.Headers{{Name: "x-schema-version", Value: "1"}, {Name: "x-source", Value: "bench"}}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range payloadCount {
		s.payloads = append(s.payloads, makePayload(rng))
	}
	text := make([]byte, 0, keys*keyBytes)
	for i := range keys {
		text = fmt.Appendf(text, "k%07d", i)
	}
	s.keys = string(text)
	return s
}

// makePayload writes a state record like those of a process monitor. Its trace
// is random, so that an engine that compresses gains no more than in life.
func makePayload(rng *rand.Rand) []byte {
	b := fmt.Appendf(nil, `{"pid":%d,"status":"%s","cpu":%.3f,"mem":%d,"host":"node-%02d","trace":"%016x%016x","text":"`,
		rng.IntN(100_000), []string{"up", "down", "idle"}[rng.IntN(3)], rng.Float64(), rng.IntN(1<<30), rng.IntN(100), rng.Uint64(), rng.Uint64())
	const letters = "abcdefghijklmnopqrstuvwxyz     "
	for len(b) < payloadBytes-2 {
		b = append(b, letters[rng.IntN(len(letters))])
	}
	return append(b, `"}`...)
}

func (s *stock) key(i int) string { return s.keys[i*keyBytes : (i+1)*keyBytes] }

func topicName(i int) string { return "load.t" + strconv.Itoa(i) }

// generator makes the events of one publisher.
type generator struct {
	stock  *stock
	rng    *rand.Rand
	topics []string
	keys   int
	at     int // place in topics
}

// newGenerator gives the generator of the i-th publisher. Publishers begin at
// different topics, so that a short run spreads evenly too.
func newGenerator(l load, names []string, i int) *generator {
	s := stocks()
	return &generator{
		stock:  s,
		rng:    rand.New(rand.NewPCG(uint64(i), 3)),
		topics: names,
		keys:   min(max(l.Keys, 1), len(s.keys)/keyBytes),
		at:     i % len(names),
	}
}

// topicNames lists the topics of a load, for its generators to share.
func topicNames(l load) []string {
	names := make([]string, max(l.Topics, 1))
	for i := range names {
		names[i] = topicName(l.FirstTopic + i)
	}
	return names
}

// fill makes new events with ids of this moment.
func (g *generator) fill(evs []event.Event) {
	for i := range evs {
		id := event.NewID()
		evs[i] = event.Event{
			ID:      id,
			TS:      int64(binary.BigEndian.Uint64(id[:8]) >> 16), // the id has read the clock already
			Topic:   g.topics[g.at],
			Key:     g.stock.key(g.rng.IntN(g.keys)),
			Headers: g.stock.headers,
			Payload: g.stock.payloads[g.rng.IntN(len(g.stock.payloads))],
		}
		if g.at++; g.at == len(g.topics) {
			g.at = 0
		}
	}
}
