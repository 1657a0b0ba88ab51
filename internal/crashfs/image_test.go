package crashfs_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"promethean/internal/crashfs"
)

func TestSyncedDataSurvives(t *testing.T) {
	fs := crashfs.New()
	f := durable(t, fs, "a", fill('s', 3000))
	write(t, f, fill('u', 3000))
	for seed := range uint64(seeds) {
		got := content(t, fs.Image(seed, crashfs.Config{}), "a")
		if len(got) < 3000 || !bytes.Equal(got[:3000], fill('s', 3000)) {
			t.Fatalf("seed %d: synced bytes are gone", seed)
		}
	}
	ok(t, f.SyncData())
	for seed := range uint64(seeds) {
		if got := content(t, fs.Image(seed, crashfs.Config{}), "a"); !bytes.Equal(got, append(fill('s', 3000), fill('u', 3000)...)) {
			t.Fatalf("seed %d: %d bytes after SyncData", seed, len(got))
		}
	}
}

// TestTearsAtSectors overwrites in place and appends, and wants to see single
// sectors old and new in every mixture, but never a torn sector.
func TestTearsAtSectors(t *testing.T) {
	const sectors = 6
	fs := crashfs.New()
	durable(t, fs, "a", fill('o', sectors*crashfs.Sector))
	f, err := fs.OpenReadWrite("a", category)
	ok(t, err)
	_, err = f.WriteAt(fill('n', (sectors+2)*crashfs.Sector), 0)
	ok(t, err)
	mixtures, sizes := make(map[string]bool), make(map[int]bool)
	for seed := range uint64(seeds) {
		got := content(t, fs.Image(seed, crashfs.Config{}), "a")
		sizes[len(got)/crashfs.Sector] = true
		mixture := ""
		for part := range slices.Chunk(got, crashfs.Sector) {
			if !bytes.Equal(part, fill(part[0], len(part))) {
				t.Fatalf("seed %d: a sector is torn", seed)
			}
			mixture += string(part[:1])
		}
		mixtures[mixture] = true
	}
	if len(mixtures) < 50 {
		t.Errorf("%d different mixtures of old and new sectors in %d images", len(mixtures), seeds)
	}
	for _, size := range []int{sectors, sectors + 1, sectors + 2} {
		if !sizes[size] {
			t.Errorf("no image has %d sectors", size)
		}
	}
	if !mixtures["nnnnnnnn"] || !mixtures["oooooo"] {
		t.Error("all new or all old never turned up")
	}
	if got := content(t, fs.Image(1, crashfs.Config{Data: crashfs.KeepNone}), "a"); !bytes.Equal(got, fill('o', sectors*crashfs.Sector)) {
		t.Error("KeepNone gives something else than the synced content")
	}
	if got := content(t, fs.Image(1, crashfs.Config{Data: crashfs.KeepAll}), "a"); !bytes.Equal(got, fill('n', (sectors+2)*crashfs.Sector)) {
		t.Error("KeepAll gives something else than the written content")
	}
}

// TestVersionsBetween: of two writes to one sector the first may be all that
// reached the disk.
func TestVersionsBetween(t *testing.T) {
	fs := crashfs.New()
	f := durable(t, fs, "a", nil)
	write(t, f, []byte("first"))
	write(t, f, []byte(" second"))
	seen := make(map[string]bool)
	for seed := range uint64(seeds) {
		got := content(t, fs.Image(seed, crashfs.Config{}), "a")
		seen[string(bytes.TrimRight(got, "\x00"))] = true
	}
	for _, want := range []string{"", "first", "first second"} {
		if !seen[want] {
			t.Errorf("no image holds %q", want)
		}
	}
	if len(seen) != 3 {
		t.Errorf("images hold %v", seen)
	}
}

func TestNames(t *testing.T) {
	fs := crashfs.New()
	durable(t, fs, "kept", []byte("kept"))
	durable(t, fs, "old", []byte("moved"))
	durable(t, fs, "gone", []byte("gone"))
	f := create(t, fs, "fresh")
	write(t, f, []byte("fresh"))
	ok(t, f.Sync()) // the content, not the name
	ok(t, fs.Rename("old", "new"))
	ok(t, fs.Remove("gone"))
	ok(t, fs.Link("kept", "link"))
	count := make(map[string]int)
	for seed := range uint64(seeds) {
		image := fs.Image(seed, crashfs.Config{Data: crashfs.KeepNone})
		for _, name := range []string{"kept", "old", "new", "gone", "fresh", "link"} {
			if content(t, image, name) != nil {
				count[name]++
			}
		}
		if (content(t, image, "old") == nil) == (content(t, image, "new") == nil) {
			t.Fatalf("seed %d: a rename left both names or neither", seed)
		}
		if got := content(t, image, "fresh"); got != nil && string(got) != "fresh" {
			t.Fatalf("seed %d: synced content under an unsynced name is %q", seed, got)
		}
	}
	if count["kept"] != seeds {
		t.Errorf("a synced name is in %d of %d images", count["kept"], seeds)
	}
	for _, name := range []string{"old", "new", "gone", "fresh", "link"} {
		if n := count[name]; n == 0 || n == seeds {
			t.Errorf("the unsynced name %s is in %d of %d images", name, n, seeds)
		}
	}
	syncDir(t, fs, "/")
	for seed := range uint64(seeds) {
		names, err := fs.Image(seed, crashfs.Config{}).List("/")
		ok(t, err)
		if !slices.Equal(names, []string{"fresh", "kept", "link", "new"}) {
			t.Fatalf("seed %d: after a sync of the directory it holds %q", seed, names)
		}
	}
}

