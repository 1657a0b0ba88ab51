// Package logstore is the embedded engine: a commit log of our own, with
// Pebble beside it for the small state. It needs one directory and no server,
// and it is the memory engine too, on a file system in memory.
//
// # How it works
//
// Every change is an entry of one journal that all topics share: events,
// settlements, cursors, trims, topic settings. One fsync serves every
// publisher and acker that waits ([writer]). A journal segment stays in
// memory as it is on disk, with hash indexes over it: a mem. When a segment
// is full its mem is frozen, and the sealer writes it into
//
//   - a chunk, in which the events of each topic lie together, so that a scan
//     of one topic reads nothing else and a topic can be dropped by itself;
//   - two sorted runs, the id index and the key index, which are merged in
//     tiers, so that a search visits few of them whatever the history.
//
// Then it records them in the manifest and frees the segment for reuse. So
// the journal holds the last few tens of MiB, everything older is sealed, and
// opening replays the journal only.
//
//	DIR/LOCK           held while a process has the store open
//	DIR/journal/*.seg  the journal: package internal/journal
//	DIR/*.chunk        sealed events: package internal/chunk
//	DIR/*.run          indexes of sealed events: package internal/run
//	DIR/state/         the manifest, a Pebble database: manifest.go
//
// # Guarantees
//
// Append returns after fdatasync of the journal. Nothing is visible before.
// A batch is one entry list inside one frame, so it is there whole or not at
// all, over any number of topics and groups.
//
// Seqs are given by one goroutine, in the order of the journal. The manifest
// keeps each topic's last sealed seq, and is synced before the segment that
// had it is reused; so no seq is ever given twice.
//
// What a compaction removes can be read until its removal is durable, and on
// if that fails: readers see the rows of the manifest as they are on the disk
// ([rows]).
//
// A failed write or sync is final: the store answers ErrFailed with the cause
// from then on, reads go on, and opening again recovers all that was
// acknowledged. After a failed fsync the kernel may have dropped what it
// could not write, so trying again would prove nothing.
//
// Damage is found by checksums on every byte of journal, chunks and runs, and
// named by file and offset. It is never returned as data, and below the
// durable mark it is never cut off as a torn tail.
//
// # Crash argument
//
// State is a function of the manifest and of the journal behind the LSN that
// the manifest names. Each step that changes files is safe because of its
// order, and the order is tested by crashing at every write and every sync:
//
//   - Append: package internal/journal.
//   - Seal: chunk and runs are written and synced, then their directory, then
//     one synced Pebble batch names them together with the LSN they reach,
//     then the segment is freed. A crash before the batch leaves orphans,
//     which the next open removes, and the segment; after it the segment is
//     not needed.
//   - Merge and rewrite: as seal, but the batch replaces rows; the old files
//     are removed afterwards, or as orphans.
//   - Compact: sections are written anew without what is superseded, as by a
//     rewrite, with one batch for each step. Index entries of what is gone go
//     later, as by a merge; until then they lead nowhere, and who follows one
//     sees that. Only sealed events are removed, so replaying the journal brings
//     none back.
//   - Trim, begin, settings, cursors: entries of the journal. Their rows in the
//     manifest may run ahead of the LSN that it names; replaying the entries
//     again in order leads to the same state.
//   - Open: the tail is cut at the first frame that is not intact, synced, and
//     writing goes on in a new segment.
//
// # Memory
//
// Mems take about 1.4 times Options.SegmentSize each: an active one,
// Options.Tail lingering ones, up to Options.MaxFrozen frozen ones and two
// kept for reuse. Beside them 512 blocks of chunks, of about 16 KiB or one
// large event each; filters of runs up to 16M entries, at most about 64 MiB for
// each of the two indexes; fences, one byte for about ten events. Topics and groups are kept in
// memory, a few hundred bytes each.
//
// A compaction takes up to 48 MiB for keys, and one bit for each seq in
// stretches of 65,536 that have something to remove, or have index entries to
// be cleaned up: 1.2 MiB for ten million events.
package logstore
