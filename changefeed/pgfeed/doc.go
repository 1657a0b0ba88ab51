// Package pgfeed tells the changes of a PostgreSQL table, read by logical
// replication, to a change feed.
//
// A [Source] reads one table through a replication slot and a publication of its
// own, with the plugin pgoutput that comes with the server (PostgreSQL 11 and
// later, wal_level = logical). It promises:
//
//   - Nothing is missed. With [Options.Snapshot] it begins with the rows as they
//     are when the slot is made, and goes on with the first transaction that the
//     snapshot does not show. The server is told that changes are no longer
//     needed only once the sink has stored them and saved the token.
//   - Nothing is told in part: rows of a transaction that was rolled back never
//     come, and those of one that was committed come in one batch if they fit.
//     A larger one comes in several, whose tokens say how much of it is done.
//   - A key does not go back. Changes come in the order of commits, and a
//     snapshot that begins again comes after all that was told before it.
//   - The same change has the same id, whoever reads it: it follows from the
//     server, the table, the commit and the place in the transaction. That of a
//     row of a snapshot follows from its key, its version (xmin) and where the
//     snapshot began, so that one that was not finished and begins again repeats
//     only rows that have changed, and another one tells all rows anew.
//
// # Keys and documents
//
// The key is the replica identity's: the columns of the primary key, or of the
// index that was chosen with REPLICA IDENTITY USING INDEX. A single column is the
// key as text, several are a JSON array of texts. An update that changes the key
// is a delete of the old one and an update of the new one. A table without such
// columns is refused before it is published, since the server would refuse its
// updates from then on.
//
// The document is an object with a member per column: numbers as numbers with
// all their digits (NaN and infinities as text), booleans, json and jsonb as
// they are, bytea as base64, arrays as arrays, timestamps in the form of RFC 3339
// (those with a time zone in UTC), intervals in that of ISO 8601, everything else
// as the server writes it. A json value that events cannot hold, with a name
// twice say, is given as text. Domains are what they are over. Generated columns
// are not published by the server, and so not in the snapshot either.
//
// The server does not send large values that an update has left as they were.
// With REPLICA IDENTITY FULL they are taken from the old row. Otherwise they are
// looked up in the table; if the row has changed again or is gone by then, the
// value is that of the later row, or null, and the header x-pg-ahead names such
// columns. The changes that follow set it right. Who cannot have that sets
// REPLICA IDENTITY FULL.
//
// Truncating the table is one change without a key, [changefeed.OpTruncate].
// Headers are x-pg-op, x-pg-lsn (of the commit) and x-pg-xid.
//
// # The server's disk
//
// A slot keeps the server's log until it was read. While a feed stands still the
// log grows. [Options.MaxSlotBytes] is where the source begins to warn, and
// [Options.DropSlotOver] where it drops the slot to save the server: history is
// lost then. Neither helps while no feed runs; max_slot_wal_keep_size of the
// server does.
//
// # Who may
//
// The role needs LOGIN and REPLICATION, SELECT on the table and, unless somebody
// has made the publication, ownership of the table and CREATE on the database.
package pgfeed
