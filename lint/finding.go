package lint

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// Severity says how bad a finding is. Both kinds fail a run.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // a hub refuses it, or somebody cannot read it
	Warning Severity = "warning" // it works, and is likely not what was meant
)

// Position is a place in a file. Line and column are counted from 1, the column
// in characters; 0 is the file as a whole.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// Finding is one thing that is wrong.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Position
	Message string `json:"message"`
	// Fix says what to do.
	Fix string `json:"fix"`
}

// newFinding makes a finding with the severity of its rule.
func newFinding(rule string, at Position, message, fix string) Finding {
	return Finding{Rule: rule, Severity: ruleOf(rule).Severity, Position: at, Message: message, Fix: fix}
}

// Sort puts findings in the order of files, lines and columns, and drops those
// that say the same twice.
func Sort(list []Finding) []Finding {
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(list, func(a, b Finding) bool {
		return a.Position == b.Position && a.Rule == b.Rule && a.Message == b.Message
	})
}

// Characters turns a column that is counted in bytes from 1 into one that is
// counted in characters.
func Characters(line []byte, column int) int {
	if column < 1 || column > len(line)+1 {
		return column
	}
	return utf8.RuneCount(line[:column-1]) + 1
}
