package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"promethean/schema/compat"
)

// Definition is a version of a topic's schema as somebody wants to register it.
type Definition struct {
	Topic string `json:"topic"`
	// Version is a positive number higher than that of the version before. The
	// default is the next one.
	Version int             `json:"version,omitempty"`
	Schema  json.RawMessage `json:"schema"`
	// Compat is what the schema must be to those before it. The default is
	// backward: readers of the new version understand what was written under the
	// old one.
	Compat compat.Mode `json:"compat,omitempty"`
	// Lenient allows what most teams do although it can break: an optional
	// property added to an open object, or one taken from a closed one.
	Lenient bool `json:"lenient,omitempty"`
	// Upcast is a jq program that makes a payload of the version before into one
	// of this version. With it backward means: whatever was valid before is valid
	// after upcasting.
	Upcast string `json:"upcast,omitempty"`
	// Unproved allows an upcaster that cannot be tried, because no document of
	// the version before could be made.
	Unproved bool `json:"unproved,omitempty"`
}

// fileName is the name of a file that ReadDir looks at.
var fileName = regexp.MustCompile(`^v([1-9][0-9]{0,8})\.(json|upcast\.jq)$`)

// fileOptions are annotations at the top of a schema file that say what a
// definition needs beside the schema.
type fileOptions struct {
	Compat   compat.Mode `json:"x-compat"`
	Lenient  bool        `json:"x-lenient"`
	Unproved bool        `json:"x-unproved"`
}

// Define makes a definition of the text of a schema. At its top "x-compat",
// "x-lenient" and "x-unproved" set the fields that are called so. It is read,
// not checked.
func Define(topic string, text []byte) Definition {
	d := Definition{Topic: topic, Schema: text}
	var o fileOptions
	// A schema may be true or false, and what is wrong otherwise is said when it
	// is parsed.
	if err := json.Unmarshal(text, &o); err == nil {
		d.Compat, d.Lenient, d.Unproved = o.Compat, o.Lenient, o.Unproved
	}
	return d
}

// ReadDir reads the versions of a topic from a directory: v1.json, v2.json and
// so on, each with the upcaster v2.upcast.jq beside it if there is one, and as
// [Define] reads them. Other files are left alone. The definitions come in order
// of their versions; they are read, not checked.
func ReadDir(topic, dir string) ([]Definition, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: schemas of topic %s: %w", ErrInvalidSchema, topic, err)
	}
	var list []Definition
	upcasts := make(map[int]string)
	for _, entry := range entries {
		m := fileName.FindStringSubmatch(entry.Name())
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err // nine digits fit
		}
		path := filepath.Join(dir, entry.Name())
		text, err := readFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: schemas of topic %s: %w", ErrInvalidSchema, topic, err)
		}
		if m[2] != "json" {
			upcasts[n] = string(text)
			continue
		}
		d := Define(topic, text)
		d.Version = n
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b Definition) int { return a.Version - b.Version })
	for i := range list {
		list[i].Upcast = upcasts[list[i].Version]
		delete(upcasts, list[i].Version)
	}
	for n := range upcasts {
		return nil, fmt.Errorf("%w: schemas of topic %s: %s has no v%d.json beside it", ErrInvalidSchema, topic, filepath.Join(dir, fmt.Sprintf("v%d.upcast.jq", n)), n)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: schemas of topic %s: %s has no v1.json, v2.json, …", ErrInvalidSchema, topic, dir)
	}
	return list, nil
}

// readFile reads a file that is not too large to be a schema.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > MaxSchema {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is larger than a schema may be")}
	}
	return os.ReadFile(path)
}
