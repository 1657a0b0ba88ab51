// Package intent lets a batch go over several topics, or be larger than one
// batch of the engine, on engines that cannot do that in one step.
//
// # How
//
// What is to be appended is written down first, in the topic system.intents.
// Once that is durable the batch will happen: its events are appended topic by
// topic, and then the intent is settled. If the process dies on the way, any
// process that has the store open does the rest: ids make that safe to repeat.
//
// # Guarantees
//
// A batch that was answered is there as a whole. One that was not answered is
// there as a whole, later perhaps, or not at all: also if the process died.
// Events of one topic keep their order. What is weaker than in one step: for a
// moment a reader may see the events of one topic before those of another, or
// the first part of a large batch before the rest. And a batch of several
// steps cannot have expectations, which would have to be judged in one:
// it is refused.
//
// A batch within one topic and the engine's limits goes straight to the
// engine and costs nothing more.
package intent
