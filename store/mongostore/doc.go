// Package mongostore is the engine over MongoDB, for hubs on several machines.
// Any number of processes may have the same database open. It needs no
// transactions, and works on servers that speak MongoDB's protocol without
// having them.
//
//	s, err := mongostore.Open(ctx, "mongodb://a,b,c/bus?replicaSet=rs0", mongostore.Options{})
//
// # Guarantees
//
// Order. Seqs are given without a gap, though compaction leaves gaps. A commit
// is inserted behind the end of its topic or not at all, so they are given in
// commit order.
//
// Durability. Writes wait for the journal of a majority, reads are of what a
// majority has. On a single server that is the server.
//
// Atomicity. A batch is part of one document.
//
// Idempotence. A unique index over topic and id refuses a known id for as long
// as its event is retained.
//
// Concurrency. Appends of a topic that arrive while a commit of it is on its
// way become one commit together, and so do settlements of a group.
//
// Documents. [Store.Docs] keeps them in plain collections; see below.
//
// What it lacks: batches over several topics, settlements beside events,
// backup (use the server's tools).
//
// # Layout
//
// Collections begin with [Options.Prefix].
//
//	commits  one document per commit:
//	  _id     {t: topic, s: seq of the first event}
//	  t       topic
//	  last    seq of the last event
//	  at      when it was written, by the writer's clock
//	  hi      highest ts in it
//	  top     highest ts in the topic up to here
//	  cum     bytes of the topic's events up to here, those included that are gone
//	  less    bytes of its events that compaction has removed
//	  c       a random number: whose commit this is
//	  events  [{seq, id, ts, key, partition, sid, headers: [{k, v}], payload,
//	          caused_by, tags}]; payload is the JSON text, byte by byte
//	          A row with the seq 0 is no event: it stands where all are removed
//	  indexes (t, last), (t, events.id) unique, (t, events.key, last)
//	topics   _id topic; settings; first, base, gone, done: how far it is trimmed;
//	         gaps, less: below which seq events may be missing, and their bytes;
//	         tail: an end that it once had
//	cursors  _id topic/group; the state, its lists as varints; version counts
//	         PutCursor, rev is another number after every change, put is the
//	         rev of the last PutCursor
//	leases   _id name; owner, epoch, until; kept when the lease is free
//	meta     one document: the format's version
//	events   a view with one row per event, where the server has views
//	readers  _id reader; place, meta, cols: what is declared; rev counts changes
//	         of all but the place, c is a random number: whose the last change
//	         is; fresh, waste, dropping, by, next: what was begun
//	view_N   the documents of collection N; docs/engines.md says what they have
//
// A commit has at most 5,000 events, so the commit that holds seq n ends below
// n+5000: a range query of that width finds it, or proves that there is none.
//
// # Why a commit is at the end of its topic
//
// A writer inserts a commit with the seq that follows the topic's tail as its
// _id. It learns the tail from the last field of a stored commit, or from its
// own commit that the server acknowledged. So every tail that anybody holds was
// the topic's tail once, and if the topic has grown since, some commit begins
// right behind it. While that commit exists, the insert collides with it and
// the writer reads the tail again. No gap can come about, because nobody
// inserts further out; no overlap, because nobody inserts in between.
//
// Trimming deletes commits, and could make room for a writer that has slept: it
// holds a tail from before, and the commit that it should collide with is gone.
// The topic's base settles that. It is the first seq of the oldest commit that
// counts. These rules hold:
//
//  1. base only rises. It is raised, and is on the majority, before any commit
//     below it is deleted; none at or above it is ever deleted. The newest
//     commit of a topic is never below base.
//  2. A commit that begins below base does not count, wherever it ends.
//  3. A writer reads base after its insert was acknowledged. If base is not
//     above the commit, nothing at its place was ever deleted, so the insert
//     was the first there: it counts, and is answered. If base is above it, the
//     writer deletes its commit, reads the tail, and begins anew. It builds
//     nothing on a commit that it has not checked in this way.
//  4. A reader reads base after the commits that it is to judge. A commit of a
//     late writer came to its place after base had passed it, so whoever has
//     seen the commit sees that base too. Both reads go to the primary, and a
//     driver does not return to an earlier one.
//  5. The tail is that of the commit that begins last, not of the one that ends
//     last: the former is at or above base and counts.
//
// If a commit counted, was overtaken, and was trimmed away between its insert
// and the check, the writer cannot tell that from having been late. It appends
// its events again, which the promises allow: an id is unique while its event
// is retained.
//
// # Expectations
//
// They are judged against a tail, and last seqs of keys that are looked up
// after it was read. The commit is then inserted behind that very tail. Had
// anybody else appended in between, the insert would collide, and everything be
// judged again. A refusal that comes with no insert is judged by a tail that
// was read after the call came in.
//
// # Duplicates and lost answers
//
// The server's code for a duplicate key does not say whether the place was
// taken or an id. The writer reads the tail and looks up the ids. Those that
// are retained are answered with the stored event, the rest is inserted again.
// Duplicates within a commit are found before it is made: an index does not
// bind within one document.
//
// If no answer comes, the commit may be there, come late, or never come. The
// writer looks at its place for its own random number, and inserts the same
// document again if the place is free. A copy that is still on its way then
// collides with whatever stands there, or with an id, or is below base.
//
// # When a process dies
//
//   - In an append: the insert is one step. A commit that was inserted late
//     stays, does not count, and is removed by the next trim, or as soon as
//     somebody appends one of its ids.
//   - In a trim: one change of the topic's document hides the events, removing
//     them comes after it. Every sweep ends what was begun (done is below
//     first), and so does an append that meets a hidden id.
//   - In a compaction: each commit is changed in one step, and none is deleted,
//     so all that is said above about places stays true.
//   - In a settlement, a cursor's or a lease's change: each is one step on one
//     document, guarded by rev or made by expressions on the server.
//
// Leases go by the server's clock. Retention goes by the clocks of the writers
// and of the process that sweeps.
//
// # Wake-ups
//
// Own appends wake at once. Those of other processes are found by a change
// stream, where the server has one, and by polling: one query for all watched
// topics, every [Options.PollMin] while events come, up to [Options.PollMax]
// while none do.
//
// # Documents
//
// A commit reads the reader's row, which must be at the place that the commit
// begins at, and the documents that it is about. From these it is known what
// every operation does, in order: whether it is stale, and whether a unique
// index refuses it. Nothing has been written so far. Then each document is
// replaced if its _seq is still the one that was read, or inserted if there was
// none, and last the place is moved if it is still where it was and nothing
// else has changed in the row. Whatever does not match begins anew, with the
// row. So two processes that commit the same batch write the same documents,
// and one of them is told of the conflict. On a server with transactions all of
// it is in one.
//
// A commit that is repeated after its end was not seen finds its documents
// stale, because they have its seqs, and moves the place. If the place was moved
// by itself before, the row has its random number.
//
// What is declared changes in the row first: fresh and waste name collections
// to be made and dropped, dropping says that the reader is gone, by and next
// that another one has taken its place. One change of one row is thus what
// decides. The rest follows, may be repeated, and is ended by whoever writes
// next if the process dies: each write looks at the row first, and a declaration
// at all rows that have to do with its collections. Indexes come before the row
// that names them, since one that is unique may turn out to be impossible, and
// are dropped after it. Every collection is named by a row from before it is
// made until it is dropped.
//
// Deletions are forgotten after the row says up to which seq. Changes are read
// before the row is, so whoever misses one is told.
//
// # Costs
//
// An append is an insert and a read by _id, shared by all that wait. A read is
// a range query and a read by _id for each page. Queries are bounded by ranges
// of seqs and not by limits alone, because some servers do not read an index in
// order and sort the whole range. LocateTime halves the range by top; if an
// event far in the future has spoilt that, the server looks through the
// commits that follow.
//
// A sharded collection of commits must have t as its shard key.
package mongostore
