package logstore

import (
	"encoding/binary"
	"fmt"

	"promethean/event"
	"promethean/store"
	"promethean/store/logstore/internal/chunk"
)

// says about them. Retained events of a live section are counted.
func (c *checker) block(ch *chunk.Chunk, path string, x *chunk.Section, b *chunk.Block, live bool) error {
	if err := c.step(int64(b.Len)); err != nil {
		return err
	}
	t, tt := c.topicOf(x.Topic)
	data, err := ch.Read([]chunk.Block{*b})
	if err != nil {
		c.damage(path, err)
		if live {
			tt.lost.Add(store.Range{First: b.First, Last: b.Last})
		}
		return nil
	}
	got := chunk.Block{Off: b.Off, Len: b.Len, CRC: b.CRC}
	var e [28]byte
	err = eachRecord(data[0], func(off int, at int64, r event.Record) {
		seq := r.Seq()
		bad := func(format string, args ...any) {
			c.problem(path, int64(b.Off)+int64(off), "topic %s, seq %d: %s", x.Name, seq, fmt.Sprintf(format, args...))
		}
		if err := r.Valid(); err != nil {
			bad("%v", err)
		}
		if got.Count == 0 {
			got.First, got.FirstAt, got.MaxTS = seq, at, r.TS()
		} else if c.outOfPlace(x.Topic, got.Last, seq) {
			bad("follows seq %d", got.Last)
		}
		if got.Count > 0 && at < got.LastAt {
			bad("commit time %d is before %d", at, got.LastAt)
		}
		got.Count++
		got.Last, got.LastAt, got.MaxTS = seq, at, max(got.MaxTS, r.TS())
		if !live || seq < t.first {
			return
		}
		c.sum.Events++
		if tt.there != nil && seq < t.compacted {
			tt.there.Add(seq)
		}
		c.count(tt.digest(idIndex, seq), binary.BigEndian.AppendUint64(append(e[:0], idPrefix(t.num, r.ID())...), seq), 1)
		if key := r.Key(); key != "" {
			c.count(tt.digest(keyIndex, seq), binary.BigEndian.AppendUint64(append(e[:0], keyPrefix(t.num, hashKey(t.num, key))...), seq), 1)
		}
	})
	if err != nil {
		c.problem(path, int64(b.Off), "block with seqs %d to %d: %v", b.First, b.Last, err)
	} else if got != *b {
		c.problem(path, int64(b.Off), "block is %+v, the index has it as %+v", got, *b)
	}
	return nil
}

// chunkHead is the size of a chunk's header.
const chunkHead = 16

// eachRecord calls fn with the records of a block. Unlike chunk.Records it
// trusts no length.
func eachRecord(data []byte, fn func(off int, at int64, r event.Record)) error {
	for off := 0; off < len(data); {
		b := data[off:]
		if len(b) < chunk.RecordHead || int64(binary.LittleEndian.Uint32(b)) > int64(len(b)-chunk.RecordHead) {
			return fmt.Errorf("record at byte %d is cut short", off)
		}
		n := chunk.RecordHead + int(binary.LittleEndian.Uint32(b))
		fn(off, int64(binary.LittleEndian.Uint64(b[4:])), event.Record(b[chunk.RecordHead:n:n]))
		off += n
	}
	return nil
}
