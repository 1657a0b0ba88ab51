package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"promethean/event"
	"promethean/store"
)

// plainEngine names the variable that makes this program, and its children,
// measure plainLog; its value lists faults.
const plainEngine = "PROMETHEAN_BENCH_PLAIN"

// Faults of plainLog, to show that the measurements notice them.
const (
	faultLose  = "lose"  // opening forgets the newest event
	faultSkip  = "skip"  // reading leaves out an event
	faultBlind = "blind" // ids are never found
	faultStale = "stale" // the newest event of a key is never found
)

func TestMain(m *testing.M) {
	if faults, ok := os.LookupEnv(plainEngine); ok {
		usePlain(faults)
	}
	if code, child := runChild(os.Args[1:]); child {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func usePlain(faults string) {
	openLog = func(dir string) (store.Log, error) { return openPlain(dir, strings.Fields(faults)) }
}

// withPlain measures plainLog with faults until the test ends.
func withPlain(t *testing.T, faults ...string) {
	t.Helper()
	t.Setenv(plainEngine, strings.Join(faults, " "))
	before := openLog
	t.Cleanup(func() { openLog = before })
	usePlain(strings.Join(faults, " "))
}

// plainLog is an engine without any art: all events in memory and in one file.
// It has the methods that the measurements call; the others are nil.
type plainLog struct {
	store.Log
	faults []string
	mu     sync.Mutex
	file   *os.File
	topics map[string][]event.Event
}

func openPlain(dir string, faults []string) (*plainLog, error) {
	f, err := os.OpenFile(filepath.Join(dir, "plain.log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &plainLog{faults: faults, file: f, topics: map[string][]event.Event{}}
	newest, err := l.load()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if es := l.topics[newest]; l.has(faultLose) && len(es) > 0 {
		l.topics[newest] = es[:len(es)-1]
	}
	return l, nil
}

// load reads the file and gives the topic of its last whole record.
func (l *plainLog) load() (newest string, err error) {
	r := bufio.NewReader(l.file)
	var whole int64
	for {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			break // the end, or a record that a kill cut off
		}
		rec := make([]byte, binary.LittleEndian.Uint32(size[:]))
		if _, err := io.ReadFull(r, rec); err != nil {
			break
		}
		var e event.Event
		if err := event.DecodeBinary(rec, &e, ""); err != nil {
			return "", err
		}
		l.topics[e.Topic] = append(l.topics[e.Topic], e)
		whole += int64(len(size) + len(rec))
		newest = e.Topic
	}
	_, err = l.file.Seek(whole, io.SeekStart)
	return newest, err
}

func (l *plainLog) has(fault string) bool { return slices.Contains(l.faults, fault) }

func (l *plainLog) Append(_ context.Context, b store.Batch) ([]store.Appended, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var text []byte
	answers := make([]store.Appended, len(b.Events))
	for i, e := range b.Events {
		e.Seq = uint64(len(l.topics[e.Topic]) + 1)
		l.topics[e.Topic] = append(l.topics[e.Topic], e)
		answers[i].Seq = e.Seq
		rec := event.AppendBinary(nil, &e, true)
		text = append(binary.LittleEndian.AppendUint32(text, uint32(len(rec))), rec...)
	}
	_, err := l.file.Write(text)
	return answers, err
}

func (l *plainLog) Read(_ context.Context, q store.Query) iter.Seq2[event.Event, error] {
	l.mu.Lock()
	es := slices.Clone(l.topics[q.Topic])
	l.mu.Unlock()
	if q.Reverse {
		slices.Reverse(es)
	}
	return func(yield func(event.Event, error) bool) {
		n := 0
		for i, e := range es {
			if q.Key != "" && (e.Key != q.Key || l.has(faultStale)) || l.has(faultSkip) && q.Key == "" && i == len(es)/2 {
				continue
			}
			if n++; !yield(e, nil) || n == q.Limit {
				return
			}
		}
	}
}

func (l *plainLog) Bounds(_ context.Context, topic string) (store.Bounds, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return store.Bounds{First: 1, Last: uint64(len(l.topics[topic]))}, nil
}

func (l *plainLog) LocateID(_ context.Context, topic string, id event.ID) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// From the end: what is looked up here has just been appended.
	for _, e := range slices.Backward(l.topics[topic]) {
		if e.ID == id && !l.has(faultBlind) {
			return e.Seq, nil
		}
	}
	return 0, fmt.Errorf("locate %v: %w", id, store.ErrNotFound)
}

func (l *plainLog) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	l.mu.Lock()
	names := slices.Sorted(maps.Keys(l.topics))
	l.mu.Unlock()
	return func(yield func(store.Topic, error) bool) {
		for _, name := range names {
			b, err := l.Bounds(ctx, name)
			if !yield(store.Topic{Name: name, Bounds: b}, err) {
				return
			}
		}
	}
}

func (l *plainLog) Close() error { return l.file.Close() }
