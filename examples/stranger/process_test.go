// Package stranger is a module of its own that tests with prometheantest, as a
// program elsewhere would.
package stranger

import (
	"testing"
	"testing/synctest"
	"time"

	"promethean/prometheantest"
)

func TestSilentProcessBecomesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := prometheantest.Start(t)
		h.Publish("heartbeat.received", map[string]any{"pid": 1, "name": "stt", "host": "local", "cpu_pct": 1, "mem_mb": 2})
		h.ExpectEvents("process.state", map[string]any{"processId": "local:stt:1", "status": "alive"})
		h.ExpectEvents("process.state", map[string]any{"processId": "local:stt:1", "status": "stale"})
		h.ExpectNone("process.state", time.Hour)
	})
}
