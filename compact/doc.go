// Package compact keeps, of topics that say so, the latest event of every key,
// and writes snapshots of them.
//
//	c, err := compact.Start(ctx, hub, compact.Options{})
//	bus := compact.Guard(hub, c)
//
// A topic is compacted if its [Settings] say so. An event is superseded by a
// later one of its key, and stays for as long as History after that; the last
// event of a key stays, unless it is a tombstone ([store.Tombstone]) that is
// older than Tombstones. So whoever reads the topic from its beginning comes to
// the same state of every key as one who read all that was ever published, and
// the state at every moment within History can still be asked for: see package
// timetravel.
//
// What is removed is recorded in the topic system.compactions before it goes, so
// that what is missing is never taken for what never was. After a crash between
// the two the removal is done again.
//
// # The history window
//
// A log does not know when an event was committed. The compactor remembers what
// the end of a topic was at moments of the past, denser for those that are near,
// and removes what lies before the newest such moment that is older than
// History. That is kept in the same records, so a restart does not begin the
// window anew. Events therefore stay a little longer than History, by about a
// sixteenth of it, and never less.
//
// # Snapshots
//
// With Snapshot a topic has another one beside it, which nobody else writes. For
// every key that changed since the last round it gets a [Record], in the order of
// the events that they are about. It says up to which seq all of the topic is
// covered; who starts from the snapshots goes on with the events after that seq
// ([ColdStart]). The snapshot topic is compacted too. Nothing of the topic is
// removed by compaction before snapshots cover it.
//
// On an engine that several hubs share, the owner of the lease compact:<topic>
// does the work; records are appended under conditions, so that one who has lost
// the lease without knowing does not get in between.
package compact
