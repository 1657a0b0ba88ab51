package jsscan

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/dop251/goja/ast"
	"github.com/dop251/goja/parser"
	"github.com/evanw/esbuild/pkg/api"
	"github.com/go-sourcemap/sourcemap"

	"promethean/lint"
)

// MaxSize is the largest file that is looked at, in bytes. What people write by
// hand is far smaller.
const MaxSize = 512 << 10

// maxDepth bounds brackets in brackets, because parsers call themselves for each.
const maxDepth = 500

// maxStretch bounds what is nested without brackets, such as a=>a=>a and if (a) if
// (a): nothing in it ends a part of a program.
const maxStretch = 64 << 10

// Result is what a file holds.
type Result struct {
	Uses    []lint.Use
	Headers []lint.Header
	// Findings say why a file could not be looked at.
	Findings []lint.Finding
}

// loaders are the languages by the ends of names.
var loaders = map[string]api.Loader{
	".ts": api.LoaderTS, ".mts": api.LoaderTS, ".cts": api.LoaderTS, ".tsx": api.LoaderTSX,
	".js": api.LoaderJSX, ".mjs": api.LoaderJSX, ".cjs": api.LoaderJSX, ".jsx": api.LoaderJSX,
}

// generated matches names of files that nobody writes, and of tests, which
// publish what is wrong on purpose.
var generated = regexp.MustCompile(`(\.d\.[cm]?ts|\.min\.[cm]?js|[._](test|spec)\.[cm]?[jt]sx?)$`)

// Takes says whether a file is one to look at, by its name.
func Takes(name string) bool {
	_, ok := loaders[filepath.Ext(name)]
	return ok && !generated.MatchString(name)
}

// words are those of which one is in every file with calls.
var words = regexp.MustCompile(`\b(publish|publishBatch|subscribe|promethean-client)\b`)

// importsClient matches the import of our client.
var importsClient = regexp.MustCompile(`(?:\bfrom|\bimport|\brequire\s*\(|\bimport\s*\()\s*['"]promethean-client(?:/[^'"]*)?['"]`)

// minified says whether a text is a program's work: long lines of code.
func minified(text []byte) bool {
	return len(text) > 10_000 && len(text)/(bytes.Count(text, []byte("\n"))+1) > 500
}

// Scan looks at the text of a file. Files that name none of the calls are not
// parsed.
func Scan(name string, text []byte) (r Result) {
	if !words.Match(text) || minified(text) {
		return r
	}
	at := lint.Position{File: name, Line: 1, Column: 1}
	bad := func(at lint.Position, format string, args ...any) Result {
		return Result{Findings: []lint.Finding{lint.NewFinding(lint.SourceInvalid, at, fmt.Sprintf(format, args...))}}
	}
	if len(text) > MaxSize {
		return bad(at, "the file has %d bytes, of which at most %d are looked at", len(text), MaxSize)
	}
	if !utf8.Valid(text) {
		return bad(at, "the file is not UTF-8")
	}
	if why := tooDeep(text); why != "" {
		return bad(at, "%s, which is not looked at", why)
	}
	s := &scan{name: name, lines: bytes.Split(text, []byte("\n")), client: importsClient.Match(text), out: &r}
	code, err := s.compile(text)
	if err != nil {
		return bad(s.errorAt(err), "cannot be parsed: %v", err)
	}
	program, err := parser.ParseFile(nil, "", code, 0, parser.WithDisableSourceMaps)
	if err != nil {
		at, what := s.parserError(err)
		return bad(at, "cannot be parsed: %s", what)
	}
	s.code = code
	s.consts = constants(program)
	walk(program, func(n ast.Node) {
		if call, ok := n.(*ast.CallExpression); ok {
			s.call(call)
		}
	})
	return r
}

// tooDeep says why parsers, which call themselves for what is nested, could run out
// of stack; "" if they cannot. It looks at characters wherever they stand, so that
// no language has to be understood.
func tooDeep(text []byte) string {
	depth, run, stretch := 0, 0, 0
	for _, c := range text {
		stretch++
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']':
			depth = max(depth-1, 0)
		case '}':
			depth, stretch = max(depth-1, 0), 0
		case ';', ',':
			stretch = 0
		}
		switch c {
		case '!', '~', '+', '<': // operators that stand before a value
			run++
		case '-', ' ', '\n', '\t', '\r':
		default:
			run = 0
		}
		switch {
		case depth > maxDepth:
			return fmt.Sprintf("brackets are nested more than %d deep", maxDepth)
		case run > maxDepth:
			return fmt.Sprintf("more than %d operators follow each other", maxDepth)
		case stretch > maxStretch:
			return fmt.Sprintf("more than %d bytes come without any of ; , }", maxStretch)
		}
	}
	return ""
}

