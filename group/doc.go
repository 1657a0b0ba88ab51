// Package group delivers the events of a topic to consumer groups: leases,
// acknowledgements in any order, retries with growing delays, order by key,
// dead letters. It knows nothing of networks and handlers; members take
// events and say what became of them.
//
// docs/delivery.md has the table that this package follows: the states of an
// event, what moves it from one to the next, and what survives a crash.
//
// An [Engine] keeps one runner per topic and group. A runner decides under
// one lock and has goroutines only while it reads ahead or records what was
// settled: an idle group costs its state alone.
package group
