// Package wire is what the two ends of a connection agree on: the codes of
// errors, with their HTTP status and the close codes of WebSockets, and the
// frames.
//
// The table of codes is the only one: answers, frames, the OpenAPI document and
// the documentation are made from it. [CodeOf] finds the code of any error of
// the rooms below.
package wire
