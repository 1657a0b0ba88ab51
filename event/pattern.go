package event

import "strings"

// MatchPattern says whether a topic fits a pattern: "*" stands for one segment,
// "**" for any number of them, also none. A pattern that begins with a wildcard
// never fits a [ReservedTopic].
//
// It takes at most as many steps as the number of segments of the one times
// that of the other, whatever the pattern, and allocates nothing.
func MatchPattern(pattern, topic string) bool {
	if strings.HasPrefix(pattern, "*") && ReservedTopic(topic) {
		return false
	}
	// p and t are where the next segments begin; past the last one they are one
	// more than the length. Where it goes wrong, the last "**" takes one segment
	// more: those before it need not be tried again.
	p, t := 0, 0
	after, taken := -1, 0
	for t <= len(topic) {
		end := segmentEnd(topic, t)
		if p <= len(pattern) {
			stop := segmentEnd(pattern, p)
			switch s := pattern[p:stop]; s {
			case "**":
				p = stop + 1
				after, taken = p, t
				continue
			case "*", topic[t:end]:
				p, t = stop+1, end+1
				continue
			}
		}
		if after < 0 {
			return false
		}
		taken = segmentEnd(topic, taken) + 1
		p, t = after, taken
	}
	for p <= len(pattern) {
		stop := segmentEnd(pattern, p)
		if pattern[p:stop] != "**" {
			return false
		}
		p = stop + 1
	}
	return true
}

// segmentEnd is where the segment that begins at i ends.
func segmentEnd(s string, i int) int {
	if n := strings.IndexByte(s[i:], '.'); n >= 0 {
		return i + n
	}
	return len(s)
}
