package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// seqs gives the seqs of deliveries.
func seqs(list []pulled) string {
	var out []string
	for _, d := range list {
		out = append(out, fmt.Sprint(d.Event.Seq))
	}
	return strings.Join(out, " ")
}

// drain pulls until nothing comes, acking all, and gives the seqs.
func (p *hub) drain(topic, group, opts string) (got []uint64) {
	p.Helper()
	for {
		list := p.pull(topic, group, 100, 1500, opts)
		if len(list) == 0 {
			return got
		}
		var ids []string
		for _, d := range list {
			got = append(got, d.Event.Seq)
			ids = append(ids, d.Event.ID)
		}
		for id, err := range p.settle("ack", topic, group, "", ids...) {
			if err != "" {
				p.Fatalf("ack %s: %s", id, err)
			}
		}
	}
}

func walkPull(p *hub) {
	const topic = "g.pull"
	for i := 1; i <= 6; i++ {
		p.publish(topic, fmt.Sprintf("?key=%c", 'a'+(i-1)%2), fmt.Sprint(i)) // keys: a b a b a b
	}
	if got := p.pull(topic, "late", 10, 0, ""); len(got) != 0 {
		p.Errorf("a new group begins at the end, and got %s", seqs(got))
	}
	early := `{"from":"earliest"}`
	first := p.pull(topic, "g", 10, 5000, early)
	if s := seqs(first); s != "1 2" {
		p.Fatalf("one event of each key at a time: got %s", s)
	}
	if d := first[0]; d.Attempt != 1 || d.Lease == nil || d.Deadline <= 0 || string(d.Event.Payload) != "1" {
		p.Errorf("%+v", d)
	}
	// The next one of a key comes when the one before is settled.
	if r := p.settle("ack", topic, "g", "", first[1].Event.ID); r[first[1].Event.ID] != "" {
		p.Error(r)
	}
	second := p.pull(topic, "g", 10, 5000, "")
	if s := seqs(second); s != "4" {
		p.Fatalf("after 2 was acked: got %s", s)
	}
	// A nack with a delay brings the event back after exactly that.
	began := time.Now()
	p.settle("nack", topic, "g", `,"delay_ms":300,"reason":"not now"`, first[0].Event.ID)
	third := p.pull(topic, "g", 10, 5000, "")
	if s := seqs(third); s != "1" || third[0].Attempt != 2 || time.Since(began) < 250*time.Millisecond || third[0].Lease == first[0].Lease {
		p.Fatalf("after a nack: %s, %+v, %v", s, third, time.Since(began))
	}
	// With an old lease it changes nothing; an ack settles whoever holds it.
	r := p.settle("nack", topic, "g", fmt.Sprintf(`,"leases":[%v]`, quoted(first[0].Lease)), first[0].Event.ID)
	if r[first[0].Event.ID] != "fenced" {
		p.Errorf("a nack with an old lease: %v", r)
	}
	if r := p.settle("modack", topic, "g", `,"extend_ms":60000`, third[0].Event.ID); r[third[0].Event.ID] != "" {
		p.Error(r)
	}
	if r := p.settle("ack", topic, "g", "", third[0].Event.ID, id2); r[third[0].Event.ID] != "" || r[id2] != "unknown_id" {
		p.Error(r)
	}
	p.settle("ack", topic, "g", "", second[0].Event.ID)
	if got := p.drain(topic, "g", ""); fmt.Sprint(got) != "[3 6 5]" && fmt.Sprint(got) != "[3 5 6]" && fmt.Sprint(got) != "[6 3 5]" {
		p.Errorf("the rest: %v", got)
	}
	if r := p.settle("ack", topic, "g", "", first[0].Event.ID); r[first[0].Event.ID] != "" {
		p.Errorf("acking again: %v", r)
	}
	if got := p.pull(topic, "g", 10, 0, ""); len(got) != 0 {
		p.Errorf("acked events come again: %s", seqs(got))
	}
	// Settings belong to the group.
	p.refused(409, "group_conflict", "POST", "/pull", `{"topic":"`+topic+`","group":"g","max":1,"opts":{"ordering":"none"}}`)
	p.refused(400, "invalid_argument", "POST", "/pull", `{"topic":"`+topic+`","group":"g2","max":1,"opts":{"ordering":"sideways"}}`)
	p.refused(400, "invalid_argument", "POST", "/pull", `{"topic":"`+topic+`","group":"","max":1}`)
	p.refused(400, "invalid_argument", "POST", "/pull", `{"topic":"`+topic+`","group":"g","max":-1}`)
	p.refused(400, "bad_json", "POST", "/pull", `{"topic":`)
	p.refused(409, "group_conflict", "POST", "/pull", `{"topic":"`+topic+`","group":"g3","max":1,"opts":{"partitioned":true}}`)
	// A filter settles what does not fit.
	if got := p.drain(topic, "f", `{"from":"earliest","filter":"event.key == 'a'"}`); fmt.Sprint(got) != "[1 3 5]" {
		p.Errorf("filtered: %v", got)
	}
	var lag struct{ Lag, Cursor, Tail uint64 }
	p.get(&lag, 200, "GET", "/lag?topic="+topic+"&group=f", "")
	if lag.Lag != 0 || lag.Cursor != 6 || lag.Tail != 6 {
		p.Errorf("lag of the filtered group: %+v", lag)
	}
	if got := p.drain(topic, "o", `{"from":"earliest","ordering":"topic"}`); fmt.Sprint(got) != "[1 2 3 4 5 6]" {
		p.Errorf("in the order of the topic: %v", got)
	}
	// A long poll ends when something comes.
	done := make(chan []pulled)
	go func() { done <- p.pull("g.poll", "g", 1, 20000, early) }()
	p.publish("g.poll", "", "1")
	select {
	case got := <-done:
		if len(got) != 1 {
			p.Errorf("the poll gave %d events", len(got))
		}
	case <-time.After(15 * time.Second):
		p.Fatal("the poll does not end")
	}
}

