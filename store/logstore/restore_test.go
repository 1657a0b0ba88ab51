package logstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
)

// numbered is an event that says n.
func numbered(n int) event.Event {
	e := event.New("count", json.RawMessage(fmt.Sprintf(`{"n":%d,"fill":%q}`, n, strings.Repeat("x", 100))))
	e.Key = fmt.Sprint(n % 10)
	return e
}

func TestRestoreOfABackupUnderLoad(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, backup, to := filepath.Join(dir, "from"), filepath.Join(dir, "backup"), filepath.Join(dir, "to")
	o := Options{SegmentSize: 64 << 10}
	s, err := Open(from, o)
	if err != nil {
		t.Fatal(err)
	}
	acked := make(chan uint64, 1) // the last seq that was acknowledged
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			a, err := s.Append(ctx, store.Batch{Events: []event.Event{numbered(n), numbered(n)}})
			if err != nil {
				done <- err
				return
			}
			select {
			case <-acked:
			default:
			}
			acked <- a[1].Seq
		}
	}()
	before := uint64(0)
	for before < 1500 {
		before = <-acked
	}
	if err := s.Backup(ctx, backup); err != nil {
		t.Fatal(err)
	}
	close(stop)
	if err := errors.Join(<-done, s.Close()); err != nil {
		t.Fatal(err)
	}

	untouched := files(t, vfs.Default, backup)
	if err := Restore(ctx, backup, to); err != nil {
		t.Fatal(err)
	}
	if got := files(t, vfs.Default, backup); fmt.Sprint(got) != fmt.Sprint(untouched) {
		t.Error("restoring has changed the backup")
	}
	for _, d := range []string{backup, to} {
		sum, err := Check(ctx, d, Options{}, func(p Problem) { t.Errorf("%s: %v", d, p) })
		if err != nil || sum.Events < before || sum.Chunks == 0 || sum.Runs == 0 {
			t.Errorf("%s: %+v, %v", d, sum, err)
		}
	}
	s, err = Open(to, o)
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(1)
	for e, err := range s.Read(ctx, store.Query{Topic: "count"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Seq != next {
			t.Fatalf("seq %d where %d is due", e.Seq, next)
		}
		next++
	}
	if next <= before {
		t.Errorf("restored up to seq %d, acknowledged before the backup were %d", next-1, before)
	}
	a, err := s.Append(ctx, store.Batch{Events: []event.Event{numbered(0)}})
	if err != nil || a[0].Seq != next {
		t.Errorf("append to the restored store: %v, %v; seq %d is due", a, err, next)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// made makes a store on the disk.
func made(t testing.TB, dir string) {
	t.Helper()
	p := newPlayer(t, vfs.Default, dir, 5)
	p.play(60)
	p.end()
}

func TestRestoreRefuses(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	made(t, from)
	full, empty, link := filepath.Join(dir, "full"), filepath.Join(dir, "empty"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(full, 0o755), os.Mkdir(empty, 0o755), os.WriteFile(filepath.Join(full, "mine"), nil, 0o644), os.Symlink(from, link)); err != nil {
		t.Fatal(err)
	}
	before := files(t, vfs.Default, dir)
	for _, c := range []struct {
		from, to string
		want     error
	}{
		{from, full, fs.ErrExist},
		{empty, filepath.Join(dir, "to"), ErrNoStore},
		{filepath.Join(dir, "nowhere"), filepath.Join(dir, "to"), ErrNoStore},
		{from, from, store.ErrInvalid},
		{from, filepath.Join(from, "inside"), store.ErrInvalid},
		{from, filepath.Join(link, "inside"), store.ErrInvalid},
		{from, dir, store.ErrInvalid},
	} {
		if err := Restore(ctx, c.from, c.to); !errors.Is(err, c.want) {
			t.Errorf("restore %s to %s: %v, want %v", c.from, c.to, err, c.want)
		}
		if after := files(t, vfs.Default, dir); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Fatalf("restore %s to %s has changed something", c.from, c.to)
		}
	}
	s, err := Open(from, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := Restore(ctx, from, filepath.Join(dir, "to")); !errors.Is(err, store.ErrLocked) {
		t.Errorf("of a store in use: %v", err)
	}
	if err := BackupDir(ctx, from, filepath.Join(dir, "to"), Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("backup of a store in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := BackupDir(ctx, empty, filepath.Join(dir, "to"), Options{}); !errors.Is(err, ErrNoStore) {
		t.Errorf("backup of nothing: %v", err)
	}
	if names, err := os.ReadDir(empty); err != nil || len(names) > 0 {
		t.Errorf("something was made of nothing: %v %v", names, err)
	}
	if err := BackupDir(ctx, from, full, Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("backup to what exists: %v", err)
	}
}

func TestPartOfACopyDoesNotOpen(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	made(t, from)
	if err := Restore(ctx, from, to); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(to, "LOCK")
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o755)); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(to, Options{}); err == nil {
		t.Error("it opens", s.Close())
	}
	if _, err := Check(ctx, to, Options{}, func(Problem) {}); !errors.Is(err, ErrNoStore) {
		t.Errorf("check: %v", err)
	}
}

func TestRestoreLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	from, fresh, empty := filepath.Join(dir, "from"), filepath.Join(dir, "fresh"), filepath.Join(dir, "empty")
	made(t, from)
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	gone := func(why string) {
		t.Helper()
		if _, err := os.Stat(fresh); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the directory is still there: %v", why, err)
		}
		if names, err := os.ReadDir(empty); err != nil || len(names) > 0 {
			t.Errorf("%s: %v %v", why, names, err)
		}
	}
	for _, to := range []string{fresh, empty} {
		// The first report comes after a MiB: a large file that is none of
		// the store's makes sure that there is one, half way.
		if err := os.WriteFile(filepath.Join(from, "large"), make([]byte, 4<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ctx = WithProgress(ctx, func(done, total int64) {
			if done <= 0 || done > total {
				t.Errorf("%d of %d bytes", done, total)
			}
			cancel()
		})
		if err := Restore(ctx, from, to); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		gone("cancelled")
	}
	chunks, err := filepath.Glob(filepath.Join(from, "*.chunk"))
	if err != nil || len(chunks) == 0 {
		t.Fatal(chunks, err)
	}
	if err := os.Remove(chunks[0]); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{fresh, empty} {
		if err := Restore(context.Background(), from, to); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("of a backup that lacks a chunk: %v", err)
		}
		gone("not sound")
	}
}

