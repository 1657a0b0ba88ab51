package jq

import (
	"context"
	"encoding/json"
	"testing"

	"promethean/internal/jq/value"
)

// A payload of 200 bytes.
const payload = `{"id":"018f3c1e-7b1a-7c3e-9f00-0123456789ab","host":"node-17","pid":48213,"state":"running","cpu":12.75,"mem_mb":512,"up":true,"started":"2026-11-15T18:00:00Z","tags":["#stt","gpu"],"parent":null}`

func BenchmarkUpcast(b *testing.B) {
	doc := []byte(payload)
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if err := json.Unmarshal(doc, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("value", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v, err := value.Decode(doc)
			if err != nil {
				b.Fatal(err)
			}
			value.Append(nil, v)
		}
	})
	for name, program := range map[string]string{
		"rename":   `.mem_mib = .mem_mb | del(.mem_mb)`,
		"nothing":  `.`,
		"compute":  `.mem_bytes = .mem_mb * 1048576 | .cpu |= . / 100 | del(.mem_mb)`,
		"rebuild":  `{id, host, pid, state: (.state | ascii_upcase), usage: {cpu, mem: .mem_mb}, tags: (.tags | map(ltrimstr("#")))}`,
		"defaults": `.zone //= "eu" | .labels = (.labels // {})`,
	} {
		p, err := Compile(program)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ctx := context.Background()
			for b.Loop() {
				if _, err := p.Run(ctx, doc); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(`.list |= (map(select(.n > 1)) | sort_by(.n)) | .k = (.text | gsub("o"; "0"))`); err != nil {
			b.Fatal(err)
		}
	}
}
