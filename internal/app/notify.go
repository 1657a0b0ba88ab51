package app

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// supervisor is told how the hub is, in the protocol of systemd: datagrams to
// the socket that NOTIFY_SOCKET names. Without one nobody is told.
type supervisor struct {
	socket string
	log    *slog.Logger
}

func newSupervisor(log *slog.Logger) *supervisor {
	socket := os.Getenv("NOTIFY_SOCKET")
	if strings.HasPrefix(socket, "@") {
		socket = "\x00" + socket[1:] // in the abstract name space
	}
	return &supervisor{socket, log}
}

// tell sends a state. That it cannot be told does not stop the hub.
func (s *supervisor) tell(lines ...string) {
	if s.socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(strings.Join(lines, "\n")))
		_ = conn.Close()
	}
	if err != nil {
		s.log.Warn("the supervisor cannot be told", "state", lines[0], "err", err)
	}
}

func (s *supervisor) ready(status string) { s.tell("READY=1", "STATUS="+status) }

// reloading must be followed by ready.
func (s *supervisor) reloading() {
	s.tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", monotonic()))
}

func (s *supervisor) stopping() { s.tell("STOPPING=1") }

// watchdog gives how often the supervisor wants to hear of us, half of what it
// waits; 0 if it does not.
func (s *supervisor) watchdog() time.Duration {
	if pid := os.Getenv("WATCHDOG_PID"); s.socket == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 {
		return 0
	}
	return max(time.Duration(us)*time.Microsecond/2, time.Millisecond)
}
