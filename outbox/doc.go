// Package outbox publishes events that a service has written into its own
// database, in the same transaction as the data that they tell about. Either
// both are there or neither is.
//
// A service adds a [Row] to the outbox with the driver of its database, inside
// its own transaction. A [Drainer], in the service or in a hub, claims rows,
// publishes them and marks them as sent:
//
//	box := sqliteoutbox.New(db, sqliteoutbox.Options{})
//	...
//	tx, err := db.BeginTx(ctx, nil)
//	// the service's own writes
//	err = box.Add(ctx, tx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: payload})
//	err = tx.Commit()
//	...
//	d, err := outbox.New(box, outbox.ToBus(hub.Publish), outbox.Options{Name: "orders"})
//	err = d.Run(ctx)
//
// Drivers are in the folders below: sqliteoutbox, pgoutbox, mongooutbox.
//
// # What is promised
//
//   - The event of a committed transaction is published, that of one that was
//     rolled back is not.
//   - It is in the log once. A row is published with its own id, so that a drainer
//     that died between publishing and marking repeats nothing: the hub knows the
//     id. That holds while the hub retains the event.
//   - Rows of one topic and key are published in the order in which they were
//     added, with several drainers, and also if one of them is refused: then those
//     behind it wait. Rows without a key have no order between them, and rows of
//     different keys none either.
//   - A row that the hub refuses, by its schema or its scopes say, holds up its
//     key alone. It waits with its error visible and is tried again with growing
//     pauses; after [Options.MaxAttempts] it has failed, and waits for a person.
//   - A hub that is away is nobody's failure: rows wait, no attempt is counted.
//
// # The life of a row
//
//	from      by                        to
//	pending   ClaimBatch                claimed
//	claimed   MarkSent                  sent
//	claimed   MarkError                 pending, due after a pause, or failed
//	claimed   Release, RequeueExpired   pending
//	failed    Retry                     pending
//	failed    Discard                   gone
//	sent      Prune                     gone
//
// Claims are leases. A drainer that was killed keeps its rows until the lease is
// over; [Store.RequeueExpired], which every drainer calls now and then, gives
// them to others. A drainer that was only slow may then meet another one at the
// same row: both publish the same id, the log has it once, and a claim that is
// over can no longer change the row but for saying that it was sent, which is
// true.
//
// Drainers make a new owner of every run, their name followed by a random part,
// so that two drainers with one name do not take each other's claims for their
// own.
package outbox
