// Package migrate copies all that an engine keeps to another one: topics with
// their settings, events and groups.
//
//	sum, err := migrate.Run(ctx, from, to, migrate.Options{Source: "file:///var/lib/promethean"})
//
// # Guarantees
//
// Seqs stay. Every event has the same seq in the target as in the source, and
// the same id, time, key, partition, headers, payload bytes and so on. So all
// that holds a seq stays right without being looked at: cursors, dead letters,
// snapshots, marks of views, state tables, and what clients have written down.
// Where the source has a gap, the target has the same gap, and no seq of it is
// ever given again.
//
// Groups stay. Floor, settled ranges, attempts, generation, watermark, epoch
// and settings are carried over as they are. Only the version, which counts
// changes in one engine, begins anew. Leases are not carried over.
//
// Complete or not done. What was copied is read again from both sides and
// compared field by field before a migration is done. Run gives no error only
// if all of it is equal.
//
// Resumable. A migration that was cut off at any point goes on where it was
// when it is started again with the same source and target. Nothing is ever
// changed in the source.
//
// Not carried over: documents of views, which are made anew from their topics,
// and commit times. Retention by age goes by those, so events stay for up to
// one more retention than they would have.
//
// # How
//
// A topic whose first events are gone begins in the target with the seq of the
// first that is there ([store.Begins]). Events are then appended in the order of
// their seqs, on condition that the target ends right below, so its end says
// how far the copy is. A gap is filled: with tombstones of a key that nobody
// else has, and these are compacted away at the end ([store.Compaction]). A gap
// thus takes as long as events would, but no space.
//
// Retention and size limits are put last: until all has been compared, nothing
// may be removed from the target.
//
// That a target is that of an unfinished migration, and of which one, is kept in
// the target itself: as a group of the name system.migration on its first
// topic, which is removed at the end.
package migrate
