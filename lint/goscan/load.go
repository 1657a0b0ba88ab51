package goscan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"promethean/lint"
)

// maxErrors is how many errors of the type checker are told for one package.
const maxErrors = 5

// listed is what the go command says about a package.
type listed struct {
	ImportPath, Dir   string
	GoFiles, CgoFiles []string
	Imports           []string
	ImportMap         map[string]string
	Standard, DepOnly bool
	Export            string
	Module            *struct{ Path, GoVersion string }
	Error             *struct{ Pos, Err string }

	source bool // it is type-checked from its files
	files  []*ast.File
	bad    []lint.Finding
}

// names gives the paths of the files.
func (p *listed) names() []string {
	names := append(slices.Clone(p.GoFiles), p.CgoFiles...)
	for i, name := range names {
		if !filepath.IsAbs(name) {
			names[i] = filepath.Join(p.Dir, name)
		}
	}
	return names
}

// ours says whether a package is one of this module that nobody asked for. What its
// functions take is known without looking. Fixtures of tests are nobody's.
func (p *listed) ours() bool {
	return p.DepOnly && p.Module != nil && p.Module.Path == module && !strings.Contains(p.ImportPath, "/testdata/")
}

// Loaded is what the packages of a module hold.
type Loaded struct {
	Result
	// Files are those of the packages that were asked for.
	Files []string
	// Findings say what could not be looked at, and why.
	Findings []lint.Finding
}

// Load type-checks packages and looks for calls. The pattern is one of the go
// command, "./..." for the directory and all below it that is of its module, "."
// for the directory alone. Files are named by absolute paths, and columns are
// counted in bytes.
//
// It needs the go command. Packages that cannot reach a hub are not looked at;
// what others import is read as the compiler has written it, which the go command
// keeps.
func Load(ctx context.Context, dir, pattern string) Loaded {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return failed(dir, err)
	}
	l := &loader{ctx: ctx, dir: abs, fset: token.NewFileSet(), byPath: make(map[string]*listed), checked: make(map[string]*types.Package)}
	if err := l.list(pattern); err != nil {
		return failed(abs, err)
	}
	l.choose()
	l.parse()
	if err := l.exports(); err != nil {
		return failed(abs, err)
	}
	return l.check()
}

// failed says that a module could not be looked at.
func failed(dir string, err error) Loaded {
	at := lint.Position{File: dir}
	if mod := filepath.Join(dir, "go.mod"); fileExists(mod) {
		at = lint.Position{File: mod, Line: 1, Column: 1}
	}
	message := "the Go packages cannot be loaded: " + strings.Join(strings.Fields(err.Error()), " ")
	f := lint.NewFinding(lint.SourceInvalid, at, message)
	if errors.Is(err, exec.ErrNotFound) {
		f.Fix = "install Go: packages are found and type-checked with the go command"
	}
	return Loaded{Findings: []lint.Finding{f}}
}

func fileExists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// loader brings packages from the go command to the type checker.
type loader struct {
	ctx     context.Context
	dir     string
	fset    *token.FileSet
	order   []*listed // dependencies first
	byPath  map[string]*listed
	checked map[string]*types.Package
	gc      types.Importer
}

// command runs the go command.
func (l *loader) command(args ...string) ([]byte, error) {
	cmd := exec.CommandContext(l.ctx, "go", args...)
	cmd.Dir = l.dir
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if l.ctx.Err() != nil {
			return nil, l.ctx.Err()
		}
		if text := strings.TrimSpace(said.String()); text != "" {
			if len(text) > 2000 {
				text = text[:2000] + "…"
			}
			return nil, fmt.Errorf("go %s: %s", args[0], text)
		}
		return nil, fmt.Errorf("go %s: %w", args[0], err)
	}
	return out.Bytes(), nil
}

// list asks for the packages and all that they need.
func (l *loader) list(pattern string) error {
	out, err := l.command("list", "-e", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,Imports,ImportMap,Standard,DepOnly,Module,Error", "--", pattern)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(out))
	for {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list: %w", err)
		}
		l.order = append(l.order, p)
		l.byPath[p.ImportPath] = p
	}
}

// choose marks the packages to read from source: those that can reach a hub, but
// for our own that nobody asked for. Whoever imports one of them is read so too,
// for a type must not come from two places.
func (l *loader) choose() {
	reaches := make(map[string]bool)
	for _, p := range l.order {
		reaches[p.ImportPath] = p.ImportPath == module+"/event"
		for _, i := range p.Imports {
			if q := l.imported(p, i); q != nil {
				reaches[p.ImportPath] = reaches[p.ImportPath] || reaches[q.ImportPath]
				p.source = p.source || q.source
			}
		}
		if reaches[p.ImportPath] && !p.ours() {
			p.source = true
		}
	}
}

func (l *loader) imported(p *listed, path string) *listed {
	if to, ok := p.ImportMap[path]; ok {
		path = to
	}
	return l.byPath[path]
}

