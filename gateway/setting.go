package gateway

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"promethean/compact"
	"promethean/event"
	"promethean/schema"
	"promethean/store"
	"promethean/wire"
)

// ofSchemas are settings that need a registry.
var ofSchemas = []string{"schemas", "strict_schema", "legacy_version", "dual_write"}

// MergeSettings changes the settings of a topic by a JSON object, in the form of
// PUT /topics/{topic}: partitions, retention, max_bytes, durability, those about
// schemas and those about compaction. What the object does not name stays; null
// takes a setting back to its default. A setting that nobody knows is an error.
func MergeSettings(s store.Settings, change []byte) (store.Settings, error) {
	if err := event.CheckJSON(change); err != nil {
		return s, err
	}
	var fields map[string]jsontext.Value
	if err := json.Unmarshal(change, &fields); err != nil || fields == nil {
		return s, wire.Errorf(wire.InvalidArgument, "settings must be an object")
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // the same error every time
	for _, name := range names {
		if err := mergeSetting(&s, name, fields[name]); err != nil {
			return s, err
		}
	}
	return s, nil
}

func mergeSetting(s *store.Settings, name string, v jsontext.Value) error {
	text, isText := textOf(v)
	null := v.Kind() == 'n'
	bad := func(want string) error {
		return wire.Errorf(wire.InvalidArgument, "%s: %s is not %s", name, clip(string(v)), want)
	}
	switch name {
	case "partitions":
		n, err := strconv.ParseUint(string(v), 10, 32)
		if null {
			n, err = 1, nil
		}
		if err != nil || n < 1 || n > event.MaxPartitions {
			return bad(fmt.Sprintf("a number from 1 to %d", event.MaxPartitions))
		}
		s.Partitions = int(n)
	case "retention":
		d, ok := parseAge(text)
		if null {
			d, ok = 0, true
		}
		if !ok || !null && !isText {
			return bad(`an age such as "72h" or "30d"`)
		}
		s.Retention = d
	case "max_bytes":
		if !isText {
			text = string(v)
		}
		n, ok := parseSize(text)
		if null {
			n, ok = 0, true
		}
		if !ok {
			return bad(`a size in bytes, or one such as "10GiB"`)
		}
		s.MaxBytes = n
	case "durability":
		switch {
		case null, text == "sync":
			s.Async = false
		case text == "async":
			s.Async = true
		default:
			return bad("sync or async")
		}
	case "schemas", "strict_schema", "legacy_version", "dual_write":
		return mergeSchemaSetting(s, name, v)
	case "compaction", "history", "tombstones", "snapshot":
		return mergeCompaction(s, name, v)
	default:
		return wire.Errorf(wire.InvalidArgument, "%s: there is no such setting of a topic", clip(name))
	}
	return nil
}

// mergeSchemaSetting changes a setting that is about schemas.
func mergeSchemaSetting(s *store.Settings, name string, v jsontext.Value) error {
	set, err := schema.SettingsOf(*s)
	if err != nil {
		return err
	}
	bad := func(want string) error {
		return wire.Errorf(wire.InvalidArgument, "%s: %s is not %s", name, clip(string(v)), want)
	}
	null := v.Kind() == 'n'
	switch name {
	case "schemas":
		text, ok := textOf(v)
		if !ok && !null {
			return bad("the name of a directory on the hub's machine")
		}
		set.Dir = text
	case "strict_schema":
		if !null && v.Kind() != 't' && v.Kind() != 'f' {
			return bad("true or false")
		}
		set.Strict = v.Kind() == 't'
	case "legacy_version":
		n, err := strconv.ParseUint(string(v), 10, 31)
		if null {
			n, err = 0, nil
		}
		if err != nil || !null && n < 1 || n > schema.MaxVersion {
			return bad("a version, counted from 1")
		}
		set.LegacyVersion = int(n)
	case "dual_write":
		if ms, err := strconv.ParseInt(string(v), 10, 64); err == nil && ms >= 0 && ms <= event.MaxTS {
			set.DualWrite = schema.Window{On: true, Until: time.UnixMilli(ms).UTC()}
		} else if err := set.DualWrite.UnmarshalJSON(v); err != nil {
			return bad("true, false or the time at which it ends")
		}
	}
	return set.Put(s)
}

// mergeCompaction changes a setting that is about compaction.
func mergeCompaction(s *store.Settings, name string, v jsontext.Value) error {
	set, err := compact.SettingsOf(*s)
	if err != nil {
		return err
	}
	bad := func(want string) error {
		return wire.Errorf(wire.InvalidArgument, "%s: %s is not %s", name, clip(string(v)), want)
	}
	null := v.Kind() == 'n'
	age := func() (compact.Age, bool) {
		text, isText := textOf(v)
		d, ok := parseAge(text)
		return compact.Age(d), null || isText && ok
	}
	ok := true
	switch name {
	case "compaction":
		if !null && v.Kind() != 't' && v.Kind() != 'f' {
			return bad("true or false")
		}
		set.Compaction = v.Kind() == 't'
	case "history":
		set.History, ok = age()
	case "tombstones":
		set.Tombstones, ok = age()
	case "snapshot":
		if set.Snapshot, ok = snapshotOf(v); !ok {
			return bad(`true, false or an object such as {"topic":"process.state.snapshot","every":"30s"}`)
		}
	}
	if !ok {
		return bad(`an age such as "24h" or "7d"`)
	}
	return set.Put(s)
}

// snapshotOf reads the setting snapshot.
func snapshotOf(v jsontext.Value) (*compact.Snapshot, bool) {
	switch v.Kind() {
	case 'n', 'f':
		return nil, true
	case 't':
		return &compact.Snapshot{}, true
	case '{':
	default:
		return nil, false
	}
	var given struct {
		Topic string `json:"topic"`
		Every string `json:"every"`
	}
	if err := json.Unmarshal(v, &given, json.RejectUnknownMembers(true)); err != nil {
		return nil, false
	}
	out := &compact.Snapshot{Topic: given.Topic}
	if given.Topic != "" && event.CheckTopic(given.Topic) != nil {
		return nil, false
	}
	if given.Every != "" {
		d, ok := parseAge(given.Every)
		if !ok || d <= 0 {
			return nil, false
		}
		out.Every = compact.Age(d)
	}
	return out, true
}

// textOf gives the text of a JSON string.
func textOf(v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		return "", false
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil
}

// parseAge reads a duration, with days too.
func parseAge(s string) (time.Duration, bool) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > math.MaxInt64/uint64(24*time.Hour) {
			return 0, false
		}
		return time.Duration(n) * 24 * time.Hour, true
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d >= 0
}

