package event

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write testdata/partition_vectors.json anew")

const vectorFile = "testdata/partition_vectors.json"

// vector is one row of the file that clients in other languages share. Where
// the key is empty, the hash is that of the text of the id.
type vector struct {
	Key       string `json:"key"`
	ID        string `json:"id,omitempty"`
	XXHash64  string `json:"xxhash64"`
	N         int    `json:"n"`
	Partition int    `json:"partition"`
}

func makeVectors(t *testing.T) []vector {
	keys := []string{
		"a", "b", "key", "dev:stt:1", "dev:stt:2", "process/7", "0", "00", " ", "user@example.org", "a\tb", "\n", "\u0000", "\u0001\u007f", `quote " and \ backslash`,
		"1234567", "12345678", "123456789", "0123456789abcdef0123456789abcde", "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef0",
		"é", "e\u0301", "grüße", "мир", "世界", "日本語のキー", "😀", "👩‍👩‍👧", "\ufeff", "\uffff", "\U0010ffff",
		strings.Repeat("k", 255), strings.Repeat("long key/", 113), strings.Repeat("é", 512), strings.Repeat("x", 1024),
	}
	ids := []string{"00000000-0000-0000-0000-000000000000", "0192f7c1-89ab-7cde-8f01-23456789abcd", "ffffffff-ffff-ffff-ffff-ffffffffffff", "2ed6657d-e927-568b-95e1-2665a8aea6a2"}
	var rows []vector
	add := func(key, id string) {
		parsed := ID{}
		if id != "" {
			var err error
			if parsed, err = ParseID(id); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range []int{1, 2, 3, 8, 10, 64, 1024, 65536} {
			rows = append(rows, vector{key, id, fmt.Sprintf("%016x", partitionHash(key, parsed)), n, PartitionFor(key, parsed, n)})
		}
	}
	for _, key := range keys {
		add(key, "")
	}
	for _, id := range ids {
		add("", id)
	}
	return rows
}

func TestPartitionVectors(t *testing.T) {
	if *update {
		var lines []string
		for _, row := range makeVectors(t) {
			line, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, string(line))
		}
		text := "[\n" + strings.Join(lines, ",\n") + "\n]\n"
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(vectorFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var rows []vector
	if err := json.Unmarshal(data, &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) < 200 {
		t.Errorf("only %d rows", len(rows))
	}
	for i, row := range rows {
		var id ID
		if row.Key == "" {
			if id, err = ParseID(row.ID); err != nil {
				t.Fatalf("row %d: %v", i, err)
			}
		}
		if got := fmt.Sprintf("%016x", partitionHash(row.Key, id)); got != row.XXHash64 {
			t.Errorf("row %d: hash %s, want %s", i, got, row.XXHash64)
		}
		if got := PartitionFor(row.Key, id, row.N); got != row.Partition {
			t.Errorf("row %d: partition %d of %d, want %d", i, got, row.N, row.Partition)
		}
	}
}

// Values that others publish, so that the vectors do not merely repeat what
// this package computes.
func TestHashesArePublishedOnes(t *testing.T) {
	for key, want := range map[string]uint64{
		"a":    0xd24ec4f1a98c6e5b,
		"as":   0x1c330fb2d66be179,
		"asd":  0x631c37ce72a97393,
		"asdf": 0x415872f599cea71e,
		"abc":  0x44bc2cf5ad770999,
		"Call me Ishmael. Some years ago--never mind how long precisely-": 0x02a2e85470d6fd96,
		"Nobody inspects the spammish repetition":                         0xfbcea83c8a378bf1,
	} {
		if got := partitionHash(key, ID{}); got != want {
			t.Errorf("XXH64(%q) = %016x, want %016x", key, got, want)
		}
	}
	for _, c := range []struct {
		hash    uint64
		n, want int
	}{{1, 1, 0}, {42, 57, 43}, {0xdead10cc, 1, 0}, {0xdead10cc, 666, 361}, {256, 1024, 520}, {0, 0, 0}, {0xdead10cc, -666, 0}} {
		if got := Jump(c.hash, c.n); got != c.want {
			t.Errorf("Jump(%#x, %d) = %d, want %d", c.hash, c.n, got, c.want)
		}
	}
}

// Growing from n to n+1 moves a key to the new bucket or not at all.
func TestJumpIsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hash := rapid.Uint64().Draw(t, "hash")
		last := 0
		for n := 1; n <= 200; n++ {
			b := Jump(hash, n)
			if b < 0 || b >= n {
				t.Fatalf("bucket %d of %d", b, n)
			}
			if b != last && b != n-1 {
				t.Fatalf("from %d to %d buckets moves %d to %d", n-1, n, last, b)
			}
			last = b
		}
	})
}

func TestPartitionForSpreadsEvenly(t *testing.T) {
	const n, keys = 16, 32_000
	var byKey, byID [n]int
	for i := range keys {
		byKey[PartitionFor(fmt.Sprintf("key-%d", i), ID{}, n)]++
		byID[PartitionFor("", makeID(uint64(i), 0), n)]++
	}
	for p := range n {
		for _, got := range []int{byKey[p], byID[p]} {
			if got < keys/n*9/10 || got > keys/n*11/10 {
				t.Errorf("partition %d has %d of %d", p, got, keys)
			}
		}
	}
}

func TestPartition(t *testing.T) {
	if n, ok := Partition(0).Get(); ok {
		t.Errorf("the zero value is partition %d", n)
	}
	for _, want := range []int{0, 1, 7, MaxPartitions - 1} {
		if n, ok := PartitionOf(want).Get(); !ok || n != want {
			t.Errorf("PartitionOf(%d) is %d, %v", want, n, ok)
		}
	}
	for _, n := range []int{1, 0, -3} {
		if got := PartitionFor("key", ID{}, n); got != 0 {
			t.Errorf("PartitionFor with %d partitions is %d", n, got)
		}
	}
}