// TestRestoreCrash crashes a copy at every change of the disk: what is left
// opens with everything in it, or does not open.
func TestRestoreCrash(t *testing.T) {
	disk := crashfs.New()
	p := newPlayer(t, disk, "data", 2)
	p.play(30)
	p.end()
	want := contents(t, disk.Remains(1), "data")
	copyTo := func(fsys vfs.FS) error {
		return copyStore(context.Background(), fsys, "data", "made/copy", func() error { return nil })
	}
	whole := disk.Remains(1)
	if err := copyTo(whole); err != nil {
		t.Fatal(err)
	}
	changes := whole.Changes()
	opened := 0
	for k := 1; k <= changes+1; k++ {
		left := disk.Remains(1)
		left.Arm(crashfs.Plan{At: k, Do: crashfs.Action(k % 2)}) // Crash or CrashPartly
		err := copyTo(left)
		if done := k > changes; done != (err == nil) {
			t.Fatalf("crash at %d of %d: %v", k, changes, err)
		}
		for seed := range uint64(3) {
			names, err := crashfs.Files(left.Remains(seed), "made/copy")
			if err != nil || len(names) == 0 {
				continue // nothing is there yet
			}
			after := left.Remains(seed)
			s, err := Open("made/copy", tiny(strict{after}))
			if err != nil {
				continue
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, after, "made/copy"); !slices.Equal(got, want) {
				t.Fatalf("crash at %d, seed %d: a copy with %d of %d events opens", k, seed, len(got), len(want))
			}
			opened++
		}
	}
	if opened == 0 {
		t.Error("no copy ever opened")
	}
}

// strict refuses to lock a directory, as operating systems do.
type strict struct{ vfs.FS }

func (s strict) Lock(name string) (io.Closer, error) {
	if st, err := s.Stat(name); err == nil && st.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	return s.FS.Lock(name)
}

func TestRestoreFaults(t *testing.T) {
	disk := crashfs.New()
	p := newPlayer(t, disk, "data", 2)
	p.play(30)
	p.end()
	for k := 1; ; k++ {
		fsys := disk.Remains(1)
		fsys.Arm(crashfs.Plan{At: k, Do: crashfs.Fail})
		err := copyStore(context.Background(), fsys, "data", "copy", func() error { return nil })
		if !fsys.Fired() {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		if !errors.Is(err, crashfs.ErrInjected) {
			t.Fatalf("failure %d is not reported: %v", k, err)
		}
		if _, err := fsys.Stat("copy"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("failure %d: part of the copy is left: %v", k, err)
		}
	}
}

// elsewhere is a file system whose directories lie on different disks.
type elsewhere struct{ vfs.FS }

func (elsewhere) Link(from, to string) error {
	return &os.LinkError{Op: "link", Old: from, New: to, Err: errCrossDevice}
}

func TestBackupDir(t *testing.T) {
	ctx := context.Background()
	for _, fsys := range []vfs.FS{vfs.Default, elsewhere{vfs.Default}} {
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		made(t, from)
		want := contents(t, vfs.Default, from)
		if err := BackupDir(ctx, from, to, tiny(fsys)); err != nil {
			t.Fatal(err)
		}
		if _, err := Check(ctx, to, Options{}, func(p Problem) { t.Error(p) }); err != nil {
			t.Fatal(err)
		}
		if got := contents(t, vfs.Default, to); !slices.Equal(got, want) {
			t.Errorf("%d events of %d", len(got), len(want))
		}
	}
}
