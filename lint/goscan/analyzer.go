package goscan

import (
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"strings"
	"sync"

	"golang.org/x/tools/go/analysis"

	"promethean/lint"
	"promethean/lint/yamlscan"
)

// Analyzer reports topics, headers and payloads that a hub would refuse. It
// finds schemas by itself: those of the nearest promethean.yaml above the package,
// or of the nearest directory schemas. Where there is neither, it reports only
// what needs no schemas.
//
// Whether a schema is sound, compatible and used is not said here but by
// "promethean lint", which sees the whole project.
var Analyzer = &analysis.Analyzer{
	Name:       "promethean",
	Doc:        "check topics, headers and payloads of the event bus against their rules and schemas",
	URL:        "https://pkg.go.dev/promethean/lint/goscan",
	Run:        run,
	FactTypes:  []analysis.Fact{new(Wrapper)},
	ResultType: reflect.TypeFor[Result](),
}

// flags of the analyzer.
var flags struct {
	config, schemas string
	allow           patterns
}

// patterns is a flag that may be given several times, or as a list with commas.
type patterns []string

// String implements flag.Value.
func (p *patterns) String() string { return strings.Join(*p, ",") }

// Set implements flag.Value.
func (p *patterns) Set(s string) error {
	for one := range strings.SplitSeq(s, ",") {
		if err := lint.NewKnown().Allow(one); err != nil {
			return err
		}
		*p = append(*p, one)
	}
	return nil
}

func init() {
	Analyzer.Flags.StringVar(&flags.config, "config", "", "configuration that names the schemas (default: the nearest promethean.yaml)")
	Analyzer.Flags.StringVar(&flags.schemas, "schemas", "", "directory that has a directory of schemas for each topic")
	Analyzer.Flags.String("stamp", "", "any text, such as a checksum of the schemas: go vet keeps what it found until sources or flags change")
	Analyzer.Flags.Var(&flags.allow, "allow", "pattern of topics that may be without a schema; may come again")
}

// Configure sets what the flags of [Analyzer] set, for drivers that have settings
// of their own.
func Configure(config, schemas string, allow []string) error {
	flags.config, flags.schemas, flags.allow = config, schemas, nil
	for _, p := range allow {
		if err := flags.allow.Set(p); err != nil {
			return err
		}
	}
	return nil
}

// passFacts keeps facts in a pass.
type passFacts struct{ *analysis.Pass }

func (p passFacts) get(f *types.Func) *Wrapper {
	w := new(Wrapper)
	if p.ImportObjectFact(f, w) {
		return w
	}
	return nil
}

func (p passFacts) set(f *types.Func, w *Wrapper) { p.ExportObjectFact(f, w) }

func run(pass *analysis.Pass) (any, error) {
	if !reaches(pass.Pkg, make(map[*types.Package]bool)) {
		return Result{}, nil
	}
	s := newScan(pass.Fset, pass.Files, pass.Pkg, pass.TypesInfo, passFacts{pass})
	r := s.run()
	if len(s.files) == 0 {
		return r, nil
	}
	k := knownFor(filepath.Dir(pass.Fset.File(s.files[0].Pos()).Name()), r)
	var list []lint.Finding
	for _, u := range r.Uses {
		list = append(list, k.Judge(u)...)
	}
	for _, h := range r.Headers {
		list = append(list, lint.JudgeHeader(h)...)
	}
	for _, f := range s.files {
		file := pass.Fset.File(f.Pos())
		text, err := pass.ReadFile(file.Name())
		if err != nil {
			return nil, err
		}
		allows := lint.FindAllows(file.Name(), text)
		list = allows.Filter(list)
		for _, one := range allows.Unreasoned() {
			report(pass, file.LineStart(one.Line), one)
		}
	}
	for _, one := range lint.Sort(list) {
		report(pass, r.pos[one.Position], one)
	}
	return r, nil
}

func report(pass *analysis.Pass, at token.Pos, f lint.Finding) {
	pass.Report(analysis.Diagnostic{Pos: at, Category: f.Rule, Message: f.Message + " [" + f.Rule + "]; fix: " + f.Fix})
}

// found remembers where schemas are, for drivers that look at many packages in
// one process.
var found struct {
	sync.Mutex
	byPlace map[yamlscan.Place][]reading
}

// reading is schemas of a topic.
type reading struct{ topic, dir string }

// knownFor gives the schemas that count for a directory.
func knownFor(dir string, r Result) *lint.Known {
	place := yamlscan.Place{Config: flags.config, Schemas: flags.schemas}
	if place == (yamlscan.Place{}) {
		place = yamlscan.Find(dir)
	}
	k := lint.NewKnown()
	k.Partial = place == (yamlscan.Place{})
	for _, p := range flags.allow {
		if err := k.Allow(p); err != nil {
			panic(err) // Set has looked at it
		}
	}
	found.Lock()
	list, ok := found.byPlace[place]
	if !ok {
		for _, d := range place.Read() {
			list = append(list, reading{d.Topic, d.Path})
		}
		if found.byPlace == nil {
			found.byPlace = make(map[yamlscan.Place][]reading)
		}
		found.byPlace[place] = list
	}
	found.Unlock()
	for _, d := range list {
		k.ReadTopic(d.topic, d.dir)
	}
	for _, u := range r.Uses {
		k.Note(u)
	}
	return k
}