// quoted writes a value as JSON that came from JSON.
func quoted(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%.0f", v)
}

func walkTopics(p *hub) {
	var settings map[string]any
	p.get(nil, 200, "PUT", "/topics/h.made", `{"partitions":4,"retention":"72h"}`)
	p.get(nil, 200, "PUT", "/topics/h.made", `{"max_bytes":1000000}`)
	p.get(&settings, 200, "GET", "/topics/h.made", "")
	if s := fmt.Sprint(settings); !strings.Contains(s, "partitions:4") || !strings.Contains(s, "72h") || !strings.Contains(s, "max_bytes") {
		p.Errorf("settings do not merge: %v", settings)
	}
	r := p.publish("h.made", "?partition=3", `1`)
	if *r.Partition != 3 {
		p.Errorf("%+v", r)
	}
	if r := p.publish("h.made", "?key=dev:stt:1", `1`); *r.Partition < 0 || *r.Partition > 3 {
		p.Errorf("%+v", r)
	}
	a := p.call("GET", "/topics", "")
	if a.status != 200 || !strings.Contains(string(a.body), `"h.made"`) {
		p.Errorf("%d %s", a.status, a.body)
	}
	p.refused(400, "invalid_argument", "PUT", "/topics/h.made", `{"partitions":-1}`)
	p.refused(400, "invalid_argument", "PUT", "/topics/h.made", `{"retention":"soon"}`)
	p.refused(400, "invalid_argument", "PUT", "/topics/h.made", `{"colour":"red"}`)
	p.refused(400, "invalid_topic", "PUT", "/topics/H", `{}`)
	p.refused(400, "bad_json", "PUT", "/topics/h.made", `{`)
	p.refused(404, "not_found", "GET", "/topics/h.never", "")
}