// parse reads the files of the chosen packages. Of the others that were asked for
// it reads nothing: what is wrong with them is their own matter, but for files
// that cannot be parsed, of which the go command tells.
func (l *loader) parse() {
	type job struct {
		p    *listed
		name string
		i    int
	}
	jobs := make(chan job)
	var wait sync.WaitGroup
	var mu sync.Mutex
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for j := range jobs {
				f, err := parser.ParseFile(l.fset, j.name, nil, parser.SkipObjectResolution)
				mu.Lock()
				j.p.files[j.i] = f
				if err != nil && !j.p.DepOnly {
					j.p.bad = append(j.p.bad, parseError(j.name, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range l.order {
		if !p.source {
			continue
		}
		names := p.names()
		p.files = make([]*ast.File, len(names))
		for i, name := range names {
			jobs <- job{p, name, i}
		}
	}
	close(jobs)
	wait.Wait()
	for _, p := range l.order {
		p.files = slices.DeleteFunc(p.files, func(f *ast.File) bool { return f == nil })
	}
}

// parseError is a finding about the first thing that is wrong in a file.
func parseError(name string, err error) lint.Finding {
	var list scanner.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		at := lint.Position{File: list[0].Pos.Filename, Line: list[0].Pos.Line, Column: list[0].Pos.Column}
		return lint.NewFinding(lint.SourceInvalid, at, "cannot be parsed: "+list[0].Msg)
	}
	return lint.NewFinding(lint.SourceInvalid, lint.Position{File: name, Line: 1, Column: 1}, "cannot be read: "+err.Error())
}

// exports asks for what the compiler has written about the packages that the
// chosen ones import.
func (l *loader) exports() error {
	var need []string
	for _, p := range l.order {
		if !p.source {
			continue
		}
		for _, i := range p.Imports {
			if q := l.imported(p, i); q != nil && !q.source && q.ImportPath != "unsafe" && q.Error == nil {
				need = append(need, q.ImportPath)
			}
		}
	}
	slices.Sort(need)
	if need = slices.Compact(need); len(need) == 0 {
		return nil
	}
	out, err := l.command(append([]string{"list", "-e", "-export", "-f", "{{.ImportPath}}\t{{.Export}}", "--"}, need...)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if p := l.byPath[path]; p != nil {
			p.Export = file
		}
	}
	return nil
}

// loadedFacts keeps facts while packages are checked one after the other.
type loadedFacts map[*types.Func]*Wrapper

func (f loadedFacts) get(fn *types.Func) *Wrapper    { return f[fn] }
func (f loadedFacts) set(fn *types.Func, w *Wrapper) { f[fn] = w }

// check type-checks the chosen packages and looks into those that were asked for.
func (l *loader) check() (out Loaded) {
	l.gc = importer.ForCompiler(l.fset, "gc", func(path string) (io.ReadCloser, error) {
		p := l.byPath[path]
		if p == nil || p.Export == "" {
			return nil, fmt.Errorf("it does not build")
		}
		return os.Open(p.Export)
	})
	facts := make(loadedFacts)
	for _, p := range l.order {
		if l.ctx.Err() != nil {
			break
		}
		var pkg *types.Package
		var info *types.Info
		if p.source {
			pkg, info = l.checkOne(p)
			l.checked[p.ImportPath] = pkg
		}
		if !p.DepOnly {
			if p.Error != nil && len(p.bad) == 0 {
				p.bad = append(p.bad, listError(p))
			}
			out.Findings = append(out.Findings, p.bad...)
			out.Files = append(out.Files, p.names()...)
		}
		if p.source {
			// Others are looked at for the wrappers that they have.
			r := newScan(l.fset, p.files, pkg, info, facts).run()
			if !p.DepOnly {
				out.Uses, out.Headers = append(out.Uses, r.Uses...), append(out.Headers, r.Headers...)
			}
		}
	}
	return out
}

// checkOne type-checks a package. What is wrong with it is noted; what can be
// known all the same is.
func (l *loader) checkOne(p *listed) (*types.Package, *types.Info) {
	info := &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection), Instances: make(map[*ast.Ident]types.Instance), Implicits: make(map[ast.Node]types.Object),
	}
	unparsed := len(p.bad) > 0
	conf := types.Config{
		Importer: importFunc(func(path string) (*types.Package, error) { return l.importOne(p, path) }), FakeImportC: true,
		IgnoreFuncBodies: p.ours(),
		Error: func(err error) {
			var e types.Error
			// Errors that follow from a file that cannot be parsed say nothing new.
			if errors.As(err, &e) && !e.Soft && !unparsed && len(p.bad) < maxErrors {
				at := l.fset.Position(e.Pos)
				p.bad = append(p.bad, lint.NewFinding(lint.SourceInvalid, lint.Position{File: at.Filename, Line: at.Line, Column: at.Column}, "does not type-check: "+e.Msg))
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	pkg, err := conf.Check(p.ImportPath, l.fset, p.files, info)
	_ = err // it is the first of those that Error was told
	return pkg, info
}

// importFunc is an importer.
type importFunc func(path string) (*types.Package, error)

// Import implements [types.Importer].
func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }

func (l *loader) importOne(p *listed, path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	q := l.imported(p, path)
	if q == nil {
		return nil, fmt.Errorf("the go command does not find it")
	}
	if pkg := l.checked[q.ImportPath]; pkg != nil {
		return pkg, nil
	}
	if q.Error != nil {
		return nil, errors.New(strings.Join(strings.Fields(q.Error.Err), " "))
	}
	return l.gc.Import(q.ImportPath)
}

// place matches a place as the go command writes it.
var place = regexp.MustCompile(`^(.*?):(\d+)(?::(\d+))?(?::|$)`)

// listError is a finding about what the go command says of a package.
func listError(p *listed) lint.Finding {
	at := lint.Position{File: p.Dir}
	if m := place.FindStringSubmatch(p.Error.Pos); m != nil {
		at.File = m[1]
		at.Line, _ = strconv.Atoi(m[2]) // digits
		at.Column, _ = strconv.Atoi(m[3])
		if !filepath.IsAbs(at.File) {
			at.File = filepath.Join(p.Dir, filepath.Base(at.File))
		}
	}
	return lint.NewFinding(lint.SourceInvalid, at, strings.Join(strings.Fields(p.Error.Err), " "))
}
