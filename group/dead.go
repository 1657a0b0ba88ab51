package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"promethean/event"
	"promethean/store"
)

// LetterPrefix is what the topic of dead letters begins with.
const LetterPrefix = "dlq."

// LetterTopic is where the dead letters of a topic go.
func LetterTopic(topic string) string { return LetterPrefix + topic }

// Letter is the payload of a dead letter.
type Letter struct {
	Topic    string      `json:"topic"`
	Group    string      `json:"group"`
	Original event.Event `json:"original"`
	Err      string      `json:"err"`
	TS       int64       `json:"ts"`
	Attempts int         `json:"attempts"`
	// Parked says that the letter's key waits for it.
	Parked bool `json:"parked,omitempty"`
}

// space is the namespace of dead letters' ids.
var space = event.NameID(event.ID{}, "promethean dead letter")

// maxErr is how much of an error a dead letter tells.
const maxErr = 8 << 10

// letterPartition is where dead letters are. Every topic has that partition,
// and so the dead letters of a key are in one, however many there come to be.
var letterPartition = event.PartitionOf(0)

// letter makes the dead letter of an item. There is none of a dead letter.
func (r *runner) letter(it *item, original *event.Event, generation uint64) (event.Event, bool) {
	if strings.HasPrefix(r.topic, LetterPrefix) {
		r.e.o.Logger.Warn("a dead letter failed and stays where it is", "topic", r.topic, "group", r.group, "id", it.id, "err", it.reason)
		return event.Event{}, false
	}
	l := Letter{
		Topic: r.topic, Group: r.group, Original: *original, Err: it.reason,
		Attempts: int(it.delivered), Parked: r.parks(it),
	}
	return r.e.letterEvent(&l, it.key, generation, it.letter), true
}

// letterEvent makes the event that a dead letter is stored as. Its id follows
// from what failed, in which generation of the group, and handed out again for
// which letter.
func (e *Engine) letterEvent(l *Letter, key string, generation, again uint64) event.Event {
	l.TS, l.Err = time.Now().UnixMilli(), shorten(l.Err, maxErr)
	was := event.Event{ID: l.Original.ID, Seq: l.Original.Seq, Topic: l.Topic, Payload: json.RawMessage("null")}
	b, err := l.AppendJSON(nil)
	if err != nil {
		// It was stored, so it is sound; a dead letter without it is better
		// than a group that cannot go on.
		e.o.Logger.Error("encode a dead letter", "topic", l.Topic, "group", l.Group, "id", was.ID, "err", err)
		l.Original = was
		b, _ = l.AppendJSON(nil)
	}
	id := event.NameID(space, fmt.Sprintf("%s\n%s\n%s\n%d\n%d", l.Topic, l.Group, was.ID, generation, again))
	return event.Event{ID: id, TS: l.TS, Topic: LetterTopic(l.Topic), Key: key, Partition: letterPartition, Payload: b}
}

// AppendJSON appends the JSON of a letter, which is the payload that it is stored
// as; the original keeps its bytes.
func (l *Letter) AppendJSON(b []byte) ([]byte, error) {
	b = append(b, `{"topic":`...)
	b = appendText(b, l.Topic)
	b = append(b, `,"group":`...)
	b = appendText(b, l.Group)
	b = append(b, `,"original":`...)
	b, err := l.Original.AppendJSON(b)
	if err != nil {
		return nil, err
	}
	b = append(b, `,"err":`...)
	b = appendText(b, l.Err)
	b = append(b, `,"ts":`...)
	b = strconv.AppendInt(b, l.TS, 10)
	b = append(b, `,"attempts":`...)
	b = strconv.AppendInt(b, int64(l.Attempts), 10)
	if l.Parked {
		b = append(b, `,"parked":true`...)
	}
	return append(b, '}'), nil
}

func (r *runner) parks(it *item) bool { return r.set.DeadLetter == DeadKey && it.key != "" }

// appendText appends s as a JSON string.
func appendText(b []byte, s string) []byte {
	t, err := json.Marshal(strings.ToValidUTF8(s, "�"))
	if err != nil {
		panic(err) // a string: it cannot fail
	}
	return append(b, t...)
}

// shorten cuts s to at most n bytes, at a character.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// What was done with dead letters is kept as two groups on their topic, for
// each group that they come from: what is to be handed to it again, and what
// has been replayed. Nobody owns them, so their epoch stays 0.
func requestedName(group string) string { return "system.requested:" + group }
func replayedName(group string) string  { return "system.replayed:" + group }

// ofLetters says what a record changes about dead letters: those it is done
// with, and how often their originals were delivered again.
func (r *runner) ofLetters(rec *record) []store.Settlement {
	var done store.Ranges
	var counts []store.Attempt
	for _, it := range rec.records {
		if it.letter != 0 {
			counts = append(counts, store.Attempt{Seq: it.letter, Count: it.delivered + 1})
		}
	}
	for _, list := range [][]*item{rec.acks, rec.dead} {
		for _, it := range list {
			if it.letter != 0 {
				done.Add(store.Range{First: it.letter, Last: it.letter})
			}
		}
	}
	if len(done) == 0 && len(counts) == 0 {
		return nil
	}
	return []store.Settlement{{Topic: LetterTopic(r.topic), Group: replayedName(r.group), Done: done, Attempts: counts}}
}

