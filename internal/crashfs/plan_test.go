package crashfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"promethean/internal/crashfs"
)

func TestCrashAt(t *testing.T) {
	work := func(fs *crashfs.FS) error {
		f, err := fs.Create("a", category)
		if err != nil {
			return err
		}
		for i := range 3 {
			if _, err := f.Write(fill(byte('0'+i), 1000)); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
		}
		return fs.Rename("a", "b")
	}
	fs := crashfs.New()
	ok(t, work(fs))
	total := fs.Changes()
	if total != 8 || fs.Count(crashfs.OpWrite) != 3 || fs.Count(crashfs.Syncs) != 3 || fs.Count(crashfs.Names) != 2 {
		t.Fatalf("%d changes", total)
	}
	for k := 1; k <= total+1; k++ {
		fs := crashfs.New()
		fs.Arm(crashfs.Plan{At: k})
		err := work(fs)
		if crashed := k <= total; fs.Fired() != crashed || errors.Is(err, crashfs.ErrCrashed) != crashed {
			t.Fatalf("crash at %d: fired %v, %v", k, fs.Fired(), err)
		}
		if k > total {
			continue
		}
		if n := fs.Changes(); n != k {
			t.Errorf("crash at %d: %d changes were counted", k, n)
		}
		if got, want := len(content(t, fs.Image(0, crashfs.Config{Data: crashfs.KeepAll, Names: crashfs.KeepAll}), "a")), (k-1)/2*1000; got != want {
			t.Errorf("crash at %d: %d bytes, want %d", k, got, want)
		}
		if err := fs.Remove("a"); !errors.Is(err, crashfs.ErrCrashed) && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("crash at %d: a later change: %v", k, err)
		}
	}
}

// TestLose: the work goes on without an error, and the images are those of the
// moment at which the power failed.
func TestLose(t *testing.T) {
	lengths := make(map[int]bool)
	for k := 1; k <= 12; k++ {
		for _, partly := range []bool{false, true} {
			fs := crashfs.New()
			f := durable(t, fs, "a", nil)
			fs.CrashAt(k, partly)
			for i := range 6 {
				if fs.Fired() != (2*i >= k) {
					t.Fatalf("change %d, power lost at %d: fired %v", 2*i, k, fs.Fired())
				}
				write(t, f, fill('w', 5000))
				ok(t, f.Sync())
			}
			ok(t, fs.Rename("a", "b"))
			syncDir(t, fs, "/")
			if got := len(content(t, fs, "b")); got != 30000 {
				t.Fatalf("the caller sees %d bytes of 30000", got)
			}
			synced := content(t, fs.Remains(0), "a")
			if want := (k - 1) / 2 * 5000; len(synced) != want {
				t.Fatalf("power lost at %d: %d bytes are durable, want %d", k, len(synced), want)
			}
			all := len(content(t, fs.Remains(1), "a")) - k/2*5000
			switch {
			case all == 0:
			case partly && k%2 == 1 && all > 0 && all < 5000:
				lengths[all] = true
			default:
				t.Fatalf("power lost at %d, partly %v: %d bytes too many are written", k, partly, all)
			}
			fs.Disarm()
			write(t, f, fill('x', 100))
			if got := content(t, fs.Remains(0), "a"); !fs.Fired() || len(got) != len(synced) {
				t.Fatal("the disk has come back to life")
			}
		}
	}
	if len(lengths) < 3 {
		t.Errorf("partial writes have %d different lengths", len(lengths))
	}
}

// TestConcurrent is for the race detector.
func TestConcurrent(t *testing.T) {
	fs := crashfs.New()
	fs.CrashAt(300, true)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 30 {
				name := fmt.Sprintf("%d-%d", i, j%5)
				f, err := fs.Create(name, category)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.Write(fill('x', 700))
				err = errors.Join(err, f.SyncData(), f.Close(), fs.Rename(name, name+"-new"))
				if err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for seed := range uint64(20) {
				image := fs.Image(seed, crashfs.Config{})
				for _, name := range image.Paths() {
					_ = image.Size(name)
				}
			}
		})
	}
	all.Wait()
	if !fs.Fired() || fs.Changes() != 4*30*4 {
		t.Errorf("fired %v after %d changes", fs.Fired(), fs.Changes())
	}
}

