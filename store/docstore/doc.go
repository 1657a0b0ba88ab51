// Package docstore keeps collections of JSON documents in a Pebble database: the
// read models of the embedded engine, and of hubs whose log is elsewhere. It
// implements [store.Docs] with the ability [store.Transacts].
//
// # What a commit costs
//
// A document that changes has its row written and, for the order of listings
// and every index, one row removed and one added, because all of them end with
// the document's time. Written at once, a commit of a few indexes would be ten
// rows for each operation, and compaction would write them several times more.
// So a commit is written as one row, a log, and its documents are kept in an
// overlay in memory, above the database, which all reads look at first. Rows
// are written later, as one batch that also removes the commits from the log
// and carries the place: when the overlay is large, when the log is long, or
// when some seconds have passed. A document that changed many times is written
// once.
//
//   - Commit is in the write-ahead log of Pebble, which is not synced: after a
//     crash the state is that of some commit, and none before the last Sync.
//   - Sync syncs that log, and so costs the same whatever is in the overlays.
//   - Open reads the commits in the log, and has the overlays as they were.
//   - An overlay that was written stays as a cache until the next one is, so
//     that documents which change all the time are not read from the database.
//
// # Reads
//
// Doc is a look into the overlays and a point read. List merges streams of
// sorted rows: those with equal values in an index are in the order of
// listings, so several filters are an intersection, several values of one field
// a union, and neither sorts or holds more than it yields; an index of several
// fields saves the intersection. Documents in overlays are picked from memory,
// and hide their rows. Both are of one moment, which is taken under a lock that
// commits hold only while they change maps.
//
// Values are encoded so that equal ones have equal bytes: numbers by their
// digits and exponent, without any rounding, texts unescaped. What is longer
// than 64 bytes stands as its SHA-256.
//
// # Changes
//
// There is no index by Seq. It would cost two more rows for each document that
// is written, which is a quarter more for two indexes, and serves only those
// who come back after a break: whoever stays hears of changes from the
// projector. So Changes scans the documents of the collection, and sorts what
// it finds in passes of 64k, so that memory is bounded. Deletions have an index
// by Seq, for Forget.
//
// # Crashes and failing disks
//
// All that changes is one Pebble batch, so it is there as a whole or not. Two
// things take several: the rows of a new index are written before the reader's
// row names it, and rows of what was dropped are removed after it does not name
// them any more. Open removes what belongs to nothing. A disk that fails makes
// the store stop accepting, with [store.ErrFailed] and the cause; what was
// visible can still be read.
package docstore