// TestNamesInOrder: what was done in a directory is seen cut off at one moment,
// which is another one in each directory.
func TestNamesInOrder(t *testing.T) {
	fs := crashfs.New()
	ok(t, fs.MkdirAll("d", 0o755))
	syncDir(t, fs, "/")
	for i := range 8 {
		create(t, fs, fmt.Sprint(i))
		create(t, fs, fmt.Sprint("d/", i))
	}
	list := func(image *crashfs.FS, dir string) (n int, inOrder bool) {
		names, err := image.List(dir)
		ok(t, err)
		names = slices.DeleteFunc(names, func(name string) bool { return name == "d" })
		return len(names), len(names) == 0 || names[len(names)-1] == fmt.Sprint(len(names)-1)
	}
	lengths, apart, disorder := make(map[int]bool), 0, 0
	for seed := range uint64(seeds) {
		image := fs.Image(seed, crashfs.Config{})
		n, inOrder := list(image, "/")
		m, below := list(image, "d")
		if !inOrder || !below {
			t.Fatalf("seed %d: a later name is there without an earlier one", seed)
		}
		lengths[n] = true
		if n != m {
			apart++
		}
		if _, inOrder := list(fs.Image(seed, crashfs.Config{Names: crashfs.KeepAny}), "/"); !inOrder {
			disorder++
		}
	}
	if len(lengths) != 9 || apart < seeds/2 || disorder < seeds/2 {
		t.Errorf("%d moments of 9, %d times different in two directories, %d times without order under KeepAny", len(lengths), apart, disorder)
	}
}

func TestLostDirectory(t *testing.T) {
	fs := crashfs.New()
	ok(t, fs.MkdirAll("a/b", 0o755))
	f := create(t, fs, "a/b/c")
	write(t, f, []byte("x"))
	ok(t, f.Sync())
	syncDir(t, fs, "a/b")
	syncDir(t, fs, "a")
	if got := content(t, fs.Image(0, crashfs.Config{Names: crashfs.KeepNone}), "a/b/c"); got != nil {
		t.Error("a directory whose own name was not synced survived")
	}
	syncDir(t, fs, "/")
	if got := content(t, fs.Image(0, crashfs.Config{Names: crashfs.KeepNone}), "a/b/c"); string(got) != "x" {
		t.Errorf("%q with all directories synced", got)
	}
}

// TestOneFileTwoNames: a link and a rename lead to the same file, before the
// crash and after it.
func TestOneFileTwoNames(t *testing.T) {
	fs := crashfs.New()
	f := durable(t, fs, "a", fill('o', 1024))
	ok(t, fs.Link("a", "b"))
	ok(t, fs.Rename("a", "c"))
	syncDir(t, fs, "/")
	write(t, f, fill('u', 1024)) // through a handle that is older than the names
	for seed := range uint64(20) {
		image := fs.Image(seed, crashfs.Config{})
		if !bytes.Equal(content(t, image, "b"), content(t, image, "c")) {
			t.Fatalf("seed %d: two names of one file differ", seed)
		}
		ok(t, image.Flip("b", 0, 0xff))
		if content(t, image, "c")[0] != 'o'^0xff {
			t.Fatalf("seed %d: two names no longer lead to one file", seed)
		}
	}
	ok(t, fs.Remove("c"))
	ok(t, f.Sync()) // reaches the file under its other name
	if got := content(t, fs.Image(0, crashfs.Config{Data: crashfs.KeepNone}), "b"); len(got) != 2048 {
		t.Errorf("%d bytes, want 2048", len(got))
	}
}

func TestReplacedFileComesBack(t *testing.T) {
	fs := crashfs.New()
	durable(t, fs, "a", []byte("old"))
	f := create(t, fs, "a")
	write(t, f, []byte("new"))
	ok(t, f.Sync())
	seen := make(map[string]bool)
	for seed := range uint64(seeds) {
		seen[string(content(t, fs.Image(seed, crashfs.Config{}), "a"))] = true
	}
	if !seen["old"] || !seen["new"] || !seen[""] {
		t.Errorf("images hold %v", seen)
	}
}

func TestSameSeedSameImage(t *testing.T) {
	fs := crashfs.New()
	ok(t, fs.MkdirAll("d", 0o755))
	for i := range 10 {
		f := create(t, fs, fmt.Sprintf("d/%d", i))
		write(t, f, fill('a', 5000))
		if i%2 == 0 {
			ok(t, f.Sync())
			syncDir(t, fs, "d")
		}
		write(t, f, fill('b', 5000))
	}
	syncDir(t, fs, "/")
	dump := func(fs *crashfs.FS) (out string) {
		for _, name := range fs.Paths() {
			out += fmt.Sprintf("%s %q\n", name, content(t, fs, name))
		}
		return out
	}
	different := make(map[string]bool)
	for seed := range uint64(20) {
		one, two := dump(fs.Image(seed, crashfs.Config{})), dump(fs.Image(seed, crashfs.Config{}))
		if one != two {
			t.Fatalf("seed %d gives two images", seed)
		}
		different[one] = true
	}
	if len(different) < 15 {
		t.Errorf("20 seeds give %d images", len(different))
	}
}
