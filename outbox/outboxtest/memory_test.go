package outboxtest_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/outbox/outboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memory(testing.TB) outboxtest.Harness {
	m := outboxtest.NewMemory()
	return outboxtest.Harness{
		Store:   m,
		Begin:   func(context.Context) (outboxtest.Tx, error) { return m.Begin(), nil },
		Advance: func(_ testing.TB, d time.Duration) { m.Advance(d) },
	}
}

func TestMemory(t *testing.T) { outboxtest.Run(t, memory) }

func TestMemoryModel(t *testing.T) { outboxtest.Model(t, memory) }
