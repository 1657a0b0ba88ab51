// Package chunk keeps sealed events: immutable files in which the events of
// each topic lie together, in seq order, whatever order they were published
// in. A scan of one topic reads only that topic.
//
// # File
//
//	header   16 bytes: magic "PROMCHNK", format version u32 (1), zero u32
//	blocks   records back to back: length u32, commit time i64, event record
//	index    for each section: topic number u32, name length u16, name, block count u32;
//	         for each of its blocks: offset u64, length u32, CRC32C u32, first and last seq u64,
//	         records u32, largest ts i64, first and last commit time i64
//	footer   32 bytes: offset of index u64, length u32, CRC32C u32, format version u32, CRC32C of bytes 0–19 u32, magic
//
// A section is a run of events of one topic; its blocks hold about 64 KiB
// each. The same topic may have several sections in one chunk, after chunks
// were folded together. All numbers are little endian, every byte is checked:
// header and footer when the file is opened, blocks and the parts of the index
// when they are read. The index need not be in memory: the engine's directory
// knows where the part of each section is.
//
// A chunk is complete once Finish has synced it; the engine refers to it only
// after that.
package chunk
