// Package jsscan finds calls to a hub in TypeScript and JavaScript.
//
// A file is compiled to plain JavaScript by esbuild, parsed by goja's parser, and
// what is found is led back to its line and column by the source map. Nothing is
// run, and no other file is looked at.
//
// # What is a call
//
// Types are not looked at, so names decide. In a file that imports
// promethean-client, also for types only, these are calls, on any receiver or none:
//
//   - publish(topic, payload, {headers}) and publish({topic, payload, headers})
//   - publishBatch([{topic, payload, headers}, …])
//   - subscribe(topic or [topics], group, handler)
//   - pull(topic, …) and tail(topic, …), on a receiver
//
// Other methods of the client, such as replay and lag, only count as uses of the
// topic. In any other file publish, publishBatch and subscribe (with group and
// handler) are calls if the topic looks like one: two or more words joined by
// dots, as in "orders.placed" or "Orders.Placed-Now". So a channel of Redis or a
// path of MQTT is left alone.
//
// A topic is a string, a template without holes, a sum of them, or a const of the
// same file that is one, also as a member of an object or an enum. Whatever else
// is not known, and no finding.
package jsscan
