// Package tree looks through directories and gathers what is wrong: in Go, in
// TypeScript and JavaScript, in promethean.yaml and in schemas.
//
//	findings, err := tree.Run(ctx, tree.Options{Paths: []string{"."}})
//
// Schemas are those that promethean.yaml names, those in directories
// schemas/TOPIC, and those that Options name. The directories node_modules,
// vendor, testdata and __tests__ and those that begin with a dot are left out,
// unless they are named; so are tests, generated .d.ts files and minified ones.
package tree

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"promethean/lint"
	"promethean/lint/goscan"
	"promethean/lint/jsscan"
	"promethean/lint/yamlscan"
)

// Options say what to look at.
type Options struct {
	// Paths are directories and files. The default is the directory where the
	// program runs.
	Paths []string
	// Config is a configuration to read beside those that are found.
	Config string
	// Schemas are directories that have a directory of schemas for each topic, to
	// read beside those that are found.
	Schemas []string
	// Allow are patterns of topics that may be without a schema.
	Allow []string
}

// skipped are directories that hold what others have written, or what is wrong
// on purpose.
var skipped = []string{"node_modules", "vendor", "testdata", "__tests__"}

// Run looks at everything and gives the findings in order. Files are named as seen
// from where the program runs. An error says that a path or a pattern is wrong,
// or that ctx has ended.
func Run(ctx context.Context, o Options) ([]lint.Finding, error) {
	r := &run{known: lint.NewKnown(), seen: make(map[string]bool), modules: make(map[module]bool)}
	for _, p := range o.Allow {
		if err := r.known.Allow(p); err != nil {
			return nil, err
		}
	}
	var err error
	// Links are followed here, and nowhere else: the go command names files by where
	// they really are.
	if r.here, err = filepath.Abs("."); err == nil {
		r.here, err = filepath.EvalSymlinks(r.here)
	}
	if err != nil {
		return nil, err
	}
	if len(o.Paths) == 0 {
		o.Paths = []string{"."}
	}
	for _, p := range o.Paths {
		direct, err := filepath.EvalSymlinks(r.abs(p))
		if err != nil {
			return nil, err
		}
		r.paths = append(r.paths, direct)
	}
	if o.Config != "" {
		if _, err := os.Stat(o.Config); err != nil {
			return nil, fmt.Errorf("the configuration: %w", err)
		}
		r.config(o.Config, true)
	}
	for _, dir := range o.Schemas {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("the schemas: %w", err)
		}
		r.findings = append(r.findings, r.known.ReadTree(r.shown(dir))...)
	}
	for _, p := range r.paths {
		if err := r.walk(ctx, p); err != nil {
			return nil, err
		}
	}
	for _, p := range r.paths {
		r.above(p)
	}
	r.sources(ctx)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.judge(), nil
}

// module is a place to run the go command in.
type module struct{ dir, pattern string }

// run is one look at everything.
type run struct {
	here     string // where the program runs
	paths    []string
	known    *lint.Known
	seen     map[string]bool // files that were read
	modules  map[module]bool
	scripts  []string
	checked  []string // files that may have allow comments
	uses     []lint.Use
	headers  []lint.Header
	findings []lint.Finding
	inBytes  map[string]bool // files whose columns are counted in bytes
}

// abs is a path from the root of the file system on.
func (r *run) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(r.here, path)
}

// shown is how a file is named: as seen from here if it is below.
func (r *run) shown(path string) string {
	abs := r.abs(path)
	if rel, err := filepath.Rel(r.here, abs); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return abs
}

// within says whether a file is one of those that were asked for.
func (r *run) within(file string) bool {
	abs := r.abs(file)
	return slices.ContainsFunc(r.paths, func(p string) bool {
		rel, err := filepath.Rel(p, abs)
		return err == nil && filepath.IsLocal(rel)
	})
}

// walk finds out what is below a path.
func (r *run) walk(ctx context.Context, root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == root {
				return err
			}
			r.findings = append(r.findings, lint.NewFinding(lint.SourceInvalid, lint.Position{File: r.shown(path)}, "cannot be read: "+err.Error()))
			return fs.SkipDir
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (slices.Contains(skipped, name) || strings.HasPrefix(name, ".")) {
				return fs.SkipDir
			}
			if filepath.Base(filepath.Dir(path)) == yamlscan.SchemasName && lint.HoldsSchemas(path) {
				r.topic(name, path)
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		switch {
		case name == yamlscan.FileName:
			r.config(path, true)
		case jsscan.Takes(name):
			if !r.seen[path] {
				r.seen[path] = true
				r.scripts = append(r.scripts, path)
			}
		case strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			r.goFile(root, path)
		}
		return nil
	})
}

// topic reads the schemas of a topic.
func (r *run) topic(name, dir string) {
	dir = r.shown(dir)
	r.findings = append(r.findings, r.known.ReadTopic(name, dir)...)
	if entries, err := os.ReadDir(dir); err == nil {
		for _, e := range entries {
			if !e.IsDir() {
				r.checked = append(r.checked, filepath.Join(dir, e.Name()))
			}
		}
	}
}

