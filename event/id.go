package event

import (
	"crypto/sha1"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// ID identifies an event: a UUID of any version in network byte order. It says
// which event this is, never where it stands in a topic. The zero ID means
// that none was given.
type ID [16]byte

const (
	idText = 36 // length of the canonical text form

	// The clock of NewID packs epoch milliseconds above a counter in one word.
	// 44 bits of milliseconds last until the year 2527.
	counterBits = 20
	counterSeed = 1<<(counterBits-1) - 1
)

// clock holds the last (millisecond, counter) pair that NewID gave out.
var clock atomic.Uint64

// NewID returns a version 7 UUID that is greater than every ID that NewID
// returned before in this process, also when the wall clock steps back. It is
// safe for concurrent use and does not block.
//
// An ID carries the millisecond, a 20-bit counter that starts at a random
// place in each millisecond, and 54 random bits. IDs are hard to collide, but
// they are not secrets.
func NewID() ID { return newIDAt(wallMilli()) }

func newIDAt(ms int64) ID {
	return makeID(tick(&clock, ms), rand.Uint64())
}

// anchor is a recent reading of the wall clock.
var anchor atomic.Pointer[time.Time]

// maxAnchorAge bounds how late NewID sees that the wall clock was set.
const maxAnchorAge = 50 * time.Millisecond

// wallMilli returns the wall clock in epoch milliseconds. time.Now reads the
// wall clock and the monotonic clock, which is most of what an ID costs;
// counting on from an anchor reads only one of them.
func wallMilli() int64 {
	if at := anchor.Load(); at != nil {
		if age := time.Since(*at); age < maxAnchorAge {
			return (at.UnixNano() + int64(age)) / int64(time.Millisecond)
		}
	}
	now := time.Now()
	anchor.Store(&now)
	return now.UnixMilli()
}

// tick advances clock to the millisecond now, or by one where the clock has
// been there already: more than one ID in a millisecond, a wall clock that
// stepped back, or another caller who read a later time and came first. A full
// counter carries into the millisecond, which keeps the order.
func tick(clock *atomic.Uint64, now int64) uint64 {
	ms := uint64(max(now, 0))
	for {
		last := clock.Load()
		next := last + 1
		if ms > last>>counterBits {
			next = ms<<counterBits | rand.Uint64()&counterSeed
		}
		if clock.CompareAndSwap(last, next) {
			return next
		}
	}
}

// makeID lays out 44 bits of milliseconds, the counter and random bits around
// the version and variant fields of RFC 9562.
func makeID(tick, random uint64) ID {
	const inA = 12 // bits of rand_a; the rest of the counter opens rand_b
	const inB = counterBits - inA
	ms := tick >> counterBits
	counter := tick & (1<<counterBits - 1)
	var id ID
	binary.BigEndian.PutUint64(id[:8], ms<<16|7<<12|counter>>inB)
	binary.BigEndian.PutUint64(id[8:], 2<<62|counter&(1<<inB-1)<<(62-inB)|random>>(2+inB))
	return id
}

// NameID returns the version 5 UUID of name within space. The same arguments
// give the same ID everywhere and always.
func NameID(space ID, name string) ID {
	h := sha1.New()
	h.Write(space[:])
	h.Write([]byte(name))
	var sum [sha1.Size]byte
	h.Sum(sum[:0])
	id := ID(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}

// ParseID reads the canonical form of 36 characters with hex digits of either
// case. Braces, a urn: prefix and the form without dashes are refused: one ID
// has one spelling, so that text can be compared.
func ParseID(s string) (ID, error) {
	id, err := parseID(s)
	if err != nil {
		return ID{}, err
	}
	return id, nil
}

func parseID(s string) (ID, *RuleError) {
	var id ID
	if len(s) != idText {
		return ID{}, &RuleError{Field: "id", Rule: "must be a UUID of 36 characters", Limit: idText, Got: len(s), Found: quote(s), Kind: ErrInvalidArgument}
	}
	var bad byte
	for i, at := range idDigits {
		hi, lo := unhex[s[at]], unhex[s[at+1]]
		bad |= hi | lo
		id[i] = hi<<4 | lo&0x0f
	}
	if bad&0x80 != 0 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return ID{}, &RuleError{Field: "id", Rule: "must be a UUID like 0192f7c1-0000-7000-8000-000000000000", Found: quote(s), Kind: ErrInvalidArgument}
	}
	return id, nil
}

// idDigits gives the place of the first hex digit of each byte.
var idDigits = [16]int{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// unhex maps a hex digit to its value and every other byte to 0xff.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range byte(10) {
		t['0'+i] = i
	}
	for i := range byte(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

const hexDigits = "0123456789abcdef"

func (id ID) encode() (buf [idText]byte) {
	for i, at := range idDigits {
		buf[at], buf[at+1] = hexDigits[id[i]>>4], hexDigits[id[i]&0x0f]
	}
	buf[8], buf[13], buf[18], buf[23] = '-', '-', '-', '-'
	return buf
}

// String returns the canonical form in lower case.
func (id ID) String() string {
	buf := id.encode()
	return string(buf[:])
}

// AppendText appends the canonical form to dst. The error is always nil.
func (id ID) AppendText(dst []byte) ([]byte, error) {
	buf := id.encode()
	return append(dst, buf[:]...), nil
}

// MarshalText returns the canonical form. The error is always nil.
func (id ID) MarshalText() ([]byte, error) {
	return id.AppendText(nil)
}

// UnmarshalText reads what ParseID reads.
func (id *ID) UnmarshalText(text []byte) error {
	v, err := ParseID(string(text))
	if err != nil {
		return err
	}
	*id = v
	return nil
}

// IsZero reports whether no ID was given.
func (id ID) IsZero() bool { return id == ID{} }

// Time returns the time that a version 7 ID carries, to the millisecond. It
// reports false for other versions.
func (id ID) Time() (time.Time, bool) {
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return time.Time{}, false
	}
	ms := binary.BigEndian.Uint64(id[:8]) >> 16
	return time.UnixMilli(int64(ms)), true
}
