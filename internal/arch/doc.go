// Package arch holds the test that keeps the shape of this module: which
// package may import which, and a few rules that every package and file obeys.
// It has no code of its own.
//
// The rules are the tables in rules_test.go, each with its reason. They judge
// what is compiled into programs; test files may import any package, because a
// test often needs a room above the one it tests. Rules about files hold for
// test files too. A rule may name packages that do not exist yet.
//
// Guarantees: a package that no rule places is itself a violation, so nothing
// escapes by being new; every violation names the rule, the file and the way
// out; and the checker is tested on a made-up module in which each rule is
// broken once.
//
// Example:
//
//	go test ./internal/arch
package arch
