package main

import (
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"

	"promethean/event"
)

// linearFor bounds the search for an order.
const linearFor = 2 * time.Minute

// input of a call about the last seq of a topic.
type input struct {
	read   bool
	expect uint64
}

// output of it: the seq that was read or given, or a conflict.
type output struct {
	conflict bool
	seq      uint64
}

// lastSeq is the register that conditional publishes and reads must look like:
// its value is the last seq of the topic.
var lastSeq = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, in, out any) (bool, any) {
		last, i, o := state.(uint64), in.(input), out.(output)
		switch {
		case i.read:
			return o.seq == last, last
		case o.conflict:
			return i.expect != last, last
		}
		return i.expect == last && o.seq > last, o.seq
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		switch {
		case i.read:
			return fmt.Sprintf("read %d", o.seq)
		case o.conflict:
			return fmt.Sprintf("after %d: conflict", i.expect)
		}
		return fmt.Sprintf("after %d: %d", i.expect, o.seq)
	},
}

// operations are the calls about one topic. What was not answered counts by what
// the log says: it was stored, at some time after it was sent, or it was not.
func (h *history) operations(topic string) []porcupine.Operation {
	stored := make(map[event.ID]uint64)
	for _, e := range h.logs[topic] {
		stored[e.ID] = e.Seq
	}
	var ops []porcupine.Operation
	open := make(map[string]int) // of a call, its place in ops
	clients := make(map[string]int)
	client := func(e *entry) int {
		name := fmt.Sprintf("%s %d", e.Who, e.Op)
		if _, ok := clients[name]; !ok {
			clients[name] = len(clients)
		}
		return clients[name]
	}
	for i := range h.entries {
		e := &h.entries[i]
		call := fmt.Sprintf("%s %d", e.Who, e.Op)
		if e.Topic != topic {
			continue
		}
		switch e.Do {
		case doLast:
			ops = append(ops, porcupine.Operation{ClientId: client(e), Input: input{read: true}, Call: e.Out, Output: output{seq: e.Seq}, Return: e.T})
		case doPublish:
			if e.Expect == nil {
				continue
			}
			open[call] = len(ops)
			ops = append(ops, porcupine.Operation{
				ClientId: client(e), Input: input{expect: *e.Expect}, Call: e.T,
				Output: output{seq: stored[e.ID]}, Return: math.MaxInt64,
			})
		case doStored, doRefused:
			if n, ok := open[call]; ok {
				ops[n].Return = e.T
				ops[n].Output = output{seq: e.Seq, conflict: e.Do == doRefused}
			}
		}
	}
	var list []porcupine.Operation
	for _, o := range ops {
		if o.Return == math.MaxInt64 && o.Output.(output).seq == 0 {
			continue // it never happened
		}
		list = append(list, o)
	}
	return list
}

// judgeRegister wants the calls about a topic to look like those about one
// register. A picture of what does not fit is left in dir.
func (h *history) judgeRegister(topic, dir string, v *verdict) (calls int) {
	ops := h.operations(topic)
	result, info := porcupine.CheckOperationsVerbose(lastSeq, ops, linearFor)
	switch result {
	case porcupine.Ok:
	case porcupine.Unknown:
		v.add("conditional publishes are one register", "%s: no order of the %d calls was found within %v", topic, len(ops), linearFor)
	default:
		file := filepath.Join(dir, topic+".html")
		text := "see " + file
		if err := porcupine.VisualizePath(lastSeq, info, file); err != nil {
			text = err.Error()
		}
		v.add("conditional publishes are one register", "%s: the %d calls have no order in which each makes sense; %s", topic, len(ops), text)
	}
	return len(ops)
}