func walkGroups(p *hub) {
	const topic = "i.groups"
	for i := 1; i <= 5; i++ {
		p.publish(topic, fmt.Sprintf("?ts=%d00", i), fmt.Sprint(i))
	}
	p.get(nil, 200, "PUT", "/groups/"+topic+"/g", `{"maxAttempts":3,"ackTimeoutMs":5000,"from":"earliest"}`)
	p.refused(409, "group_conflict", "POST", "/pull", `{"topic":"`+topic+`","group":"g","max":1,"opts":{"maxAttempts":4}}`)
	got := p.drain(topic, "g", "")
	if len(got) != 5 {
		p.Errorf("%v", got)
	}
	var cursors struct {
		Topic   string
		Cursors []struct {
			Group   string
			Seq     uint64
			LastID  string `json:"lastId"`
			LastTS  int64  `json:"lastTs"`
			Pending int
		}
	}
	p.get(&cursors, 200, "GET", "/cursors?topic="+topic, "")
	if len(cursors.Cursors) != 1 || cursors.Cursors[0].Seq != 5 || cursors.Cursors[0].LastTS != 500 || cursors.Cursors[0].LastID == "" || cursors.Cursors[0].Group != "g" {
		p.Errorf("%+v", cursors)
	}
	for _, move := range []struct {
		to   string
		want string
	}{
		{`{"from":"seq","seq":3}`, "[4 5]"},
		{`{"from":"ts","ts":200}`, "[2 3 4 5]"},
		{`{"from":"earliest"}`, "[1 2 3 4 5]"},
		{`{"from":"latest"}`, "[]"},
		{`{"from":"afterId","afterId":"` + cursors.Cursors[0].LastID + `"}`, "[]"},
	} {
		p.get(nil, 200, "PUT", "/cursors", `{"topic":"`+topic+`","group":"g","to":`+move.to+`}`)
		if got := fmt.Sprint(p.drain(topic, "g", "")); got != move.want {
			p.Errorf("after moving to %s: %s, want %s", move.to, got, move.want)
		}
	}
	p.refused(400, "cursor_unknown", "PUT", "/cursors", `{"topic":"`+topic+`","group":"g","to":{"from":"afterId","afterId":"`+id2+`"}}`)
	p.refused(404, "not_found", "PUT", "/cursors", `{"topic":"`+topic+`","group":"none","to":{"from":"earliest"}}`)
	p.refused(404, "not_found", "GET", "/lag?topic="+topic+"&group=none", "")
	if a := p.call("GET", "/groups?topic="+topic, ""); a.status != 200 || !strings.Contains(string(a.body), `"g"`) {
		p.Errorf("%d %s", a.status, a.body)
	}
	if a := p.call("DELETE", "/groups/"+topic+"/g", ""); a.status != 200 && a.status != 204 {
		p.Errorf("delete: %d %s", a.status, a.body)
	}
	p.refused(404, "not_found", "DELETE", "/groups/"+topic+"/g", "")
	p.refused(404, "not_found", "GET", "/lag?topic="+topic+"&group=g", "")
}

func walkKeys(p *hub) {
	for i := 1; i <= 4; i++ {
		p.publish("j.keys", fmt.Sprintf("?key=%c", 'a'+(i-1)%2), fmt.Sprint(i))
	}
	var latest map[string]*record
	p.get(&latest, 200, "GET", "/latest-by-key?topic=j.keys&key=a&key=b&key=none", "")
	if len(latest) != 3 || latest["a"].Seq != 3 || latest["b"].Seq != 4 || latest["none"] != nil {
		p.Errorf("%+v", latest)
	}
	var history struct {
		Topic, Key string
		Events     []record
	}
	p.get(&history, 200, "GET", "/history?topic=j.keys&key=a&limit=10", "")
	if history.Key != "a" || len(history.Events) != 2 || history.Events[0].Seq != 1 || history.Events[1].Seq != 3 {
		p.Errorf("%+v", history)
	}
	p.refused(400, "invalid_argument", "GET", "/history?topic=j.keys", "")
}

