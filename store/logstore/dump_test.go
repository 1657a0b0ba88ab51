package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/store"
)

// contents reads a store as its users do: the JSON forms of all events by
// topic and seq.
func contents(t testing.TB, fs vfs.FS, dir string) []string {
	t.Helper()
	s, err := Open(dir, tiny(fs))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var all []string
	for topic, err := range s.Topics(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range s.Read(context.Background(), store.Query{Topic: topic.Name}) {
			if err != nil {
				t.Fatal(err)
			}
			b, err := e.AppendStoredJSON(nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(b))
		}
	}
	return all
}

// lines dumps a store and gives the lines.
func lines(t testing.TB, fs vfs.FS, d DumpOptions) []string {
	t.Helper()
	var b bytes.Buffer
	if err := Dump(context.Background(), "data", tiny(fs), d, &b); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func TestDumpEvents(t *testing.T) {
	fs := vfs.NewMem()
	rich(t, fs, "data")
	before := files(t, fs, "data")
	got := lines(t, fs, DumpOptions{})
	of := lines(t, fs, DumpOptions{Topic: "a"})
	var first struct {
		Seq uint64
		At  int64 `json:"_at"`
	}
	if err := json.Unmarshal([]byte(of[0]), &first); err != nil || first.At < 1_600_000_000_000 {
		t.Fatalf("%s: %v", of[0], err)
	}
	late := lines(t, fs, DumpOptions{Topic: "a", From: first.Seq + 10})
	if !maps.Equal(before, files(t, fs, "data")) {
		t.Error("dump has changed files")
	}
	want := contents(t, copyFS(t, fs, "data"), "data")
	var wantA []string
	for i, w := range want {
		if w = strings.TrimSuffix(w, "}") + `,"_at":`; i >= len(got) || !strings.HasPrefix(got[i], w) {
			t.Fatalf("line %d of %d is not %s…", i, len(got), w)
		}
		if strings.Contains(w, `"topic":"a",`) {
			wantA = append(wantA, got[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines for %d events", len(got), len(want))
	}
	join := func(l []string) string { return strings.TrimSuffix(strings.Join(l, ""), "\n") }
	if join(of) != join(wantA) || join(late) != join(wantA[10:]) {
		t.Errorf("of one topic there are %d lines, and %d later ones; it has %d", len(of), len(late), len(wantA))
	}
}

func TestDumpJournal(t *testing.T) {
	fs := vfs.NewMem()
	rich(t, fs, "data")
	sum, _, _ := checked(t, fs, "data")
	frames, entries, lsn := 0, 0, uint64(0)
	kinds := map[string]int{}
	for _, text := range lines(t, fs, DumpOptions{Journal: true}) {
		var l journalLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		b, err := readAll(fs, l.File)
		if err != nil {
			t.Fatal(err)
		}
		kinds[l.Kind]++
		if l.Kind == "frame" {
			frames++
			if entries != 0 {
				t.Errorf("before %s: %d entries more were due", text, entries)
			}
			entries = *l.Entries
			if l.LSN <= lsn || l.Durable >= l.LSN || binary.LittleEndian.Uint64(b[l.Offset+8:]) != l.LSN || int(binary.LittleEndian.Uint32(b[l.Offset+4:])) != l.Size {
				t.Errorf("no such frame: %s", text)
			}
			lsn = l.LSN
			continue
		}
		entries--
		if l.LSN != lsn || int(binary.LittleEndian.Uint32(b[l.Offset+4:])) != l.Size || entryKind(b[l.Offset]).String() != l.Kind {
			t.Errorf("no such entry: %s", text)
		}
		if l.Kind == "event" && !bytes.Contains(l.Event, []byte(`"topic":"`+l.Topic+`"`)) {
			t.Errorf("no event: %s", text)
		}
	}
	if frames != sum.Frames || entries != 0 || kinds["event"] == 0 {
		t.Errorf("%d frames of %d, %d entries left, %v", frames, sum.Frames, entries, kinds)
	}
	late := lines(t, fs, DumpOptions{Journal: true, From: lsn})
	if len(late) == 0 || !strings.Contains(late[0], `"kind":"frame"`) {
		t.Errorf("from the last frame on: %q", late)
	}
}

func TestDumpJournalShowsEveryKind(t *testing.T) {
	ctx := context.Background()
	fs := vfs.NewMem()
	s, err := Open("data", Options{FS: fs, SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	e := event.New("a.b", json.RawMessage(`{"html":"<&>"}`))
	_, err1 := s.Append(ctx, store.Batch{Events: []event.Event{e}})
	version, err2 := s.PutCursor(ctx, store.Cursor{Topic: "a.b", Group: "g", Epoch: 4, Meta: []byte("m"), Attempts: map[uint64]uint32{9: 2}})
	_, err3 := s.Append(ctx, store.Batch{Settle: []store.Settlement{{Topic: "a.b", Group: "g", Epoch: 4, Done: []store.Range{{First: 1, Last: 1}}, Handed: 7, Attempts: []store.Attempt{{Seq: 1, Count: 3}}}}})
	err4 := s.Trim(ctx, "a.b", 2)
	err5 := s.SetTopic(ctx, "a.b", store.Settings{Partitions: 3})
	err6 := s.DeleteCursor(ctx, "a.b", "g", version)
	err7 := s.Begin(ctx, "c.d", 12)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, s.Close()); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(lines(t, fs, DumpOptions{Journal: true}), "")
	for _, want := range []string{
		`"kind":"frame"`,
		`"kind":"topic","topic":"a.b","number":1`,
		`"event":{"id":"` + e.ID.String() + `","seq":1,`,
		`"payload":{"html":"<&>"}`,
		`"cursor":{"version":1,"epoch":4,"generation":0,"floor":0,"settled":[],"attempts":{"9":2},"handed":0,"meta":"bQ=="},"group":"g"`,
		`"settle":{"epoch":4,"done":[[1,1]],"attempts":{"1":3},"handed":7},"group":"g"`,
		`"kind":"trim","topic":"a.b","number":1,"before":2`,
		`"settings":{"Retention":0,"MaxBytes":0,"Partitions":3,`,
		`"kind":"drop-cursor","topic":"a.b","number":1,"group":"g"`,
		`"kind":"begin","topic":"c.d","number":2,"first":12`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in\n%s", want, all)
		}
	}
	one := lines(t, fs, DumpOptions{Journal: true, Topic: "a.b"})
	if strings.Contains(strings.Join(one, ""), `"frame"`) || len(one) != 7 {
		t.Errorf("of one topic:\n%s", one)
	}
}

func TestDumpGoesOnBehindDamage(t *testing.T) {
	whole := vfs.NewMem()
	rich(t, whole, "data")
	all := lines(t, whole, DumpOptions{})
	block, at := liveBlock(t, whole)
	for _, c := range []struct {
		name string
		file string
		off  int64
	}{
		{"block", block, at + 20},
		{"frame", liveSegmentOf(t, whole), segmentStart + 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := copyFS(t, whole, "data")
			flip(t, fs, c.file, c.off)
			var b bytes.Buffer
			var damage []Problem
			err := Dump(context.Background(), "data", tiny(fs), DumpOptions{Damage: func(p Problem) { damage = append(damage, p) }}, &b)
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("ends with %v", err)
			}
			if len(damage) != 1 || damage[0].File != c.file {
				t.Errorf("damage: %v", damage)
			}
			got := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
			if len(got) >= len(all) || len(got) < len(all)/2 {
				t.Errorf("%d of %d lines", len(got), len(all))
			}
			for _, l := range got {
				if !slices.ContainsFunc(all, func(w string) bool { return strings.TrimSpace(w) == strings.TrimSpace(l) }) {
					t.Errorf("not stored: %s", l)
				}
			}
		})
	}
}

// liveBlock gives the chunk and the offset of a block of retained events.
func liveBlock(t testing.TB, fs vfs.FS) (path string, off int64) {
	t.Helper()
	r, err := openReader(context.Background(), "data", tiny(fs), func(p Problem) { t.Error(p) })
	if err != nil {
		t.Fatal(err)
	}
	r.eachRow("d", func(k, v []byte) error {
		x, err := decodeSection(k, v)
		path, off = r.chunkPath(x.chunk), -1
		return errors.Join(err, r.sectionEvents(x, r.report, func(at, _ int64, _ event.Record) {
			if off < 0 {
				off = at
			}
		}))
	})
	if err := r.close(); err != nil {
		t.Fatal(err)
	}
	return path, off
}

func TestDumpRefuses(t *testing.T) {
	ctx := context.Background()
	fs := vfs.NewMem()
	p := newPlayer(t, fs, "data", 1)
	if err := Dump(ctx, "data", tiny(fs), DumpOptions{}, io.Discard); !errors.Is(err, store.ErrLocked) {
		t.Errorf("of a store in use: %v", err)
	}
	p.play(50)
	p.close()
	if err := Dump(ctx, "data", tiny(fs), DumpOptions{Topic: "unheard.of"}, io.Discard); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of an unknown topic: %v", err)
	}
	if err := Dump(ctx, "data", tiny(fs), DumpOptions{Topic: "No Topic"}, io.Discard); !errors.Is(err, event.ErrInvalidTopic) {
		t.Errorf("of no topic: %v", err)
	}
	if err := Dump(ctx, "nowhere", tiny(fs), DumpOptions{}, io.Discard); !errors.Is(err, ErrNoStore) {
		t.Errorf("of nothing: %v", err)
	}
	full := errors.New("full")
	if err := Dump(ctx, "data", tiny(fs), DumpOptions{}, failing{full}); !errors.Is(err, full) {
		t.Errorf("to a writer that fails: %v", err)
	}
	if err := Dump(ctx, "data", tiny(fs), DumpOptions{Journal: true}, failing{full}); !errors.Is(err, full) {
		t.Errorf("of the journal to a writer that fails: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := Dump(gone, "data", tiny(fs), DumpOptions{}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// failing is a writer that fails.
type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
