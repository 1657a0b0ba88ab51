package pattern

import (
	"regexp/syntax"
	"unicode"
)

// automaton is the position automaton of a pattern. State i has been reached by
// consuming a character out of class i.
type automaton struct {
	class    [][]rune      // pairs from, to
	follow   []map[int]int // the states after a state, and the ways there, 2 for more
	edges    int
	tooLarge bool
}

// part is what a piece of the pattern looks like from outside.
type part struct {
	empty       int         // the ways through without consuming, 2 for more
	first, last map[int]int // where it can begin and end, and the ways there
}

func few(n int) int { return min(n, 2) }

// join adds the entries of b, each in times ways, to a.
func join(a, b map[int]int, times int) map[int]int {
	if times == 0 {
		return a
	}
	out := make(map[int]int, len(a)+len(b))
	for k, n := range a {
		out[k] = n
	}
	for k, n := range b {
		out[k] = few(out[k] + n*times)
	}
	return out
}

// link lets every end of a go on at every beginning of b.
func (a *automaton) link(from, to map[int]int) {
	for p, n := range from {
		for q, m := range to {
			if a.tooLarge {
				return
			}
			if a.follow[p] == nil {
				a.follow[p] = make(map[int]int)
			}
			if a.follow[p][q] == 0 {
				a.edges++
				a.tooLarge = a.edges > maxEdges
			}
			a.follow[p][q] = few(a.follow[p][q] + n*m)
		}
	}
}

// state adds a state for a class of characters.
func (a *automaton) state(class []rune) part {
	if len(a.class) >= maxPositions {
		a.tooLarge = true
		return part{empty: 1}
	}
	i := len(a.class)
	a.class = append(a.class, class)
	a.follow = append(a.follow, nil)
	return part{first: map[int]int{i: 1}, last: map[int]int{i: 1}}
}

