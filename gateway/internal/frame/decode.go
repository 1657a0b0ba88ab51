package frame

import (
	"errors"
	"fmt"
	"strings"

	"promethean/event"
	"promethean/group"
	"promethean/wire"
)

// Decoder reads the frames of one client. It is not safe for concurrent use.
// The zero value is ready.
type Decoder struct {
	r           event.Reader
	f           *Frame
	err         *wire.Error // the first thing that is wrong beside the JSON itself
	place       place
	row         int               // the event of a batch that is read
	one         event.Event       // a single one is put together here
	seen        uint              // which parts of a frame were there
	ids, leases int               // how many ids and leases there were
	names       map[string]string // topics and groups that came before
}

// place is where in a frame the decoder reads, for messages.
type place byte

const (
	inFrame place = iota
	inOpts
	inRow
	inRowOpts
)

const (
	seenPayload = 1 << iota
	seenTopic
	seenTopics
	seenEvents
	seenID
	seenLease
	seenLeases
	seenExtend
	publishOpts   // an option that only PUBLISH has
	subscribeOpts // one that only SUBSCRIBE has
	seenOpts
	seenSeq
	seenTS
)

// Decode reads a frame into f and overwrites all of it. Where it fails, f has
// what the answer needs: Corr, if that was read. Errors are *wire.Error: wire.BadJSON for
// what event.CheckJSON refuses and for what is no object, wire.UnknownOp,
// wire.InvalidArgument for the rest, naming the field.
func (d *Decoder) Decode(data []byte, f *Frame) error {
	f.reset()
	d.f, d.err, d.place, d.seen, d.one = f, nil, inFrame, 0, event.Event{}
	d.ids, d.leases = 0, 0
	d.r.Reset(data)
	defer d.r.Free()
	if d.r.Kind() != '{' {
		d.r.Value()
		if err := d.r.End(); err != nil {
			return badJSON(err)
		}
		return wire.Errorf(wire.BadJSON, "a frame must be an object")
	}
	for more := d.r.Object(); more; more = d.r.More() {
		d.field(d.r.Name())
	}
	if err := d.r.End(); err != nil {
		return badJSON(err)
	}
	d.finish()
	d.f, d.one = nil, event.Event{} // the text is not ours to keep
	if d.err != nil {
		return d.err
	}
	return nil
}

func badJSON(err error) error { return &wire.Error{Code: wire.BadJSON, Msg: err.Error(), Err: err} }

// field reads one member of a frame.
func (d *Decoder) field(name []byte) {
	f := d.f
	switch string(name) {
	case "op":
		if d.r.Kind() != '"' {
			d.r.Value()
			return // unknown
		}
		text := d.r.Text()
		if f.Op = wire.OpOf(text); f.Op == wire.OpNone {
			d.fail(wire.UnknownOp, fmt.Sprintf("op: there is no %q", clip(text)))
		}
	case "corr":
		if k := d.r.Kind(); k != '"' && k != '0' {
			d.wrong("corr", "must be a string or a number")
			return
		}
		raw := d.r.Value()
		if len(raw) > wire.MaxCorr {
			d.invalid("corr", fmt.Sprintf("has %d bytes, the limit is %d", len(raw), wire.MaxCorr))
			return
		}
		f.Corr = raw
	case "token":
		f.Token = d.str("token")
	case "topic":
		d.seen |= seenTopic
		f.Topic = d.name("topic")
	case "topics":
		d.seen |= seenTopics
		n := 0
		for range d.list("topics", "must be an array of strings") {
			if n++; n <= wire.MaxTopics {
				f.Topics = append(f.Topics, d.name("topics"))
			} else {
				d.r.Value()
			}
		}
		d.bound("topics", n, wire.MaxTopics)
	case "group":
		f.Group = d.name("group")
	case "payload":
		d.seen |= seenPayload
		d.one.Payload = d.r.Value()
	case "events":
		d.events()
	case "opts":
		d.seen |= seenOpts
		d.place = inOpts
		d.object("opts", d.option)
		d.place = inFrame
	default:
		d.settling(name)
	}
}

