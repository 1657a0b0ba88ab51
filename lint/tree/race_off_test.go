//go:build !race

package tree_test

// slowed is how much more time tests have than people.
const slowed = 1