func walkDead(p *hub) {
	const topic = "k.dead"
	for i := 1; i <= 3; i++ {
		p.publish(topic, "?key=k", fmt.Sprint(i))
	}
	opts := `{"from":"earliest","maxAttempts":2}`
	for attempt := 1; attempt <= 2; attempt++ {
		d := p.pull(topic, "g", 1, 5000, opts)
		if seqs(d) != "1" || d[0].Attempt != attempt {
			p.Fatalf("attempt %d: %+v", attempt, d)
		}
		p.settle("nack", topic, "g", `,"reason":"poison","delay_ms":0`, d[0].Event.ID)
	}
	d := p.pull(topic, "g", 1, 5000, "")
	if seqs(d) != "2" {
		p.Fatalf("after the first is dead: %s", seqs(d))
	}
	p.settle("nack", topic, "g", `,"dead":true,"reason":"no use"`, d[0].Event.ID)
	if got := p.drain(topic, "g", ""); fmt.Sprint(got) != "[3]" {
		p.Errorf("the rest: %v", got)
	}
	a := p.call("GET", "/dlq", "")
	if a.status != 200 || !strings.Contains(string(a.body), topic) {
		p.Errorf("/dlq: %d %s", a.status, a.body)
	}
	a = p.call("GET", "/dlq/"+topic, "")
	for _, part := range []string{`"err":"poison"`, `"attempts":2`, `"group":"g"`, `"original":{`, `"err":"no use"`} {
		if !strings.Contains(string(a.body), part) {
			p.Errorf("/dlq/%s lacks %s: %s", topic, part, a.body)
		}
	}
	var rep struct{ Replayed, Remaining int }
	p.get(&rep, 200, "POST", "/dlq/"+topic+"/replay", `{"limit":1,"group":"g","to":"group"}`)
	if rep.Replayed != 1 || rep.Remaining != 1 {
		p.Errorf("%+v", rep)
	}
	if got := p.drain(topic, "g", ""); fmt.Sprint(got) != "[1]" {
		p.Errorf("replayed to the group: %v", got)
	}
	p.get(&rep, 200, "POST", "/dlq/"+topic+"/replay", `{}`)
	if rep.Replayed != 1 || rep.Remaining != 0 {
		p.Errorf("%+v", rep)
	}
	log := p.replay(topic)
	if e := log[len(log)-1]; len(log) != 4 || string(e.Payload) != "2" || e.ID == log[1].ID || len(e.CausedBy) != 1 || e.Headers["x-replayed-from"] == "" {
		p.Errorf("replayed to the topic: %+v", e)
	}
	p.get(&rep, 200, "POST", "/dlq/"+topic+"/replay", `{}`)
	if rep.Replayed != 0 {
		p.Errorf("it is replayed again: %+v", rep)
	}
	p.refused(400, "invalid_argument", "POST", "/dlq/"+topic+"/replay", `{"limit":-1}`)
	p.refused(400, "invalid_argument", "POST", "/dlq/"+topic+"/replay", `{"to":"moon"}`)
}

// TestContractDurable ends the hub by a crash between calls: what was
// acknowledged is there, what was acked is done, and attempts count.
func TestContractDurable(t *testing.T) {
	p := startHub(t, "--store", "file://"+t.TempDir())
	for i := 1; i <= 4; i++ {
		p.publish("l.log", "?key="+fmt.Sprint(i), fmt.Sprint(i))
	}
	p.crash()
	if log := p.replay("l.log"); len(log) != 4 {
		t.Fatalf("%d of 4 events after a crash", len(log))
	}
	d := p.pull("l.log", "g", 10, 5000, `{"from":"earliest","ordering":"none"}`)
	if len(d) != 4 {
		t.Fatalf("%d of 4 are delivered", len(d))
	}
	p.settle("ack", "l.log", "g", "", d[0].Event.ID, d[2].Event.ID)
	p.crash()
	got := map[uint64]int{}
	for len(got) < 2 {
		// After an unclean stop they come one at a time.
		d := p.pull("l.log", "g", 10, 10000, "")
		if len(d) != 1 {
			t.Fatalf("%d events at once after a crash: %s", len(d), seqs(d))
		}
		got[d[0].Event.Seq] = d[0].Attempt
		p.settle("ack", "l.log", "g", "", d[0].Event.ID)
	}
	if got[d[1].Event.Seq] != 2 || got[d[3].Event.Seq] != 2 {
		t.Errorf("attempts after a crash: %v", got)
	}
	if more := p.pull("l.log", "g", 10, 0, ""); len(more) != 0 {
		t.Errorf("acked events come again: %s", seqs(more))
	}
	// An event that ends the hub each time is dead in the end, and its
	// neighbours are not.
	for i := 1; i <= 2; i++ {
		p.publish("l.killer", "?key="+fmt.Sprint(i), fmt.Sprint(i))
	}
	opts := `{"from":"earliest","maxAttempts":3}`
	for attempt := 1; attempt <= 3; attempt++ {
		d := p.pull("l.killer", "g", 1, 10000, opts)
		if seqs(d) != "1" || d[0].Attempt != attempt {
			t.Fatalf("attempt %d: %+v", attempt, d)
		}
		p.crash()
	}
	if got := p.drain("l.killer", "g", opts); fmt.Sprint(got) != "[2]" {
		t.Errorf("after the killer is dead: %v", got)
	}
	if a := p.call("GET", "/dlq/l.killer", ""); !strings.Contains(string(a.body), `"attempts":3`) {
		t.Errorf("%s", a.body)
	}
	p.stop()
	p.start()
	if log := p.replay("l.log"); len(log) != 4 {
		t.Errorf("%d of 4 events after a stop", len(log))
	}
	p.stop()
}
