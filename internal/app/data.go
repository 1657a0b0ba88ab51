package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"promethean/store"
	"promethean/store/logstore"
)

// The commands of this file work on a data directory of the embedded engine
// that no hub has open.

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIR",
		Short: "Verify everything in a data directory",
		Long: `Check reads a data directory, or a backup, and says whether all of it is
sound: every frame, block, record and index entry, the documents of views,
and that all parts fit each other. It changes nothing. No hub may have the directory open.

Each finding has a kind: damage, or note for what is worth knowing only.
The exit code is 1 if there is damage.`,
		Example:           "  promethean check ./data",
		Args:              takes("DIR"),
		ValidArgsFunction: directories(1),
		RunE:              a.begin(func(ctx context.Context, args []string) error { return a.check(ctx, args[0]) }),
	}
}

func (a *app) check(ctx context.Context, dir string) error {
	bar := a.progress("checking")
	defer bar.clear()
	var failed error
	sum, err := logstore.Check(logstore.WithProgress(ctx, bar.show), dir, logstore.Options{}, func(p logstore.Problem) {
		bar.clear()
		failed = errors.Join(failed, a.finding(p))
	})
	bar.clear()
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	err = a.result(field{"kind", "summary"}, field{"dir", dir},
		field{"topics", sum.Topics}, field{"groups", sum.Groups}, field{"events", sum.Events}, field{"frames", sum.Frames},
		field{"chunks", sum.Chunks}, field{"runs", sum.Runs}, field{"views", sum.Views}, field{"documents", sum.Documents}, field{"files", sum.Files}, field{"bytes", sum.Bytes},
		field{"notes", sum.Notes}, field{"problems", sum.Problems})
	if err == nil && sum.Problems > 0 {
		err = advised{
			fmt.Errorf("check %s: problems found: %d", dir, sum.Problems),
			"what is lost must come from a backup: 'promethean restore BACKUP NEWDIR'; 'promethean log dump' writes what can still be read",
		}
	}
	return err
}

// finding writes one finding of a check.
func (a *app) finding(p logstore.Problem) error {
	kind := "damage"
	if p.Note {
		kind = "note"
	}
	if width, yes := a.table(); yes {
		where := kind + "  " + printable(p.File)
		if p.Offset >= 0 {
			where += fmt.Sprintf(", offset %d", p.Offset)
		}
		_, err := fmt.Fprint(a.stdout, wrapped(where, "", width), wrapped(printable(p.What), "  ", width))
		return err
	}
	fields := []field{{"kind", kind}, {"file", p.File}}
	if p.Offset >= 0 {
		fields = append(fields, field{"offset", p.Offset})
	}
	return a.result(append(fields, field{"what", p.What})...)
}

func (a *app) logCommand() *cobra.Command {
	log := &cobra.Command{
		Use:   "log",
		Short: "Look into the log of a data directory",
		Args:  a.groupArgs,
		RunE:  a.noCommand,
	}
	var d logstore.DumpOptions
	dump := &cobra.Command{
		Use:   "dump DIR",
		Short: "Write what is in a data directory",
		Long: `Dump writes the retained events of a data directory, or a backup, by topic
and seq; "_at" is the time of the commit. With --journal it writes the frames
of the journal that are not sealed into chunks yet, and their entries. It
changes nothing. No hub may have the directory open.

What is damaged is named on standard error and left out; the exit code is
then 1.`,
		Example:           "  promethean log dump ./data --topic process.state > events.ndjson",
		Args:              takes("DIR"),
		ValidArgsFunction: directories(1),
		RunE:              a.begin(func(ctx context.Context, args []string) error { return a.dump(ctx, args[0], d) }),
	}
	dump.Flags().StringVar(&d.Topic, "topic", "", "only this topic")
	dump.Flags().Uint64Var(&d.From, "from", 0, "only from this seq on, with --journal from this LSN on")
	dump.Flags().BoolVar(&d.Journal, "journal", false, "the journal in place of events")
	log.AddCommand(dump)
	return log
}

