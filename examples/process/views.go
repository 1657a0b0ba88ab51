package process

import (
	"context"
	"encoding/json"
	"fmt"

	"promethean"
	"promethean/event"
	"promethean/store"
	"promethean/view"
)

const (
	// ProcessesView holds the latest state of every process, by process id.
	ProcessesView = "processes"
	// HostsView holds, by host, how many states of its processes were seen.
	HostsView = "host_stats"
	// ViewGroup is the group of the view that keeps both.
	ViewGroup = "processes.txn"
)

// Indexes are those of [ProcessesView]: who runs where, and who is alive.
func Indexes() []store.Index {
	return []store.Index{{Fields: []string{"host", "name"}}, {Fields: []string{"status"}}}
}

// HostStats is a document of [HostsView].
type HostStats struct {
	Host string `json:"host"`
	// Seen counts the states of the host's processes, each once however often it
	// was delivered.
	Seen   int64 `json:"seen"`
	LastTS int64 `json:"last_ts"`
}

// Changelog keeps [ProcessesView] alone: the simple way, where the latest state
// of each key is all that is wanted.
func Changelog(ctx context.Context, hub *promethean.Hub, o view.Options) (*view.View, error) {
	return view.Changelog(ctx, hub, view.ChangelogOptions{
		Options: o, Topic: StateTopic, Collection: ProcessesView, Indexes: Indexes(), Definition: "1",
		KeyOf: func(e *event.Event) (string, error) {
			s, err := parseState(e)
			return s.ProcessID, err
		},
	})
}

// Transactional keeps both views in step: a process and the counter of its host
// change together, once for each event, whatever crashes or comes twice.
func Transactional(ctx context.Context, hub *promethean.Hub, o view.Options) (*view.View, error) {
	return view.Transactional(ctx, hub, view.TransactionalOptions{
		Options: o, Topic: StateTopic, Name: ViewGroup, Definition: "1",
		Collections: []store.Collection{
			{Name: ProcessesView, Indexes: Indexes()},
			{Name: HostsView, Indexes: []store.Index{{Fields: []string{"host"}, Unique: true}}},
		},
		Handler: project,
	})
}

// project is the handler of [Transactional].
func project(_ context.Context, e event.Event, tx *view.Tx) error {
	s, err := parseState(&e)
	switch {
	case err != nil:
		return promethean.Dead(err) // trying again would not help
	case s.ProcessID == "":
		return tx.Delete(ProcessesView, e.Key) // a tombstone
	}
	if err := tx.Put(ProcessesView, s.ProcessID, s); err != nil {
		return err
	}
	var h HostStats
	if _, err := tx.Get(HostsView, s.Host, &h); err != nil {
		return err
	}
	h.Host, h.Seen, h.LastTS = s.Host, h.Seen+1, e.TS
	return tx.Put(HostsView, s.Host, h)
}

// parseState reads a state; that of a tombstone is empty.
func parseState(e *event.Event) (State, error) {
	var s State
	if store.Tombstone(e.Payload) {
		return s, nil
	}
	if err := json.Unmarshal(e.Payload, &s); err != nil {
		return s, fmt.Errorf("process state: %w", err)
	}
	if s.ProcessID == "" {
		return s, fmt.Errorf("process state: there is no processId in %s", shown(e.Payload))
	}
	return s, nil
}
