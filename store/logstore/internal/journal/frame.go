package journal

import (
	"encoding/binary"
	"hash/crc32"
)

// HeadSize is the size of a frame's head. Align is what frames are aligned to.
const (
	HeadSize  = 32
	Align     = 8
	dataStart = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Frame is one intact frame of a recovered segment.
type Frame struct {
	LSN     uint64
	Durable uint64
	At      int64
	// Off is where the body begins in the segment's image.
	Off  int
	Body []byte
}

// size is what a frame with a body of n bytes takes.
func size(n int) int { return (HeadSize + n + Align - 1) &^ (Align - 1) }

func checksum(incarnation uint64, b []byte) uint32 {
	var seed [8]byte
	binary.LittleEndian.PutUint64(seed[:], incarnation)
	return crc32.Update(crc32.Update(0, castagnoli, seed[:]), castagnoli, b)
}

// putHead completes the frame in b, whose body is n bytes long.
func putHead(b []byte, n int, incarnation, lsn, durable uint64, at int64) {
	binary.LittleEndian.PutUint32(b[4:], uint32(n))
	binary.LittleEndian.PutUint64(b[8:], lsn)
	binary.LittleEndian.PutUint64(b[16:], durable)
	binary.LittleEndian.PutUint64(b[24:], uint64(at))
	clear(b[HeadSize+n : size(n)])
	binary.LittleEndian.PutUint32(b, checksum(incarnation, b[4:HeadSize+n]))
}

// parse reads the frame at off. ok is false if there is no intact one.
func parse(image []byte, off int, incarnation uint64) (f Frame, ok bool) {
	if off+HeadSize > len(image) {
		return f, false
	}
	b := image[off:]
	n := int(binary.LittleEndian.Uint32(b[4:]))
	if n > len(b)-HeadSize {
		return f, false
	}
	f.LSN = binary.LittleEndian.Uint64(b[8:])
	if f.LSN == 0 || binary.LittleEndian.Uint32(b) != checksum(incarnation, b[4:HeadSize+n]) {
		return f, false
	}
	f.Durable = binary.LittleEndian.Uint64(b[16:])
	f.At = int64(binary.LittleEndian.Uint64(b[24:]))
	f.Off = off + HeadSize
	f.Body = b[HeadSize : HeadSize+n : HeadSize+n]
	return f, true
}

// markBeyond looks behind a broken frame for an intact one that proves that
// lsn was durable, and gives its offset.
func markBeyond(image []byte, off int, incarnation, lsn uint64) (int, bool) {
	for off = (off + Align) &^ (Align - 1); off+HeadSize <= len(image); off += Align {
		// Cheap tests first: most of a segment is zero or of another time.
		got := binary.LittleEndian.Uint64(image[off+8:])
		if got <= lsn || got-lsn > 1<<32 || binary.LittleEndian.Uint64(image[off+16:]) < lsn {
			continue
		}
		if f, ok := parse(image, off, incarnation); ok && f.Durable >= lsn {
			return off, true
		}
	}
	return 0, false
}
