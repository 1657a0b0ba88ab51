package storetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store"
)

// flaw is one mistake that a journal can be made with.
type flaw int

const (
	sound            flaw = iota
	noSync                // acknowledges without a sync
	noDirSync             // does not sync the name of its file
	frameEach             // writes each event of a batch as a batch of its own
	showEarly             // shows a batch before it is durable
	noChecksum            // believes every frame
	keepTail              // appends behind a torn frame instead of cutting it off
	settleApart           // writes settlements as a batch of their own
	forgetTrim            // does not write trims
	forgetCompact         // does not write compactions
	compactMore           // removes the last event of each key too
	goOnAfterFailure      // takes batches after a failed sync
	silentReset           // takes a damaged journal for an empty one
	dropDamaged           // takes damage for a torn tail
)

// journal is a storage engine as small as it can be: a file of checksummed
// frames, one for each change, and references that hold what they amount to.
// It exists to try the crash suites on.
type journal struct {
	flaw flaw
	fs   vfs.FS

	mu     sync.Mutex
	f      vfs.File
	size   int64
	failed error
	next   *Reference // judges changes; ahead of what is durable
	shown  *Reference // what readers see
}

var (
	_ Engine             = (*journal)(nil)
	_ store.Settles      = (*journal)(nil)
	_ store.AtomicTopics = (*journal)(nil)
	_ store.Compacts     = (*journal)(nil)
)

// change is what one frame holds; one of the fields is set.
type change struct {
	Batch    *store.Batch
	Trim     *uint64
	Compact  *store.Compaction
	Settings *store.Settings
	Put      *store.Cursor
	Delete   *uint64
	Topic    string
	Group    string

	compacted store.Compacted // what a compaction did
}

// to makes the change in a reference.
func (c *change) to(r *Reference) (got []store.Appended, version uint64, err error) {
	ctx := context.Background()
	switch {
	case c.Batch != nil:
		got, err = r.Append(ctx, *c.Batch)
	case c.Trim != nil:
		err = r.Trim(ctx, c.Topic, *c.Trim)
	case c.Compact != nil:
		c.compacted, err = r.Compact(ctx, c.Topic, *c.Compact)
	case c.Settings != nil:
		err = r.SetTopic(ctx, c.Topic, *c.Settings)
	case c.Put != nil:
		version, err = r.PutCursor(ctx, *c.Put)
	case c.Delete != nil:
		err = r.DeleteCursor(ctx, c.Topic, c.Group, *c.Delete)
	}
	return got, version, err
}

const (
	journalFile = "data/journal"
	markFile    = "data/mark"
)

func openJournal(fs vfs.FS, f flaw) (*journal, error) {
	j := &journal{flaw: f, fs: fs, next: NewReference(event.Limits{}), shown: NewReference(event.Limits{})}
	if err := fs.MkdirAll("data", 0o755); err != nil {
		return nil, err
	}
	data, err := content(fs, journalFile)
	if err != nil {
		return nil, err
	}
	mark, err := j.readMark()
	if err != nil {
		return nil, err
	}
	good, err := j.replay(data)
	if err != nil && good < mark && f != dropDamaged {
		if f != silentReset {
			return nil, &store.CorruptError{File: journalFile, Offset: good, Detail: err.Error()}
		}
		good, j.next, j.shown = 0, NewReference(event.Limits{}), NewReference(event.Limits{})
	}
	if f == keepTail {
		good = int64(len(data))
	}
	return j, j.start(data[:good])
}

