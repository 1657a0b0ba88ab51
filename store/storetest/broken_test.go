package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"promethean/event"
	"promethean/store"
)

var brokenPromises = []struct {
	name   string
	spoil  func(f *faulty)
	caught []string // by all of these cases
}{
	{"seqs start again after a trim", func(f *faulty) {
		f.trim = func(ctx context.Context, topic string, before uint64) error {
			err := f.Reference.Trim(ctx, topic, before)
			if l := f.topics[topic]; l != nil && len(l.events) == 0 {
				l.last = 0
			}
			return err
		}
	}, []string{"trim/beyond the end", "expect/last seq of a topic"}},
	{"the last event of a batch is dropped", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			n := len(b.Events)
			if n < 2 {
				return f.Reference.Append(ctx, b)
			}
			last := b.Events[n-1]
			b.Events = b.Events[:n-1]
			got, err := f.Reference.Append(ctx, b)
			if err != nil {
				return nil, err
			}
			bounds, _ := f.Reference.Bounds(ctx, last.Topic)
			return append(got, store.Appended{Seq: bounds.Last + 1}), nil
		}
	}, []string{"order/a batch counts in the order given", "concurrent/batches stay whole"}},
	{"duplicates are forgotten", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			f.forget(0)
			return f.Reference.Append(ctx, b)
		}
	}, []string{"idempotence/a known id gives the stored event", "idempotence/one id from many appenders", "order/appended is found by every call"}},
	{"old duplicates are forgotten", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			f.forget(1000)
			return f.Reference.Append(ctx, b)
		}
	}, []string{"idempotence/ids of any kind after many events"}},
	{"ids are forgotten over a restart", func(f *faulty) {
		f.reopened = func(r *Reference) { r.forget(0) }
	}, []string{"idempotence/a known id gives the stored event", "locate/by id"}},
	{"ids are unique over all topics", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			for i := range b.Events {
				for topic := range f.topics {
					if e := f.topics[topic].byID(b.Events[i].ID); e != nil {
						b.Events = slices.Clone(b.Events)
						b.Events[i].Topic = topic
					}
				}
			}
			return f.Reference.Append(ctx, b)
		}
	}, []string{"idempotence/an id is unique per topic"}},
	{"a duplicate gives the new event back", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			got, err := f.Reference.Append(ctx, b)
			for i := range got {
				if got[i].Duplicate {
					e := at(b.Events[i], got[i].Seq)
					got[i].Original = &e
				}
			}
			return got, err
		}
	}, []string{"idempotence/a known id gives the stored event", "idempotence/an id twice in one batch"}},
	{"an event shows after a later one", func(f *faulty) {
		var calls atomic.Int64
		f.read = func(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
			late := calls.Add(1)%5 == 0
			b, _ := f.Reference.Bounds(ctx, q.Topic)
			return mapped(f.Reference.Read(ctx, q), func(e event.Event) (event.Event, bool) { return e, !late || e.Seq+1 != b.Last })
		}
	}, []string{"concurrent/nothing appears behind a reader"}},
	{"bounds run ahead", func(f *faulty) {
		f.bounds = func(ctx context.Context, topic string) (store.Bounds, error) {
			b, err := f.Reference.Bounds(ctx, topic)
			if b.Last > 0 {
				b.Last++
			}
			return b, err
		}
	}, []string{"concurrent/nothing appears behind a reader", "order/first seq is 1"}},
	{"a batch appears event by event", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) (out []store.Appended, err error) {
			for i := range b.Events {
				one := b
				one.Events = b.Events[i : i+1]
				if i > 0 {
					one.Expect, one.Settle = nil, nil
					runtime.Gosched()
				}
				got, err := f.Reference.Append(ctx, one)
				if err != nil {
					return nil, err
				}
				out = append(out, got...)
			}
			return out, nil
		}
	}, []string{"concurrent/batches stay whole", "atomic/a bad event stores nothing", "input/malformed events"}},
	{"expectations are not judged", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			b.Expect = nil
			return f.Reference.Append(ctx, b)
		}
	}, []string{"expect/last seq of a topic", "expect/racing for the topic", "atomic/a failed expectation stores nothing"}},
	{"expectations look at the log and not at what is pending", func(f *faulty) {
		var mu sync.RWMutex
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			for _, x := range b.Expect {
				mu.RLock()
				last := f.lastOf(x.Topic, x.Key)
				mu.RUnlock()
				if last != x.Seq {
					return nil, &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: last}
				}
			}
			b.Expect = nil
			for range 100 {
				runtime.Gosched()
			}
			mu.Lock()
			defer mu.Unlock()
			return f.Reference.Append(ctx, b)
		}
	}, []string{"expect/racing for a key"}},
	{"a retry is judged again", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			for _, x := range b.Expect {
				if last := f.lastOf(x.Topic, x.Key); last != x.Seq {
					return nil, &store.SeqConflictError{Topic: x.Topic, Key: x.Key, Expected: x.Seq, Actual: last}
				}
			}
			return f.Reference.Append(ctx, b)
		}
	}, []string{"expect/a retry is not judged again"}},
	{"a refused settlement leaves its events", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			settle := b.Settle
			b.Settle = nil
			got, err := f.Reference.Append(ctx, b)
			if err == nil && len(settle) > 0 {
				_, err = f.Reference.Append(ctx, store.Batch{Settle: settle})
			}
			if err != nil {
				return nil, err
			}
			return got, nil
		}
	}, []string{"atomic/a refused settlement stores nothing"}},
	{"epochs do not fence", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			b.Settle = slices.Clone(b.Settle)
			for i := range b.Settle {
				if c, err := f.Reference.Cursor(ctx, b.Settle[i].Topic, b.Settle[i].Group); err == nil {
					b.Settle[i].Epoch = c.Epoch
				}
			}
			return f.Reference.Append(ctx, b)
		}
	}, []string{"settle/refused", "settle/an epoch is taken", "settle/the version stays", "atomic/a refused settlement stores nothing"}},
	{"taking an epoch puts an old state back", func(f *faulty) {
		var old *store.Cursor // after the first settlement
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			if len(b.Settle) != 1 || b.Settle[0].Take == 0 || old == nil {
				got, err := f.Reference.Append(ctx, b)
				f.mu.Lock()
				defer f.mu.Unlock()
				if len(b.Settle) == 1 && old == nil {
					c := f.cursors[groupName{b.Settle[0].Topic, b.Settle[0].Group}].Clone()
					old = &c
				}
				return got, err
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			s := &b.Settle[0]
			name := groupName{s.Topic, s.Group}
			if f.cursors[name].Epoch != s.Epoch {
				return nil, store.ErrFenced
			}
			c := old.Clone()
			c.Settle(s)
			f.cursors[name] = c
			return nil, nil
		}
	}, []string{"settle/an epoch is taken"}},
	{"settlements count as versions", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			got, err := f.Reference.Append(ctx, b)
			for i := range b.Settle {
				name := groupName{b.Settle[i].Topic, b.Settle[i].Group}
				f.mu.Lock()
				if c, ok := f.cursors[name]; ok && err == nil {
					c.Version++
					f.cursors[name] = c
				}
				f.mu.Unlock()
			}
			return got, err
		}
	}, []string{"settle/the version stays"}},
	{"the last writer of a cursor wins", func(f *faulty) {
		f.put = func(ctx context.Context, c store.Cursor) (uint64, error) {
			old, _ := f.Reference.Cursor(ctx, c.Topic, c.Group)
			c.Version = old.Version
			return f.Reference.PutCursor(ctx, c)
		}
	}, []string{"cursor/only from the stored version"}},
	{"cursors are shared with the caller", func(f *faulty) {
		f.cursor = func(ctx context.Context, topic, group string) (store.Cursor, error) {
			if _, err := f.Reference.Cursor(ctx, topic, group); err != nil {
				return store.Cursor{}, err
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.cursors[groupName{topic, group}], nil
		}
	}, []string{"cursor/the caller owns what it gets"}},
	{"lists are not sorted", func(f *faulty) {
		f.topicList = func(ctx context.Context) iter.Seq2[store.Topic, error] { return backwards(f.Reference.Topics(ctx)) }
		f.cursorList = func(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
			return backwards(f.Reference.Cursors(ctx, topic))
		}
	}, []string{"topic/sorted by name", "cursor/listed in order"}},
	{"settings are lost over a restart", func(f *faulty) {
		f.reopened = func(r *Reference) {
			for _, l := range r.topics {
				l.settings = store.Settings{}
			}
		}
	}, []string{"topic/settings come back"}},
	{"times are searched as if they were sorted", func(f *faulty) {
		f.locateTime = func(ctx context.Context, topic string, ts int64) (uint64, error) {
			events := f.topic(topic).events
			i := sort.Search(len(events), func(i int) bool { return events[i].TS >= ts })
			return f.topic(topic).last - uint64(len(events)-i) + 1, nil
		}
	}, []string{"locate/by time", "locate/by time along many events"}},
	{"a trim goes over all topics", func(f *faulty) {
		f.trim = func(ctx context.Context, topic string, before uint64) error {
			for name := range f.topics {
				if strings.HasPrefix(name, topic) { // an index without a separator
					_ = f.Reference.Trim(ctx, name, before)
				}
			}
			return nil
		}
	}, []string{"trim/only its own topic"}},
	{"bytes never shrink", func(f *faulty) {
		f.trim = func(ctx context.Context, topic string, before uint64) error {
			bytes := f.topic(topic).bytes
			defer func() { f.topic(topic).bytes = bytes }()
			return f.Reference.Trim(ctx, topic, before)
		}
	}, []string{"trim/bytes shrink"}},
	{"payloads pass through a parser", func(f *faulty) {
		f.read = func(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
			return mapped(f.Reference.Read(ctx, q), func(e event.Event) (event.Event, bool) {
				var v any
				if json.Unmarshal(e.Payload, &v) == nil {
					e.Payload, _ = json.Marshal(v)
				}
				return e, true
			})
		}
	}, []string{"read/payload bytes are exact", "read/every field comes back"}},
	{"a read uses its memory again", func(f *faulty) {
		var mu sync.Mutex
		buffer := make([]byte, 1<<16)
		f.read = func(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
			at := 0
			return mapped(f.Reference.Read(ctx, q), func(e event.Event) (event.Event, bool) {
				mu.Lock()
				defer mu.Unlock()
				if at+len(e.Payload) > len(buffer) {
					at = 0
				}
				n := copy(buffer[at:], e.Payload)
				e.Payload = buffer[at : at+n : at+n]
				at += n
				return e, true
			})
		}
	}, []string{"read/a yielded event is kept for good"}},
	{"a limit counts before the filter", func(f *faulty) {
		f.read = func(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
			key := q.Key
			q.Key = ""
			return mapped(f.Reference.Read(ctx, q), func(e event.Event) (event.Event, bool) { return e, key == "" || e.Key == key })
		}
	}, []string{"read/every query"}},
	{"malformed events are stored", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			for i := range b.Events {
				if err := b.Events[i].Check(event.Limits{}); err != nil && errors.Is(err, event.ErrInvalidHeader) {
					b.Events = slices.Clone(b.Events)
					b.Events[i].Headers = nil
				}
			}
			return f.Reference.Append(ctx, b)
		}
	}, []string{"input/malformed events"}},
	{"errors do not name the event", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			got, err := f.Reference.Append(ctx, b)
			var bad *store.EventError
			if errors.As(err, &bad) {
				err = bad.Err
			}
			return got, err
		}
	}, []string{"input/malformed events", "atomic/a bad event stores nothing"}},
	{"the context is ignored", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			return f.Reference.Append(context.WithoutCancel(ctx), b)
		}
	}, []string{"cancel/before the call"}},
	{"a cancelled batch is stored in part", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			got, err := f.Reference.Append(ctx, b)
			if errors.Is(err, context.Canceled) && len(b.Events) > 1 {
				b.Events = b.Events[:1]
				_, _ = f.Reference.Append(context.WithoutCancel(ctx), b)
			}
			return got, err
		}
	}, []string{"cancel/while appends run"}},
	{"a wake-up comes before the event", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			f.mu.Lock()
			f.wake(b.Events)
			watches := f.watches
			f.watches = make(map[*store.Watch][]string)
			f.mu.Unlock()
			for range 100 {
				runtime.Gosched()
			}
			got, err := f.Reference.Append(ctx, b) // wakes nobody
			f.mu.Lock()
			f.watches = watches
			f.mu.Unlock()
			return got, err
		}
	}, []string{"watch/wakes when events are readable"}},
	{"everything wakes everybody", func(f *faulty) {
		f.watch = func(...string) *store.Watch { return f.Reference.Watch() }
	}, []string{"watch/only its own topics"}},
	{"a stopped watch is woken", func(f *faulty) {
		f.watch = func(topics ...string) *store.Watch {
			inner := f.Reference.Watch(topics...)
			w := store.NewWatch(func() {})
			f.mu.Lock()
			f.watches[w] = topics
			f.mu.Unlock()
			inner.Stop()
			return w
		}
	}, []string{"watch/nothing after Stop"}},
	{"asynchronous events never show", func(f *faulty) {
		f.append = func(ctx context.Context, b store.Batch) ([]store.Appended, error) {
			if !b.Async {
				return f.Reference.Append(ctx, b)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			got, _ := f.place(b.Events)
			return got, nil
		}
	}, []string{"async/becomes visible", "async/is there after Close", "idempotence/an answer waits for the original"}},
	{"a lease has two owners", func(f *faulty) {
		f.acquire = func(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
			f.mu.Lock()
			l := f.leases[name]
			f.mu.Unlock()
			if l.alive() {
				return store.Lease{Name: name, Owner: owner, Epoch: l.epoch, Expires: l.expires}, nil
			}
			return f.Reference.Acquire(ctx, name, owner, ttl)
		}
	}, []string{"lease/one owner at a time", "lease/renewed it goes on", "lease/many want it", "lease/many want a new one"}},
	{"a lease never ends", func(f *faulty) {
		f.acquire = func(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
			return f.Reference.Acquire(ctx, name, owner, 10*ttl)
		}
	}, []string{"lease/ends by itself"}},
	{"an epoch stays over the end of a lease", func(f *faulty) {
		f.acquire = func(ctx context.Context, name, owner string, ttl time.Duration) (store.Lease, error) {
			l, err := f.Reference.Acquire(ctx, name, owner, ttl)
			if err == nil {
				l.Epoch = 1
			}
			return l, err
		}
	}, []string{"lease/ends by itself", "lease/given back it is free", "lease/epochs rise over a restart"}},
	{"a lease that is over can be renewed", func(f *faulty) {
		f.renew = func(_ context.Context, l store.Lease, ttl time.Duration) (store.Lease, error) {
			l.Expires = time.Now().Add(ttl)
			return l, nil
		}
	}, []string{"lease/ends by itself", "lease/given back it is free", "lease/bad input"}},
	{"anybody can give a lease back", func(f *faulty) {
		f.release = func(_ context.Context, l store.Lease) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			h := f.leases[l.Name]
			h.owner = ""
			f.leases[l.Name] = h
			return nil
		}
	}, []string{"lease/ends by itself", "lease/given back it is free"}},
	{"a lease that is over has a holder", func(f *faulty) {
		f.holder = func(_ context.Context, name string) (store.Lease, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			l := f.leases[name]
			if f.closed {
				return store.Lease{}, store.ErrClosed
			}
			if l.owner == "" {
				return store.Lease{}, store.ErrNotFound
			}
			return store.Lease{Name: name, Owner: l.owner, Epoch: l.epoch, Expires: l.expires}, nil
		}
	}, []string{"lease/its holder is known"}},
	{"leases are forgotten over a restart", func(f *faulty) {
		f.reopened = func(r *Reference) { r.leases = make(map[string]heldLease) }
	}, []string{"lease/epochs rise over a restart"}},
	{"calls are served after Close", func(f *faulty) {
		f.close = func() error { return nil }
	}, []string{"lifecycle/calls after Close"}},
	{"Close loses what it acknowledged", func(f *faulty) {
		f.close = func() error {
			_ = f.Reference.Close()
			for _, l := range f.topics {
				if n := len(l.events); n > 0 {
					delete(l.seqs, l.events[n-1].ID)
					l.events, l.last = l.events[:n-1], l.last-1
				}
			}
			return nil
		}
	}, []string{"lifecycle/close while busy", "order/goes on after reopening"}},
	{"a goroutine is left", func(f *faulty) {
		forever := make(chan struct{})
		go func() { <-forever }()
	}, []string{"lifecycle/no goroutine is left"}},
}

// TestSuiteNotices breaks one promise at a time and wants the cases that are
// about it to fail.
func TestSuiteNotices(t *testing.T) {
	byName := make(map[string]Case)
	for _, c := range Cases() {
		if _, ok := byName[c.Name]; ok {
			t.Errorf("two cases are named %q", c.Name)
		}
		byName[c.Name] = c
	}
	for _, b := range brokenPromises {
		t.Run(b.name, func(t *testing.T) {
			for _, name := range b.caught {
				c, ok := byName[name]
				if !ok {
					t.Fatalf("there is no case %q", name)
				}
				if r := record(t, func(t testing.TB) { c.Run(t, harnessOf(b.spoil)) }); !r.Failed() {
					t.Errorf("case %q has not noticed", name)
				}
			}
		})
	}
}
