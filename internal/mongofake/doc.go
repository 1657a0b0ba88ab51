// Package mongofake is a server that speaks MongoDB's wire protocol from
// memory, for tests of what needs a replica set: change streams, transactions,
// and a primary that steps down. The official driver talks to it over TCP.
//
//	s := mongofake.Start(t, mongofake.Options{})
//	client, err := mongo.Connect(options.Client().ApplyURI(s.URI()))
//
// It answers as the primary of a replica set with one member, in the version
// 7.0. What it does follows MongoDB's public specifications, which the files
// name where they apply:
//
//   - the MongoDB wire protocol and OP_MSG
//     (https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/,
//     specifications/source/message/OP_MSG.md),
//   - server discovery and monitoring
//     (specifications/source/server-discovery-and-monitoring),
//   - change streams (specifications/source/change-streams),
//   - transactions, retryable writes and sessions
//     (specifications/source/transactions, retryable-writes, sessions).
//
// # What it knows
//
// Commands: see the table in command.go. Filters: $eq $ne $gt $gte $lt $lte $in
// $nin $exists $not $and $or $nor $expr. Updates: replacement, $set $unset $inc
// $min $max $setOnInsert $currentDate $push $pull, and pipelines of $set.
// Pipelines: $match $project $set $unwind $sort $skip $limit $count $group with
// $sum $min $max. Expressions: paths, variables, and the operators that
// expression.go lists. Views, and unique indexes, over arrays too. Whatever else
// a caller sends, a command, an option, an operator, is refused by name. It never
// guesses.
//
// Transactions read a snapshot and see their own writes; nobody else does
// before the commit, which gives all of them one cluster time. The first writer
// of a document wins, a transaction that comes second gets a write conflict, and
// a write outside of a transaction waits. Writes that the driver sends again
// with the same transaction number are not done again.
//
// # Faults
//
// [Server.Fail] scripts what goes wrong with the next commands of a name.
// [Server.KillCursors], [Server.TrimHistory], [Server.StepDown] and
// [Server.Down] do what their names say. [Server.Await] waits until commands
// have come, so that tests need no sleeps.
//
// All methods may be called from any goroutine.
package mongofake
