package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// wsClient is the least that a WebSocket client needs: what it costs is taken
// from the server's share of the machine.
type wsClient struct {
	c   net.Conn
	r   *bufio.Reader
	out []byte
	in  []byte
}

func dialWS(addr string) (*wsClient, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, err
	}
	w := &wsClient{c: c, r: bufio.NewReaderSize(c, 4<<10)}
	if err := w.shake(addr); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return w, nil
}

func (w *wsClient) shake(addr string) error {
	_, err := fmt.Fprintf(w.c, "GET /ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", addr)
	if err != nil {
		return err
	}
	got, err := http.ReadResponse(w.r, nil) //nolint:bodyclose // the connection goes on
	if err != nil {
		return err
	}
	if got.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("the hub answers %s", got.Status)
	}
	return nil
}

func (w *wsClient) close() error { return w.c.Close() }

const (
	wsText, wsClose, wsPing, wsPong = 1, 8, 9, 10
	wsFinal, wsMasked               = 0x80, 0x80
)

// frame begins a text frame of n bytes in out. The mask is zero: it is required,
// and costs nothing.
func (w *wsClient) frame(op byte, payload []byte) []byte {
	b := append(w.out[:0], wsFinal|op)
	switch n := len(payload); {
	case n < 126:
		b = append(b, wsMasked|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, wsMasked|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, wsMasked|127), uint64(n))
	}
	b = append(b, 0, 0, 0, 0)
	w.out = append(b, payload...)
	return w.out
}

// send sends one text frame.
func (w *wsClient) send(payload []byte) error {
	_, err := w.c.Write(w.frame(wsText, payload))
	return err
}

// next reads the next text frame, which stays until the one after.
func (w *wsClient) next() ([]byte, error) {
	for {
		op, err := w.r.ReadByte()
		if err != nil {
			return nil, err
		}
		size, err := w.r.ReadByte()
		if err != nil {
			return nil, err
		}
		n := uint64(size & 0x7f)
		var long [8]byte
		switch n {
		case 126:
			_, err = io.ReadFull(w.r, long[6:])
			n = binary.BigEndian.Uint64(long[:])
		case 127:
			_, err = io.ReadFull(w.r, long[:])
			n = binary.BigEndian.Uint64(long[:])
		}
		if err != nil {
			return nil, err
		}
		if n > 64<<20 {
			return nil, fmt.Errorf("a frame of %d bytes", n)
		}
		if uint64(cap(w.in)) < n {
			w.in = make([]byte, n)
		}
		w.in = w.in[:n]
		if _, err := io.ReadFull(w.r, w.in); err != nil {
			return nil, err
		}
		switch op {
		case wsFinal | wsText:
			return w.in, nil
		case wsFinal | wsPing:
			if _, err := w.c.Write(w.frame(wsPong, w.in)); err != nil {
				return nil, err
			}
		case wsFinal | wsPong:
		case wsFinal | wsClose:
			return nil, fmt.Errorf("the hub closes: %q", w.in)
		default:
			return nil, fmt.Errorf("frame %#x", op)
		}
	}
}

// ok reads frames until the answer to a request.
func (w *wsClient) ok() error {
	f, err := w.next()
	if err != nil {
		return err
	}
	if !bytes.Contains(f[:min(len(f), 40)], []byte(`"op":"OK"`)) {
		return fmt.Errorf("the hub answers %.300s", f)
	}
	return nil
}
