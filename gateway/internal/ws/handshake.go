package ws

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"
)

// ErrHandshake says that a request is no opening of a WebSocket; what wraps it
// says why.
var ErrHandshake = errors.New("no WebSocket handshake")

// handshakeError is ErrHandshake with a reason.
type handshakeError string

func (e handshakeError) Error() string { return string(e) }

// Is makes errors.Is(err, ErrHandshake) true.
func (e handshakeError) Is(err error) bool { return err == ErrHandshake }

// Accept takes a connection over from its HTTP server and answers the
// handshake. If it fails, the request can still be answered, but for an error
// of the connection itself. After it the handler should return, so that what
// the server keeps for a request is let go.
func (k *Keeper) Accept(w http.ResponseWriter, r *http.Request, o Options) (*Conn, error) {
	key, err := checkHandshake(w, r)
	if err != nil {
		return nil, err
	}
	nc, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, handshakeError("the connection cannot be taken over: " + err.Error())
	}
	answer := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + acceptKey(key) + "\r\n\r\n"
	c := newConn(nc, k, o)
	_ = nc.SetWriteDeadline(time.Now().Add(c.o.MessageWait)) // who has not read earlier answers does not hold us
	if _, err := nc.Write([]byte(answer)); err != nil {
		_ = nc.Close() // the write's error says more
		return nil, err
	}
	_ = nc.SetWriteDeadline(time.Time{}) // as the keeper sees to it from now on
	if err := c.adopt(buffered.Reader); err != nil {
		_ = nc.Close() // likewise
		return nil, err
	}
	k.add(c)
	return c, nil
}

// adopt takes what the HTTP server has read already.
func (c *Conn) adopt(r *bufio.Reader) error {
	n := r.Buffered()
	if n == 0 {
		return nil
	}
	if n > len(c.buf) {
		c.buf = make([]byte, n)
	}
	early, err := r.Peek(n)
	c.w = copy(c.buf, early)
	return err
}

// checkHandshake gives the key of a request that opens a WebSocket.
func checkHandshake(w http.ResponseWriter, r *http.Request) (key string, err error) {
	switch {
	case r.Method != http.MethodGet:
		return "", handshakeError("a WebSocket is opened by GET")
	case !r.ProtoAtLeast(1, 1) || r.ProtoMajor > 1:
		return "", handshakeError("a WebSocket is opened over HTTP/1.1")
	case !hasToken(r.Header["Connection"], "upgrade"):
		return "", handshakeError("the header Connection must name Upgrade")
	case !hasToken(r.Header["Upgrade"], "websocket"):
		return "", handshakeError("the header Upgrade must be websocket")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		w.Header().Set("Sec-WebSocket-Version", "13")
		return "", handshakeError("the header Sec-WebSocket-Version must be 13")
	}
	key = strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key"))
	if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) != 16 {
		return "", handshakeError("the header Sec-WebSocket-Key must be 16 bytes in base64")
	}
	return key, nil
}

// hasToken says whether a list in headers has a word.
func hasToken(values []string, word string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), word) {
				return true
			}
		}
	}
	return false
}

// acceptKey proves that the key was read by somebody who knows the protocol.
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}