// settling reads a member that belongs to ACK, NACK or MODACK.
func (d *Decoder) settling(name []byte) {
	f := d.f
	switch string(name) {
	case "id":
		d.seen |= seenID
		d.selected(0).ID = d.id("id")
		d.ids = 1
	case "ids":
		f.Many, d.ids = true, 0
		for range d.list("ids", "must be an array of ids") {
			d.selected(d.ids).ID = d.id("ids")
			d.ids++
		}
		d.bound("ids", d.ids, wire.MaxBatch)
	case "lease":
		d.seen |= seenLease
		d.selected(0).Lease = d.lease("lease")
	case "leases":
		d.seen |= seenLeases
		d.leases = 0
		for range d.list("leases", "must be an array of leases") {
			d.selected(d.leases).Lease = d.lease("leases")
			d.leases++
		}
		d.bound("leases", d.leases, wire.MaxBatch)
	case "reason":
		f.Nack.Reason = d.str("reason")
	case "delay_ms":
		f.Nack.Delay, f.Nack.HasDelay = d.millis("delay_ms", 0, wire.MaxDelay), true
	case "dead":
		f.Nack.Dead = d.boolean("dead")
	case "extend_ms":
		d.seen |= seenExtend
		f.Extend = d.millis("extend_ms", 0, wire.MaxExtend)
	default:
		d.unknown(name, "is not a field of a frame")
	}
}

// bound refuses a list that is too long.
func (d *Decoder) bound(field string, n, most int) {
	if n > most {
		d.fail(wire.BatchTooLarge, fmt.Sprintf("%s: there are %d, the limit is %d", field, n, most))
	}
}

// selected gives the nth of the deliveries that the frame is about. Those
// beyond the limit share a place.
func (d *Decoder) selected(n int) *group.Selected {
	n = min(n, wire.MaxBatch)
	for len(d.f.IDs) <= n {
		d.f.IDs = append(d.f.IDs, group.Selected{})
	}
	return &d.f.IDs[n]
}

// events reads the events of a batch.
func (d *Decoder) events() {
	f := d.f
	d.seen |= seenEvents
	f.Batch = true
	single := d.one
	f.Events = f.Events[:0]
	d.row = 0
	for range d.list("events", "must be an array of events") {
		d.one = event.Event{}
		d.place = inRow
		if d.r.Kind() != '{' {
			d.wrong("", "must be an object")
		} else {
			payload := false
			for more := d.r.Object(); more; more = d.r.More() {
				payload = d.rowField(d.r.Name()) || payload
			}
			switch {
			case !payload:
				d.invalid("payload", "must be there; null is a payload")
			case d.one.Topic == "":
				d.invalid("topic", "must be there")
			}
		}
		if d.row < wire.MaxBatch {
			f.Events = append(f.Events, d.one)
		}
		d.row++
	}
	d.place = inFrame
	d.bound("events", d.row, wire.MaxBatch)
	d.one = single
}

// rowField reads one member of an event of a batch, and says whether it was the
// payload.
func (d *Decoder) rowField(name []byte) bool {
	switch string(name) {
	case "topic":
		d.one.Topic = d.name("topic")
	case "payload":
		d.one.Payload = d.r.Value()
		return true
	case "opts":
		d.place = inRowOpts
		d.object("opts", d.option)
		d.place = inRow
	default:
		d.option(name)
	}
	return false
}

