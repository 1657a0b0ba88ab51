// Package calls has calls of every kind. A comment at the end of a line says what
// is found on it.
package calls

import (
	"context"
	"encoding/json"
	"time"

	"promethean"
	"promethean/client"
	"promethean/deadletter"
	"promethean/event"
	"promethean/lint/testdata/calls/wrap"
	"promethean/schema"
	"promethean/store"
)

const constant = "a.b"

var (
	once  = constant
	twice = "a.b"
	// Open can be set by others.
	Open = "a.b"
)

type embedded struct {
	Inner string `json:"inner"`
	Hides int    `json:"-"`
}

type deep struct {
	*embedded
	time.Duration `json:"duration"`
	Any           any
	When          time.Time       `json:"when,omitzero"`
	Raw           json.RawMessage `json:"raw"`
	Bytes         []byte          `json:"bytes,omitempty"`
	List          []embedded      `json:"list"`
	Map           map[string]int  `json:"map"`
	Text          int64           `json:"text,string"`
	Struct        embedded        `json:"struct,omitempty"`
	Self          *deep           `json:"-,"`
	hidden        int
}

type level string

func (level) MarshalText() ([]byte, error) { return nil, nil }

type own struct{ A int }

func (*own) MarshalJSON() ([]byte, error) { return nil, nil }

type emitter struct{ wrap.Hub }

func calls(ctx context.Context, h *promethean.Hub, b promethean.Bus, c *client.Client, e emitter, v any, arg string) {
	h.Emit(ctx, "a.b", 1)                               // publish a.b number
	h.Emit(ctx, constant+".c", "x")                     // publish a.b.c string
	h.Emit(ctx, string(wrap.Name("a.b")), true)         // publish a.b boolean
	h.Emit(ctx, once, v)                                // publish a.b
	h.Emit(ctx, twice, v)                               //
	h.Emit(ctx, Open, v)                                //
	h.Emit(ctx, arg, v)                                 //
	h.Emit(ctx, "", v)                                  // publish
	e.Emit(ctx, "a.b", nil)                             // publish a.b
	c.Publish(ctx, "a.b", []string{}, client.Key("a"))  // publish a.b [string]
	promethean.PublishAs(ctx, b, "a.b", 1.5)            // publish a.b number
	promethean.PublishAs[any](ctx, b, "a.b", "x")       // publish a.b string
	h.Publish(ctx, event.New("a.b", nil))               // publish a.b
	h.Publish(ctx, event.Event{Topic: "a.b", Key: "x"}) // publish a.b
	h.Publish(ctx, []event.Event{{Topic: "a.b"}}...)    // publish a.b

	local := "a.b"
	h.Emit(ctx, local, 1) // publish a.b number
	changed := "a.b"
	changed += "c"
	h.Emit(ctx, changed, 1) //
	var x event.Event
	x.Topic = "a.b"                                                // publish a.b
	x.Headers = x.Headers.Set("x-a", "b")                          // header x-a
	x.Headers = event.Headers{{Name: "x-a"}, {"x-b", "c"}}         // header x-a, header x-b
	h.Emit(ctx, arg, 1, promethean.Header("x-a", "b"))             // header x-a
	h.Subscribe(ctx, "a.*", "g", nil, promethean.Topics("c", "d")) // subscribe a.*, subscribe c, subscribe d
	b.Subscribe(ctx, "a.b", "g", promethean.Handle(handle))        // subscribe a.b {Inner:string}
	h.SubscribeExactlyOnce(ctx, "a.b", "g", nil, time.Hour)        // subscribe a.b
	deadletter.Subscribe(ctx, b, "a.b", "g", 3, nil)               // subscribe a.b
	c.Subscribe(ctx, "a.b", "g", nil, client.Topics("c.*"))        // subscribe a.b, subscribe c.*
	c.Pull(ctx, client.PullRequest{Topic: "a.b"})                  // subscribe a.b
	h.Read(ctx, store.Query{Topic: "a.b"})                         // mention a.b
	h.Lag(ctx, "a.b", "g")                                         // mention a.b
	_ = schema.Definition{Topic: "a.b"}                            // register a.b

	wrap.Event("a.b")                                      // publish a.b
	wrap.First("a.b")                                      // publish a.b
	wrap.Assign("a.b")                                     // publish a.b
	wrap.Typed(ctx, h, "a.b", []int{1})                    // publish a.b [number]
	wrap.Typed[*level](ctx, h, "a.b", nil)                 // publish a.b
	wrap.Many("a.b", "c.*")                                // subscribe a.b, subscribe c.*
	wrap.Handled(ctx, b, promethean.Handle(handle), "a.b") // subscribe a.b {Inner:string}
	wrap.Head("v", "x-a")                                  // header x-a
	wrap.Changed("a.b")                                    //
	wrap.Address("a.b")                                    //
	here(ctx, h, "a.b", level(""))                         // publish a.b string

	h.Emit(ctx, "a.b", &deep{})                                            // publish a.b {inner:string?,duration:number,Any:_,when:string?,raw:_,bytes:string?,list:[{inner:string}],map:{…},text:string,struct:{inner:string},-:_}
	h.Emit(ctx, "a.b", own{})                                              // publish a.b
	h.Emit(ctx, "a.b", map[string]any{"a": 1, constant: []byte{}, arg: 1}) // publish a.b {a:number,a.b:string,…}
	h.Emit(ctx, "a.b", struct{ embedded }{})                               // publish a.b {inner:string}
	h.Emit(ctx, "a.b", map[level]map[string]int{"a": {"b": 1}, "c": nil})  // publish a.b {a:{b:number},c:_}
	h.Emit(ctx, "a.b", map[int]string{1: "a"})                             // publish a.b {…}
}

func stamped(ctx context.Context, h *promethean.Hub, c *client.Client, arg string) {
	h.Emit(ctx, "a.b", 1, promethean.Header("x-schema-version", "3")) // header x-schema-version, publish a.b@3 number
	h.Emit(ctx, "a.b", 1, promethean.Header("x-schema-version", arg)) // header x-schema-version, publish a.b@-1 number
	c.Publish(ctx, "a.b", 1, wrap.Head("2", "x-schema-version"))      // header x-schema-version, publish a.b@2 number
	wrap.Old(ctx, h, "a.b", 1)                                        // publish a.b@1 number
}

func handle(context.Context, struct{ Inner string }, event.Event, *promethean.Delivery) error {
	return nil
}

func here(ctx context.Context, h *promethean.Hub, topic string, v any) {
	twice = topic
	_, _ = h.Emit(ctx, topic, v)
}
