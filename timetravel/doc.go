// Package timetravel says what was known of a key at a moment of the past.
//
//	s, err := timetravel.At(ctx, hub, timetravel.Query{Topic: "process.state", Key: "stt:1", TS: &ms}, timetravel.Options{})
//
// The state of a key at a time T is what its events with TS at or before T make
// of it, applied in the order of the log: an event that came late counts from the
// place where it stands. AsOf asks for what was known when the log had come to a
// seq. Both may be given, and neither: then it is what the log says now.
//
// Only the key's own events are read, through the engine's index of keys: what
// it costs does not depend on how large the topic is.
//
// # What can be answered
//
// An answer is given only if no event that was removed could have changed it;
// else the error is a [*GoneError]. What follows is why that holds.
//
// Events are removed in two ways. A trim (retention) takes all events below
// some seq. A compaction takes, of every key, all events below some seq but the
// last, and that one too if it is an old tombstone; it takes the events of one
// key in the order of the log (see [store.Compacts]). In both ways the events of
// a key go from the oldest on, so at every moment
//
//	(1) what is there of a key are its events from some seq on.
//
// What a compaction removes is recorded before it begins ([compact.Mark]). Let F
// be where the topic begins and B the recorded bound, both looked up after the
// events were read. Then
//
//	(2) no event at or above max(F, B) was removed when we read.
//
// That a topic was trimmed is seen by its settings (retention, max_bytes), by
// its mark, and by where it begins. What is not seen is a trim by hand, through
// [store.Log.Trim], below B and while a compaction runs: do not do that.
//
// Replace (the last event alone is the state). The key is read backwards up to
// the first event e with TS at or before T. All that follows e was seen or, by
// (1), would have gone only after e. So e is looked at again if it is below
// max(F, B): if it is still there, nothing behind it was missing when we read,
// and it is the answer. If it is gone, we start again. If there is no such event
// there are three cases. F and B are at the start of the topic: nothing was
// ever removed, and the state is null. Nothing was trimmed, and no event of
// the key is left below B: then a compaction has removed its last event below B,
// so that was a tombstone, or there never was one. The mark has a bound of the
// TS of those tombstones, and of their seqs; if T and AsOf are at or above them,
// the state is null. Otherwise a snapshot may help; if not, it is gone.
//
// Merge, and reducers of your own. The state depends on all events of the key
// since it was last deleted. They are applied from the oldest that is there on,
// or from a snapshot; the answer stands if the key was deleted on the way, by a
// tombstone with TS at or before T, since by (1) nothing behind that is missing;
// or if nothing was ever removed; or if, as above, no event of the key is left
// below B; or if nothing behind the snapshot is missing. What it rests on is
// looked at again here too.
//
// Snapshots. A snapshot says what the key was after one of its events, at seq s.
// It serves T if no event in it is later than T, and AsOf if s is not above it.
// Nothing behind it is missing if an event of the key at or below s is still
// there (1), or if s+1 is at or above max(F, B) (2), or if it is the key's newest
// snapshot, the snapshots cover the topic up to a seq c, so that the key has no
// event from s to c, and c+1 is at or above max(F, B). Those of the compactor are
// made by Replace, so they are used for Replace alone unless you say otherwise.
package timetravel
