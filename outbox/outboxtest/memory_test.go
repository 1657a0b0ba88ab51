package outboxtest_test

import (
	"context"
	"testing"
	"time"

	"promethean/outbox/outboxtest"
)

func memory(testing.TB) outboxtest.Harness {
	m := outboxtest.NewMemory()
	return outboxtest.Harness{
		Store:   m,
		Begin:   func(context.Context) (outboxtest.Tx, error) { return m.Begin(), nil },
		Advance: func(_ testing.TB, d time.Duration) { m.Advance(d) },
	}
}

func TestMemory(t *testing.T) { outboxtest.Run(t, memory) }
