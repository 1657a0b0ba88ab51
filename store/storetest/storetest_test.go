package storetest

import (
	"testing"

	"promethean/event"
)

func reference() Harness {
	return Harness{
		Name: "reference",
		Open: func(t testing.TB) Engine {
			r := NewReference(event.Limits{})
			t.Cleanup(func() { _ = r.Close() })
			return r
		},
		Reopen: func(t testing.TB, e Engine) Engine {
			return e.(*Reference).Reopen()
		},
	}
}

func TestReference(t *testing.T) { Run(t, reference()) }

func TestReferenceModel(t *testing.T) { Model(t, reference()) }

func BenchmarkReference(b *testing.B) { Bench(b, reference()) }
