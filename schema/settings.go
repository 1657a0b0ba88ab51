package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"promethean/store"
)

// Settings are those of a topic that are about its schemas. They are kept with
// the topic, see [SettingsOf] and [Settings.Put].
type Settings struct {
	// Dir is a directory of schemas, see [ReadDir]. Default: none.
	Dir string `json:"schemas,omitempty"`
	// Strict refuses events while the topic has no schema. Default: they are
	// taken as they are.
	Strict bool `json:"strict_schema,omitempty"`
	// LegacyVersion is what a stored event without a stamp is. Default 0: of the
	// latest version.
	LegacyVersion int `json:"legacy_version,omitempty"`
	// DualWrite writes events to topic.vN too. Default: they are not.
	DualWrite Window `json:"dual_write,omitzero"`
}

// Window is whether something is on, and until when. Its JSON is true, false or
// the time at which it ends.
type Window struct {
	On bool
	// Until is when it ends; zero: it does not.
	Until time.Time
}

// Open says whether it is on at a time.
func (w Window) Open(now time.Time) bool { return w.On && (w.Until.IsZero() || now.Before(w.Until)) }

// MarshalJSON implements [json.Marshaler].
func (w Window) MarshalJSON() ([]byte, error) {
	if w.On && !w.Until.IsZero() {
		return json.Marshal(w.Until)
	}
	return json.Marshal(w.On)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (w *Window) UnmarshalJSON(text []byte) error {
	switch string(text) {
	case "true":
		*w = Window{On: true}
		return nil
	case "false", "null":
		*w = Window{}
		return nil
	}
	var until time.Time
	if err := json.Unmarshal(text, &until); err != nil {
		return fmt.Errorf("%s is not true, false or a time such as \"2026-12-31T18:00:00Z\"", text)
	}
	*w = Window{On: true, Until: until.UTC()}
	return nil
}

// SettingsOf reads the settings from those of a topic.
func SettingsOf(s store.Settings) (Settings, error) {
	var out Settings
	if err := s.Part(&out); err != nil {
		return Settings{}, fmt.Errorf("settings about schemas: %w", err)
	}
	return out, nil
}

// Put writes the settings into those of a topic. What others keep beside them
// stays.
func (set Settings) Put(s *store.Settings) error {
	if err := s.PutPart(set, "schemas", "strict_schema", "legacy_version", "dual_write"); err != nil {
		return fmt.Errorf("settings about schemas: %w", err)
	}
	return nil
}

// Prepare does what settings of a topic ask for before they are stored: it loads
// the schemas of a directory that is new. It refuses settings that would do
// nothing, and what is no setting.
func (r *Registry) Prepare(ctx context.Context, topic string, was, now store.Settings) error {
	old, err := SettingsOf(was)
	if err != nil {
		return err
	}
	set, err := SettingsOf(now)
	if err != nil {
		return err
	}
	if set.Dir != "" && set.Dir != old.Dir {
		if _, err := r.Load(ctx, topic, set.Dir); err != nil {
			return err
		}
	}
	if set.DualWrite.On && set.DualWrite != old.DualWrite && r.Latest(topic) == nil {
		return fmt.Errorf("%w: dual_write: topic %s has no schema, so there is no version to write: register one first", ErrInvalidSchema, topic)
	}
	return nil
}