// build adds a pattern that the parser has simplified: counted repetitions are
// written out.
func (a *automaton) build(re *syntax.Regexp) part {
	if a.tooLarge {
		return part{empty: 1}
	}
	switch re.Op {
	case syntax.OpNoMatch:
		return part{}
	case syntax.OpLiteral:
		all := part{empty: 1}
		for _, r := range re.Rune {
			all = a.concat(all, a.state(letter(r, re.Flags&syntax.FoldCase != 0)))
		}
		return all
	case syntax.OpCharClass:
		return a.state(re.Rune)
	case syntax.OpAnyCharNotNL:
		return a.state([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.OpAnyChar:
		return a.state([]rune{0, unicode.MaxRune})
	case syntax.OpCapture:
		return a.build(re.Sub[0])
	case syntax.OpConcat:
		all := part{empty: 1}
		for _, sub := range re.Sub {
			all = a.concat(all, a.build(sub))
		}
		return all
	case syntax.OpAlternate:
		var all part
		for _, sub := range re.Sub {
			x := a.build(sub)
			all = part{few(all.empty + x.empty), join(all.first, x.first, 1), join(all.last, x.last, 1)}
		}
		return all
	case syntax.OpQuest:
		x := a.build(re.Sub[0])
		x.empty = few(x.empty + 1)
		return x
	case syntax.OpStar:
		// Engines refuse a round that consumes nothing, so there is one way to be empty.
		x := a.build(re.Sub[0])
		a.link(x.last, x.first)
		x.empty = 1
		return x
	case syntax.OpPlus:
		// The first round may consume nothing.
		x := a.build(re.Sub[0])
		a.link(x.last, x.first)
		x.first = join(x.first, x.first, x.empty)
		return x
	default: // assertions consume nothing
		return part{empty: 1}
	}
}

func (a *automaton) concat(x, y part) part {
	a.link(x.last, y.first)
	return part{
		empty: few(x.empty * y.empty),
		first: join(x.first, y.first, x.empty),
		last:  join(y.last, x.last, y.empty),
	}
}

// letter is the class of one character.
func letter(r rune, fold bool) []rune {
	class := []rune{r, r}
	if !fold {
		return class
	}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		class = append(class, f, f)
	}
	return class
}

// meet says whether two classes share a character. They are small, or sorted but
// for letters of one kind, so that each range is compared with each.
func meet(a, b []rune) bool {
	for i := 0; i+1 < len(a); i += 2 {
		for j := 0; j+1 < len(b); j += 2 {
			if a[i] <= b[j+1] && b[j] <= a[i+1] {
				return true
			}
		}
	}
	return false
}

// exponential says whether a state comes back to itself in two ways with one text.
func (a *automaton) exponential() bool {
	room := components(len(a.class), func(v int) []int {
		next := make([]int, 0, len(a.follow[v]))
		for w := range a.follow[v] {
			next = append(next, w)
		}
		return next
	})
	for p, next := range a.follow {
		for q, ways := range next {
			if ways > 1 && room[p] == room[q] {
				return true
			}
		}
	}
	return a.twins(room)
}

// twins looks for a pair of different states that (p, p) leads to and that leads
// back to it. A cycle stays in one component, so the pairs do too.
func (a *automaton) twins(room []int) bool {
	type pair struct{ p, q int }
	number := make(map[pair]int)
	var pairs []pair
	add := func(x pair) int {
		n, ok := number[x]
		if !ok {
			n = len(pairs)
			number[x] = n
			pairs = append(pairs, x)
		}
		return n
	}
	for p := range a.follow {
		add(pair{p, p})
	}
	same := make(map[pair]bool)
	meets := func(p, q int) bool {
		if p > q {
			p, q = q, p
		}
		m, ok := same[pair{p, q}]
		if !ok {
			m = p == q || meet(a.class[p], a.class[q])
			same[pair{p, q}] = m
		}
		return m
	}
	var next [][]int
	work := 0
	for i := 0; i < len(pairs); i++ {
		x := pairs[i]
		var list []int
		for p := range a.follow[x.p] {
			if room[p] != room[x.p] {
				continue
			}
			for q := range a.follow[x.q] {
				if work++; work > 40*maxPairs {
					a.tooLarge = true
					return false
				}
				if room[q] == room[x.q] && meets(p, q) {
					list = append(list, add(pair{p, q}))
				}
			}
		}
		next = append(next, list)
		if len(pairs) > maxPairs {
			a.tooLarge = true
			return false
		}
	}
	group := components(len(pairs), func(v int) []int { return next[v] })
	diagonal := make(map[int]bool)
	for i, x := range pairs {
		if x.p == x.q {
			diagonal[group[i]] = true
		}
	}
	for i, x := range pairs {
		if x.p != x.q && diagonal[group[i]] {
			return true
		}
	}
	return false
}

// components numbers the strongly connected components of a graph (Tarjan's
// way, without recursion, because a pattern may be long).
func components(n int, next func(int) []int) []int {
	const unseen = -1
	room, low, index := make([]int, n), make([]int, n), make([]int, n)
	for i := range index {
		index[i], room[i] = unseen, unseen
	}
	type frame struct {
		v    int
		rest []int
	}
	var stack []int
	count, rooms := 0, 0
	enter := func(v int) frame {
		index[v], low[v] = count, count
		count++
		stack = append(stack, v)
		return frame{v, next(v)}
	}
	for root := range n {
		if index[root] != unseen {
			continue
		}
		calls := []frame{enter(root)}
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			if len(f.rest) > 0 {
				w := f.rest[0]
				f.rest = f.rest[1:]
				switch {
				case index[w] == unseen:
					calls = append(calls, enter(w))
				case room[w] == unseen:
					low[f.v] = min(low[f.v], index[w])
				}
				continue
			}
			v := f.v
			calls = calls[:len(calls)-1]
			if len(calls) > 0 {
				up := calls[len(calls)-1].v
				low[up] = min(low[up], low[v])
			}
			if low[v] == index[v] {
				for {
					w := stack[len(stack)-1]
					stack = stack[:len(stack)-1]
					room[w] = rooms
					if w == v {
						break
					}
				}
				rooms++
			}
		}
	}
	return room
}
