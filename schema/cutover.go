package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"promethean/event"
	"promethean/store"
)

// CutoverTopic is where it is kept how far cutovers are.
const CutoverTopic = "system.cutovers"

const (
	// cutoverBatch and cutoverBytes bound what is copied at a time.
	cutoverBatch = 1000
	cutoverBytes = 2 << 20
	// cutoverSave is how often it is recorded how far it is. What was copied
	// since is copied again after a crash, and found to be there.
	cutoverSave = time.Second
	// cutoverTell is how often progress is told.
	cutoverTell = 200 * time.Millisecond
)

// Cutover is how far a cutover is.
type Cutover struct {
	Topic string `json:"topic"`
	To    string `json:"to"`
	// Seq is the one of Topic up to which everything is in To; Tail is where the
	// topic ended when the cutover began.
	Seq  uint64 `json:"seq"`
	Tail uint64 `json:"tail"`
	// Read, Copied and Duplicates are those of this run: events that were looked
	// at, those that were new to To, and those that were there already.
	Read       int `json:"read"`
	Copied     int `json:"copied"`
	Duplicates int `json:"duplicates"`
	// Verified is how many events of Topic up to Tail were found in To at the
	// end; each stands there once, since ids are unique.
	Verified int `json:"verified"`
	// Behind says how many events stood in To before the first run, written by
	// dual write or by somebody else: the history stands after them.
	Behind uint64 `json:"behind,omitempty"`
	Done   bool   `json:"done"`
}

// Cutover copies the history of a topic to topic.vN, where N is the latest
// version: every event up to the end of the topic, in order, upcast, with its
// id. What is there already is left as it is, so it can be run again, and goes
// on where it was if it was cut off. At the end it looks whether everything is
// there. tell may be nil; it hears how far it is, from time to time.
//
// An event that cannot be normalised ends it with an [*UpcastError]; what comes
// before it is copied.
func (r *Registry) Cutover(ctx context.Context, topic, to string, tell func(Cutover)) (Cutover, error) {
	c := Cutover{Topic: topic, To: to}
	if err := r.checkTarget(topic, to); err != nil {
		return c, fmt.Errorf("cut over topic %s: %w", topic, err)
	}
	if tell == nil {
		tell = func(Cutover) {}
	}
	err := r.cutover(ctx, &c, tell)
	if err == nil {
		err = r.verify(ctx, &c, tell)
	}
	if err != nil {
		return c, fmt.Errorf("cut over topic %s: %w", topic, err)
	}
	c.Done = true
	tell(c)
	return c, nil
}

// checkTarget says what is wrong with the place that a cutover is to go to.
func (r *Registry) checkTarget(topic, to string) error {
	if err := event.CheckTopic(topic); err != nil {
		return err
	}
	latest := r.Latest(topic)
	if latest == nil {
		return fmt.Errorf("%w: the topic has no schema", ErrInvalidSchema)
	}
	if want := VersionTopic(topic, latest.Version); to != want {
		return fmt.Errorf("%w: it goes to %s, since %d is the latest version, not to %q", ErrInvalidSchema, want, latest.Version, to)
	}
	return nil
}

// cutover copies up to the end of the topic.
func (r *Registry) cutover(ctx context.Context, c *Cutover, tell func(Cutover)) error {
	was, found, err := r.lastCutover(ctx, c.Topic, c.To)
	if err != nil {
		return err
	}
	b, err := r.hub.Log().Bounds(ctx, c.Topic)
	if err != nil {
		return err
	}
	target, err := r.hub.Log().Bounds(ctx, c.To)
	if err != nil {
		return err
	}
	c.Tail, c.Seq, c.Behind = b.Last, was.Seq, was.Behind
	if !found && !target.Empty() {
		c.Behind = target.Last + 1 - target.First
	}
	if c.Seq < b.First {
		c.Seq = b.First - 1 // what is before is gone
	}
	if !found {
		// What was there before is recorded before anything is copied: after a
		// crash nobody could tell it from the copies.
		if err := r.saveCutover(ctx, c); err != nil {
			return err
		}
	}
	tell(*c)
	saved, told := r.now(), r.now()
	for c.Seq < c.Tail {
		if err := r.copyBatch(ctx, c); err != nil {
			return errors.Join(err, r.saveCutover(context.WithoutCancel(ctx), c))
		}
		now := r.now()
		if now.Sub(saved) >= cutoverSave {
			if err := r.saveCutover(ctx, c); err != nil {
				return err
			}
			saved = now
		}
		if now.Sub(told) >= cutoverTell {
			tell(*c)
			told = now
		}
	}
	return r.saveCutover(ctx, c)
}

