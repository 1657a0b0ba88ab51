//go:build race

package tree_test

// slowed is how much more time tests have than people: the race detector is slow.
const slowed = 10
