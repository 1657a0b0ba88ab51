package event

import (
	"encoding/json"
	"testing"
	"time"
)

func TestNew(t *testing.T) {
	before := time.Now().UnixMilli()
	e := New("process.state", json.RawMessage(`{"pid":7}`))
	after := time.Now().UnixMilli()
	if e.TS < before || e.TS > after || e.Time().UnixMilli() != e.TS {
		t.Errorf("ts %d, want from %d to %d", e.TS, before, after)
	}
	if _, ok := e.ID.Time(); !ok || e.Topic != "process.state" || string(e.Payload) != `{"pid":7}` || e.Seq != 0 {
		t.Errorf("got %#v", e)
	}
	if err := e.Check(Limits{}); err != nil {
		t.Error(err)
	}
	if next := New("process.state", e.Payload); !less(e.ID, next.ID) {
		t.Errorf("%s follows %s", next.ID, e.ID)
	}
}