// releaseKeys counts the dead letters of parked keys after a record, and
// releases keys that have none left. mu must be held.
func (r *runner) releaseKeys(rec *record) {
	if r.set.DeadLetter != DeadKey {
		return
	}
	for _, it := range rec.dead {
		if it.key != "" {
			r.parked[it.key]++
		}
	}
	for _, list := range [][]*item{rec.acks, rec.dead} {
		for _, it := range list {
			if it.letter == 0 || it.key == "" {
				continue
			}
			if r.parked[it.key]--; r.parked[it.key] <= 0 {
				delete(r.parked, it.key)
			}
		}
	}
}

// letterCursor gives one of the two, empty if it does not exist.
func (e *Engine) letterCursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	c, err := e.log.Cursor(ctx, LetterTopic(topic), group)
	if errors.Is(err, store.ErrNotFound) {
		return store.Cursor{Topic: LetterTopic(topic), Group: group}, nil
	}
	return c, err
}

func settled(c *store.Cursor, seq uint64) bool { return seq <= c.Floor || c.Settled.Contains(seq) }

// foundLetter is a dead letter that matters to its group: its key is parked,
// or it is to be handed out again.
type foundLetter struct {
	seq      uint64
	key      string
	parks    bool
	asked    bool
	attempts uint32
	original event.Event
}

// findLetters finds out which keys are parked, and which dead letters are to
// be handed out again.
func (r *runner) findLetters(ctx context.Context) (found []foundLetter, err error) {
	if strings.HasPrefix(r.topic, LetterPrefix) {
		return nil, nil
	}
	requested, err := r.e.letterCursor(ctx, r.topic, requestedName(r.group))
	if err != nil {
		return nil, err
	}
	if r.set.DeadLetter != DeadKey && requested.Version == 0 {
		return nil, nil
	}
	replayed, err := r.e.letterCursor(ctx, r.topic, replayedName(r.group))
	if err != nil {
		return nil, err
	}
	for ev, err := range r.e.log.Read(ctx, store.Query{Topic: LetterTopic(r.topic), After: replayed.Floor}) {
		if err != nil {
			return nil, err
		}
		if settled(&replayed, ev.Seq) {
			continue
		}
		var l Letter
		if err := json.Unmarshal(ev.Payload, &l); err != nil || l.Group != r.group || !r.isMine(&l.Original) {
			continue
		}
		f := foundLetter{
			seq: ev.Seq, key: ev.Key, parks: l.Parked && r.set.DeadLetter == DeadKey,
			asked: settled(&requested, ev.Seq), attempts: replayed.Attempts[ev.Seq],
		}
		if f.asked {
			f.original = l.Original
		}
		if f.asked || f.parks {
			found = append(found, f)
		}
	}
	return found, nil
}

// addLetters parks keys and hands out again what was found. mu must be held.
func (r *runner) addLetters(found []foundLetter) {
	r.parked = nil
	for _, f := range found {
		if f.parks {
			r.park(f.key)
			r.parked[f.key]++
		}
		if !f.asked {
			continue
		}
		if r.mark == 0 && f.attempts > 0 {
			// It may have been in somebody's hands: one at a time.
			r.mark = max(r.cur.Floor, 1)
		}
		r.inject(f.seq, f.original, f.attempts)
	}
}

// inject hands an original out again, ahead of later events of its key. It was
// delivered so often since it was asked for. mu must be held.
func (r *runner) inject(letter uint64, ev event.Event, delivered uint32) {
	if r.letters[letter] != nil {
		return
	}
	it := r.newItem(ev.Clone()) // it cannot be read again: it stays in memory
	it.letter, it.delivered, it.recorded = letter, delivered, delivered
	it.suspect = r.mark != 0 // then it waits for its turn like all others
	r.hold(it)
	q := r.queue(it)
	switch {
	case q == nil:
		r.activate(it)
	case q.head == nil && !q.refilling:
		q.head = it
		r.activate(it)
	case q.head != nil && it.before(q.head) && (q.head.state == ready || q.head.state == delayed || q.head.state == queued):
		// The head was not handed out: it has to wait again.
		if r.tried == q.head {
			r.tried = nil
		}
		q.head.state = waiting
		q.insert(q.head)
		q.head = it
		r.activate(it)
	default:
		q.insert(it)
	}
}

// before says that it, which is replayed, comes ahead of another of its key: in
// log order among the replayed, ahead of all others.
func (it *item) before(other *item) bool {
	return it.letter != 0 && (other.letter == 0 || it.seq < other.seq)
}

// insert puts an item that waits into its place: replayed ones come first.
func (q *keyQueue) insert(it *item) {
	i := 0
	for i < len(q.queue) && q.queue[i].before(it) {
		i++
	}
	q.queue = slices.Insert(q.queue, i, it)
}