// ageText writes a duration without parts that are nothing.
func ageText(d time.Duration) string {
	s := d.String()
	for _, nothing := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, nothing) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// parseSize reads a number of bytes, with a unit or without.
func parseSize(s string) (int64, bool) {
	factor := int64(1)
	for _, u := range []struct {
		name string
		size int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}} {
		if cut, ok := strings.CutSuffix(s, u.name); ok {
			s, factor = cut, u.size
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, false
	}
	return n * factor, true
}

// settingsOf is how the settings of a topic are shown.
type settingsOf struct {
	Partitions int    `json:"partitions"`
	Retention  string `json:"retention,omitempty"`
	MaxBytes   int64  `json:"max_bytes,omitempty"`
	Durability string `json:"durability"`
	schema.Settings
	Compaction bool              `json:"compaction,omitempty"`
	History    string            `json:"history,omitempty"`
	Tombstones string            `json:"tombstones,omitempty"`
	Snapshot   *compact.Snapshot `json:"snapshot,omitempty"`
	// DualWriteTo is where events are written to as well at the moment.
	DualWriteTo string `json:"dual_write_to,omitempty"`
}

func (g *Gateway) showSettings(t *store.Topic) settingsOf {
	s := t.Settings
	out := settingsOf{Partitions: max(s.Partitions, 1), MaxBytes: s.MaxBytes, Durability: "sync"}
	if s.Retention > 0 {
		out.Retention = ageText(s.Retention)
	}
	if s.Async {
		out.Durability = "async"
	}
	if set, err := schema.SettingsOf(s); err == nil { // what cannot be read was logged
		out.Settings = set
	}
	if set, err := compact.SettingsOf(s); err == nil {
		out.Compaction, out.Snapshot = set.Compaction, set.Snapshot
		if set.History > 0 {
			out.History = ageText(time.Duration(set.History))
		}
		if set.Tombstones > 0 {
			out.Tombstones = ageText(time.Duration(set.Tombstones))
		}
	}
	if g.o.Schemas != nil {
		out.DualWriteTo = g.o.Schemas.DualWriteTo(t.Name)
	}
	return out
}