// scan is the look at one file.
type scan struct {
	name   string
	lines  [][]byte
	client bool // the file imports our client
	code   string
	source *sourcemap.Consumer
	consts map[string]ast.Expression
	out    *Result
}

// compileError is what the compiler found.
type compileError struct{ api.Message }

func (e compileError) Error() string { return e.Text }

// prefix makes a file a function, so that await may stand at its top. It is
// a line of its own.
const prefix, suffix = "(async () => {\n", "\n})()"

// compile makes plain JavaScript of a file: what goja's parser does not know
// is put in simpler words. Templates become strings, so that no string has more
// than one line and imports are found by their lines.
func (s *scan) compile(text []byte) (string, error) {
	r := api.Transform(string(text), api.TransformOptions{
		Loader: loaders[filepath.Ext(s.name)], Target: api.ES2017, Format: api.FormatESModule,
		Sourcemap: api.SourceMapExternal, SourcesContent: api.SourcesContentExclude, Sourcefile: "file",
		LegalComments: api.LegalCommentsNone, JSX: api.JSXTransform, LogLevel: api.LogLevelSilent,
		Supported: map[string]bool{
			"top-level-await": true, "object-rest-spread": true, "optional-chain": true, "template-literal": false, "dynamic-import": false, "hashbang": false,
		},
		TsconfigRaw: `{"compilerOptions":{"experimentalDecorators":true}}`,
	})
	if len(r.Errors) > 0 {
		return "", compileError{r.Errors[0]}
	}
	var err error
	if s.source, err = sourcemap.Parse("", r.Map); err != nil {
		return "", err
	}
	return prefix + withoutModules(string(r.Code)) + suffix, nil
}

// withoutModules makes imports and exports white space: they are statements of
// their own, which begin a line and end with one.
func withoutModules(code string) string {
	if !strings.Contains(code, "import ") && !strings.Contains(code, "export ") {
		return code
	}
	var b strings.Builder
	b.Grow(len(code))
	inside := false
	for line := range strings.Lines(code) {
		if strings.HasPrefix(line, "import ") || strings.HasPrefix(line, "export ") || strings.HasPrefix(line, `import"`) {
			inside = true
		}
		if !inside {
			b.WriteString(line)
			continue
		}
		if strings.HasSuffix(line, "\n") {
			b.WriteString(strings.Repeat(" ", len(line)-1) + "\n")
		}
		inside = !strings.HasSuffix(strings.TrimRight(line, "\n"), ";")
	}
	return b.String()
}

func (s *scan) errorAt(err error) lint.Position {
	at := lint.Position{File: s.name, Line: 1, Column: 1}
	var c compileError
	if errors.As(err, &c) && c.Location != nil {
		at.Line = s.clamped(c.Location.Line)
		line := s.lines[at.Line-1]
		at.Column = lint.Characters(line, min(c.Location.Column, len(line))+1)
	}
	return at
}

// clamped keeps the number of a line within the file: the compiler begins a new
// line at more characters than we do, such as U+2028.
func (s *scan) clamped(line int) int { return min(max(line, 1), len(s.lines)) }

// parserError says what the second parser did not understand, and where that is.
func (s *scan) parserError(err error) (lint.Position, string) {
	var list parser.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		return s.origin(list[0].Position.Line, list[0].Position.Column), list[0].Message
	}
	return lint.Position{File: s.name, Line: 1, Column: 1}, err.Error()
}

// place gives where a node stands in the file.
func (s *scan) place(n ast.Node) lint.Position {
	offset := min(max(int(n.Idx0())-1, 0), len(s.code))
	line := strings.Count(s.code[:offset], "\n") + 1
	return s.origin(line, offset-strings.LastIndexByte(s.code[:offset], '\n'))
}

// origin leads a line and a column of the code, counted from 1, back to the file.
func (s *scan) origin(line, column int) lint.Position {
	at := lint.Position{File: s.name, Line: 1, Column: 1}
	if _, _, l, c, ok := s.source.Source(line-strings.Count(prefix, "\n"), column-1); ok {
		at.Line = s.clamped(l)
		at.Column = fromUTF16(s.lines[at.Line-1], c)
	}
	return at
}

// fromUTF16 turns a column in UTF-16 units from 0 into one in characters from 1.
func fromUTF16(line []byte, column int) int {
	n := 1
	for len(line) > 0 && column > 0 {
		r, size := utf8.DecodeRune(line)
		line = line[size:]
		if column--; r > 0xFFFF {
			column--
		}
		n++
	}
	return n
}
