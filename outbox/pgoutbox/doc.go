// Package pgoutbox keeps an outbox in a table of PostgreSQL 13 or newer, through
// pgx. See package outbox for what an outbox promises.
//
//	pool, err := pgxpool.New(ctx, uri)
//	box, err := pgoutbox.New(pool, pgoutbox.Options{})
//	err = box.Setup(ctx)
//	...
//	tx, err := pool.Begin(ctx)
//	// the service's own writes
//	err = box.Add(ctx, tx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: payload})
//	err = tx.Commit(ctx)
//
// [Outbox.AddSQL] is for transactions of database/sql, with any driver.
// [Schema] gives the SQL of the table, for those who make tables by
// migrations of their own and call no Setup.
//
// # Order
//
// Rows have a number from a sequence, and those of a key are published by it.
// Sequences know nothing of commits: of two transactions that are open at a time,
// the one with the larger number may commit first. So Add takes a lock for every
// topic and key that it writes, until the transaction ends; another transaction
// that adds a row of that key waits in its Add. What holds then is that the order
// of a key is the order of commits, whatever else the transactions do.
//
// The locks are advisory ones, at most 2048 for an outbox, each for many keys;
// two transactions may wait for each other's keys though they share none. A
// transaction that adds rows of several keys should give them to one Add, which
// takes its locks in an order of its own; by several Adds it may meet another one
// that took them the other way round, and PostgreSQL ends one of the two by a
// deadlock error. [Options.Unlocked] leaves the locks out. Then the order of a
// key is that of commits only among transactions that already wait for each
// other before they Add, as those do that have updated the same row of a business
// table.
//
// # Claims
//
// A claim is a short transaction at READ COMMITTED, whatever the database's
// default is. It takes an advisory lock of the outbox first, so that there is one
// claim at a time, and its statement sees all claims before it. Rows that others
// have locked, somebody with a console say, are passed over and not waited for
// (SKIP LOCKED); those behind them in their key are then passed over too. While a
// claim lasts, others can send rows, remove them or give them back, and none of
// that lets a row pass an earlier one of its key.
//
// Claims, and marks of what was sent, do not wait for the disk
// (synchronous_commit is off for them alone). If the server crashes they may be
// undone: the rows are then published again with the ids that they had, which the
// hub knows.
//
// All looks go by partial indexes that hold rows which are not sent, so that sent
// ones cost space and nothing else. The table is vacuumed when a hundredth of it
// and 10,000 rows are dead, and not only when a fifth is.
//
// # Failover
//
// Errors of the server leave nothing half done, and a drainer tries again with
// growing pauses. With several servers, name them all in the address and ask for
// the one that can be written:
//
//	postgres://shop@db1,db2/shop?target_session_attrs=read-write
//
// # Waking
//
// Add notifies a channel of the outbox, which PostgreSQL tells to listeners when
// the transaction commits, once per transaction. [Outbox.Wake] listens on a
// connection of its own. If that is lost it connects again, with growing pauses,
// and wakes the drainer at every try: the drainer looks by itself meanwhile.
//
// # By hand
//
// The table can be written with SQL alone, by programs in other languages: topic
// and payload suffice, ids are made.
//
//	INSERT INTO promethean_outbox (topic, key, payload) VALUES ('orders.placed', 'order-7', '{"total":5}');
//	SELECT pg_notify('promethean_outbox_' || 'promethean_outbox'::regclass::oid, '');
//
// Without the second statement drainers find the row at their next look. Such rows
// take no lock of their key, as with [Options.Unlocked]. One that breaks the rules
// of events is refused by the drainer, and shows it in the column error.
package pgoutbox
