package yamlscan

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// write makes a file and the directories above it.
func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func said(r Result) (list []string) {
	for _, u := range r.Uses {
		list = append(list, fmt.Sprintf("%s %s %d:%d", u.Kind, u.Topic, u.At.Line, u.At.Column))
	}
	for _, d := range r.Dirs {
		list = append(list, fmt.Sprintf("schemas %s %d:%d", d.Topic, d.At.Line, d.At.Column))
	}
	for _, f := range r.Findings {
		list = append(list, fmt.Sprintf("%s %d:%d %s", f.Rule, f.Line, f.Column, f.Message))
	}
	return list
}

func TestScan(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "schemas", "a.b", "v1.json"), "true")
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"other settings", "listen: x\nauth: {tokens: []}\n", nil},
		{"topics", "topics:\n  a.b: {schemas: schemas/a.b}\n  Bad: ~\n", []string{"configure a.b 2:3", "configure Bad 3:3", "schemas a.b 2:18"}},
		{"characters", "topics: {é: {}, b: {}}", []string{"configure é 1:10", "configure b 1:17"}},
		{"a directory that is not there", "topics: {a.b: {schemas: nowhere}}", []string{"configure a.b 1:10", "config-invalid 1:25 topics.a.b.schemas: there is no directory nowhere"}},
		{"the rest that names topics", "limits: {topic_rate: {a.b: 1/s}}\nviews: {v: {topic: c.d, key: .x}}\nchangefeeds: {f: {topic: e.f}}\ntopics: {g.h: {snapshot: {topic: i.j}}}", []string{
			"mention a.b 1:23", "mention c.d 2:20", "mention e.f 3:26", "configure g.h 4:10", "mention i.j 4:34",
		}},
		{"an alias", "x: &x {topic: a.b}\nviews: {v: *x}", []string{"mention a.b 1:15"}},
		{"a merge of itself", "topics: &x\n  a.b: *x\n", []string{"configure a.b 2:3"}},
		{"what is no map", "topics: [a, b]\nviews: 3\nlimits: x", nil},
		{"no YAML", "topics:\n  a.b: {\n", []string{"config-invalid 2:1 no YAML: did not find expected node content"}},
		{"too large", "#" + strings.Repeat("x", maxSize), []string{fmt.Sprintf("config-invalid 1:1 the file has %d bytes, of which at most %d are looked at", maxSize+1, maxSize)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := said(Scan(filepath.Join(dir, FileName), []byte(c.text))); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// The nearest place counts, and none beyond the repository.
func TestFind(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, FileName), "")
	repo := filepath.Join(top, "repo")
	write(t, filepath.Join(repo, ".git", "HEAD"), "")
	if got := Find(filepath.Join(repo, "a")); got != (Place{}) {
		t.Errorf("beyond the repository: %+v", got)
	}
	write(t, filepath.Join(repo, "schemas", "a.b", "v1.json"), "true")
	write(t, filepath.Join(repo, "a", FileName), "topics: {c.d: {schemas: here}}")
	write(t, filepath.Join(repo, "a", "here", "v1.json"), "true")
	write(t, filepath.Join(repo, "a", "schemas", "readme.txt"), "no schemas")
	if got, want := Find(filepath.Join(repo, "b", "c")), (Place{Schemas: filepath.Join(repo, "schemas")}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	place := Find(filepath.Join(repo, "a", "deep"))
	if want := (Place{Config: filepath.Join(repo, "a", FileName)}); place != want {
		t.Errorf("got %+v, want %+v", place, want)
	}
	if list := place.Read(); len(list) != 1 || list[0].Topic != "c.d" || list[0].Path != filepath.Join(repo, "a", "here") {
		t.Errorf("it reads %+v", list)
	}
	if list := (Place{Schemas: filepath.Join(repo, "schemas")}).Read(); len(list) != 1 || list[0].Topic != "a.b" {
		t.Errorf("it reads %+v", list)
	}
}

// Whatever stands in a file: no panic, and places are inside of it.
func FuzzScan(f *testing.F) {
	f.Add("topics:\n  a.b: {schemas: x, snapshot: {topic: c.d}}\nviews: &v {a: {topic: b}}\nchangefeeds: *v\n")
	f.Add("limits: {topic_rate: {é: 1}}\r\n")
	f.Add("topics: {\"a\\nb\": ~, ? [x] : y}")
	f.Fuzz(func(t *testing.T, text string) {
		r := Scan("nowhere/promethean.yaml", []byte(text))
		for _, u := range r.Uses {
			if u.At.Line < 1 || u.At.Column < 1 {
				t.Errorf("%v in %q", u.At, text)
			}
		}
		for _, x := range r.Findings {
			if x.Line < 1 || x.Column < 1 {
				t.Errorf("%v in %q", x.Position, text)
			}
		}
	})
}
