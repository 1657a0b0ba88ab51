package prometheantest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// pair gives both ends of a connection that a listener has taken.
func pair() (client, server net.Conn, stop func(), err error) {
	l := newMemoryListener()
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	if client, err = l.dial(context.Background()); err != nil {
		return nil, nil, nil, err
	}
	server = <-accepted
	return client, server, func() { _ = errors.Join(client.Close(), server.Close(), l.Close()) }, nil
}

// TestMemoryConnIsAConn has the connections meet what every net.Conn promises.
func TestMemoryConnIsAConn(t *testing.T) {
	nettest.TestConn(t, pair)
}

// TestMemoryConnInABubble lets waits for bytes be waits that virtual time goes
// on in, and their deadlines virtual ones.
func TestMemoryConnInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server, stop, err := pair()
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		began := time.Now()
		if err := client.SetReadDeadline(began.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := client.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		// A deadline that was moved does not strike when it was to.
		if err := errors.Join(client.SetReadDeadline(time.Now().Add(time.Second)), client.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*time.Second, func() { _, _ = server.Write([]byte("x")) })
		if n, err := client.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Error(n, err)
		}
		// A peer that does not read takes a window, and no more.
		if err := server.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := server.Write(make([]byte, window+1)); n != window || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(n, err)
		}
	})
}

func TestMemoryConnEnds(t *testing.T) {
	client, server, stop, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	// What was written before a close is read, then comes the end.
	if _, err := server.Write([]byte("last")); err != nil {
		t.Fatal(err)
	}
	if err := server.(*memoryConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(client); string(b) != "last" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	// The other direction goes on, until the network fails.
	if _, err := client.Write([]byte("lost")); err != nil {
		t.Fatal(err)
	}
	server.(*memoryConn).reset()
	if _, err := server.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	if _, err := client.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	client2, server2, stop2, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	defer stop2()
	if err := server2.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := client2.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Error(err)
	}
}

func TestMemoryListenerEnds(t *testing.T) {
	l := newMemoryListener()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.dial(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody accepts: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := l.dial(t.Context()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
