package schema_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"promethean/event"
	"promethean/schema"
	"promethean/store"
)

// history publishes events of two versions.
func (w *world) history(n int) {
	w.Helper()
	list := make([]event.Event, n)
	for i := range list {
		if list[i] = stamped("1", fmt.Sprintf(`{"pid":%d,"mem_mb":1}`, i)); i%2 == 1 {
			list[i] = stamped("2", fmt.Sprintf(`{"pid":%d,"mem_mib":1}`, i))
		}
		list[i].Key = fmt.Sprint(i % 7)
	}
	if _, err := w.hub.Publish(w.ctx, list...); err != nil {
		w.Fatal(err)
	}
}

// same wants one topic to hold what another does, in its order.
func (w *world) same(from, to string) {
	w.Helper()
	one, two := w.events(from), w.events(to)
	if len(one) != len(two) {
		w.Fatalf("%d and %d events", len(one), len(two))
	}
	for i := range one {
		if one[i].ID != two[i].ID || one[i].Key != two[i].Key || one[i].TS != two[i].TS || header(two[i], schema.VersionHeader) != "3" {
			w.Fatalf("event %d: %+v and %+v", i, one[i], two[i])
		}
	}
}

func TestCutover(t *testing.T) {
	w := start(t)
	to := topic + ".v3"
	if _, err := w.reg.Cutover(w.ctx, topic, to, nil); !errors.Is(err, schema.ErrInvalidSchema) {
		t.Errorf("%v", err)
	}
	w.all()
	for _, bad := range []string{topic + ".v2", topic, "", "a.view", topic + ".v03"} {
		if _, err := w.reg.Cutover(w.ctx, topic, bad, nil); !errors.Is(err, schema.ErrInvalidSchema) || !strings.Contains(err.Error(), to) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	w.history(3500)
	ctx, cancel := context.WithCancel(w.ctx)
	_, err := w.reg.Cutover(ctx, topic, to, func(c schema.Cutover) {
		if c.Tail != 3500 {
			t.Errorf("%+v", c)
		}
		cancel() // cut off at once
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	got, err := w.reg.Cutover(w.ctx, topic, to, nil)
	if err != nil || !got.Done || got.Verified != 3500 || got.Seq != 3500 || got.Copied+got.Duplicates != got.Read || got.Behind != 0 {
		t.Errorf("%+v %v", got, err)
	}
	w.same(topic, to)
	// Again: what is new is copied, nothing else is read.
	w.history(10)
	if got, err = w.reg.Cutover(w.ctx, topic, to, nil); err != nil || got.Read != 10 || got.Copied != 10 || got.Verified != 3510 {
		t.Errorf("%+v %v", got, err)
	}
	w.same(topic, to)
	// An event that cannot be normalised ends it; what comes before is there.
	w.history(5)
	if _, err := w.hub.Publish(w.ctx, stamped("1", `{"pid":1}`)); err != nil {
		t.Fatal(err)
	}
	w.history(5)
	var up *schema.UpcastError
	if got, err = w.reg.Cutover(w.ctx, topic, to, nil); !errors.As(err, &up) || up.Seq != 3516 || got.Seq != 3515 {
		t.Errorf("%+v %v", got, err)
	}
	if got := len(w.events(to)); got != 3515 {
		t.Errorf("%d events", got)
	}
	// What the target has lost is found missing.
	w.register(schema.Definition{Topic: "b.c", Schema: v1})
	for range 3 {
		e := event.New("b.c", []byte(`{"pid":1,"mem_mb":1}`))
		if _, err := w.hub.Publish(w.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.reg.Cutover(w.ctx, "b.c", "b.c.v1", nil); err != nil {
		t.Fatal(err)
	}
	if err := w.hub.Log().Trim(w.ctx, "b.c.v1", 2); err != nil {
		t.Fatal(err)
	}
	if got, err := w.reg.Cutover(w.ctx, "b.c", "b.c.v1", nil); err == nil || got.Verified != 2 || !strings.Contains(err.Error(), "1 are missing") {
		t.Errorf("%+v %v", got, err)
	}
}

// A version that is registered while a cutover runs ends it: what is copied is of
// one version.
func TestRegisteredMeanwhile(t *testing.T) {
	w := start(t)
	w.register(schema.Definition{Topic: topic, Schema: v1})
	w.register(schema.Definition{Topic: topic, Schema: v2, Upcast: to2})
	w.history(2500)
	once := false
	_, err := w.reg.Cutover(w.ctx, topic, topic+".v2", func(schema.Cutover) {
		if !once {
			once = true
			w.register(schema.Definition{Topic: topic, Schema: v3, Upcast: to3})
		}
	})
	if !errors.Is(err, schema.ErrInvalidSchema) || !strings.Contains(err.Error(), topic+".v3") {
		t.Errorf("%v", err)
	}
	for _, e := range w.events(topic + ".v2") {
		if header(e, schema.VersionHeader) != "2" {
			t.Fatalf("%+v", e)
		}
	}
}

// Dual write that begins after a cutover, while everybody publishes, leaves the
// two topics with the same events in the same order.
func TestDualWriteAfterCutover(t *testing.T) {
	w := start(t)
	w.all()
	to := topic + ".v3"
	w.history(2000)
	bus := schema.Validate(schema.DualWrite(w.hub, w.reg), w.reg)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for p := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				e := stamped([]string{"1", "2"}[i%2], []string{`{"pid":1,"mem_mb":1}`, `{"pid":1,"mem_mib":1}`}[i%2])
				e.Key = fmt.Sprint(p)
				if _, err := bus.Publish(w.ctx, e); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	if _, err := w.reg.Cutover(w.ctx, topic, to, nil); err != nil {
		t.Fatal(err)
	}
	var was, now store.Settings
	if err := (schema.Settings{DualWrite: schema.Window{On: true}}).Put(&now); err != nil {
		t.Fatal(err)
	}
	if err := w.reg.Apply(w.ctx, topic, was, now, func() error { return w.hub.SetTopic(w.ctx, topic, now) }); err != nil {
		t.Fatal(err)
	}
	e := stamped("3", `{"pid":1,"mem":{"mib":1}}`)
	if _, err := bus.Publish(w.ctx, e); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	w.same(topic, to)
	if got, err := w.reg.Cutover(w.ctx, topic, to, nil); err != nil || got.Copied != 0 {
		t.Errorf("%+v %v", got, err)
	}
}
