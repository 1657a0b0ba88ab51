// Package natsstore is the engine over NATS JetStream, version 2.12 or newer.
// Any number of processes may work on one server or cluster at a time; each is
// stateless and may die at any moment.
//
//	s, err := natsstore.Open(ctx, "nats://a:4222,nats://b:4222", natsstore.Options{})
//
// The server must be told, in its configuration:
//
//	max_payload: 3MB          # twice the payload limit, 64 KiB, and headers
//	jetstream { sync_interval: always }
//
// # Guarantees
//
// Order. A topic is a stream and a seq is the stream's sequence, given by its
// leader at commit. A reader asks the leader for the last seq first and then
// reads from any replica until it has covered that; one that lags behind is
// asked again.
//
// Durability. An append is answered when a majority of the stream's servers
// has it. What that means when the power fails depends on the server:
// sync_interval is 2 minutes by default, so servers that lose power together,
// or a single one, may lose what was acknowledged since. Set it to always for
// the promise of package store. A client without rights on the system account
// cannot ask for this setting, so Open does not check it. [store.Batch.Async]
// is answered as late as any other append.
//
// Atomicity. A batch of several events is an atomic batch of the server: at
// most 1,000 events of one topic, and 8 MiB. Reads of it are isolated.
//
// Idempotence. Nats-Msg-Id is the id, so the server knows ids that are younger
// than the stream's duplicate window. Older ones are in a local index: each
// store keeps id and seq of all events of the topics that it appends to in
// memory. Its own it has from the acknowledgements; those of others it fetches
// when they tell of them.
// An append is taken only while every event that is missing in the index is
// younger than half the window; else the store catches up first, or says
// [store.ErrUnavailable]. So between them they know every id. One gap is left,
// and takes four things at once: an id whose event was trimmed is appended
// again, by two processes, in the very moment at which its window ends, and one
// of them had not used the topic before the trim.
//
// Expectations. The server judges one about the topic and one about a key when
// it commits. More than that, within the topic, are judged here against the
// leader's last seq, on condition that it still is the last when the batch is
// committed. A batch whose ids are all known is not judged.
//
// Concurrency. What waits while a commit of a topic is under way becomes the
// next: single events one behind the other without waiting, batches together as
// one. One batch on a single server with files costs some milliseconds whatever
// its size, so a publisher with many events should send them as batches.
//
// # Layout
//
// With the prefix p, the topic a.b and the key k:
//
//	stream p-a_b        the topic; each dot is a _
//	  metadata          promethean.topic, .format, .settings (JSON), .meta (base64)
//	  subject p.a.b.k   an event; the key's token is readable, see below
//	    Nats-Msg-Id     the id; behind a # what tells a second life of a trimmed id
//	    Ts              epoch milliseconds
//	    By              a random number of the call that appended it
//	    Ev              partition, sid, headers, caused_by, tags, where there are any
//	    data            the payload, byte for byte
//	bucket p-groups     key a.b.<group token>: the state of a group, as JSON
//	bucket p-leases     key <name token>: owner, epoch and time to live, as JSON
//
// A token is the text itself where its bytes are safe; others are = and two hex
// digits, or the whole is == and base64url if that is shorter. A lone = is no
// key. Retention and MaxBytes are the stream's MaxAge and MaxBytes; 100 ms is
// the shortest age. Settings.Meta takes at most 90 KiB.
//
// Whoever has appended tells the other stores by a plain message to
// p-wake.<topic> with the last seq. If that is lost, they find out by asking the
// leader every two seconds, for topics that are watched.
//
// # When a process dies
//
//   - Append: the server commits a batch when its last message comes, and
//     forgets one that has none. If the answer is lost, the ids are known, and
//     the call knows its own events by its random number: they are no
//     duplicates.
//
//   - Settlements and cursors: one message that replaces another of a known
//     revision. Applying a settlement again changes nothing.
//
//   - Leases: likewise. Time is the leader's alone: that of the entry, and of
//     the leader's answer. The epoch is the revision with which an owner came.
//
//   - Trim and settings: one request each, which the server's log carries out.
//
//   - The index is made from the stream anew whenever a topic is first used. It
//     reads headers only, some hundred thousand events a second; appends wait
//     for it, for as long as [Options.IndexTimeout].
//
//   - Compaction: a purge for each key, of which some may be left undone.
//
// # Memory
//
// The index takes 30 to 44 bytes for each retained event of the topics that
// are appended to, watched or searched by id or time: about 400 MB for ten
// million. Topics and groups take some hundred bytes each. What another process
// compacts stays in the index until the topic is first used again; whoever looks
// such an id up sees that its event is gone. A compaction takes up to 64 MiB
// while it runs.
//
// A topic with three replicas is a Raft group of the cluster: plan for some
// thousands of topics, not more. Who reads a topic piece by piece gets a
// consumer for that, which the server forgets after half a minute. What it has
// fetched ahead may show what another process has trimmed in the last second.
//
// # What it lacks
//
// Batches over several topics ([store.AtomicTopics]), settlements beside events
// ([store.Settles]), documents and backups (use the server's).
package natsstore
