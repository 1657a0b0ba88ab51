package logstore

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"promethean/store/logstore/internal/run"
)

// sortKey is what index entries are sorted by, kept flat: following the record
// for each comparison would cost a cache miss.
type sortKey struct {
	a, b, seq uint64
	t         uint32
}

func compareKeys(x, y sortKey) int {
	switch {
	case x.a != y.a:
		return cmp.Compare(x.a, y.a)
	case x.b != y.b:
		return cmp.Compare(x.b, y.b)
	case x.t != y.t:
		return cmp.Compare(x.t, y.t)
	}
	return cmp.Compare(x.seq, y.seq)
}

// sortHashed sorts entries whose a is a hash. Hashes are spread evenly, so
// dealing them out by their upper bits nearly sorts them.
func sortHashed(list []sortKey) []sortKey {
	if len(list) < 64 {
		slices.SortFunc(list, compareKeys)
		return list
	}
	shift := 64 - bits.Len(uint(len(list)))
	next := make([]uint32, 1<<(64-shift)+1)
	for i := range list {
		next[list[i].a>>shift+1]++
	}
	for i := range next[1:] {
		next[i+1] += next[i]
	}
	out := make([]sortKey, len(list))
	for i := range list {
		p := &next[list[i].a>>shift]
		out[*p] = list[i]
		*p++
	}
	// What is left is to sort each hand: next[h] is where hand h ends now.
	from := uint32(0)
	for _, to := range next[:len(next)-1] {
		if to-from > 1 {
			slices.SortFunc(out[from:to], compareKeys)
		}
		from = to
	}
	return out
}

// writeRuns writes the two index runs of a mem.
func (s *Store) writeRuns(m *mem, sg *sealing) error {
	list := make([]sortKey, len(m.recs))
	for i := range list {
		r := m.record(uint32(i))
		id := r.ID()
		list[i] = sortKey{binary.BigEndian.Uint64(id[:]), binary.BigEndian.Uint64(id[8:]), r.Seq(), m.recs[i].topic}
	}
	slices.SortFunc(list, compareKeys)
	err := s.writeRun(m, sg, idIndex, len(list), func(w *run.Writer) {
		e := make([]byte, 28)
		for _, k := range list {
			binary.BigEndian.PutUint64(e, k.a)
			binary.BigEndian.PutUint64(e[8:], k.b)
			binary.BigEndian.PutUint32(e[16:], k.t)
			binary.BigEndian.PutUint64(e[20:], k.seq)
			w.Add(e)
		}
	})
	if err != nil {
		return err
	}
	list = list[:0]
	for i := range m.recs {
		if r := &m.recs[i]; r.hash != 0 {
			list = append(list, sortKey{r.hash, 0, m.record(uint32(i)).Seq(), r.topic})
		}
	}
	if len(list) == 0 {
		return nil
	}
	list = sortHashed(list)
	return s.writeRun(m, sg, keyIndex, len(list), func(w *run.Writer) {
		e := make([]byte, 20)
		for _, k := range list {
			binary.BigEndian.PutUint64(e, k.a)
			binary.BigEndian.PutUint32(e[8:], k.t)
			binary.BigEndian.PutUint64(e[12:], k.seq)
			w.Add(e)
		}
	})
}
