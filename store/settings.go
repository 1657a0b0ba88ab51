package store

import (
	"encoding/json"
	"fmt"
)

// Part reads what some layer above keeps in Meta, which is a JSON object that
// they share: fields that v does not have are others'.
func (s *Settings) Part(v any) error {
	if len(s.Meta) == 0 {
		return nil
	}
	return json.Unmarshal(s.Meta, v)
}

// PutPart writes v into Meta in place of the fields named; those of others stay.
// Equal settings have equal bytes.
func (s *Settings) PutPart(v any, names ...string) error {
	all := make(map[string]json.RawMessage)
	if len(s.Meta) > 0 {
		if err := json.Unmarshal(s.Meta, &all); err != nil {
			return fmt.Errorf("settings of a topic: %w", err)
		}
	}
	for _, name := range names {
		delete(all, name)
	}
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return err
	}
	s.Meta = nil
	if len(all) > 0 {
		s.Meta, err = json.Marshal(all)
	}
	return err
}
