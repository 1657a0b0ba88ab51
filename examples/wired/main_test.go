package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"promethean/internal/mongofake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestX(t *testing.T) {
	s := mongofake.Start(t, mongofake.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out, settings{mongodb: s.URI()[:len(s.URI())-len("?replicaSet=fake")] + "prom"}); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Log(out.String())
}
