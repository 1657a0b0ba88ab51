package arch

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// pkg is what the rules look at in a package.
type pkg struct {
	path  string // relative to the module; the root package is root
	name  string
	doc   string
	files []file
}

// file is what the rules look at in a Go file.
type file struct {
	path    string // relative to the module
	lines   int
	test    bool
	imports []use
}

// use is one import. The path of a package of ours is given as in pkg.path;
// that of any other is given as it stands in the file, with ours unset.
type use struct {
	path string
	ours bool
	line int
}

// violation is one breach of one rule.
type violation struct {
	rule   string
	where  string // file, with the line where there is one, or package
	what   string
	remedy string
	reason string
}

func (v violation) String() string {
	return fmt.Sprintf("%s: %s\n\trule: %s\n\twhy:  %s\n\tfix:  %s", v.where, v.what, v.rule, v.reason, v.remedy)
}

// check returns every breach of the rules, ordered by place.
func check(pkgs []pkg) []violation {
	var found []violation
	for _, p := range pkgs {
		found = append(found, checkPackage(p)...)
		for _, f := range p.files {
			found = append(found, checkFile(f)...)
			if f.test {
				continue
			}
			for _, u := range f.imports {
				if u.ours {
					found = append(found, checkPlacement(p, f, u)...)
					found = append(found, checkRestrictions(p, f, u)...)
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b violation) int {
		return cmp.Or(cmp.Compare(a.where, b.where), cmp.Compare(a.rule, b.rule))
	})
	return found
}

func checkPackage(p pkg) []violation {
	var found []violation
	if _, placed := place(p.path); !placed {
		found = append(found, violation{
			rule: rulePlace, where: "package " + p.path, what: "no rule says what it may import",
			remedy: "add it to a room in internal/arch/rules_test.go, or give that table a new one with its reason",
			reason: "a package outside the table would escape the direction of dependencies",
		})
	}
	if strings.TrimSpace(p.doc) == "" {
		found = append(found, violation{
			rule: ruleDoc, where: "package " + p.path, what: "has no package comment",
			remedy: fmt.Sprintf("write one above the package clause of one file, in doc.go if it is long: %q", "// Package "+p.name+" …"),
			reason: "a stranger reads it first: purpose, guarantees, one example",
		})
	}
	for _, name := range []string{p.name, path.Base(p.path)} {
		if slices.Contains(emptyNames, name) {
			found = append(found, violation{
				rule: ruleName, where: "package " + p.path, what: fmt.Sprintf("is named %q", name),
				remedy: "name it for the one thing it holds, or move its contents to where they are used",
				reason: "a name that fits everything tells nobody what to look for there",
			})
			break
		}
	}
	return found
}

func checkFile(f file) []violation {
	var found []violation
	if f.lines > maxLines {
		found = append(found, violation{
			rule: ruleLength, where: f.path, what: fmt.Sprintf("has %d lines, %d are allowed", f.lines, maxLines),
			remedy: "split it by subject into files that are named for it",
			reason: "a reader keeps one file in mind, not half of one",
		})
	}
	for _, u := range f.imports {
		if u.path == "C" {
			found = append(found, violation{
				rule: ruleCgo, where: at(f, u), what: `imports "C"`,
				remedy: "use a library written in Go, or put the C program behind a process of its own",
				reason: "the binary is built without cgo, so that it is static and cross-compiles",
			})
		}
	}
	return found
}

func checkPlacement(p pkg, f file, u use) []violation {
	rule, placed := place(p.path)
	if !placed { // reported once for the package
		return nil
	}
	if sameRoom(rule.packages, p.path, u.path) || matchAny(rule.mayUse, u.path) {
		return nil
	}
	allowed := "nothing of ours"
	if len(rule.mayUse) > 0 {
		allowed = strings.Join(rule.mayUse, ", ")
	}
	return []violation{{
		rule: rule.rule, where: at(f, u), what: fmt.Sprintf("%s imports %s", p.path, u.path),
		remedy: fmt.Sprintf("declare the interface that is needed in %s and have it passed in; allowed are: %s", p.path, allowed),
		reason: rule.reason,
	}}
}

func checkRestrictions(p pkg, f file, u use) []violation {
	var found []violation
	for _, r := range restrictions {
		if !matchAny(r.packages, u.path) || sameRoom(r.packages, u.path, p.path) || matchAny(r.usedBy, p.path) {
			continue
		}
		found = append(found, violation{
			rule: r.rule, where: at(f, u), what: fmt.Sprintf("%s imports %s", p.path, u.path),
			remedy: fmt.Sprintf("%s; importers are: %s", r.remedy, strings.Join(r.usedBy, ", ")),
			reason: r.reason,
		})
	}
	return found
}

func at(f file, u use) string { return fmt.Sprintf("%s:%d", f.path, u.line) }

// place finds the placement that decides about a package.
func place(name string) (placement, bool) {
	for _, p := range placements {
		if matchAny(p.packages, name) {
			return p, true
		}
	}
	return placement{}, false
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		_, ok := match(p, name)
		return ok
	})
}

// sameRoom says whether other lies in the room that name has under the patterns.
func sameRoom(patterns []string, name, other string) bool {
	for _, p := range patterns {
		if room, ok := match(p, name); ok {
			otherRoom, ok := match(p, other)
			return ok && room == otherRoom
		}
	}
	return false
}

// match says whether name fits the pattern, and which room that puts it in.
func match(pattern, name string) (room string, ok bool) {
	if pattern == anything {
		return "", true
	}
	fixed, deep := strings.CutSuffix(pattern, "/...")
	depth := strings.Count(fixed, "/") + 1
	segments := strings.Split(name, "/")
	if len(segments) < depth || len(segments) > depth && !deep {
		return "", false
	}
	room = strings.Join(segments[:depth], "/")
	ok, err := path.Match(fixed, room)
	if err != nil {
		panic(fmt.Sprintf("pattern %q: %v", pattern, err))
	}
	return room, ok
}

func join(lists ...[]string) []string { return slices.Concat(lists...) }
