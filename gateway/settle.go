package gateway

import (
	"net/http"
	"strconv"

	"promethean/event"
	"promethean/gateway/auth"
	"promethean/group"
	"promethean/wire"
)

// maxIDs is how many deliveries may be settled at once.
const maxIDs = 10_000

// settleRequest is the body of POST /ack, /nack and /modack.
type settleRequest struct {
	Topic  string   `json:"topic"`
	Group  string   `json:"group"`
	IDs    []string `json:"ids,omitempty"`
	Leases []lease  `json:"leases,omitempty"`
	ID     string   `json:"id,omitempty"` // a single one, as in frames
	Lease  *lease   `json:"lease,omitempty"`

	Reason string  `json:"reason,omitempty"`    // of a nack
	Delay  *number `json:"delay_ms,omitempty"`  // of a nack
	Dead   bool    `json:"dead,omitempty"`      // of a nack
	Extend *number `json:"extend_ms,omitempty"` // of a modack
}

// selected reads which deliveries are meant.
func (in *settleRequest) selected() ([]group.Selected, error) {
	if in.ID != "" {
		if len(in.IDs) > 0 {
			return nil, wire.Errorf(wire.InvalidArgument, "id and ids: give one of them")
		}
		in.IDs = []string{in.ID}
		if in.Lease != nil {
			in.Leases = []lease{*in.Lease}
		}
	}
	switch {
	case len(in.IDs) == 0:
		return nil, wire.Errorf(wire.InvalidArgument, "ids: name at least one")
	case len(in.IDs) > maxIDs:
		return nil, wire.Errorf(wire.BatchTooLarge, "ids: %d ids, the limit is %d", len(in.IDs), maxIDs)
	case len(in.Leases) > 0 && len(in.Leases) != len(in.IDs):
		return nil, wire.Errorf(wire.InvalidArgument, "leases: %d of them for %d ids", len(in.Leases), len(in.IDs))
	}
	out := make([]group.Selected, len(in.IDs))
	for i, s := range in.IDs {
		id, err := event.ParseID(s)
		if err != nil {
			return nil, wire.Errorf(wire.InvalidArgument, "ids[%d]: %w", i, err)
		}
		out[i].ID = id
		if len(in.Leases) > 0 {
			out[i].Lease = uint64(in.Leases[i])
		}
	}
	return out, nil
}

// settling makes the handler of one of the three calls.
func settling(do func(e *group.Engine, in *settleRequest, ids []group.Selected) ([]group.Result, error)) handler {
	return func(c *call) error {
		var in settleRequest
		if err := c.decode(&in, false); err != nil {
			return err
		}
		if err := c.topic(auth.Subscribe, in.Topic); err != nil {
			return err
		}
		if err := checkGroup(in.Group); err != nil {
			return err
		}
		ids, err := in.selected()
		if err != nil {
			return err
		}
		results, err := do(c.g.hub.Engine(), &in, ids)
		if err != nil {
			return err
		}
		return c.answer(http.StatusOK, appendResults(nil, results))
	}
}

// The three calls.
var (
	// ack answers once the settlements are durable. It settles whoever holds
	// the events, so leases do not matter.
	ack = settling(func(e *group.Engine, in *settleRequest, ids []group.Selected) ([]group.Result, error) {
		return e.Ack(in.Topic, in.Group, ids, false)
	})
	nack = settling(func(e *group.Engine, in *settleRequest, ids []group.Selected) ([]group.Result, error) {
		return e.Nack(in.Topic, in.Group, ids, group.Nack{Reason: in.Reason, Delay: in.Delay.duration(wire.MaxDelay), HasDelay: in.Delay != nil, Dead: in.Dead})
	})
	modack = settling(func(e *group.Engine, in *settleRequest, ids []group.Selected) ([]group.Result, error) {
		if in.Extend == nil {
			return nil, wire.Errorf(wire.InvalidArgument, "extend_ms: say how long the leases shall last from now")
		}
		return e.Extend(in.Topic, in.Group, ids, in.Extend.duration(wire.MaxExtend))
	})
)

// appendResults writes what became of each id; count is of those that are done.
func appendResults(b []byte, list []group.Result) []byte {
	done := 0
	for i := range list {
		if list[i].Err == nil {
			done++
		}
	}
	b = append(b, `{"count":`...)
	b = strconv.AppendInt(b, int64(done), 10)
	b = append(b, `,"results":[`...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":"`...)
		b, _ = list[i].ID.AppendText(b) // never fails
		b = append(b, `","ok":`...)
		b = strconv.AppendBool(b, list[i].Err == nil)
		if err := list[i].Err; err != nil {
			b = append(b, `,"err":"`...)
			b = append(append(b, codeOf(err)...), '"')
		}
		b = append(b, '}')
	}
	return append(b, "]}\n"...)
}
