package app

import (
	"errors"
	"math"
	"net"
	"testing"
)

func TestMaxConnections(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 100: 16, 144: 16, 256: 128, 1024: 768, 1 << 20: 3 << 18, math.MaxInt64: 1 << 20} {
		if got := maxConnections(files); got != want {
			t.Errorf("%d files: %d, want %d", files, got, want)
		}
	}
}

// Who finds the house full gets in when somebody leaves, and the listener can
// be closed meanwhile.
func TestDoorman(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	full := make(chan struct{}, 8)
	d := newDoorman(l, 1, func() { full <- struct{}{} })
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	in := make(chan net.Conn)
	ended := make(chan error)
	go func() {
		for {
			c, err := d.Accept()
			if err != nil {
				ended <- err
				return
			}
			in <- c
		}
	}()
	first := <-in
	<-full // the second waits
	select {
	case <-in:
		t.Fatal("two are in")
	default:
	}
	for range 2 { // the second time is nobody's
		_ = first.Close()
	}
	second := <-in
	<-full
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v", err)
	}
	_ = second.Close()
	if n := len(d.seats); n != 0 {
		t.Errorf("%d seats are taken", n)
	}
}
