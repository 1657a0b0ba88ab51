// Package sqliteoutbox is an outbox in an SQLite database.
//
// A service passes its own database to [New] and adds rows in its own
// transactions:
//
//	tx, err := db.BeginTx(ctx, nil)
//	// the service's own writes
//	err = box.Add(ctx, tx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: payload})
//	err = tx.Commit()
//
// A hub, or a program that only drains, opens the file with [Open].
//
// # Beside other writers
//
// SQLite has one writer at a time. The service's connections should have a busy
// timeout and the journal mode WAL, as for any two writers:
//
//	file:orders.db?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate
//
// The outbox itself tries again while the database is busy. It takes the write
// lock for a claim and for what became of it, a few milliseconds for a batch, and
// not at all while nothing is pending.
//
// # Order
//
// A transaction that has written has the only write lock until it ends, so that
// rows have the order of the commits.
//
// # Waking
//
// SQLite tells nobody of a commit. Every 250 ms [Outbox.Wake] looks whether the
// database file, or its -wal file, has changed, by their size and time, without a
// query. Any commit changes them, so one to other tables is a look in vain.
//
// # By hand
//
// The table can be written with SQL alone, by programs in other languages: topic
// and payload suffice, ids are made.
//
//	INSERT INTO promethean_outbox (topic, key, payload) VALUES ('orders.placed', 'order-7', '{"total":5}')
//
// A row that breaks the rules of events is refused by the drainer, and shows it in
// the column error.
package sqliteoutbox