// start writes the sound part of the journal to a new file and goes on there.
func (j *journal) start(data []byte) error {
	f, err := j.fs.Create(journalFile+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	j.f, j.size = f, int64(len(data))
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := j.fs.Rename(journalFile+".new", journalFile); err != nil {
		return err
	}
	if j.flaw == noDirSync {
		return nil
	}
	return errors.Join(j.syncDir("data"), j.syncDir("/"))
}

func (j *journal) syncDir(name string) error {
	d, err := j.fs.OpenDir(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func content(fs vfs.FS, name string) ([]byte, error) {
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	return data, errors.Join(err, f.Close())
}

// replay applies the frames of data and says up to where they are sound.
func (j *journal) replay(data []byte) (good int64, err error) {
	for off := 0; off < len(data); {
		rest := data[off:]
		if len(rest) < 8 || len(rest)-8 < int(binary.LittleEndian.Uint32(rest)) {
			return int64(off), errors.New("short frame")
		}
		body := rest[8 : 8+binary.LittleEndian.Uint32(rest)]
		if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(rest[4:]) && j.flaw != noChecksum {
			return int64(off), errors.New("bad checksum")
		}
		c, err := unpack(body)
		if err != nil {
			return int64(off), err
		}
		for _, r := range []*Reference{j.next, j.shown} {
			if _, _, err := c.to(r); err != nil {
				return int64(off), err
			}
		}
		off += 8 + len(body)
	}
	return int64(len(data)), nil
}

// A body is the change as JSON without its events, and then their records:
// nothing in them but the checksum tells whether they are whole.
func frame(c *change) []byte {
	var records []byte
	bare := *c
	if c.Batch != nil {
		for i := range c.Batch.Events {
			record := event.AppendBinary(nil, &c.Batch.Events[i], true)
			records = append(binary.LittleEndian.AppendUint32(records, uint32(len(record))), record...)
		}
		batch := *c.Batch
		batch.Events, bare.Batch = nil, &batch
	}
	head, err := json.Marshal(&bare)
	if err != nil {
		panic(err)
	}
	body := binary.LittleEndian.AppendUint32(nil, uint32(len(head)))
	body = append(append(body, head...), records...)
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
	return append(out, body...)
}

func unpack(body []byte) (*change, error) {
	next := func() ([]byte, error) {
		if len(body) < 4 || len(body)-4 < int(binary.LittleEndian.Uint32(body)) {
			return nil, errors.New("short body")
		}
		part := body[4 : 4+binary.LittleEndian.Uint32(body)]
		body = body[4+len(part):]
		return part, nil
	}
	head, err := next()
	if err != nil {
		return nil, err
	}
	var c change
	if err := json.Unmarshal(head, &c); err != nil {
		return nil, err
	}
	for len(body) > 0 && c.Batch != nil {
		record, err := next()
		if err != nil {
			return nil, err
		}
		var e event.Event
		if err := event.DecodeBinary(record, &e, ""); err != nil {
			return nil, err
		}
		c.Batch.Events = append(c.Batch.Events, e)
	}
	return &c, nil
}

// commit judges a change, writes it, and then shows it.
func (j *journal) commit(ctx context.Context, c *change) ([]store.Appended, uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil && j.flaw != goOnAfterFailure {
		return nil, 0, fmt.Errorf("%w: %w", store.ErrFailed, j.failed)
	}
	got, version, err := c.to(j.next)
	if err != nil {
		return nil, 0, err
	}
	if j.flaw == showEarly {
		_, _, _ = c.to(j.shown)
	}
	for _, part := range j.parts(c) {
		if err := j.write(frame(part)); err != nil {
			j.failed = err
			return nil, 0, fmt.Errorf("%w: %w", store.ErrFailed, err)
		}
	}
	if j.flaw != showEarly {
		_, _, _ = c.to(j.shown)
	}
	return got, version, nil
}

// parts are the frames of a change: one, unless the journal is flawed.
func (j *journal) parts(c *change) []*change {
	switch {
	case j.flaw == forgetTrim && c.Trim != nil, j.flaw == forgetCompact && c.Compact != nil:
		return nil
	case j.flaw == compactMore && c.Compact != nil:
		return []*change{{Topic: c.Topic, Trim: &c.Compact.Before}}
	case j.flaw == frameEach && c.Batch != nil && len(c.Batch.Events) > 1:
		var parts []*change
		for i := range c.Batch.Events {
			parts = append(parts, &change{Batch: &store.Batch{Events: c.Batch.Events[i : i+1]}})
		}
		return parts
	case j.flaw == settleApart && c.Batch != nil && len(c.Batch.Settle) > 0:
		events := *c.Batch
		events.Settle = nil
		return []*change{{Batch: &events}, {Batch: &store.Batch{Settle: c.Batch.Settle}}}
	}
	return []*change{c}
}

func (j *journal) write(data []byte) error {
	n, err := j.f.Write(data)
	j.size += int64(n)
	if err != nil || j.flaw == noSync {
		return err
	}
	return j.f.Sync()
}

// mark notes how much of the journal is durable, so that damage below can be
// told from a torn tail.
func (j *journal) mark() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	f, err := j.fs.Create(markFile+".new", vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	data := binary.LittleEndian.AppendUint64(nil, uint64(j.size))
	data = binary.LittleEndian.AppendUint32(data, crc32.ChecksumIEEE(data))
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return errors.Join(j.fs.Rename(markFile+".new", markFile), j.syncDir("data"))
}

func (j *journal) readMark() (int64, error) {
	data, err := content(j.fs, markFile)
	if err != nil || data == nil {
		return 0, err
	}
	if len(data) != 12 || crc32.ChecksumIEEE(data[:8]) != binary.LittleEndian.Uint32(data[8:]) {
		return 0, &store.CorruptError{File: markFile, Detail: "bad mark"}
	}
	return int64(binary.LittleEndian.Uint64(data)), nil
}

func (j *journal) Append(ctx context.Context, b store.Batch) ([]store.Appended, error) {
	for i := range b.Settle {
		if b.Settle[i].Take != 0 {
			return nil, store.ErrInvalid
		}
	}
	got, _, err := j.commit(ctx, &change{Batch: &b})
	return got, err
}

func (j *journal) Trim(ctx context.Context, topic string, before uint64) error {
	_, _, err := j.commit(ctx, &change{Topic: topic, Trim: &before})
	return err
}

func (j *journal) Compact(ctx context.Context, topic string, c store.Compaction) (store.Compacted, error) {
	x := &change{Topic: topic, Compact: &c}
	_, _, err := j.commit(ctx, x)
	return x.compacted, err
}

func (j *journal) SetTopic(ctx context.Context, topic string, s store.Settings) error {
	_, _, err := j.commit(ctx, &change{Topic: topic, Settings: &s})
	return err
}

func (j *journal) PutCursor(ctx context.Context, c store.Cursor) (uint64, error) {
	_, version, err := j.commit(ctx, &change{Put: &c})
	return version, err
}

func (j *journal) DeleteCursor(ctx context.Context, topic, group string, version uint64) error {
	_, _, err := j.commit(ctx, &change{Topic: topic, Group: group, Delete: &version})
	return err
}

func (j *journal) Read(ctx context.Context, q store.Query) iter.Seq2[event.Event, error] {
	return j.shown.Read(ctx, q)
}

func (j *journal) Bounds(ctx context.Context, topic string) (store.Bounds, error) {
	return j.shown.Bounds(ctx, topic)
}

func (j *journal) LocateID(ctx context.Context, topic string, id event.ID) (uint64, error) {
	return j.shown.LocateID(ctx, topic, id)
}

func (j *journal) LocateTime(ctx context.Context, topic string, ts int64) (uint64, error) {
	return j.shown.LocateTime(ctx, topic, ts)
}

func (j *journal) Topics(ctx context.Context) iter.Seq2[store.Topic, error] {
	return j.shown.Topics(ctx)
}

func (j *journal) Watch(topics ...string) *store.Watch { return j.shown.Watch(topics...) }

func (j *journal) Cursor(ctx context.Context, topic, group string) (store.Cursor, error) {
	return j.shown.Cursor(ctx, topic, group)
}

func (j *journal) Cursors(ctx context.Context, topic string) iter.Seq2[store.Cursor, error] {
	return j.shown.Cursors(ctx, topic)
}

func (j *journal) SettlesInAppend()     {}
func (j *journal) AppendsAcrossTopics() {}

func (j *journal) Close() error {
	err := j.mark()
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _, _ = j.next.Close(), j.shown.Close(), j.f.Close()
	return err
}

// journals is the harness of a journal with a flaw.
func journals(f flaw) CrashHarness[*crashfs.FS] {
	return CrashHarness[*crashfs.FS]{
		Name: "journal",
		New:  crashfs.New,
		Open: func(fs *crashfs.FS) (Engine, error) {
			j, err := openJournal(fs, f)
			if err != nil {
				return nil, err
			}
			return j, nil
		},
		Settled: func(e Engine) { _ = e.(*journal).mark() },
	}
}
