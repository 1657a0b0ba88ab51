package config

import (
	"errors"
	"maps"
	"regexp"

	"go.yaml.in/yaml/v3"

	"promethean/compact"
	"promethean/event"
	"promethean/store"
	"promethean/view/jqview"
)

// withSnapshot are the names of the settings of a topic, for messages.
var withSnapshot = func() map[string]bool {
	all := map[string]bool{"snapshot": true}
	for name := range maps.Keys(topicSettings) {
		all[name] = true
	}
	return all
}()

// snapshot reads topics[…].snapshot: true, false, or a map with topic and every.
func (r *reader) snapshot(n *yaml.Node, path string, t *Topic) {
	n = resolve(n)
	set := new(compact.Snapshot)
	t.Snapshot = &set
	if n.Kind == yaml.ScalarNode && !isNull(n) {
		on := false
		if err := (boolValue{&on}).set(n.Value); err != nil {
			r.wrong(n, "%s: %v, nor a map with topic and every", path, err)
		}
		if !on {
			set = nil
		}
		return
	}
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		read := map[string]bool{"topic": true, "every": true}[k.Value]
		if !read {
			r.unknown(k, path, []string{"every", "topic"})
			return
		}
		text, ok := r.text(v, key)
		if !ok {
			return
		}
		switch k.Value {
		case "topic":
			if err := event.CheckTopic(text); err != nil {
				r.wrong(v, "%s: %v", key, err)
			}
			set.Topic = text
		case "every":
			d, err := ParseDuration(text)
			if err == nil && d <= 0 {
				err = errors.New("must be more than nothing")
			}
			if err != nil {
				r.wrong(v, "%s: %v", key, err)
			}
			set.Every = compact.Age(d)
		}
	})
}

// viewNames are those that views may have: they stand in addresses, in the names
// of groups and, on MongoDB, of collections.
var viewNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// views reads the read models.
func (r *reader) views(n *yaml.Node, path string) {
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		if !viewNames.MatchString(k.Value) {
			r.wrong(k, "%s: the name of a view has 1 to 100 letters, digits and . _ -, and begins with a letter or digit", key)
			return
		}
		w := View{Name: k.Value, Place: r.place(k)}
		before := len(r.problems)
		at := r.view(resolve(v), key, &w)
		if len(r.problems) > before {
			return
		}
		if w.Topic == "" {
			r.wrong(k, "%s: name the topic that it is made from", key)
			return
		}
		_, err := w.Options(w.Name)
		for _, f := range faults(err) {
			place := at[f.Part]
			if place == nil {
				place = k
			}
			r.wrong(place, "%s: %v", join(key, f.Part), f.Err)
		}
		for _, t := range r.c.Topics {
			if t.Name == w.Topic && t.Compaction != nil && *t.Compaction && w.Reduce == "merge" {
				r.wrong(at["reduce"], "%s.reduce: merge needs all events of a key, and topic %s keeps the latest only (compaction)", key, t.Name)
			}
		}
		r.c.Views = append(r.c.Views, w)
	})
}

// view reads one, and gives where its parts stand.
func (r *reader) view(n *yaml.Node, path string, w *View) map[string]*yaml.Node {
	at := make(map[string]*yaml.Node)
	texts := map[string]*string{
		"topic": &w.Topic, "key": &w.Key, "map": &w.Map, "tombstone": &w.Tombstone,
		"version": &w.Version, "reduce": &w.Reduce, "from": &w.From,
	}
	if isNull(n) {
		return at
	}
	r.pairs(n, path, func(k, v *yaml.Node) {
		key := join(path, k.Value)
		at[k.Value] = v
		switch to := texts[k.Value]; {
		case to != nil:
			*to, _ = r.text(v, key)
		case k.Value == "indexes":
			w.Indexes = r.indexes(v, key)
		default:
			r.unknown(k, path, []string{"from", "indexes", "key", "map", "reduce", "tombstone", "topic", "version"})
		}
	})
	return at
}

// indexes reads a list whose rows are a field's name, or a map with fields and
// unique.
func (r *reader) indexes(n *yaml.Node, path string) (list []store.Index) {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, "%s: must be a list, not %s", path, kind(n))
		return nil
	}
	for _, row := range n.Content {
		row = resolve(row)
		if row.Kind == yaml.ScalarNode && !isNull(row) {
			list = append(list, store.Index{Fields: []string{row.Value}})
			continue
		}
		x := store.Index{}
		r.pairs(row, path, func(k, v *yaml.Node) {
			key := join(path, k.Value)
			switch k.Value {
			case "fields":
				x.Fields, _ = r.texts(v, key)
			case "unique":
				if text, ok := r.text(v, key); ok {
					if err := (boolValue{&x.Unique}).set(text); err != nil {
						r.wrong(v, "%s: %v", key, err)
					}
				}
			default:
				r.unknown(k, path, []string{"fields", "unique"})
			}
		})
		list = append(list, x)
	}
	return list
}

// faults takes apart what is wrong with a view.
func faults(err error) (list []*jqview.Fault) {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range all.Unwrap() {
			list = append(list, faults(e)...)
		}
		return list
	}
	var f *jqview.Fault
	if !errors.As(err, &f) {
		f = &jqview.Fault{Err: err}
	}
	return append(list, f)
}

// viewsNode writes views as the file has them.
func viewsNode(views []View) *yaml.Node {
	all := mapping()
	for _, v := range views {
		n := mapping()
		for _, f := range []struct{ name, text string }{
			{"topic", v.Topic}, {"key", v.Key}, {"map", v.Map}, {"tombstone", v.Tombstone},
			{"version", v.Version}, {"reduce", v.Reduce}, {"from", v.From},
		} {
			if f.text != "" {
				put(n, f.name, scalar(f.text))
			}
		}
		if len(v.Indexes) > 0 {
			list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
			for _, x := range v.Indexes {
				if len(x.Fields) == 1 && !x.Unique {
					list.Content = append(list.Content, scalar(x.Fields[0]))
					continue
				}
				row := mapping()
				row.Style = yaml.FlowStyle
				put(row, "fields", texts(x.Fields))
				if x.Unique {
					put(row, "unique", truth(true))
				}
				list.Content = append(list.Content, row)
			}
			put(n, "indexes", list)
		}
		all.Content = append(all.Content, scalar(v.Name), n)
	}
	return all
}