func (a *app) dump(ctx context.Context, dir string, d logstore.DumpOptions) error {
	out := a.stdout
	if width, yes := a.table(); yes {
		t := &rows{out: a.stdout, width: width, head: eventHead, row: eventRow}
		if d.Journal {
			t.head, t.row = journalHead, journalRow
		}
		out = t
	}
	d.Damage = func(p logstore.Problem) { fmt.Fprintf(a.stderr, "promethean: damaged: %s\n", printable(p.String())) }
	err := logstore.Dump(ctx, dir, logstore.Options{}, d, out)
	if errors.Is(err, store.ErrNotFound) {
		err = advised{err, "leave --topic out to see all topics"}
	}
	return err
}

const (
	eventHead   = "TOPIC                SEQ     COMMITTED            KEY          PAYLOAD"
	journalHead = "LSN      KIND         PLACE                 SIZE     TOPIC                CONTENT"
)

func eventRow(line []byte) (string, error) {
	var e struct {
		Topic   string
		Seq     uint64
		Key     string
		Payload json.RawMessage
		At      int64 `json:"_at"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return "", err
	}
	at := time.UnixMilli(e.At).UTC().Format("2006-01-02 15:04:05")
	return fmt.Sprintf("%-20s %-7d %s  %-12s %s", e.Topic, e.Seq, at, e.Key, e.Payload), nil
}

func journalRow(line []byte) (string, error) {
	var e struct {
		LSN     uint64
		Kind    string
		File    string
		Offset  int
		Size    int
		Topic   string
		Entries *int
		Content map[string]json.RawMessage `json:"-"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return "", err
	}
	if err := json.Unmarshal(line, &e.Content); err != nil {
		return "", err
	}
	content := ""
	for _, name := range []string{"event", "settle", "cursor", "settings", "before", "first", "group", "entries"} {
		if v, ok := e.Content[name]; ok {
			content += fmt.Sprintf("%s %s ", name, v)
		}
	}
	place := fmt.Sprintf("%s:%d", filepath.Base(e.File), e.Offset)
	return fmt.Sprintf("%-8d %-12s %-21s %-8d %-20s %s", e.LSN, e.Kind, place, e.Size, e.Topic, content), nil
}

func (a *app) backupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "backup DIR DEST",
		Short: "Copy a data directory to DEST",
		Long: `Backup makes DEST, which must not exist, a copy of a data directory that no
hub has open. On the same file system it takes hardly any space and time:
files that never change are linked. Elsewhere they are copied.`,
		Example:           "  promethean backup ./data /backups/monday",
		Args:              takes("DIR", "DEST"),
		ValidArgsFunction: directories(2),
		RunE:              a.begin(func(ctx context.Context, args []string) error { return a.backup(ctx, args[0], args[1]) }),
	}
}

func (a *app) backup(ctx context.Context, dir, dest string) error {
	bar := a.progress("backing up")
	err := logstore.BackupDir(logstore.WithProgress(ctx, bar.show), dir, dest, logstore.Options{})
	bar.clear()
	switch {
	case errors.Is(err, store.ErrLocked):
		return advised{err, "a running hub has the directory open: only that hub can back it up while it runs; ask it, or stop it and try again"}
	case errors.Is(err, fs.ErrExist):
		return advised{err, "name a directory that does not exist yet"}
	case err != nil:
		return err
	}
	return a.copied("backup", dest)
}

func (a *app) restoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "restore BACKUP DIR",
		Short: "Make a data directory from a backup",
		Long: `Restore copies a backup to DIR, which must not exist or be empty, syncs it and
opens it once to see that a hub can use it. The backup is not changed.`,
		Example:           "  promethean restore /backups/monday ./data",
		Args:              takes("BACKUP", "DIR"),
		ValidArgsFunction: directories(2),
		RunE:              a.begin(func(ctx context.Context, args []string) error { return a.restore(ctx, args[0], args[1]) }),
	}
}

func (a *app) restore(ctx context.Context, backup, dir string) error {
	bar := a.progress("restoring")
	err := logstore.Restore(logstore.WithProgress(ctx, bar.show), backup, dir)
	bar.clear()
	switch {
	case errors.Is(err, fs.ErrExist):
		return advised{err, "name a directory that does not exist or is empty"}
	case err != nil:
		return err
	}
	return a.copied("restored", dir)
}

// copied tells where a copy is and how large.
func (a *app) copied(what, dir string) error {
	files, bytes := 0, int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err == nil {
			files++
			bytes += st.Size()
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.result(field{what, dir}, field{"files", files}, field{"bytes", bytes})
}
