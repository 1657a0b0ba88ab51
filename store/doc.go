// Package store holds the ports that every storage engine implements and the
// promises that everything above relies on. The engines live in sub-packages;
// store/storetest proves each of them.
//
// # Promises
//
// Order. Every topic is a log of its own. An event gets its seq at commit: the
// first is 1, later ones are larger, none is ever given twice, also not after
// everything has expired. Once seq n is visible to any reader, no smaller seq
// of that topic appears later. Only a seq is a position; ids and timestamps
// are not.
//
// Durability. Append returns after the batch is on stable storage (on the
// engine's majority where there are several machines). Nothing is visible, by
// any call, before it is durable; [Batch.Async] only returns earlier.
//
// Atomicity. A batch is there as a whole or not at all, after a crash too.
// Whether one batch may span several topics and carry settlements is an
// ability ([AtomicTopics], [Settles]).
//
// Idempotence. An id is unique in its topic while its event is retained.
// Appending a known id stores nothing and gives back the stored event.
//
// Concurrency. All methods may be called from any number of goroutines. No
// method calls back into the caller while it holds a lock.
//
// # Abilities
//
// What an engine may lack is a small interface of its own, found by
// assertion. docs/engines.md says which engine has which, and what happens
// above an engine that lacks one.
package store