// giveWay lets a replayed event go first that came while it, the head of its
// key, was handed out. mu must be held.
func (r *runner) giveWay(it *item) {
	q := r.headed(it)
	if q == nil || len(q.queue) == 0 || q.queue[0].state != waiting || !q.queue[0].before(it) {
		return
	}
	q.head = q.queue[0]
	q.queue = q.queue[1:]
	it.state = waiting
	q.insert(it)
	r.activate(q.head)
}

// LetterAt is a dead letter and where it stands.
type LetterAt struct {
	Seq uint64
	ID  event.ID
	Letter
}

// Letters yields the dead letters of a topic that were not replayed, of one
// group or, if group is empty, of all, in log order.
func (e *Engine) Letters(ctx context.Context, topic, group string, yield func(LetterAt) bool) error {
	done := make(map[string]store.Cursor)
	asked := make(map[string]store.Cursor)
	for ev, err := range e.log.Read(ctx, store.Query{Topic: LetterTopic(topic)}) {
		if err != nil {
			return err
		}
		l := LetterAt{Seq: ev.Seq, ID: ev.ID}
		if err := json.Unmarshal(ev.Payload, &l.Letter); err != nil {
			return fmt.Errorf("dead letter %s, seq %d: %w", ev.ID, ev.Seq, err)
		}
		if group != "" && l.Group != group {
			continue
		}
		if _, known := done[l.Group]; !known {
			if done[l.Group], err = e.letterCursor(ctx, topic, replayedName(l.Group)); err != nil {
				return err
			}
			if asked[l.Group], err = e.letterCursor(ctx, topic, requestedName(l.Group)); err != nil {
				return err
			}
		}
		d, a := done[l.Group], asked[l.Group]
		if settled(&d, ev.Seq) || settled(&a, ev.Seq) {
			continue
		}
		if !yield(l) {
			return nil
		}
	}
	return nil
}

// mark makes sure that one of the two cursors exists.
func (e *Engine) markable(ctx context.Context, topic, group string) error {
	c, err := e.letterCursor(ctx, topic, group)
	if err != nil || c.Version != 0 {
		return err
	}
	if _, err = e.log.PutCursor(ctx, c); errors.Is(err, store.ErrConflict) {
		return nil // somebody else has just made it
	}
	return err
}

// Redeliver hands the originals of dead letters to their group again. It is
// durable when it returns; attempts count from one.
func (e *Engine) Redeliver(ctx context.Context, topic, group string, letters []LetterAt) error {
	for _, n := range []string{requestedName(group), replayedName(group)} {
		if err := e.markable(ctx, topic, n); err != nil {
			return err
		}
	}
	r, err := e.acting(ctx, topic, group)
	if err != nil && !errors.Is(err, errParted) {
		return err
	}
	var asked store.Ranges
	for _, l := range letters {
		asked.Add(store.Range{First: l.Seq, Last: l.Seq})
	}
	st := store.Settlement{Topic: LetterTopic(topic), Group: requestedName(group), Done: asked}
	if _, err := e.log.Append(ctx, store.Batch{Settle: []store.Settlement{st}}); err != nil {
		return err
	}
	if r == nil {
		return e.redeliverParts(ctx, topic, group, letters)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range letters {
		r.inject(l.Seq, l.Original, 0)
	}
	r.feed()
	return nil
}

// Republish publishes events in the place of dead letters, which are marked
// as replayed in the same step.
func (e *Engine) Republish(ctx context.Context, topic, group string, letters []LetterAt, events []event.Event) error {
	return e.replace(ctx, topic, group, letters, store.Batch{Events: events})
}

// Rewrite puts a dead letter with another original in the place of one, and
// gives it with its place. It is what can be redelivered then.
func (e *Engine) Rewrite(ctx context.Context, l LetterAt, original event.Event) (LetterAt, error) {
	was := l
	l.Original = original
	l.ID = event.NameID(space, "rewritten\n"+was.ID.String())
	payload, err := l.AppendJSON(nil)
	if err != nil {
		return l, err
	}
	ev := event.Event{
		ID: l.ID, TS: time.Now().UnixMilli(), Topic: LetterTopic(l.Topic), Key: was.Original.Key, Partition: letterPartition,
		Payload: payload, CausedBy: []string{was.ID.String()},
	}
	if err := e.replace(ctx, l.Topic, l.Group, []LetterAt{was}, store.Batch{Events: []event.Event{ev}, Internal: true}); err != nil {
		return l, err
	}
	l.Seq, err = e.log.LocateID(ctx, ev.Topic, ev.ID)
	return l, err
}

// replace appends a batch and marks dead letters as replayed.
func (e *Engine) replace(ctx context.Context, topic, group string, letters []LetterAt, b store.Batch) error {
	if err := e.markable(ctx, topic, replayedName(group)); err != nil {
		return err
	}
	var done store.Ranges
	for _, l := range letters {
		done.Add(store.Range{First: l.Seq, Last: l.Seq})
	}
	b.Settle = []store.Settlement{{Topic: LetterTopic(topic), Group: replayedName(group), Done: done}}
	return e.append(ctx, &b)
}
