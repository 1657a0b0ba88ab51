package logstore_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"promethean/event"
	"promethean/store"
	"promethean/store/docstore"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// withDocs is the documents of a store, which are closed with it.
type withDocs struct {
	*docstore.Store
	log *logstore.Store
}

func (d withDocs) Close() error { return d.log.Close() }

func openDocs(t testing.TB, dir string, fs vfs.FS) withDocs {
	t.Helper()
	s, err := logstore.Open(dir, logstore.Options{FS: fs, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d, err := s.Docs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return withDocs{d.(*docstore.Store), s}
}

func TestDocs(t *testing.T) {
	disks := make(map[storetest.DocsEngine]vfs.FS)
	open := func(t testing.TB, fs vfs.FS) storetest.DocsEngine {
		d := openDocs(t, "data", fs)
		disks[d] = fs
		return d
	}
	storetest.RunDocs(t, storetest.DocsHarness{
		Name: "logstore",
		Open: func(t testing.TB) storetest.DocsEngine { return open(t, vfs.NewMem()) },
		Reopen: func(t testing.TB, e storetest.DocsEngine) storetest.DocsEngine {
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, disks[e])
		},
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fillDocs writes an event, and a document that is made of it.
func fillDocs(t testing.TB, d withDocs) {
	t.Helper()
	ctx := context.Background()
	answers, err := d.log.Append(ctx, store.Batch{Events: []event.Event{{ID: event.NewID(), Topic: "t", Payload: []byte(`{"n":1}`)}}})
	ok(t, err)
	ok(t, d.Declare(ctx, store.Reader{Name: "v", Collections: []store.Collection{{Name: "v", Indexes: []store.Index{{Fields: []string{"n"}}}}}}))
	_, err = d.Commit(ctx, store.DocBatch{Reader: "v", To: answers[0].Seq, Ops: []store.DocOp{
		{Collection: "v", Doc: store.Doc{Key: "k", Seq: answers[0].Seq, Body: []byte(`{"n":1}`)}},
	}})
	ok(t, err)
}

func wantDocs(t testing.TB, d withDocs) {
	t.Helper()
	ctx := context.Background()
	r, err := d.Reader(ctx, "v")
	ok(t, err)
	b, err := d.log.Bounds(ctx, "t")
	ok(t, err)
	doc, err := d.Doc(ctx, "v", "k")
	ok(t, err)
	if r.Seq != 1 || b.Last != 1 || string(doc.Body) != `{"n":1}` {
		t.Fatalf("reader at %d, log at %d, document %s", r.Seq, b.Last, doc.Body)
	}
}

func TestDocsAreMadeWhenAskedFor(t *testing.T) {
	ctx, disk := context.Background(), vfs.NewMem()
	s, err := logstore.Open("data", logstore.Options{FS: disk})
	ok(t, err)
	if _, err := disk.Stat("data/views"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the directory of documents before they are asked for: %v", err)
	}
	a, err := s.Docs(ctx)
	ok(t, err)
	b, err := s.Docs(ctx)
	ok(t, err)
	if a != b {
		t.Error("asked again, there are others")
	}
	ok(t, s.Close())
	if _, err := a.Reader(ctx, "r"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("documents of a closed store: %v", err)
	}
	if _, err := s.Docs(ctx); !errors.Is(err, store.ErrClosed) {
		t.Errorf("asked after Close: %v", err)
	}
}

func TestDocsInBackups(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	data, backup, again := filepath.Join(dir, "data"), filepath.Join(dir, "backup"), filepath.Join(dir, "again")
	d := openDocs(t, data, vfs.Default)
	fillDocs(t, d)
	ok(t, d.log.Backup(ctx, backup))
	ok(t, d.Close())
	ok(t, logstore.Restore(ctx, backup, again))
	for _, dir := range []string{data, backup, again} {
		sum, err := logstore.Check(ctx, dir, logstore.Options{}, func(p logstore.Problem) { t.Error(p) })
		ok(t, err)
		// A backup is written out; the others have what is only logged.
		if sum.Views != 1 || sum.Problems+sum.Notes != 0 {
			t.Errorf("%s: %+v", dir, sum)
		}
		d := openDocs(t, dir, vfs.Default)
		wantDocs(t, d)
		ok(t, d.Close())
	}
	// Documents that nobody has asked for since the start are in it too.
	s, err := logstore.Open(data, logstore.Options{})
	ok(t, err)
	ok(t, s.Backup(ctx, backup+"2"))
	ok(t, s.Close())
	wantDocs(t, openDocs(t, backup+"2", vfs.Default))
}

func TestCheckSeesDocs(t *testing.T) {
	disk := vfs.NewMem()
	d := openDocs(t, "data", disk)
	fillDocs(t, d)
	ok(t, d.Close())
	db, err := pebble.Open("data/views", &pebble.Options{FS: disk, FormatMajorVersion: pebble.FormatNewest, Logger: mute{}})
	ok(t, err)
	ok(t, db.Set([]byte("d\x00\x00\x00\x02lost"), []byte{0, 2, 1, '{', '}'}, pebble.Sync))
	ok(t, db.Close())
	var found []string
	sum, err := logstore.Check(context.Background(), "data", logstore.Options{FS: disk}, func(p logstore.Problem) { found = append(found, p.String()) })
	ok(t, err)
	if sum.Problems != 2 || !strings.Contains(strings.Join(found, "\n"), "lost") || !strings.Contains(found[0], "data/views") {
		t.Errorf("%+v: %q", sum, found)
	}
}

// mute hears nothing.
type mute struct{}

func (mute) Infof(string, ...any)  {}
func (mute) Errorf(string, ...any) {}
func (mute) Fatalf(string, ...any) { panic("pebble cannot go on") }

func TestFailingDocsDoNotStopTheLog(t *testing.T) {
	ctx := context.Background()
	broken := errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.HasPrefix(op.Path, "data/views") {
			return syscall.EIO
		}
		return nil
	})}
	disk := vfs.NewMem()
	d := openDocs(t, "data", errorfs.Wrap(disk, &broken))
	fillDocs(t, d)
	broken.On()
	if err := d.Sync(ctx); !errors.Is(err, store.ErrFailed) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync on a failing disk: %v", err)
	}
	if _, err := d.Commit(ctx, store.DocBatch{Reader: "v", From: 1, To: 2}); !errors.Is(err, store.ErrFailed) {
		t.Fatalf("commit on a failing disk: %v", err)
	}
	wantDocs(t, d)
	_, err := d.log.Append(ctx, store.Batch{Events: []event.Event{{ID: event.NewID(), Topic: "t", Payload: []byte(`{}`)}}})
	ok(t, err)
	ok(t, d.log.Err())
	ok(t, d.log.Backup(ctx, "backup"))
	ok(t, d.Close())
	if _, err := disk.Stat("backup/views"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("documents in the backup: %v", err)
	}
	s, err := logstore.Open("backup", logstore.Options{FS: disk})
	ok(t, err)
	b, err := s.Bounds(ctx, "t")
	if err != nil || b.Last != 2 {
		t.Errorf("the log in the backup ends at %d, %v", b.Last, err)
	}
	ok(t, s.Close())
}
