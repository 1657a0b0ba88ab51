package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"promethean/changefeed"
	"promethean/event"
	"promethean/outbox"
	"promethean/store"
	"promethean/wire"
)

// Errors of a hub that brings in nothing.
var (
	errNoFeeds    = wire.Errorf(wire.NotFound, "this hub has no change feeds")
	errNoOutboxes = wire.Errorf(wire.NotFound, "this hub has no outboxes")
)

// feedOf is how a change feed is shown. Times are epoch ms.
type feedOf struct {
	Name        string           `json:"name"`
	Topic       string           `json:"topic"`
	Hub         string           `json:"hub,omitempty"` // which runs it
	State       changefeed.State `json:"state"`
	Since       int64            `json:"since"`
	Published   uint64           `json:"published"`
	Duplicates  uint64           `json:"duplicates"`
	Filtered    uint64           `json:"filtered"`
	Oversized   uint64           `json:"oversized"`
	Refused     uint64           `json:"refused"`
	Failures    uint64           `json:"failures"`
	HistoryLost uint64           `json:"history_lost"`
	Position    string           `json:"position,omitempty"`
	LastChange  int64            `json:"last_change,omitempty"`
	LagMs       int64            `json:"lag_ms"`
	LagBytes    *int64           `json:"lag_bytes,omitempty"`
	Server      string           `json:"server,omitempty"`
	Warning     string           `json:"warning,omitempty"`
	Error       string           `json:"error,omitempty"`
	ErrorAt     int64            `json:"error_at,omitempty"`
}

// epoch is a time in epoch ms, 0 for none.
func epoch(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func showFeed(s *changefeed.Status) feedOf {
	f := feedOf{
		Name: s.Name, Topic: s.Topic, State: s.State, Since: epoch(s.Since),
		Published: s.Published, Duplicates: s.Duplicates, Filtered: s.Filtered, Oversized: s.Oversized,
		Refused: s.Refused, Failures: s.Failures, HistoryLost: s.HistoryLost,
		Position: s.Position, LastChange: epoch(s.LastChange), LagMs: s.Lag.Milliseconds(),
		Server: s.Server, Warning: s.Warning, Error: s.Error, ErrorAt: epoch(s.ErrorAt),
	}
	if s.LagBytes >= 0 {
		f.LagBytes = &s.LagBytes
	}
	return f
}

// feeds tells how the change feeds are doing, as far as this hub knows.
func (c *call) feeds() []feedOf {
	out := []feedOf{}
	if c.g.o.Changefeeds == nil {
		return out
	}
	for _, s := range c.g.o.Changefeeds.List() {
		f := showFeed(&s)
		if where, err := c.g.o.Changefeeds.Where(c.r.Context(), f.Name); err == nil { // else nobody has it
			f.Hub = where
		}
		out = append(out, f)
	}
	return out
}

// listFeeds serves GET /ops/changefeeds. What another hub runs is told as that
// hub tells it, if it does.
func listFeeds(c *call) error {
	out := c.feeds()
	if !c.forwarded && c.g.peers.several() {
		told := make(map[string][]feedOf)
		for i := range out {
			at := out[i].Hub
			if out[i].State != changefeed.Elsewhere || at == "" {
				continue
			}
			if _, asked := told[at]; !asked {
				var got struct{ Changefeeds []feedOf }
				if err := c.askPeer(at, "runs a change feed", "/ops/changefeeds", &got); err != nil {
					c.g.o.Logger.Debug("change feeds of another hub", "id", at, "err", err)
				}
				told[at] = got.Changefeeds
			}
			for _, f := range told[at] {
				if f.Name == out[i].Name && f.Hub == at {
					out[i] = f
				}
			}
		}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "changefeeds": out})
}

// resyncFeed serves POST /ops/changefeeds/{name}/resync, at the hub that runs
// the feed.
func resyncFeed(c *call) error {
	if c.g.o.Changefeeds == nil {
		return errNoFeeds
	}
	name := c.r.PathValue("name")
	if err := c.g.o.Changefeeds.Resync(name); err != nil {
		if errors.Is(err, store.ErrUnavailable) {
			return &atHub{err: err, find: c.g.peers.holder("runs change feed "+clip(name), func(ctx context.Context) (string, error) {
				return c.g.o.Changefeeds.Where(ctx, name)
			})}
		}
		return err
	}
	for _, f := range c.feeds() {
		if f.Name == name {
			return c.answerJSON(http.StatusAccepted, f)
		}
	}
	return errors.New("the change feed is gone") // feeds are not removed
}

