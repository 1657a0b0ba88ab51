// Package changefeed publishes the changes of a database as events.
//
// A [Feed] reads the changes of one collection or table from a [Source] and
// publishes each as an event of one topic, in the order of the source:
//
//   - the key is that of the document, the payload the document as it is after
//     the change, and null after a delete, so that a compacted topic or a view
//     forgets it;
//   - the id follows from the place in the source. A feed that died between
//     publishing and saving its place publishes the same ids again, which the hub
//     knows, and so nothing is stored twice;
//   - the place (a resume token, a log sequence number) is saved after each batch
//     that is stored, in [Tokens]. Nothing is skipped.
//
// # When it cannot go on
//
// A server that is away, slow or failing over is tried again, with growing
// pauses. An event that the hub refuses, by its schema say, stops the feed: it
// tries again with growing pauses and says so in its status, since leaving it out
// would break what readers rely on. If the source has lost the history since the
// saved place, the feed stops loudly, or takes a new snapshot if it may
// ([Options.Resnapshot]).
//
// A document that is larger than a payload may be becomes a marker, an event with
// the header x-change-oversized and the payload {"_oversized": bytes}.
package changefeed
