package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"promethean/event"
	"promethean/wire"
)

// answer is an OK or an ERR of the hub.
type answer struct {
	refusal *Error // nil: OK

	id        event.ID
	seq       uint64
	duplicate bool

	ids        []event.ID
	seqs       []uint64
	duplicates []int

	results []result
}

// result is what became of one id.
type result struct {
	id   event.ID
	code string // "" if all is well
}

// incoming is a frame of the hub.
type incoming struct {
	op      string
	corr    uint64
	hasCorr bool
	answer  answer
	topic   string
	group   string
	list    []delivered

	generation uint64 // of ASSIGN
	partitions []int
}

// delivered is one event as it came.
type delivered struct {
	event                event.Event
	attempt, maxAttempts int
	lease                uint64
	deadline             time.Time // by the hub's clock
	cursor               uint64
	size                 int
}

// frameReader reads the frames of a hub. What it does not know it passes over,
// so that a hub may say more than this client understands. Nothing that it
// gives shares memory with the text.
type frameReader struct {
	r     event.Reader
	names map[string]string // topics and groups that came before
}

var errFrame = errors.New("the hub has sent what is no frame")

func (f *frameReader) read(data []byte, in *incoming) error {
	*in = incoming{}
	r := &f.r
	r.Reset(data)
	defer r.Free()
	if r.Kind() != '{' {
		return errFrame
	}
	var code, msg string
	var index *int
	var wrong []FieldError
	for more := r.Object(); more; more = r.More() {
		switch string(r.Name()) {
		case "op":
			in.op = f.name()
		case "corr":
			in.corr, in.hasCorr = f.uint(), true
		case "code":
			code = f.str()
		case "msg":
			msg = f.str()
		case "index":
			n := int(f.uint())
			index = &n
		case "errors":
			wrong = nil
			if err := json.Unmarshal(r.Value(), &wrong); err != nil {
				return fmt.Errorf("%w: errors: %w", errFrame, err)
			}
		case "id":
			in.answer.id = f.id()
		case "seq":
			in.answer.seq = f.uint()
		case "duplicate":
			in.answer.duplicate = string(r.Value()) == "true"
		case "ids":
			for range f.each() {
				in.answer.ids = append(in.answer.ids, f.id())
			}
		case "seqs":
			for range f.each() {
				in.answer.seqs = append(in.answer.seqs, f.uint())
			}
		case "duplicates":
			for range f.each() {
				in.answer.duplicates = append(in.answer.duplicates, int(f.uint()))
			}
		case "results":
			for range f.each() {
				in.answer.results = append(in.answer.results, f.result())
			}
		case "topic":
			in.topic = f.name()
		case "group":
			in.group = f.name()
		case "generation":
			in.generation = f.uint()
		case "partitions":
			for range f.each() {
				in.partitions = append(in.partitions, int(f.uint()))
			}
		case "events":
			for range f.each() {
				var d delivered
				f.delivered(&d)
				in.list = append(in.list, d)
			}
		case "event":
			d := f.single(in)
			f.event(&d.event)
			d.size = d.event.Size()
		case "ctx":
			f.context(f.single(in))
		default:
			r.Value()
		}
	}
	if err := r.End(); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	if in.op == "ERR" {
		in.answer.refusal = &Error{Code: code, Message: msg, Index: index, Errors: wrong}
	}
	return nil
}

// single is the only delivery of an EVENT.
func (f *frameReader) single(in *incoming) *delivered {
	if len(in.list) == 0 {
		in.list = make([]delivered, 1)
	}
	return &in.list[0]
}

func (f *frameReader) delivered(d *delivered) {
	if f.r.Kind() != '{' {
		f.r.Value()
		return
	}
	for more := f.r.Object(); more; more = f.r.More() {
		switch string(f.r.Name()) {
		case "event":
			f.event(&d.event)
		case "ctx":
			f.context(d)
		default:
			f.r.Value()
		}
	}
	d.size = d.event.Size()
}