// option reads one of the options of PUBLISH or SUBSCRIBE.
func (d *Decoder) option(name []byte) {
	e := &d.one
	switch string(name) {
	case "ts": // of both
		e.TS = d.time("ts")
		d.f.Start.TS = e.TS
		d.seen |= seenTS
		return
	case "key":
		e.Key = d.str("key")
	case "id":
		e.ID = d.id("id")
	case "sid":
		e.SID = d.str("sid")
	case "partition":
		e.Partition = event.PartitionOf(int(d.number("partition", event.MaxPartitions-1)))
	case "headers":
		d.headers()
	case "tags":
		for range d.list("tags", "must be an array of strings") {
			e.Tags = append(e.Tags, d.str("tags"))
		}
	case "caused_by":
		for range d.list("caused_by", "must be an array of strings") {
			e.CausedBy = append(e.CausedBy, d.str("caused_by"))
		}
	case "expect_seq":
		if d.place != inOpts {
			d.invalid("expect_seq", "is not for the events of a batch")
			d.r.Value()
			return
		}
		d.f.Expect, d.f.HasExpect = d.number("expect_seq", 1<<64-1), true
	default:
		d.subscribing(name)
		return
	}
	d.seen |= publishOpts
}

// subscribing reads one of the options of SUBSCRIBE.
func (d *Decoder) subscribing(name []byte) {
	f := d.f
	if d.place != inOpts {
		d.unknown(name, "is not a field of an event")
		return
	}
	switch string(name) {
	case "ordering":
		f.Settings.Ordering = group.Ordering(d.name("ordering"))
	case "deadLetter":
		f.Settings.DeadLetter = group.Policy(d.name("deadLetter"))
	case "maxAttempts":
		f.Settings.MaxAttempts = d.clamped("maxAttempts", 1, 1_000_000)
	case "ackTimeoutMs":
		f.Settings.AckTimeout = d.millis("ackTimeoutMs", 1, wire.MaxExtend)
	case "filter":
		f.Settings.Filter = d.str("filter")
	case "partitioned":
		f.Partitioned = d.boolean("partitioned")
	case "from":
		f.Start.From = group.From(d.name("from"))
		switch f.Start.From {
		case group.Latest, group.Earliest, group.FromTS, group.AfterID, group.FromSeq:
		default:
			d.invalid("from", "must be one of latest, earliest, ts, afterId, seq")
		}
	case "afterId":
		f.Start.AfterID = d.id("afterId")
	case "seq":
		f.Start.Seq = d.number("seq", 1<<64-1)
		d.seen |= seenSeq
	case "batchSize":
		f.BatchSize = d.clamped("batchSize", 0, wire.MaxBatch)
	case "maxInFlight":
		f.MaxInFlight = d.clamped("maxInFlight", 0, wire.MaxInFlight)
	case "batch":
		f.PerFrame = d.clamped("batch", 0, wire.MaxBatch)
	case "member":
		f.Member = d.str("member")
	case "normalise":
		f.Normalise = d.boolean("normalise")
	default:
		d.unknown(name, "is not an option")
		return
	}
	d.seen |= subscribeOpts
}

// finish checks what a frame needs as a whole.
func (d *Decoder) finish() {
	f := d.f
	if f.Op == wire.OpNone {
		if d.err == nil || d.err.Code != wire.UnknownOp {
			d.err = wire.Errorf(wire.UnknownOp, "op: must be there, as a string")
		}
		return
	}
	switch {
	case f.Op != wire.OpSubscribe && d.seen&subscribeOpts != 0:
		d.invalid("opts", "has an option that only SUBSCRIBE takes")
	case f.Op != wire.OpPublish && d.seen&publishOpts != 0:
		d.invalid("opts", "has an option that only PUBLISH takes")
	}
	switch f.Op {
	case wire.OpAuth:
		if f.Token == "" {
			d.invalid("token", "must be there")
		}
	case wire.OpPublish:
		d.finishPublish()
	case wire.OpSubscribe, wire.OpUnsubscribe:
		d.finishTopics()
		d.need("group", f.Group)
		d.finishStart()
	case wire.OpAck, wire.OpNack, wire.OpModAck:
		d.needTopic()
		d.need("group", f.Group)
		d.finishIDs()
		if f.Op == wire.OpModAck && d.seen&seenExtend == 0 {
			d.invalid("extend_ms", "must be there")
		}
	case wire.OpPause, wire.OpResume:
		d.needTopic()
		d.need("group", f.Group)
	}
}

