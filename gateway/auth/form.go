package auth

// form is a pattern as names with gaps around them: one gap before each name,
// and one at the end. "a.*.**.b" is the gap of exactly 0, a, the gap of at least
// 1, b, the gap of exactly 0. So "*.**" and "**.*" have the same form.
type form struct {
	names []string
	gaps  []gap
}

// gap stands for so many segments, or for at least so many.
type gap struct {
	least int
	more  bool
}

// holds says whether every stretch that fits other fits g.
func (g gap) holds(other gap) bool {
	if g.more {
		return other.least >= g.least
	}
	return !other.more && other.least == g.least
}

func isWild(segment string) bool { return segment == "*" || segment == "**" }

func formOf(segments []string) form {
	f := form{gaps: []gap{{}}}
	for _, s := range segments {
		last := &f.gaps[len(f.gaps)-1]
		switch s {
		case "*":
			last.least++
		case "**":
			last.more = true
		default:
			f.names = append(f.names, s)
			f.gaps = append(f.gaps, gap{})
		}
	}
	return f
}

// includes says whether everything that fits the segments b fits f.
//
// It does so exactly if the names of f can be laid on names of b, in order, such
// that each gap of f holds what lies between them in b. If they can, they lie
// so in whatever fits b. If not, something fits b and not f: a wildcard of b may
// stand for a name that f does not know, so f has only the names of b to lie on;
// where a stretch of b of open length is too long for an exact gap of f, it can
// be made longer than all of them; where it is too short for another, it can be
// made as short as it gets. Both are never needed of one stretch: a name of f
// that would come too early if it is short has nothing before it to lie on.
//
// The places that a name can lie on are found from those of the name before,
// so that it takes at most len(f.names) × len(b)² steps.
func (f form) includes(b []string) bool {
	// stretch gives what lies between places i and j; a place is one more than
	// an index of b, 0 is before all of it.
	single, open := make([]int, len(b)+1), make([]int, len(b)+1)
	for i, s := range b {
		single[i+1], open[i+1] = single[i], open[i]
		if s == "**" {
			open[i+1]++
		} else {
			single[i+1]++
		}
	}
	stretch := func(i, j int) gap { return gap{least: single[j-1] - single[i], more: open[j-1] > open[i]} }

	places := []int{0}
	for n, name := range f.names {
		var next []int
		for j := 1; j <= len(b); j++ {
			if b[j-1] != name {
				continue
			}
			for _, i := range places {
				if i < j && f.gaps[n].holds(stretch(i, j)) {
					next = append(next, j)
					break
				}
			}
		}
		if places = next; len(places) == 0 {
			return false
		}
	}
	end := f.gaps[len(f.names)]
	for _, i := range places {
		if end.holds(stretch(i, len(b)+1)) {
			return true
		}
	}
	return false
}