// copyBatch copies the next events.
func (r *Registry) copyBatch(ctx context.Context, c *Cutover) error {
	var list []event.Event
	bytes, seq := 0, c.Tail
	var broken error
	for e, err := range r.hub.Read(ctx, store.Query{Topic: c.Topic, After: c.Seq, Until: c.Tail, Limit: cutoverBatch}) {
		if err != nil {
			return err
		}
		now, err := r.Normalise(ctx, e)
		if err != nil {
			seq, broken = e.Seq-1, err // what comes before it is copied all the same
			break
		}
		if version, err := stamp(&now); err == nil && version > 0 && VersionTopic(c.Topic, version) != c.To {
			return fmt.Errorf("%w: version %d was registered meanwhile: cut over to %s", ErrInvalidSchema, version, VersionTopic(c.Topic, version))
		}
		now.Topic, now.Partition = c.To, 0
		list = append(list, now)
		if bytes += e.Size(); bytes >= cutoverBytes || len(list) == cutoverBatch {
			seq = e.Seq
			break
		}
	}
	got, err := r.hub.Publish(ctx, list...)
	if err != nil {
		return err
	}
	for i := range got {
		c.Read++
		if got[i].Duplicate {
			c.Duplicates++
		} else {
			c.Copied++
		}
	}
	c.Seq = max(seq, c.Seq)
	return broken
}

// verify looks whether every event is in the target.
func (r *Registry) verify(ctx context.Context, c *Cutover, tell func(Cutover)) error {
	told, missing, first := r.now(), 0, uint64(0)
	for e, err := range r.hub.Read(ctx, store.Query{Topic: c.Topic, Until: c.Tail}) {
		if err != nil {
			return err
		}
		if e.Seq > c.Tail {
			break
		}
		_, err := r.hub.Log().LocateID(ctx, c.To, e.ID)
		switch {
		case errors.Is(err, store.ErrNotFound):
			if missing++; missing == 1 {
				first = e.Seq
			}
			continue
		case err != nil:
			return err
		}
		c.Verified++
		if now := r.now(); now.Sub(told) >= cutoverTell {
			tell(*c)
			told = now
		}
	}
	if missing > 0 {
		return fmt.Errorf("%w: %d events are in %s and %d are missing, the first is seq %d of %s: retention may have removed them there", store.ErrNotFound, c.Verified, c.To, missing, first, c.Topic)
	}
	return nil
}

// lastCutover finds how far the last one came.
func (r *Registry) lastCutover(ctx context.Context, topic, to string) (c Cutover, found bool, err error) {
	for e, err := range r.hub.Read(ctx, store.Query{Topic: CutoverTopic, Reverse: true}) {
		if err != nil {
			return Cutover{}, false, err
		}
		if err := json.Unmarshal(e.Payload, &c); err != nil {
			return Cutover{}, false, fmt.Errorf("topic %s, seq %d: %w", CutoverTopic, e.Seq, err)
		}
		if c.Topic == topic && c.To == to {
			return c, true, nil
		}
	}
	return Cutover{}, false, nil
}

// cutoverKept is how long it is known how far a cutover came. One that is begun
// anew copies nothing twice.
const cutoverKept = 365 * 24 * time.Hour

// saveCutover records how far it is.
func (r *Registry) saveCutover(ctx context.Context, c *Cutover) error {
	topic, err := r.hub.SystemTopic("cutovers", cutoverKept)
	if err != nil {
		return err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return topic.Append(ctx, text)
}

// Apply changes settings of a topic: it does what they ask for, see
// [Registry.Prepare], then calls set, which stores them.
//
// Where dual write begins for a topic whose history was cut over, what came
// since is copied first, and publishing through [DualWrite] waits meanwhile: the
// events of topic.vN are then in the order of the topic. On an engine that
// several hubs share that holds for what this one publishes.
func (r *Registry) Apply(ctx context.Context, topic string, was, now store.Settings, set func() error) error {
	if topic == Topic && (now.Retention > 0 || now.MaxBytes > 0) {
		return fmt.Errorf("%w: %s must be kept for ever: stored events need their schemas", ErrInvalidSchema, Topic)
	}
	if err := r.Prepare(ctx, topic, was, now); err != nil {
		return err
	}
	old, err := SettingsOf(was)
	if err != nil {
		return err
	}
	next, err := SettingsOf(now)
	if err != nil {
		return err
	}
	latest := r.Latest(topic)
	if !next.DualWrite.Open(r.now()) || old.DualWrite.Open(r.now()) || latest == nil {
		return set()
	}
	c := Cutover{Topic: topic, To: VersionTopic(topic, latest.Version)}
	_, found, err := r.lastCutover(ctx, c.Topic, c.To)
	if err != nil {
		return err
	}
	if !found {
		return set()
	}
	// Most of it without anybody waiting.
	quiet := func(Cutover) {}
	if err := r.cutover(ctx, &c, quiet); err != nil {
		return fmt.Errorf("begin dual write of topic %s: %w", topic, err)
	}
	r.gate.shut()
	defer r.gate.open()
	if err := r.cutover(ctx, &c, quiet); err != nil {
		return fmt.Errorf("begin dual write of topic %s: %w", topic, err)
	}
	return set()
}
