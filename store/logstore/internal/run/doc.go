// Package run keeps sorted, immutable runs of fixed-width entries on disk: the
// id and key indexes of the embedded engine. Entries compare as bytes. Runs
// are written once, searched by prefix and merged into larger ones; there is
// no update and no delete.
//
// # File
//
//	blocks   entries back to back, as many to a block as fit 16 KiB
//	fences   for each block its first entry and the CRC32C of the block, then the last entry of the run
//	filter   a blocked Bloom filter over entry prefixes, lines of 64 bytes; none in runs of over 16M entries
//	footer   88 bytes, at the end:
//
//	0   8  magic "PROMRUN\x01"
//	8   4  entry width          12  4  prefix length of the filter
//	16  8  entries              24  4  entries a block     28  4  zero
//	32  8  offset of fences     40  8  length of fences    48  4  CRC32C of fences
//	52  4  CRC32C of filter     56  8  offset of filter    64  8  length of filter
//	72  12 zero                 84  4  CRC32C of bytes 0–83
//
// Every byte is under a checksum; damage is an error that names file and
// offset. A run is complete once Finish has synced it; who refers to it only
// after that, and drops files nobody refers to when opening, needs no more
// for crashes.
package run
