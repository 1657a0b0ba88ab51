//go:build !race

package jq

const slow = 1
