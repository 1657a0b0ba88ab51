// Package journal is the write-ahead half of the embedded engine: frames in
// preallocated, recycled segments, one writer, and the recovery that decides
// what a crash left behind.
//
// # Segments
//
// A segment is a file of fixed size, NNNNNN.seg, zeroed and synced before its
// first use, so that a later sync moves data only, no metadata. It opens with
// its header, twice, each copy in a 512-byte sector of its own:
//
//	0   8  magic "PROMJRNL"
//	8   4  format version (1)
//	12  4  zero
//	16  8  file size
//	24  8  incarnation: a random number, new for every use of the file
//	32  8  first LSN
//	40  4  CRC32C of bytes 0–39
//	44     zero up to 512
//
// Frames begin at offset 4096, each at a multiple of 8:
//
//	0   4  CRC32C over the segment's incarnation and bytes 4 to the end of the body
//	4   4  length of the body
//	8   8  LSN: 1 for the first frame of a store, then one more each
//	16  8  durable mark: the highest LSN known to be synced when this was written
//	24  8  commit time, epoch milliseconds
//	32     body, zero padded to a multiple of 8
//
// All numbers are little endian.
//
// # Crash argument
//
// The disk keeps or loses each 512-byte sector of an unsynced write on its
// own, in any order; a synced sector stays. Then:
//
//   - A frame is accepted only with the right CRC, incarnation and LSN, so a
//     torn frame is seen. What follows it was not synced before it, hence not
//     acknowledged, and is cut with it.
//   - Old frames in a recycled segment carry another incarnation and fail.
//     The incarnation is random, not counted: a header that was lost in a
//     crash cannot be followed by another use of the same number.
//   - Writing goes on in a new segment after every open. Otherwise a cut tail
//     could be overwritten by a frame of the same length, and stale frames
//     behind it would count again. A segment ends where the next one begins.
//   - A segment is synced as a whole before the header of the next is written.
//     Damage below the first LSN of a later segment is therefore never a torn
//     tail.
//   - The two copies of a header are written before the first frame is
//     synced. One intact copy is enough: a header that was torn while it was
//     written leaves the other one, of the earlier use or blank, and then the
//     segment holds nothing that counts. Two copies that are neither intact
//     nor blank are damage.
//   - The tail is synced once more before anything in it is served: after the
//     death of the process alone it may stand in the page cache only.
//   - The durable mark of any intact frame, and what the caller knows from
//     elsewhere (Options.Durable), tell damage from a torn tail: what is at or
//     below the mark was synced, so it is damage and opening is refused with
//     file and offset. The writer leaves an empty frame as a mark when it
//     falls idle, so that the last frames are covered as well.
package journal
