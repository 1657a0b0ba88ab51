// Package mongofeed tells the changes of a MongoDB collection, read from a change
// stream, to a change feed.
//
//	src, err := mongofeed.New(mongofeed.Options{URI: "mongodb://a,b,c/prom?replicaSet=rs0", Collection: "processes", Snapshot: true})
//	feed, err := changefeed.Start(bus, src, changefeed.Options{Topic: "processes.changed", Tokens: mongofeed.NewTokens(src.Database())})
//
// A [Source] needs a replica set or a sharded cluster, since a single server has
// no change streams. It promises:
//
//   - Nothing is missed. The place in the stream is taken, and handed to the sink
//     as a token, before the first document of a snapshot is read; the stream
//     then goes on from that place. While nothing changes in the collection the
//     token still moves, so that it does not grow older than the server's log.
//   - The same change has the same id, whoever reads it: it follows from the
//     resume token that the server gives the change. That of a document of a
//     snapshot follows from the time of the snapshot and the _id, and a snapshot
//     that was interrupted goes on with that time behind the last _id.
//   - Changes of one document come in the order in which they were made. Only
//     what is on the majority comes, so that nothing is taken back.
//
// # Keys and documents
//
// The key is the _id: an ObjectID as hex, a string as it is, a number as text,
// anything else (and the empty string) as canonical extended JSON. A collection
// that has both the string "1" and the number 1 as an _id has two documents under
// one key: do not feed from such a one.
//
// The document is relaxed extended JSON. A delete has none. Headers are
// x-mongo-op (insert, update, replace, delete, snapshot) and
// x-change-cluster-time (seconds.increment).
//
// # What an update shows
//
// The server's log has what an update changed, not the document. With
// [UpdateLookup], the default, the document is looked up when the change is read:
// it may be newer than the change, and the changes that follow show it again. If
// it is gone by then, the update is left out, and the delete that follows tells
// it. A replacement comes as it was made, so a reader who is behind may see an
// update's newer document first and the replacement that led to it afterwards;
// the last change of a document always shows its last state. Who cannot have
// that has the server keep post images (changeStreamPreAndPostImages) and takes
// [WhenAvailable], which looks up only what has no image, or [Required].
//
// A snapshot is read while others write, so it shows a document as it is when it
// is read. Changes since the beginning of the snapshot follow, also those that it
// has shown already: for that while a document may go back, and in the end it is
// right. A snapshot that is taken anew, after history was lost, shows what is
// there: documents that were deleted in the lost time have no tombstone.
//
// # When it cannot go on
//
// Killed cursors, failovers and cut connections are resumed by the driver, or end
// Stream with an error, after which it goes on from the last token.
//
//   - The server's log no longer reaches back to the token: [changefeed.ErrHistoryLost].
//   - The collection was dropped or renamed: [changefeed.ErrGone], after all
//     that came before was handed over.
//   - No change streams on this server, no permission, an event that is larger
//     than the server can send, a token of another collection:
//     [changefeed.ErrRefused], with a sentence about what to do.
package mongofeed
