package crashfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/internal/crashfs"
)

const category = vfs.WriteCategoryUnspecified

// seeds are enough for everything that has a fair chance to turn up.
const seeds = 200

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, fs vfs.FS, name string) vfs.File {
	t.Helper()
	f, err := fs.Create(name, category)
	ok(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, f vfs.File, data []byte) {
	t.Helper()
	n, err := f.Write(data)
	ok(t, err)
	if n != len(data) {
		t.Fatalf("wrote %d of %d bytes", n, len(data))
	}
}

func syncDir(t *testing.T, fs vfs.FS, name string) {
	t.Helper()
	d, err := fs.OpenDir(name)
	ok(t, err)
	ok(t, d.Sync())
	ok(t, d.Close())
}

// content reads a file, or gives nil if there is none.
func content(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ok(t, err)
	data, err := io.ReadAll(f)
	ok(t, err)
	ok(t, f.Close())
	return append([]byte{}, data...)
}

func fill(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }

// durable makes a file with synced content and name.
func durable(t *testing.T, fs vfs.FS, name string, data []byte) vfs.File {
	t.Helper()
	f := create(t, fs, name)
	write(t, f, data)
	ok(t, f.Sync())
	syncDir(t, fs, "/")
	return f
}

func TestSecondCrash(t *testing.T) {
	fs := crashfs.New()
	f := durable(t, fs, "a", []byte("one"))
	write(t, f, []byte("two"))
	fs.Arm(crashfs.Plan{At: 1})
	_ = f.Sync()
	image := fs.Remains(1)
	if got := content(t, image, "a"); string(got) != "onetwo" {
		t.Fatalf("image holds %q", got)
	}
	g, err := image.OpenReadWrite("a", category)
	ok(t, err)
	_, err = g.WriteAt([]byte("TWO"), 3)
	ok(t, err)
	if got := content(t, image.Remains(0), "a"); string(got) != "onetwo" {
		t.Fatalf("the image of the image holds %q: what an image holds is synced", got)
	}
}

// TestPebble has a real user of vfs at work and pulls the plug again and again:
// whatever it acknowledged is in every image.
func TestPebble(t *testing.T) {
	open := func(fs vfs.FS) *pebble.DB {
		db, err := pebble.Open("db", &pebble.Options{FS: fs, Logger: quiet{}, MemTableSize: 64 << 10})
		ok(t, err)
		return db
	}
	fs := crashfs.New()
	db := open(fs)
	rounds := 25
	if testing.Short() {
		rounds = 10
	}
	value := fill('v', 3000)
	for i := range rounds {
		for j := range 3 { // so that memtables fill and are flushed meanwhile
			ok(t, db.Set(fmt.Appendf(nil, "%03d", 3*i+j), value, pebble.Sync))
		}
		for seed := range uint64(3) {
			image := open(fs.Remains(seed + uint64(i)&^1))
			for n := range 3 * (i + 1) {
				v, closer, err := image.Get(fmt.Appendf(nil, "%03d", n))
				if err != nil || !bytes.Equal(v, value) {
					t.Fatalf("round %d, seed %d: key %d: %v", i, seed, n, err)
				}
				ok(t, closer.Close())
			}
			ok(t, image.Close())
		}
	}
	ok(t, db.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
