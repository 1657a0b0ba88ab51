package ws

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options configure a connection.
type Options struct {
	// Limit is the largest message in bytes. Default 1 MiB.
	Limit int
	// Queue bounds what waits to be written, in bytes. One message more than
	// that may be there. Default 4 MiB.
	Queue int
	// MessageWait is how long a message may take to come once it has begun.
	// Default 30 s.
	MessageWait time.Duration
	// Grace is how long the peer has to take the last messages, and to answer
	// that the connection is closed. Default 5 s.
	Grace time.Duration
	// Stalled is called once, by the keeper, if the peer has taken nothing for
	// Keeper.Stall though something waits. It must not block. May be nil: the
	// connection is closed.
	Stalled func()
	// Silent is called once, by the keeper, if nothing came from the peer for
	// two intervals of pings. It must not block. May be nil: the connection is
	// closed.
	Silent func()
	// Refused gives the last message to a peer who sent what closes the
	// connection; nil if there is none to give. May be nil.
	Refused func(*CloseError) []byte
	// Heard is called by Next whenever something has come from the peer. It must
	// be quick. May be nil.
	Heard func()
	// Room is called when there is room again after Full has said
	// that there is not. It must not
	// block. May be nil.
	Room func()
}

func (o *Options) defaults() {
	for _, x := range []struct {
		field *int
		value int
	}{{&o.Limit, 1 << 20}, {&o.Queue, 4 << 20}} {
		if *x.field <= 0 {
			*x.field = x.value
		}
	}
	for _, x := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.MessageWait, 30 * time.Second}, {&o.Grace, 5 * time.Second}} {
		if *x.field <= 0 {
			*x.field = x.value
		}
	}
}

// Conn is one connection. Next and Buffered are for one goroutine; all else may
// be called by any.
type Conn struct {
	nc net.Conn
	k  *Keeper
	o  Options

	// Reading.
	buf    []byte
	r, w   int       // buf[r:w] came and was not given yet
	large  bool      // buf is a large one of the pool
	bulk   bool      // the last read filled the buffer
	due    time.Time // when the message that has begun must be there; zero if none has
	parts  []byte    // what there is of a message in fragments
	parted bool
	heard  atomic.Int64 // by the keeper's clock
	often  atomic.Int64 // see PingEvery
	pinged int64        // the keeper's
	told   bool         // the keeper's: Stalled or Silent was called
	fat    atomic.Bool  // the reader waits with a large buffer
	kicked atomic.Bool

	// Writing.
	mu      sync.Mutex
	room    sync.Cond    // the queue has become shorter, or the end has come
	box     *[]byte      // of the pool; out lies in it, or has grown out of it
	out     []byte       // what waits
	last    int          // how much was written last
	start   int          // of the message that is being appended
	writing int          // bytes that are on their way
	busy    bool         // somebody writes
	roomy   uint64       // how often there was room
	wanted  bool         // Options.Room is to be called
	shut    bool         // nothing more is taken
	broken  bool         // nothing more is written
	closing bool         // the last message is put into the queue
	moved   atomic.Int64 // by the keeper's clock: when the peer took something
	stuck   atomic.Bool  // a write is under way
}

func newConn(nc net.Conn, k *Keeper, o Options) *Conn {
	o.defaults()
	c := &Conn{nc: nc, k: k, o: o, buf: make([]byte, smallRead)}
	c.room.L = &c.mu
	c.heard.Store(k.now.Load())
	return c
}

// CloseError is the end of a connection as its peer put it, or as we did for
// what he sent.
type CloseError struct {
	Code   uint16
	Reason string
	// Peer says that he closed it.
	Peer bool
}

func (e *CloseError) Error() string {
	who := "we"
	if e.Peer {
		who = "the peer"
	}
	return fmt.Sprintf("%s closed the connection: %d %s", who, e.Code, e.Reason)
}

// errShut says that the connection was closed by Shut.
var errShut = errors.New("the connection is closed")

// Shut ends the connection from our side: what waits is written, and then that
// it is closed, with a code and a reason. With drop what waits and was not
// begun is dropped instead, but for last, a text message that may be nil. No
// messages are taken after it. It does not block; Finish does.
func (c *Conn) Shut(code uint16, reason string, drop bool, last []byte) {
	c.mu.Lock()
	if c.shut {
		c.mu.Unlock()
		return
	}
	c.shut = true
	c.haveBuffer()
	if drop {
		c.out = c.out[:0]
	}
	c.closing = true
	if last != nil {
		c.end(append(c.begin(), last...))
	}
	c.out = appendClose(c.out, code, reason)
	c.closing = false
	c.room.Broadcast()
	idle := !c.busy
	_ = c.nc.SetDeadline(time.Now().Add(c.o.Grace)) // if it is gone, there is nobody to wait for
	c.mu.Unlock()
	if idle {
		go c.Flush()
	}
}

// PingEvery has a silent peer asked so often whether it lives, if the keeper
// would do so less often. It is closed no earlier for that.
func (c *Conn) PingEvery(d time.Duration) { c.often.Store(int64(d)) }

// Closed says whether the connection is shut: nothing more is taken.
func (c *Conn) Closed() bool { return c.isShut() }

// Finish is the last call of the goroutine that reads. It waits until the peer
// has got what was written and knows that the connection is closed, or
// Options.Grace is over, and lets go of everything.
func (c *Conn) Finish() {
	c.Shut(closeNormal, "", false, nil)
	c.k.remove(c)
	c.mu.Lock()
	for !c.broken && (c.busy || len(c.out) > 0) {
		c.room.Wait()
	}
	broken := c.broken
	c.mu.Unlock()
	// What is unread when a socket is closed resets it, and then what was
	// written last is lost.
	if t, ok := c.nc.(interface{ CloseWrite() error }); ok && !broken {
		_ = t.CloseWrite() // as below
	}
	for !broken {
		c.r, c.w = 0, 0
		if _, err := c.nc.Read(c.buf); err != nil {
			break
		}
	}
	_ = c.nc.Close() // there is nothing left to lose
	c.letGo()
}

// Kick has a Next that waits, or else the next one that would wait, return
// ErrKicked at once.
func (c *Conn) Kick() {
	c.kicked.Store(true)
	c.interrupt()
}

// interrupt ends a read that waits.
func (c *Conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shut {
		_ = c.nc.SetReadDeadline(time.Unix(1, 0)) // if it is gone, nobody waits
	}
}

// ErrKicked says that Next was told not to wait.
var ErrKicked = errors.New("kicked")