// outboxOf is how an outbox is shown. Times are epoch ms.
type outboxOf struct {
	Name    string `json:"name"`
	State   string `json:"state"` // draining, outage or stopped
	Pending int64  `json:"pending"`
	Claimed int64  `json:"claimed"`
	Refused int64  `json:"refused"`
	Failed  int64  `json:"failed"`
	LagMs   int64  `json:"lag_ms"`
	// Counted is when these were counted; absent before that.
	Counted      int64  `json:"counted,omitempty"`
	SentTotal    uint64 `json:"sent_total"`
	RefusedTotal uint64 `json:"refused_total"`
	LastSent     int64  `json:"last_sent,omitempty"`
	Waking       bool   `json:"waking"`
	Outage       string `json:"outage,omitempty"`
	Error        string `json:"error,omitempty"`
	ErrorAt      int64  `json:"error_at,omitempty"`
}

func showOutbox(s *outbox.Status) outboxOf {
	o := outboxOf{
		Name: s.Name, State: "draining", Pending: s.Pending, Claimed: s.Claimed, Refused: s.Refused, Failed: s.Failed,
		LagMs: s.Lag().Milliseconds(), Counted: epoch(s.StatsAt), SentTotal: s.SentTotal, RefusedTotal: s.RefusedTotal,
		LastSent: epoch(s.LastSent), Waking: s.Waking, Outage: s.Outage, Error: s.LastError, ErrorAt: epoch(s.LastErrorAt),
	}
	switch {
	case s.Outage != "":
		o.State = "outage"
	case !s.Running:
		o.State = "stopped"
	}
	return o
}

// listOutboxes serves GET /ops/outboxes.
func listOutboxes(c *call) error {
	out := []outboxOf{}
	if c.g.o.Outboxes != nil {
		for _, s := range c.g.o.Outboxes.List() {
			out = append(out, showOutbox(&s))
		}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "outboxes": out})
}

// outboxStore gives the outbox that the path names.
func (c *call) outboxStore() (outbox.Store, error) {
	if c.g.o.Outboxes == nil {
		return nil, errNoOutboxes
	}
	return c.g.o.Outboxes.Store(c.r.PathValue("name"))
}

// listOutboxErrors serves GET /ops/outboxes/{name}/errors.
func listOutboxErrors(c *call) error {
	box, err := c.outboxStore()
	if err != nil {
		return err
	}
	limit, err := c.queryNum("limit", defaultLimit, maxLimit)
	if err != nil {
		return err
	}
	type row struct {
		ID       event.ID     `json:"id"`
		Topic    string       `json:"topic"`
		Key      string       `json:"key,omitempty"`
		State    outbox.State `json:"state"`
		Attempts int          `json:"attempts"`
		Error    string       `json:"error"`
		At       int64        `json:"at"`
	}
	out := []row{}
	if limit > 0 {
		list, err := box.Errors(c.r.Context(), int(limit))
		if err != nil {
			return outboxAway(err)
		}
		for _, r := range list {
			out = append(out, row{r.ID, r.Topic, r.Key, r.State, r.Attempts, r.Error, epoch(r.At)})
		}
	}
	return c.answerJSON(http.StatusOK, map[string]any{"count": len(out), "rows": out})
}

// outboxAway says that a database did not answer, if nothing better is known.
func outboxAway(err error) error {
	if codeOf(err) != wire.Internal {
		return err
	}
	return &wire.Error{Code: wire.Unavailable, Msg: "the database of the outbox: " + clip(err.Error()), Err: err}
}

// rowsOf reads which rows of an outbox are meant.
func (c *call) rowsOf(optional bool) ([]event.ID, error) {
	var in struct {
		IDs []string `json:"ids"`
	}
	if err := c.decode(&in, optional); err != nil {
		return nil, err
	}
	switch {
	case !optional && len(in.IDs) == 0:
		return nil, wire.Errorf(wire.InvalidArgument, "ids: name at least one")
	case in.IDs != nil && len(in.IDs) == 0:
		return nil, wire.Errorf(wire.InvalidArgument, "ids: name at least one, or leave it out")
	case len(in.IDs) > maxIDs:
		return nil, wire.Errorf(wire.BatchTooLarge, "ids: %d ids, the limit is %d", len(in.IDs), maxIDs)
	}
	var ids []event.ID
	for _, s := range in.IDs {
		id, err := event.ParseID(s)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// retryOutbox serves POST /ops/outboxes/{name}/retry.
func retryOutbox(c *call) error {
	box, err := c.outboxStore()
	if err != nil {
		return err
	}
	ids, err := c.rowsOf(true)
	if err != nil {
		return err
	}
	n, err := box.Retry(c.r.Context(), ids...)
	if err != nil {
		return outboxAway(err)
	}
	return c.answerJSON(http.StatusOK, map[string]any{"retried": n})
}

// discardOutbox serves POST /ops/outboxes/{name}/discard.
func discardOutbox(c *call) error {
	box, err := c.outboxStore()
	if err != nil {
		return err
	}
	ids, err := c.rowsOf(false)
	if err != nil {
		return err
	}
	n, err := box.Discard(c.r.Context(), ids...)
	if err != nil {
		return outboxAway(err)
	}
	return c.answerJSON(http.StatusOK, map[string]any{"discarded": n})
}
