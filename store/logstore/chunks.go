package logstore

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/store/logstore/internal/chunk"
)

const (
	maxOpenChunks   = 128
	maxCachedBlocks = 512 // of about 16 KiB
	maxPeeked       = 1024
)

// chunkCache keeps chunks open and some verified blocks in memory, both
// bounded, so that memory does not grow with history.
type chunkCache struct {
	fs  vfs.FS
	dir string

	mu     sync.Mutex
	open   map[uint64]*list.Element // of *openChunk
	used   *list.List               // most recently used first
	blocks map[blockID]*list.Element
	recent *list.List
	// peeked are blocks that one record was taken of lately: one that is looked
	// at again is kept.
	peeked map[blockID]struct{}
}

// scratch are buffers for blocks of which one record is taken.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

type openChunk struct {
	file uint64
	c    *chunk.Chunk
}

type blockID struct {
	file, off uint64
}

type cachedBlock struct {
	id   blockID
	data []byte
}

func newChunkCache(fs vfs.FS, dir string) *chunkCache {
	return &chunkCache{
		fs: fs, dir: dir,
		open: make(map[uint64]*list.Element), used: list.New(),
		blocks: make(map[blockID]*list.Element), recent: list.New(),
		peeked: make(map[blockID]struct{}),
	}
}

func (cc *chunkCache) path(file uint64) string {
	return cc.fs.PathJoin(cc.dir, fmt.Sprintf("%08d.chunk", file))
}

// get opens a chunk; the caller releases it.
func (cc *chunkCache) get(file uint64) (*chunk.Chunk, error) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if el, ok := cc.open[file]; ok {
		cc.used.MoveToFront(el)
		c := el.Value.(*openChunk).c
		c.Acquire()
		return c, nil
	}
	c, err := chunk.Open(cc.fs, cc.path(file))
	if err != nil {
		return nil, err
	}
	c.Acquire() // one for the cache, one for the caller
	cc.open[file] = cc.used.PushFront(&openChunk{file, c})
	for cc.used.Len() > maxOpenChunks {
		if err := cc.evict(cc.used.Back()); err != nil {
			return nil, errors.Join(err, c.Release())
		}
	}
	return c, nil
}

func (cc *chunkCache) evict(el *list.Element) error {
	oc := cc.used.Remove(el).(*openChunk)
	delete(cc.open, oc.file)
	return oc.c.Release()
}

// forget closes a chunk that is about to be deleted; readers may go on.
func (cc *chunkCache) forget(file uint64) error {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if el, ok := cc.open[file]; ok {
		return cc.evict(el)
	}
	return nil
}

// block gives a verified block, from memory if it was used lately.
func (cc *chunkCache) block(file uint64, c *chunk.Chunk, b chunk.Block) ([]byte, error) {
	id := blockID{file, b.Off}
	cc.mu.Lock()
	if el, ok := cc.blocks[id]; ok {
		cc.recent.MoveToFront(el)
		data := el.Value.(*cachedBlock).data
		cc.mu.Unlock()
		return data, nil
	}
	cc.mu.Unlock()
	got, err := c.Read([]chunk.Block{b})
	if err != nil {
		return nil, err
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if _, ok := cc.blocks[id]; !ok {
		cc.blocks[id] = cc.recent.PushFront(&cachedBlock{id, got[0]})
		for cc.recent.Len() > maxCachedBlocks {
			old := cc.recent.Remove(cc.recent.Back()).(*cachedBlock)
			delete(cc.blocks, old.id)
		}
	}
	return got[0], nil
}

// peek calls use with a verified block, which is good until use returns. It is
// for those who want little of it: the events of one key lie far apart, and a
// block for each of them would drive out those that are used.
func (cc *chunkCache) peek(file uint64, c *chunk.Chunk, b chunk.Block, use func(data []byte)) error {
	id := blockID{file, b.Off}
	cc.mu.Lock()
	_, kept := cc.blocks[id]
	_, again := cc.peeked[id]
	if !kept && !again {
		if len(cc.peeked) >= maxPeeked {
			clear(cc.peeked)
		}
		cc.peeked[id] = struct{}{}
	}
	cc.mu.Unlock()
	if kept || again {
		data, err := cc.block(file, c, b)
		if err == nil {
			use(data)
		}
		return err
	}
	buf := scratch.Get().(*[]byte)
	defer scratch.Put(buf)
	data, err := c.ReadInto(*buf, b)
	if *buf = data; err == nil {
		use(data)
	}
	return err
}

func (cc *chunkCache) close() error {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	var errs []error
	for cc.used.Len() > 0 {
		errs = append(errs, cc.evict(cc.used.Back()))
	}
	return errors.Join(errs...)
}
