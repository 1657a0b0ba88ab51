//go:build race

package jq

// slow is how much longer things take under the race detector.
const slow = 10
