// Package wire is what the two ends of a connection agree on: the codes of
// errors, with their HTTP status, the close codes of WebSockets, the operations
// of frames and the bounds of what a frame may ask for.
//
// The table of codes is the only one: answers, frames, the OpenAPI document and
// the documentation are made from it.
//
// It is a leaf, so that a client can have it without the hub.
package wire
