package crashfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Keep says what becomes of changes that were not synced.
type Keep int

// The choices.
const (
	// KeepSome leaves it to chance, by the seed.
	KeepSome Keep = iota
	// KeepNone gives exactly what was synced.
	KeepNone
	// KeepAll gives the disk as it was at the crash.
	KeepAll
	// KeepAny is KeepSome, but for names without any order: a later change may
	// be there and an earlier one of the same directory not. Few file systems
	// do that, and Pebble does not survive it.
	KeepAny
)

// Config narrows down what an image may look like. The zero Config allows all.
type Config struct {
	// Data is about the content of files. Default KeepSome.
	Data Keep
	// Names is about the entries of directories. Default KeepSome.
	Names Keep
}

// Image gives a disk as it may look if the power fails now, or failed at the
// crash. It is whole and synced, and nobody holds a lock on it.
func (fs *FS) Image(seed uint64, c Config) *FS {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	if fs.frozen != nil {
		return fs.frozen.Image(seed, c)
	}
	rng := rand.New(rand.NewPCG(seed, 0x637261736866))
	d := &developer{rng: rng, data: c.Data, names: fs.keptNames(rng, c.Names), done: make(map[*node]*node)}
	d.percent = []int{3, 25, 50, 75, 97}[rng.IntN(5)]
	image := New()
	image.root = d.develop(fs.root)
	return image
}

// Remains is Image with the extremes first: seed 0 keeps nothing that was not
// synced, seed 1 keeps all of it, others leave it to chance.
func (fs *FS) Remains(seed uint64) *FS {
	switch seed {
	case 0:
		return fs.Image(seed, Config{Data: KeepNone, Names: KeepNone})
	case 1:
		return fs.Image(seed, Config{Data: KeepAll, Names: KeepAll})
	}
	return fs.Image(seed, Config{})
}

// keptNames gives what each directory holds in the image.
func (fs *FS) keptNames(rng *rand.Rand, keep Keep) func(dir *node) map[string]*node {
	changed := make(map[*node]map[string]*node)
	names := func(dir *node) map[string]*node {
		if m := changed[dir]; m != nil {
			return m
		}
		return dir.synced
	}
	kept := make(map[*node]int) // how many changes of a directory are kept
	share := 100
	switch keep {
	case KeepNone:
		share = 0
	case KeepAny:
		share = []int{10, 50, 90}[rng.IntN(3)]
	case KeepSome:
		for _, c := range fs.queue {
			for _, p := range c.parts {
				kept[p.dir]++ // twice for a rename: more than enough is the same as all
			}
		}
		// In the order of the queue, so that the seed decides and not the map.
		drawn := make(map[*node]bool)
		for _, c := range fs.queue {
			for _, p := range c.parts {
				if p.dir != nil && !drawn[p.dir] {
					drawn[p.dir] = true
					kept[p.dir] = rng.IntN(kept[p.dir] + 1)
				}
			}
		}
	}
	for _, c := range fs.queue {
		if keep == KeepSome {
			if !c.within(kept) {
				continue
			}
		} else if rng.IntN(100) >= share {
			continue
		}
		c.apply(func(dir *node) map[string]*node {
			if changed[dir] == nil {
				changed[dir] = maps.Clone(dir.synced)
			}
			return changed[dir]
		})
	}
	return names
}

// within says whether a change belongs to the first ones of its directories
// that are kept, and counts it. One that is not ends both directories.
func (c *change) within(kept map[*node]int) bool {
	ok := true
	for _, p := range c.parts {
		ok = ok && (p.dir == nil || kept[p.dir] > 0)
	}
	counted := make(map[*node]bool, 2)
	for _, p := range c.parts {
		switch {
		case p.dir == nil || counted[p.dir]:
		case ok:
			kept[p.dir]--
		default:
			kept[p.dir] = 0
		}
		counted[p.dir] = true
	}
	return ok
}

// developer makes the nodes of an image.
type developer struct {
	rng     *rand.Rand
	data    Keep
	percent int // of the sectors of an image that are kept
	names   func(dir *node) map[string]*node
	done    map[*node]*node // a file with two names stays one file
}

func (d *developer) develop(n *node) *node {
	if image := d.done[n]; image != nil {
		return image
	}
	if !n.isDir() {
		image := newFile()
		image.modified = n.modified
		image.data = d.content(n)
		image.syncedSize = int64(len(image.data))
		d.done[n] = image
		return image
	}
	image := newDir()
	d.done[n] = image
	names := d.names(n)
	for _, name := range sorted(names) {
		image.names[name] = d.develop(names[name])
	}
	image.synced = maps.Clone(image.names)
	return image
}

// content decides for each sector that was not synced what it holds.
func (d *developer) content(n *node) []byte {
	percent := d.percent
	whole := false // whether the length ran ahead of the data
	switch d.data {
	case KeepNone:
		percent = 0
	case KeepAll:
		percent = 100
	default:
		switch d.rng.IntN(6) { // files differ: the kernel writes back by file
		case 0:
			percent = 0
		case 1:
			percent = 100
		}
		whole = d.rng.IntN(3) == 0
	}
	data := slices.Clone(n.data)
	size := n.syncedSize
	if whole {
		size = int64(len(data))
	}
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		part := data[s*Sector : min((s+1)*Sector, int64(len(data)))]
		if d.rng.IntN(100) < percent {
			size = max(size, s*Sector+int64(len(part)))
			continue
		}
		versions := n.dirty[s].versions
		old := versions[0]
		if d.data != KeepNone && d.rng.IntN(4) == 0 {
			old = versions[d.rng.IntN(len(versions))]
		}
		clear(part[copy(part, old):])
		if len(old) > 0 {
			size = max(size, s*Sector+int64(len(old)))
		}
	}
	return data[:size]
}

// freeze keeps a copy of the disk with all that is not synced. fs.mu is held.
func (fs *FS) freeze() {
	frozen := New()
	fs.copies = make(map[*node]*node)
	frozen.root = fs.copyNode(fs.root)
	for _, c := range fs.queue {
		d := *c
		for i, p := range d.parts {
			d.parts[i].dir, d.parts[i].to = fs.copyNode(p.dir), fs.copyNode(p.to)
		}
		frozen.queue = append(frozen.queue, &d)
	}
	fs.frozen = frozen
}

func (fs *FS) copyNode(n *node) *node {
	if n == nil {
		return nil
	}
	if c := fs.copies[n]; c != nil {
		return c
	}
	c := &node{modified: n.modified}
	fs.copies[n] = c
	if !n.isDir() {
		c.data, c.syncedSize = slices.Clone(n.data), n.syncedSize
		c.dirty = make(map[int64]*sector, len(n.dirty))
		for s, d := range n.dirty {
			c.dirty[s] = &sector{versions: slices.Clone(d.versions), doubtful: d.doubtful}
		}
		return c
	}
	c.names, c.synced = make(map[string]*node, len(n.names)), make(map[string]*node, len(n.synced))
	for name, child := range n.names {
		c.names[name] = fs.copyNode(child)
	}
	for name, child := range n.synced {
		c.synced[name] = fs.copyNode(child)
	}
	return c
}

// writeFrozen writes to the frozen disk. A file that no name led to is not on
// it. fs.mu is held.
func (fs *FS) writeFrozen(n *node, p []byte, off int64) {
	if c := fs.copies[n]; c != nil {
		c.write(p, off)
	}
}
