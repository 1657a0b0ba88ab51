package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"promethean/event"
	"promethean/gateway"
	"promethean/partition"
)

// churn is what all members of a group together have seen. The nth event of a key
// has n as its payload, from 1 on.
type churn struct {
	t *testing.T

	mu    sync.Mutex
	sent  map[string]int     // acks by key: all before it were sent too
	acked map[string]churned // the last that was answered with OK
	total int
}

// churner is one member, with a goroutine that reads.
type churner struct {
	c    *churn
	ws   *websocket.Conn
	has  []int
	open map[string]churned // acks without an answer, by id
	done chan struct{}
	over atomic.Bool // it is no member any more
}

type churned struct {
	key   string
	n     int
	lease uint64
}

func (s *served) churner(c *churn, member string) *churner {
	s.Helper()
	x := &churner{c: c, ws: s.dial().c, open: make(map[string]churned), done: make(chan struct{})}
	x.write(fmt.Sprintf(`{"op":"SUBSCRIBE","topic":"a.b","group":"g","opts":{"partitioned":true,"member":%q,"from":"earliest","maxInFlight":32}}`, member))
	go x.read()
	return x
}

func (x *churner) write(frame string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = x.ws.Write(ctx, websocket.MessageText, []byte(frame)) // it may be closed
}

// read takes frames until the connection ends.
func (x *churner) read() {
	defer close(x.done)
	for {
		_, data, err := x.ws.Read(context.Background())
		if err != nil {
			return
		}
		var f struct {
			Op, Code, Msg string
			Corr          string
			Partitions    []int
			Event         struct {
				ID, Key   string
				Partition int
				Payload   int
			}
			Ctx struct{ Lease string }
		}
		if err := json.Unmarshal(data, &f); err != nil {
			x.c.t.Errorf("%s: %v", data, err)
			return
		}
		switch f.Op {
		case "ASSIGN":
			x.has = f.Partitions
		case "EVENT":
			if !slices.Contains(x.has, f.Event.Partition) {
				x.c.t.Errorf("an event of partition %d came to the owner of %v", f.Event.Partition, x.has)
			}
			lease, err := strconv.ParseUint(f.Ctx.Lease, 10, 64)
			if err != nil {
				x.c.t.Error(err)
			}
			x.c.handed(f.Event.Key, f.Event.Payload, lease)
			x.open[f.Event.ID] = churned{f.Event.Key, f.Event.Payload, lease}
			x.write(fmt.Sprintf(`{"op":"ACK","corr":%q,"topic":"a.b","group":"g","id":%q,"lease":%q}`, f.Event.ID, f.Event.ID, f.Ctx.Lease))
		case "OK":
			if e, ok := x.open[f.Corr]; ok {
				x.c.settled(e)
			}
			delete(x.open, f.Corr)
		case "ERR":
			if f.Code != "fenced" {
				x.c.t.Errorf("%s", data)
			}
			if f.Corr == "" { // another has come with its id
				x.over.Store(true)
			}
			delete(x.open, f.Corr)
		}
	}
}

// handed checks that an event may be handed out: all before it of its key were
// acked, and it was not.
// It may be read late: what was handed out before the ack has a lower lease, since
// those of a partition ascend with its owners.
func (c *churn) handed(key string, n int, lease uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > c.sent[key]+1 {
		c.t.Errorf("key %s: event %d came before %d was acked", key, n, n-1)
	}
	if was := c.acked[key]; n <= was.n && lease > was.lease {
		c.t.Errorf("key %s: event %d came again with lease %d after %d was acked with lease %d", key, n, lease, was.n, was.lease)
	}
	c.sent[key] = max(c.sent[key], n)
}

func (c *churn) settled(e churned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.n > c.acked[e.key].n {
		c.acked[e.key] = e
	}
	c.total++
}

// TestPartedChurn has members come, leave, be cut off and take each other's place
// while events are published.
func TestPartedChurn(t *testing.T) {
	s := serveParted(t, gateway.Options{Ping: 1600 * time.Millisecond, MemberPing: 100 * time.Millisecond}, partition.Options{TTL: 5 * time.Second, Refresh: 50 * time.Millisecond, DrainTimeout: 200 * time.Millisecond})
	s.divide("a.b", 8)
	const keys, steps = 40, 60
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	c := &churn{t: t, sent: make(map[string]int), acked: make(map[string]churned)}
	counts := make(map[string]int)
	var members []*churner
	events := 0
	for range steps {
		batch := make([]event.Event, 0, keys)
		for range keys {
			key := fmt.Sprintf("k%d", random.IntN(keys))
			counts[key]++
			e := event.New("a.b", fmt.Appendf(nil, "%d", counts[key]))
			e.Key = key
			batch = append(batch, e)
		}
		if _, err := s.hub.Publish(context.Background(), batch...); err != nil {
			t.Fatal(err)
		}
		events += len(batch)
		members = slices.DeleteFunc(members, func(x *churner) bool {
			if x.over.Load() {
				_ = x.ws.CloseNow()
			}
			return x.over.Load()
		})
		switch n := random.IntN(6); {
		case n < 2 && len(members) < 6 || len(members) == 0:
			id := ""
			if random.IntN(2) == 0 {
				id = fmt.Sprintf("m%d", random.IntN(4)) // perhaps one that is there
			}
			members = append(members, s.churner(c, id))
		case n < 4 && len(members) > 1:
			i := random.IntN(len(members))
			if x := members[i]; n == 2 {
				x.write(`{"op":"UNSUBSCRIBE","topic":"a.b","group":"g"}`)
				_ = x.ws.Close(websocket.StatusNormalClosure, "")
				<-x.done
			} else {
				_ = x.ws.CloseNow()
				<-x.done
			}
			members = slices.Delete(members, i, i+1)
		default:
			_, lag := s.do("GET", "/lag?topic=a.b&group=g", "")
			before, _ := lag["lag"].(float64)
			s.until("some are settled", func() bool {
				_, lag := s.do("GET", "/lag?topic=a.b&group=g", "")
				now, _ := lag["lag"].(float64)
				return now < before || now == 0 || !slices.ContainsFunc(members, func(x *churner) bool { return !x.over.Load() })
			})
		}
	}
	members = append(members, s.churner(c, "last"))
	s.until("all are settled", func() bool {
		_, lag := s.do("GET", "/lag?topic=a.b&group=g", "")
		return lag["lag"] == 0.0
	})
	for _, x := range members {
		_ = x.ws.CloseNow()
		<-x.done
	}
	if c.total < events/2 { // some were settled whose answer nobody waited for
		t.Errorf("%d of %d events were seen to be settled", c.total, events)
	}
}
