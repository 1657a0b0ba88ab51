// Package mongooutbox is an outbox in a MongoDB collection.
//
// A service adds rows with the context of its own transaction:
//
//	err := mongooutbox.Transact(ctx, client, func(ctx context.Context) error {
//		// the service's own writes, with this context
//		return box.Add(ctx, outbox.Row{Topic: "orders.placed", Key: "order-7", Payload: payload})
//	})
//
// Any transaction of the driver's will do; it should commit on the majority, as
// [Transact] does, for a failover might undo it after its event was published.
// [Outbox.Add] refuses a context without a transaction, since a callback that uses
// the context outside of it by mistake would publish what is rolled back.
//
// # Order
//
// A row with a key gets its place from a counter of its topic and key, which Add
// raises in the same transaction. Of two transactions that add to one key at the
// same time, the server fails one with a write conflict, and WithTransaction tries
// it again: so the places of a key have the order of the commits. Counters are in
// a second collection, with _places behind its name, and go with what is pruned.
//
// # Claims
//
// No step needs a transaction. Each row is taken by an update of this one
// document, guarded by its state. Then the claim looks whether somebody else has,
// or could take, an earlier row of a key, and gives back what is behind such a
// row. Times are the server's: its clock is asked for every few seconds, and
// counted on from there.
//
// # Waking
//
// By a change stream, where the server has them.
//
// # Compatible servers
//
// Some servers that speak MongoDB's protocol accept transactions and ignore them:
// a row may then be there without the data, or the data without the row. They are
// told apart by their greeting, and Add refuses to work there, unless
// [Options.WithoutTransactions] says that this is known. Draining works anywhere.
package mongooutbox