func (f *frameReader) context(d *delivered) {
	if f.r.Kind() != '{' {
		f.r.Value()
		return
	}
	for more := f.r.Object(); more; more = f.r.More() {
		switch string(f.r.Name()) {
		case "attempt":
			d.attempt = int(f.uint())
		case "maxAttempts":
			d.maxAttempts = int(f.uint())
		case "lease":
			d.lease = f.uint()
		case "ack_deadline_ms":
			d.deadline = time.UnixMilli(int64(f.uint()))
		case "cursor":
			d.cursor = f.uint()
		default:
			f.r.Value()
		}
	}
}

func (f *frameReader) event(e *event.Event) {
	if f.r.Kind() != '{' {
		f.r.Value()
		return
	}
	for more := f.r.Object(); more; more = f.r.More() {
		switch string(f.r.Name()) {
		case "id":
			e.ID = f.id()
		case "seq":
			e.Seq = f.uint()
		case "ts":
			e.TS = int64(f.uint())
		case "topic":
			e.Topic = f.name()
		case "key":
			e.Key = f.str()
		case "partition":
			e.Partition = event.PartitionOf(int(f.uint()))
		case "sid":
			e.SID = f.str()
		case "headers":
			f.headers(e)
		case "payload":
			e.Payload = bytes.Clone(f.r.Value())
		case "caused_by":
			for range f.each() {
				e.CausedBy = append(e.CausedBy, f.str())
			}
		case "tags":
			for range f.each() {
				e.Tags = append(e.Tags, f.str())
			}
		default:
			f.r.Value()
		}
	}
}

func (f *frameReader) headers(e *event.Event) {
	if f.r.Kind() != '{' {
		f.r.Value()
		return
	}
	for more := f.r.Object(); more; more = f.r.More() {
		name := string(f.r.Name())
		e.Headers = append(e.Headers, event.Header{Name: name, Value: f.str()})
	}
}

func (f *frameReader) result() (x result) {
	if f.r.Kind() != '{' {
		f.r.Value()
		return x
	}
	ok := false
	for more := f.r.Object(); more; more = f.r.More() {
		switch string(f.r.Name()) {
		case "id":
			x.id = f.id()
		case "ok":
			ok = string(f.r.Value()) == "true"
		case "err":
			x.code = f.str()
		default:
			f.r.Value()
		}
	}
	if !ok && x.code == "" {
		x.code = string(wire.Internal)
	}
	return x
}

// each enters an array and yields once for each element, which is to be read.
func (f *frameReader) each() iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		if f.r.Kind() != '[' {
			f.r.Value()
			return
		}
		for more := f.r.Array(); more; more = f.r.More() {
			if !yield(struct{}{}) {
				return
			}
		}
	}
}

// str reads a string; of anything else it makes an empty one.
func (f *frameReader) str() string {
	if f.r.Kind() != '"' {
		f.r.Value()
		return ""
	}
	return string(f.r.Text())
}

// maxNames bounds how many names are remembered.
const maxNames = 1024

// name reads a string that comes again and again, which then costs nothing.
func (f *frameReader) name() string {
	if f.r.Kind() != '"' {
		f.r.Value()
		return ""
	}
	text := f.r.Text()
	if s, ok := f.names[string(text)]; ok {
		return s
	}
	if f.names == nil || len(f.names) >= maxNames {
		f.names = make(map[string]string)
	}
	s := string(text)
	f.names[s] = s
	return s
}

// uint reads a number, or a text that is one; anything else is 0.
func (f *frameReader) uint() uint64 {
	var raw []byte
	if f.r.Kind() == '"' {
		raw = f.r.Text()
	} else {
		raw = f.r.Value()
	}
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// id reads an id; of anything else it makes the zero one.
func (f *frameReader) id() event.ID {
	if f.r.Kind() != '"' {
		f.r.Value()
		return event.ID{}
	}
	id, err := f.r.ID()
	if err != nil {
		return event.ID{}
	}
	return id
}
