// Package ws is the server's side of the WebSocket protocol (RFC 6455), for
// many connections that are mostly idle and some that are very busy.
//
// Reading: one goroutine calls [Conn.Next]. Messages that came together are
// given one after the other without another read, and stay valid until one has
// to be waited for, which [Conn.Buffered] tells beforehand: so they can be
// worked on together.
//
// Writing: whoever has a message appends it to the connection's queue
// ([Conn.Begin], [Conn.End]), and calls [Conn.Flush] when he has no more.
// Whoever finds nobody writing writes all that has gathered, in one call. The
// queue is bounded: a connection whose peer does not read is full, which
// [Conn.Full] tells, and [Conn.WaitRoom] waits for. A peer that has taken nothing for
// Options.Stall is reported to Options.Stalled.
//
// An idle connection has one goroutine, a read buffer of 1 KiB and nothing
// else. One [Keeper] for all of them sends pings, and notices who does not
// answer and who does not read.
//
// There are no extensions and no subprotocols.
package ws
