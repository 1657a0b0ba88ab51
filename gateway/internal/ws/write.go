package ws

import (
	"encoding/binary"
	"sync"
)

// maxChunk is how much is given to the network in one call: the peer has taken
// something when a call returns.
const maxChunk = 256 << 10

// Write buffers come from pools, so that idle connections have none: one of
// small buffers and one of those that have grown large. A connection gets one
// of the kind that it needed last. One that has grown beyond maxPooled is left
// to the collector.
const (
	smallWrite = 1 << 10
	largeWrite = 32 << 10
	maxPooled  = 1 << 20
)

var smallWrites, largeWrites sync.Pool

func getBuffer(last int) *[]byte {
	pool, size := &smallWrites, smallWrite
	if last >= largeWrite {
		pool, size = &largeWrites, 2*largeWrite
	}
	if b, ok := pool.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, 0, size)
	return &b
}

func putBuffer(b *[]byte) {
	*b = (*b)[:0]
	switch n := cap(*b); {
	case n < largeWrite:
		smallWrites.Put(b)
	case n <= maxPooled:
		largeWrites.Put(b)
	}
}

// Begin locks the queue and gives it to append a text message to. End has to
// be called with the result, soon.
func (c *Conn) Begin() []byte {
	c.mu.Lock()
	return c.begin()
}

// haveBuffer sees to it that there is something to append to. mu must be held.
func (c *Conn) haveBuffer() {
	if c.box == nil {
		c.box = getBuffer(c.last)
		c.out = *c.box
	}
}

// dropBuffer gives it back. mu must be held.
func (c *Conn) dropBuffer() {
	if c.box != nil {
		*c.box = c.out
		putBuffer(c.box)
		c.box, c.out = nil, nil
	}
}

// begin must be called with mu held.
func (c *Conn) begin() []byte {
	c.haveBuffer()
	c.start = len(c.out)
	c.out = append(c.out, 0, 0, 0, 0) // the head of most messages
	return c.out
}

// End puts the message that was appended into the queue. If the connection is
// shut it is dropped.
func (c *Conn) End(b []byte) {
	c.end(b)
	c.mu.Unlock()
}

// Cancel gives the queue back without a message.
func (c *Conn) Cancel() {
	c.out = c.out[:c.start]
	c.mu.Unlock()
}

// end must be called with mu held.
func (c *Conn) end(b []byte) {
	at := c.start
	if c.broken || c.shut && !c.closing {
		c.out = b[:at]
		return
	}
	n := len(b) - at - 4
	b[at] = 0x80 | opText
	switch {
	case n < 126:
		b[at+1] = byte(n)
		copy(b[at+2:], b[at+4:])
		b = b[:len(b)-2]
	case n < 1<<16:
		b[at+1] = 126
		binary.BigEndian.PutUint16(b[at+2:], uint16(n))
	default:
		b = append(b, 0, 0, 0, 0, 0, 0)
		copy(b[at+10:], b[at+4:len(b)-6])
		b[at+1] = 127
		binary.BigEndian.PutUint64(b[at+2:], uint64(n))
	}
	c.out = b
}

// appendClose appends a close frame. The reason is cut to what fits.
func appendClose(b []byte, code uint16, reason string) []byte {
	if code == closeNoStatus {
		return append(b, 0x80|opClose, 0)
	}
	reason = reason[:min(len(reason), 123)]
	b = append(b, 0x80|opClose, byte(2+len(reason)))
	b = binary.BigEndian.AppendUint16(b, code)
	return append(b, reason...)
}

// pong answers a ping.
func (c *Conn) pong(body []byte) {
	c.control(opPong, body)
	c.Push()
	c.WaitRoom() // who sends pings and reads no pongs is not read either
}

// control queues a control frame.
func (c *Conn) control(op byte, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return
	}
	c.haveBuffer()
	c.out = append(c.out, 0x80|op, byte(len(body)))
	c.out = append(c.out, body...)
}

// Flush writes all that waits, unless somebody is at it already, who then
// writes it. It blocks while the network does.
func (c *Conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.broken || len(c.out) == 0 {
		return
	}
	c.busy = true
	c.drain()
}

// Push is Flush for who has more to do than to write: what is added meanwhile
// is left to another goroutine, so that it returns also while somebody adds
// without end.
func (c *Conn) Push() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.broken || len(c.out) == 0 {
		return
	}
	c.busy = true
	if c.writeOut() && len(c.out) > 0 {
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.drain()
		}()
		return
	}
	c.drain()
}

// drain writes until nothing waits, and ends what began with busy. mu must be
// held.
func (c *Conn) drain() {
	for len(c.out) > 0 {
		if !c.writeOut() {
			break
		}
	}
	c.busy = false
	if len(c.out) == 0 {
		c.dropBuffer()
	}
	c.room.Broadcast()
}

// writeOut writes what waits now. It returns false if the connection is broken.
// mu must be held; it is given back meanwhile.
func (c *Conn) writeOut() bool {
	box, buf := c.box, c.out
	c.box, c.out, c.writing, c.last = nil, nil, len(buf), len(buf)
	if !c.write(buf) {
		return false
	}
	*box = buf
	putBuffer(box)
	c.loosen()
	return true
}

// write gives a buffer to the network. mu must be held; it is given back
// meanwhile.
func (c *Conn) write(buf []byte) bool {
	for len(buf) > 0 {
		n := min(len(buf), maxChunk)
		c.mu.Unlock()
		c.moved.Store(c.k.now.Load())
		c.stuck.Store(true)
		_, err := c.nc.Write(buf[:n])
		c.stuck.Store(false)
		c.mu.Lock()
		if err != nil {
			c.breakDown()
			return false
		}
		buf = buf[n:]
		if c.writing -= n; len(buf) > 0 {
			c.loosen()
		}
	}
	return true
}

// breakDown ends writing. mu must be held.
func (c *Conn) breakDown() {
	c.broken, c.shut, c.writing = true, true, 0
	c.out = c.out[:0]
	c.dropBuffer()
	_ = c.nc.Close() // it is broken
}

// loosen tells those who wait for room, if there is some. mu must be held; it
// is given back for a moment.
func (c *Conn) loosen() {
	if c.queued() >= c.o.Queue/4 {
		return
	}
	c.roomy++
	c.room.Broadcast()
	if c.wanted && !c.shut {
		c.wanted = false
		c.mu.Unlock()
		c.o.Room()
		c.mu.Lock()
	}
}

// queued must be called with mu held.
func (c *Conn) queued() int { return len(c.out) + c.writing }

// Full says whether more than half of the queue is taken. If so, Options.Room
// is called once that has changed.
func (c *Conn) Full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut || c.queued() < c.o.Queue/2 {
		return false
	}
	c.wanted = true
	return true
}

// WaitRoom waits while more than half of the queue is taken, until there was room
// once: others may have taken it by then, and would again and again.
func (c *Conn) WaitRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.roomy
	if c.queued() < c.o.Queue/2 {
		return
	}
	if !c.busy {
		c.mu.Unlock()
		c.Push()
		c.mu.Lock()
	}
	for !c.shut && c.queued() >= c.o.Queue/2 && c.roomy == seen {
		c.room.Wait()
	}
}
