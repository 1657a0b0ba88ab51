package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// load reads the module in dir. Names and package comments come from the go
// command; the files are found by walking the folders, for two reasons: files
// for other platforms are judged too, and go test, which caches results, only
// notices changes in what the test itself has opened.
func load(dir string) ([]pkg, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// With -e a package that does not compile is listed all the same: saying
	// so is the compiler's part.
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Doc,Dir,Module", "./...")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.String())
	}

	var pkgs []pkg
	byDir := map[string]int{}
	module := ""
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var listed struct {
			ImportPath, Name, Doc, Dir string
			Module                     struct{ Path string }
		}
		if err := dec.Decode(&listed); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		rel, err := filepath.Rel(dir, listed.Dir)
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if skipped(rel) {
			continue
		}
		module = listed.Module.Path
		byDir[rel] = len(pkgs)
		name, _ := relative(module, listed.ImportPath)
		pkgs = append(pkgs, pkg{path: name, name: listed.Name, doc: listed.Doc})
	}

	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if skipped(rel) {
				return filepath.SkipDir
			}
			return nil
		}
		i, known := byDir[filepath.Dir(rel)]
		if !known || filepath.Ext(rel) != ".go" || strings.HasPrefix(entry.Name(), ".") || strings.HasPrefix(entry.Name(), "_") {
			return nil
		}
		f, err := read(module, name, filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		pkgs[i].files = append(pkgs[i].files, f)
		return nil
	})
	return pkgs, err
}

// skipped says whether a folder holds no packages of the module.
func skipped(rel string) bool {
	for segment := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		switch {
		case segment == ".":
		case segment == "testdata", segment == "node_modules", segment[0] == '.', segment[0] == '_':
			return true
		}
	}
	return false
}

func read(module, name, rel string) (file, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return file{}, err
	}
	f := file{path: rel, lines: bytes.Count(text, []byte("\n")), test: strings.HasSuffix(rel, "_test.go")}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		f.lines++
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, rel, text, parser.ImportsOnly)
	if err != nil {
		return file{}, fmt.Errorf("read imports: %w", err)
	}
	for _, spec := range parsed.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return file{}, fmt.Errorf("read imports of %s: %w", rel, err)
		}
		u := use{line: fset.Position(spec.Pos()).Line}
		u.path, u.ours = relative(module, target)
		f.imports = append(f.imports, u)
	}
	return f, nil
}

// relative turns an import path into the name that the rules use.
func relative(module, target string) (name string, ours bool) {
	if target == module {
		return root, true
	}
	if rest, below := strings.CutPrefix(target, module+"/"); below {
		return rest, true
	}
	return target, false
}
