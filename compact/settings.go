package compact

import (
	"encoding/json"
	"fmt"
	"time"

	"promethean/store"
)

// Settings are those of a topic that are about compaction. They are kept with
// the topic, see [SettingsOf] and [Settings.Put].
type Settings struct {
	// Compaction keeps the latest event of every key only.
	Compaction bool `json:"compaction,omitempty"`
	// History is how long superseded events stay. Default 0: until the next
	// compaction.
	History Age `json:"history,omitempty"`
	// Tombstones is how long the last event of a key stays if it is a
	// tombstone. Default: as long as History, or else a day.
	Tombstones Age `json:"tombstones,omitempty"`
	// Snapshot is where snapshots go. Default nil: there are none.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
}

// Snapshot says where the snapshots of a topic go, and how often they are
// written.
type Snapshot struct {
	// Topic defaults to <topic>.snapshot.
	Topic string `json:"topic,omitempty"`
	// Every defaults to 30 s.
	Every Age `json:"every,omitempty"`
}

// Age is a duration whose JSON is a text such as "24h".
type Age time.Duration

// MarshalJSON implements [json.Marshaler].
func (a Age) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(a).String()) }

// UnmarshalJSON implements [json.Unmarshaler].
func (a *Age) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s is not an age such as \"24h\"", text)
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not an age such as \"24h\"", s)
	}
	*a = Age(d)
	return nil
}

// names are the settings' names.
var names = []string{"compaction", "history", "tombstones", "snapshot"}

// SettingsOf reads the settings from those of a topic.
func SettingsOf(s store.Settings) (Settings, error) {
	var out Settings
	err := s.Part(&out)
	if err != nil {
		return Settings{}, fmt.Errorf("settings about compaction: %w", err)
	}
	return out, nil
}

// Put writes the settings into those of a topic. What others keep beside them
// stays.
func (set Settings) Put(s *store.Settings) error {
	if err := s.PutPart(set, names...); err != nil {
		return fmt.Errorf("settings about compaction: %w", err)
	}
	return nil
}
