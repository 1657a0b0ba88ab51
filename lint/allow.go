package lint

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"regexp"
	"strings"
)

// Allows are the allow comments of one file. A comment is "promethean:allow" and
// a reason, behind //, /* or #:
//
//	hub.Emit(ctx, "orders.lost", o) //promethean:allow it goes away with the old shop
//
// It takes away the findings of its own line and, where it stands alone, of the
// next line that is no comment. In a schema, which has no comments, it is the
// value of "$comment" and covers the file.
type Allows struct {
	file string
	list []allow
}

type allow struct {
	line, column int
	first, last  int // the lines that it covers
	reason       bool
	used         bool
}

// allowComment matches an allow comment: what stands before it on the line, how it
// begins, its reason.
var allowComment = regexp.MustCompile(`^(.*?)(//|/\*|#)[ \t]*promethean:allow(?:[ \t]+(.*)|[ \t]*|(\*/.*))$`)

var allowSchema = regexp.MustCompile(`"\$comment"[ \t]*:[ \t]*"promethean:allow(?:[ \t]+([^"]*))?"`)

const mark = "promethean:allow"

// FindAllows finds the comments in the text of a file. But for Go it looks at lines,
// not at the language: a text that looks like such a comment is one.
func FindAllows(file string, text []byte) *Allows {
	a := &Allows{file: file}
	if !bytes.Contains(text, []byte(mark)) {
		return a
	}
	lines := strings.Split(string(text), "\n")
	if strings.HasSuffix(file, ".json") {
		for i, line := range lines {
			if m := allowSchema.FindStringSubmatchIndex(line); m != nil {
				reason := m[2] >= 0 && strings.TrimSpace(line[m[2]:m[3]]) != ""
				a.list = append(a.list, allow{line: i + 1, column: Characters([]byte(line), m[0]+1), first: 0, last: len(lines) + 1, reason: reason})
			}
		}
		return a
	}
	var starts map[int]int
	if strings.HasSuffix(file, ".go") {
		starts = goComments(text)
	}
	for i, line := range lines {
		m := allowComment.FindStringSubmatchIndex(strings.TrimSuffix(line, "\r"))
		if m == nil {
			continue
		}
		before := strings.TrimSpace(line[:m[4]])
		if isComment(before) || strings.HasPrefix(before, "*") {
			continue // a comment about such comments
		}
		if starts != nil && starts[i+1] != m[4]+1 {
			continue // a text that looks like one
		}
		one := allow{line: i + 1, column: Characters([]byte(line), m[4]+1), first: i + 1, last: i + 1}
		if m[6] >= 0 {
			reason := strings.TrimSpace(line[m[6]:m[7]])
			if line[m[4]:m[5]] == "/*" {
				reason, _, _ = strings.Cut(reason, "*/")
			}
			one.reason = strings.TrimSpace(reason) != ""
		}
		if before == "" || before == "{" { // {/* … */} in JSX
			one.last = i + 2
			for one.last <= len(lines) && isComment(lines[one.last-1]) {
				one.last++
			}
		}
		a.list = append(a.list, one)
	}
	return a
}

// goComments gives the column, in bytes from 1, of the last comment that begins on
// each line.
func goComments(text []byte) map[int]int {
	starts := make(map[int]int)
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, func(token.Position, string) {}, scanner.ScanComments)
	for {
		pos, tok, _ := s.Scan()
		if tok == token.EOF {
			return starts
		}
		if tok == token.COMMENT {
			at := file.PositionFor(pos, false)
			starts[at.Line] = at.Column
		}
	}
}

// isComment says whether a line is nothing but a comment.
func isComment(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "//") || strings.HasPrefix(line, "#")
}

// Filter takes away the findings of this file that are allowed.
func (a *Allows) Filter(list []Finding) []Finding {
	kept := make([]Finding, 0, len(list))
	for _, f := range list {
		if f.File != a.file || !a.covers(f.Line) {
			kept = append(kept, f)
		}
	}
	return kept
}

func (a *Allows) covers(line int) bool {
	found := false
	for i := range a.list {
		if one := &a.list[i]; one.reason && one.first <= line && line <= one.last {
			one.used, found = true, true
		}
	}
	return found
}

// Unreasoned gives the comments without a reason.
func (a *Allows) Unreasoned() (list []Finding) {
	for _, one := range a.list {
		if !one.reason {
			list = append(list, NewFinding(AllowReason, a.at(one), "the allow comment has no reason, so it allows nothing"))
		}
	}
	return list
}

// Unused gives the comments that no finding was taken away by. It comes after
// [Allows.Filter] of all findings.
func (a *Allows) Unused() (list []Finding) {
	for _, one := range a.list {
		if one.reason && !one.used {
			where := "on this line"
			switch {
			case one.first == 0:
				where = "in this file"
			case one.last > one.first:
				where = fmt.Sprintf("on line %d", one.last)
			}
			list = append(list, NewFinding(AllowUnused, a.at(one), "there is nothing to allow "+where))
		}
	}
	return list
}

func (a *Allows) at(one allow) Position {
	return Position{File: a.file, Line: one.line, Column: one.column}
}