func (d *Decoder) finishIDs() {
	f := d.f
	switch {
	case f.Many && d.seen&seenID != 0:
		d.invalid("ids", "must stand without id beside it")
	case d.ids == 0:
		d.invalid("id", "must be there, or ids that are not empty")
	case f.Many && d.seen&seenLease != 0:
		d.invalid("lease", "goes with id; ids have leases")
	case d.seen&seenLeases != 0 && d.leases != d.ids:
		d.invalid("leases", "must be as many as ids")
	}
}

func (d *Decoder) finishPublish() {
	f := d.f
	if f.Batch {
		if d.seen&(seenPayload|seenTopic|seenOpts) != 0 {
			d.invalid("events", "must stand without topic, payload and opts beside it")
		}
		if len(f.Events) == 0 {
			d.invalid("events", "must not be empty")
		}
		return
	}
	d.needTopic()
	if d.seen&seenPayload == 0 {
		d.invalid("payload", "must be there; null is a payload")
	}
	d.one.Topic = f.Topic
	f.Events = append(f.Events, d.one)
}

func (d *Decoder) finishTopics() {
	f := d.f
	switch {
	case d.seen&seenTopic != 0 && d.seen&seenTopics != 0:
		d.invalid("topics", "must stand without topic beside it")
	case d.seen&seenTopics == 0:
		d.needTopic()
		f.Topics = append(f.Topics, f.Topic)
	case len(f.Topics) == 0:
		d.invalid("topics", "must not be empty")
	}
}

// finishStart finds what a place is named by, if from does not say, and checks
// that it has that.
func (d *Decoder) finishStart() {
	s := &d.f.Start
	if s.From == "" {
		switch {
		case d.seen&seenSeq != 0:
			s.From = group.FromSeq
		case !s.AfterID.IsZero():
			s.From = group.AfterID
		case d.seen&seenTS != 0:
			s.From = group.FromTS
		}
	}
	switch {
	case s.From == group.AfterID && s.AfterID.IsZero():
		d.invalid("opts.afterId", "must be there with from afterId")
	case s.From == group.FromSeq && d.seen&seenSeq == 0:
		d.invalid("opts.seq", "must be there with from seq")
	case s.From == group.FromTS && d.seen&seenTS == 0:
		d.invalid("opts.ts", "must be there with from ts")
	}
}

// needTopic asks for a topic; whether it is one is for others to say.
func (d *Decoder) needTopic() {
	if d.seen&seenTopic == 0 {
		d.invalid("topic", "must be there")
	}
}

func (d *Decoder) need(field, value string) {
	if value == "" {
		d.invalid(field, "must be there")
	}
}

// fail remembers the first error.
func (d *Decoder) fail(c wire.Code, msg string) {
	if d.err == nil {
		d.err = &wire.Error{Code: c, Msg: msg}
	}
}

// invalid says what is wrong with a field of the object that is read.
func (d *Decoder) invalid(field, rule string) {
	if d.err == nil {
		d.err = &wire.Error{Code: wire.InvalidArgument, Msg: d.path(field) + ": " + rule}
	}
}

func (d *Decoder) path(field string) string {
	switch d.place {
	case inOpts:
		return "opts." + field
	case inRow:
		return strings.TrimSuffix(fmt.Sprintf("events[%d].%s", d.row, field), ".")
	case inRowOpts:
		return fmt.Sprintf("events[%d].opts.%s", d.row, field)
	}
	return field
}

// wrong reports a value of the wrong type, and passes over it.
func (d *Decoder) wrong(field, rule string) {
	raw := d.r.Value()
	if string(raw) == "null" {
		rule = "must be left out where there is none, never null"
	}
	d.invalid(field, fmt.Sprintf("%s, found %s", rule, clip(raw)))
}

func (d *Decoder) unknown(name []byte, rule string) {
	d.r.Value()
	d.invalid(fmt.Sprintf("%q", clip(name)), rule)
}

// broken reports a rule of an event that a field breaks.
func (d *Decoder) broken(field string, err error) {
	var rule *event.RuleError
	if errors.As(err, &rule) {
		rule.Field = ""
	}
	d.invalid(field, err.Error())
}
