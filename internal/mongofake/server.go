package mongofake

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Options of a server. The zero value is a replica set of one member.
type Options struct {
	// Standalone has it be no member of a replica set: it has neither change
	// streams nor transactions, and says so.
	Standalone bool
	// MaxDocument is how many bytes a document may have; 16 MiB by default. The
	// event of a change stream may have 16 KiB more.
	MaxDocument int
	// TransactionLifetime is how long a transaction may be open; a minute by
	// default. It is aborted when it is in somebody's way after that.
	TransactionLifetime time.Duration
}

const (
	maxDocument = 16 << 20
	eventRoom   = 16 << 10
	setName     = "fake"
)

// Server is a running server.
type Server struct {
	o        Options
	listener net.Listener
	addr     string
	process  bson.ObjectID
	commands map[string]command
	general  map[string]bool // fields of any command
	life     context.Context
	end      context.CancelFunc
	all      sync.WaitGroup

	// mu guards what follows. Commands run under it, one at a time, and give it
	// up while they wait.
	mu       sync.Mutex
	news     chan struct{} // closed when anything below has changed
	time     bson.Timestamp
	colls    map[namespace]*collection
	views    map[namespace]*view
	oplog    []entry
	trimmed  int64          // how many entries are gone
	lost     bson.Timestamp // the time of the last of them
	sessions map[string]*session
	txns     map[*txn]bool // those that run
	cursors  map[int64]*cursor
	lastID   int64

	conns    map[net.Conn]bool
	down     bool
	closed   bool
	stepped  int32 // the code of who is no primary; 0 if it is one
	topology int64
	election int64
	faults   []*Fault
	calls    map[string]int
}

// Start runs a server until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Open runs a server on a free port of the loopback, until it is closed.
func Open(o Options) (*Server, error) {
	if o.MaxDocument == 0 {
		o.MaxDocument = maxDocument
	}
	if o.TransactionLifetime == 0 {
		o.TransactionLifetime = time.Minute
	}
	if o.MaxDocument < 0 || o.MaxDocument > maxDocument || o.TransactionLifetime < 0 {
		return nil, fmt.Errorf("mongofake: documents of %d bytes, transactions of %v", o.MaxDocument, o.TransactionLifetime)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("mongofake: %w", err)
	}
	s := &Server{
		o: o, listener: l, addr: l.Addr().String(), process: bson.NewObjectID(),
		news: make(chan struct{}), colls: make(map[namespace]*collection), views: make(map[namespace]*view), sessions: make(map[string]*session),
		txns: make(map[*txn]bool), cursors: make(map[int64]*cursor), conns: make(map[net.Conn]bool),
		calls: make(map[string]int), topology: 1, election: 1, commands: commands(), general: general(),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.tick()
	s.all.Go(s.accept)
	return s, nil
}

// URI is the address for clients.
func (s *Server) URI() string {
	if s.o.Standalone {
		return "mongodb://" + s.addr + "/"
	}
	return "mongodb://" + s.addr + "/?replicaSet=" + setName
}

// Close ends all connections, and returns when nothing is left of the server.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.cut()
	s.mu.Unlock()
	s.end()
	_ = s.listener.Close()
	s.all.Wait()
}

// cut ends all connections.
func (s *Server) cut() {
	for c := range s.conns {
		_ = c.Close()
	}
}

// wake tells those who wait that something has changed.
func (s *Server) wake() {
	close(s.news)
	s.news = make(chan struct{})
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.down || s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			continue
		}
		s.conns[conn] = true
		s.mu.Unlock()
		s.all.Go(func() { s.serve(conn) })
	}
}

// serve answers the requests of a connection, one after the other. They are read
// beside it, so that a command that waits learns when its client is gone.
func (s *Server) serve(conn net.Conn) {
	ctx, cancel := context.WithCancel(s.life)
	requests := make(chan message)
	s.all.Go(func() {
		defer cancel()
		defer close(requests)
		for r := bufio.NewReaderSize(conn, 64<<10); ; {
			m, err := readMessage(r)
			if err != nil {
				return
			}
			select {
			case requests <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	defer func() {
		cancel()
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	for id := int32(1); ; id++ {
		select {
		case m, ok := <-requests:
			if !ok {
				return
			}
			doc, ok := s.handle(ctx, m)
			if !ok {
				return
			}
			if m.silent {
				continue
			}
			if _, err := conn.Write(m.answer(id, doc)); err != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// errGone says that whoever asked is no longer there.
var errGone = errors.New("the connection has ended")

// wait gives up the lock until something changes, or until a time if it is not
// zero. It says whether that time has come.
func (c *call) wait(until time.Time) (late bool, err error) {
	s := c.s
	news := s.news
	s.mu.Unlock()
	defer s.mu.Lock()
	var alarm <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		alarm = timer.C
	}
	select {
	case <-news:
		return false, nil
	case <-alarm:
		return true, nil
	case <-c.ctx.Done():
		return false, errGone
	}
}
