package crashfs

import (
	"maps"
	"slices"
	"time"
)

// Sector is what a disk writes as a whole.
const Sector = 512

// mostVersions bounds what is kept of a sector that is written over and over
// without a sync.
const mostVersions = 8

// node is a file or a directory. Several names may lead to one file.
type node struct {
	modified time.Time

	// Of a directory: its names now, and those that were synced. nil in a file.
	names, synced map[string]*node

	// Of a file: its content now, the length that was synced, and the sectors
	// that were written since.
	data       []byte
	syncedSize int64
	dirty      map[int64]*sector
}

// sector is a part of a file that was written and not synced.
type sector struct {
	// versions are its contents before each of the writes. The first is the
	// synced one. A version is shorter than Sector where the file ended in it.
	versions [][]byte
	// doubtful: a sync of it failed, so that no later sync saves it.
	doubtful bool
}

func newDir() *node {
	return &node{names: make(map[string]*node), synced: make(map[string]*node)}
}

func newFile() *node { return &node{dirty: make(map[int64]*sector)} }

func (n *node) isDir() bool { return n.names != nil }

// part gives the content of sector s as it is now.
func (n *node) part(s int64) []byte {
	from, to := min(s*Sector, int64(len(n.data))), min((s+1)*Sector, int64(len(n.data)))
	return n.data[from:to]
}

// write puts p at offset off. A gap before it is filled with zeros.
func (n *node) write(p []byte, off int64) {
	if len(p) == 0 {
		return
	}
	end := off + int64(len(p))
	for s := min(off, int64(len(n.data))) / Sector; s <= (end-1)/Sector; s++ {
		d := n.dirty[s]
		if d == nil {
			d = &sector{}
			n.dirty[s] = d
		}
		if len(d.versions) == mostVersions {
			d.versions = slices.Delete(d.versions, 1, 2)
		}
		d.versions = append(d.versions, slices.Clone(n.part(s)))
		d.doubtful = false // the whole page goes to the disk again
	}
	if grow := end - int64(len(n.data)); grow > 0 {
		n.data = append(n.data, make([]byte, grow)...)
	}
	copy(n.data[off:], p)
}

// sync makes the content durable, but for sectors that were given up.
func (n *node) sync() {
	maps.DeleteFunc(n.dirty, func(_ int64, d *sector) bool { return !d.doubtful })
	n.syncedSize = int64(len(n.data))
}

// failSync gives up what is not durable.
func (n *node) failSync() {
	for _, d := range n.dirty {
		d.doubtful = true
	}
}

// change is one operation on names that is not synced. It makes the name
// point to a node, or nowhere; a rename changes two names at once.
type change struct {
	parts [2]struct {
		dir  *node // nil: there is no second part
		name string
		to   *node // nil: the name is gone
	}
}

func (c *change) touches(dir *node) bool { return c.parts[0].dir == dir || c.parts[1].dir == dir }

// apply makes the change in the directories that names gives.
func (c *change) apply(names func(dir *node) map[string]*node) {
	for _, p := range c.parts {
		switch {
		case p.dir == nil:
		case p.to == nil:
			delete(names(p.dir), p.name)
		default:
			names(p.dir)[p.name] = p.to
		}
	}
}