func TestCrashPartly(t *testing.T) {
	lengths := make(map[int]bool)
	for k := 1; k <= 20; k++ {
		fs := crashfs.New()
		f := durable(t, fs, "a", nil)
		fs.Arm(crashfs.Plan{At: k, Do: crashfs.CrashPartly})
		for range k - 1 {
			write(t, f, fill('w', 100))
		}
		if n, err := f.Write(fill('p', 10000)); n != 0 || !errors.Is(err, crashfs.ErrCrashed) {
			t.Fatalf("the write that crashes: %d, %v", n, err)
		}
		got := content(t, fs.Image(0, crashfs.Config{Data: crashfs.KeepAll}), "a")
		part := len(got) - (k-1)*100
		if part < 0 || part >= 10000 || !bytes.Equal(got[len(got)-part:], fill('p', part)) {
			t.Fatalf("crash at %d left %d bytes", k, len(got))
		}
		if part > 0 && len(got)%crashfs.Sector != 0 {
			t.Fatalf("crash at %d left a torn sector", k)
		}
		lengths[part] = true
	}
	if len(lengths) < 10 {
		t.Errorf("partial writes have %d different lengths", len(lengths))
	}
}

func TestFailOnceAndSticky(t *testing.T) {
	full := syscall.ENOSPC
	for _, sticky := range []bool{false, true} {
		fs := crashfs.New()
		f := durable(t, fs, "a", nil)
		fs.FailWrite(2, sticky, full)
		write(t, f, fill('1', 100))
		n, err := f.Write(fill('2', 100))
		if !errors.Is(err, full) || n >= 100 {
			t.Fatalf("second write: %d, %v", n, err)
		}
		if got := content(t, fs, "a"); len(got) != 100+n {
			t.Fatalf("%d bytes after a short write of %d", len(got), n)
		}
		if _, err := f.Write(fill('3', 100)); errors.Is(err, full) != sticky {
			t.Fatalf("sticky %v: third write: %v", sticky, err)
		}
		ok(t, f.Sync()) // only writes fail
		fs.Disarm()
		write(t, f, fill('4', 100))
	}
	for _, sticky := range []bool{false, true} {
		fs := crashfs.New()
		f := durable(t, fs, "a", nil)
		fs.FailSync(1, sticky, syscall.EIO)
		if err := f.Sync(); !errors.Is(err, syscall.EIO) || !fs.Fired() {
			t.Fatalf("first sync: %v", err)
		}
		if err := f.Sync(); errors.Is(err, syscall.EIO) != sticky {
			t.Fatalf("sticky %v: second sync: %v", sticky, err)
		}
		write(t, f, fill('1', 10))
	}
}

// TestFailedSyncGivesUp: what a failed sync was to write is not saved by the
// next one, unless it was written anew.
func TestFailedSyncGivesUp(t *testing.T) {
	fs := crashfs.New()
	f := durable(t, fs, "a", fill('o', 1024))
	g, err := fs.OpenReadWrite("a", category)
	ok(t, err)
	_, err = g.WriteAt(fill('n', 1024), 0)
	ok(t, err)
	fs.FailSync(1, false, syscall.EIO)
	if err := f.Sync(); err == nil {
		t.Fatal("the sync succeeded")
	}
	_, err = g.WriteAt(fill('m', 512), 512)
	ok(t, err)
	ok(t, f.Sync())
	if got := content(t, fs, "a"); !bytes.Equal(got, append(fill('n', 512), fill('m', 512)...)) {
		t.Error("the page cache lost what was written")
	}
	got := content(t, fs.Image(0, crashfs.Config{Data: crashfs.KeepNone}), "a")
	if !bytes.Equal(got, append(fill('o', 512), fill('m', 512)...)) {
		t.Errorf("image %q…%q, want the given up sector old and the other new", got[:1], got[512:513])
	}
}

func TestPlanByPath(t *testing.T) {
	fs := crashfs.New()
	fs.Arm(crashfs.Plan{At: 1, Ops: crashfs.OpCreate, Do: crashfs.Fail, Path: func(name string) bool { return name == "b" }})
	create(t, fs, "a")
	if _, err := fs.Create("b", category); !errors.Is(err, crashfs.ErrInjected) {
		t.Fatalf("create b: %v", err)
	}
	create(t, fs, "b") // once only
}
