package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"promethean/deadletter"
	"promethean/event"
	"promethean/group"
	"promethean/wire"
)

// replayByGroup goes on with a replay of dead letters that has met a group of
// another hub, after so much was replayed: each group's are replayed by the hub
// that owns it.
func (c *call) replayByGroup(topic string, in *replayRequest, o deadletter.Options, done deadletter.Report) (deadletter.Report, error) {
	type part struct {
		group string
		ids   []event.ID
	}
	var parts []*part
	left := 0
	chosen := 0
	err := c.g.hub.Engine().Letters(c.r.Context(), topic, o.Group, func(l group.LetterAt) bool {
		if len(o.IDs) > 0 && !slices.Contains(o.IDs, l.ID) && !slices.Contains(o.IDs, l.Original.ID) {
			return true
		}
		if left++; done.Replayed+chosen >= o.Limit {
			return true
		}
		chosen++
		i := slices.IndexFunc(parts, func(p *part) bool { return p.group == l.Group })
		if i < 0 {
			i = len(parts)
			parts = append(parts, &part{group: l.Group})
		}
		parts[i].ids = append(parts[i].ids, l.ID)
		return true
	})
	done.Remaining = left
	if err != nil {
		return done, err
	}
	for _, p := range parts {
		for some := range slices.Chunk(p.ids, maxIDs) {
			own := o
			own.Group, own.IDs, own.Limit = p.group, some, len(some)
			n, err := c.replayAtOwner(topic, in, own)
			done.Replayed += n
			done.Remaining -= n
			if err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// replayAtOwner replays dead letters of one group, here or where it is owned,
// and says how many.
func (c *call) replayAtOwner(topic string, in *replayRequest, o deadletter.Options) (done int, err error) {
	began := time.Now()
	for wait := forwardPause; ; wait = min(2*wait, forwardMaxPause) {
		r, err := deadletter.Replay(c.r.Context(), c.g.hub, topic, o)
		done += r.Replayed
		if !errors.Is(err, group.ErrNotOwner) {
			return done, err
		}
		n, again, err := c.replayAway(topic, in, o)
		done += n
		if err == nil || !again || time.Since(began) > forwardTries || !pause(c.r.Context(), wait) {
			return done, err
		}
	}
}

// replayAway has the owner of a group replay its dead letters. again says that
// it may work in a moment.
func (c *call) replayAway(topic string, in *replayRequest, o deadletter.Options) (done int, again bool, err error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), forwardWait)
	defer cancel()
	hub, err := c.g.peers.owner(ctx, topic, o.Group)
	if err != nil {
		return 0, true, err
	}
	ctx, undo := c.g.peers.bound(ctx, hub)
	defer undo()
	ask := replayRequest{Limit: new(number(o.Limit)), Group: o.Group, To: in.To, Transform: in.Transform}
	for _, id := range o.IDs {
		ask.IDs = append(ask.IDs, id.String())
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return 0, false, err
	}
	r, err := c.g.peers.request(ctx, hub, http.MethodPost, "/dlq/"+topic+"/replay", bearer(c.r), bytes.NewReader(body))
	if err != nil {
		return 0, false, err
	}
	got, err := c.g.peers.http.Do(r)
	if err != nil {
		// What was replayed is not replayed again, so asking again is safe.
		return 0, true, c.g.peers.unreachable(hub, err)
	}
	defer func() { _ = got.Body.Close() }()
	if got.StatusCode != http.StatusOK {
		err := problemOfOwner(got)
		return 0, codeOf(err) == wire.Unavailable, err
	}
	var out struct{ Replayed int }
	if err := json.NewDecoder(got.Body).Decode(&out); err != nil {
		return 0, true, c.g.peers.unreachable(hub, err)
	}
	return out.Replayed, false, nil
}