// config reads a configuration and the schemas that it names.
func (r *run) config(path string, tell bool) {
	abs := r.abs(path)
	if r.seen[abs] {
		return
	}
	r.seen[abs] = true
	name := r.shown(path)
	text, err := os.ReadFile(path)
	if err != nil {
		r.findings = append(r.findings, lint.NewFinding(lint.ConfigInvalid, lint.Position{File: name}, "cannot be read: "+err.Error()))
		return
	}
	c := yamlscan.Scan(name, text)
	for _, u := range c.Uses {
		r.known.Note(u)
	}
	for _, d := range c.Dirs {
		if tell {
			r.topic(d.Topic, d.Path)
		} else {
			r.known.ReadTopic(d.Topic, d.Path)
		}
	}
	if tell {
		r.uses = append(r.uses, c.Uses...)
		r.findings = append(r.findings, c.Findings...)
		r.checked = append(r.checked, name)
	}
}

// above reads the configuration and the schemas that count for a path without
// being in it. What is wrong with them is not asked for.
func (r *run) above(path string) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		path = filepath.Dir(path)
	}
	place := yamlscan.Find(path)
	if place.Config != "" {
		r.config(place.Config, false)
	}
	for _, d := range place.Read() {
		r.known.ReadTopic(d.Topic, r.shown(d.Path))
	}
}

// goFile notes the module that a file is of: one below the root is looked at as
// a whole, one above only from the root on.
func (r *run) goFile(root, path string) {
	if path == root {
		r.modules[module{filepath.Dir(path), "."}] = true
		return
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if dir == root {
			r.modules[module{root, "./..."}] = true
			return
		}
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			r.modules[module{dir, "./..."}] = true
			return
		}
	}
}

// sources looks at Go and at scripts, side by side.
func (r *run) sources(ctx context.Context) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	r.inBytes = make(map[string]bool)
	wait.Go(func() {
		for m := range r.modules {
			l := goscan.Load(ctx, m.dir, m.pattern)
			mu.Lock()
			r.loaded(l)
			mu.Unlock()
		}
	})
	scripts := make(chan string)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for path := range scripts {
				name := r.shown(path)
				text, err := readSome(path, 4*jsscan.MaxSize)
				var got jsscan.Result
				if err == nil {
					got = jsscan.Scan(name, text)
				} else {
					got.Findings = []lint.Finding{lint.NewFinding(lint.SourceInvalid, lint.Position{File: name}, "cannot be read: "+err.Error())}
				}
				mu.Lock()
				r.uses, r.headers = append(r.uses, got.Uses...), append(r.headers, got.Headers...)
				r.findings = append(r.findings, got.Findings...)
				r.checked = append(r.checked, name)
				mu.Unlock()
			}
		})
	}
	for _, path := range r.scripts {
		if ctx.Err() != nil {
			break
		}
		scripts <- path
	}
	close(scripts)
	wait.Wait()
}

// readSome reads a file, or the beginning of a long one.
func readSome(path string, most int64) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return io.ReadAll(io.LimitReader(f, most))
}

// loaded takes what a module holds, with files named as people see them.
func (r *run) loaded(l goscan.Loaded) {
	for _, name := range l.Files {
		name = r.shown(name)
		r.checked = append(r.checked, name)
		r.inBytes[name] = true
	}
	for _, u := range l.Uses {
		u.At.File, u.PayloadAt.File = r.shown(u.At.File), r.shown(u.PayloadAt.File)
		r.uses = append(r.uses, u)
	}
	for _, h := range l.Headers {
		h.At.File = r.shown(h.At.File)
		r.headers = append(r.headers, h)
	}
	for _, f := range l.Findings {
		f.File = r.shown(f.File)
		r.findings = append(r.findings, f)
	}
}

// judge makes findings of what was found.
func (r *run) judge() []lint.Finding {
	for _, u := range r.uses {
		r.known.Note(u)
	}
	list := r.findings
	for _, u := range r.uses {
		list = append(list, r.known.Judge(u)...)
	}
	for _, h := range r.headers {
		list = append(list, lint.JudgeHeader(h)...)
	}
	list = append(list, r.known.Dead(r.within)...)
	list = slices.DeleteFunc(list, func(f lint.Finding) bool { return !r.within(f.File) && r.checkedOnly(f) })
	slices.Sort(r.checked)
	byFile := make(map[string][]lint.Finding)
	for _, f := range list {
		byFile[f.File] = append(byFile[f.File], f)
	}
	for _, name := range slices.Compact(r.checked) {
		text, err := readSome(name, 16<<20)
		if err != nil || !r.within(name) && len(byFile[name]) == 0 {
			continue
		}
		if r.inBytes[name] {
			inCharacters(byFile[name], text)
		}
		allows := lint.FindAllows(name, text)
		byFile[name] = append(append(allows.Filter(byFile[name]), allows.Unreasoned()...), allows.Unused()...)
	}
	var all []lint.Finding
	for _, l := range byFile {
		all = append(all, l...)
	}
	for i := range all {
		all[i].File = filepath.ToSlash(all[i].File)
	}
	return lint.Sort(all)
}

// checkedOnly says whether a finding counts only where its file was asked for:
// sources do, what flags name does not.
func (r *run) checkedOnly(f lint.Finding) bool {
	return strings.HasSuffix(f.File, ".go") || jsscan.Takes(f.File)
}

// inCharacters recounts columns that are counted in bytes.
func inCharacters(list []lint.Finding, text []byte) {
	if len(list) == 0 {
		return
	}
	lines := bytes.Split(text, []byte("\n"))
	for i := range list {
		if n := list[i].Line; n >= 1 && n <= len(lines) {
			list[i].Column = lint.Characters(lines[n-1], list[i].Column)
		}
	}
}
