package logstore_test

import (
	"path/filepath"
	"testing"

	"promethean/event"
	"promethean/internal/crashfs"
	"promethean/store/logstore"
	"promethean/store/storetest"
)

// crashes opens stores on disks that crash, with segments so small that some
// dozens of batches seal, merge, fold and recycle.
func crashes() storetest.CrashHarness[*crashfs.FS] {
	return storetest.CrashHarness[*crashfs.FS]{
		Name: "logstore",
		New:  crashfs.New,
		Open: func(fs *crashfs.FS) (storetest.Engine, error) {
			s, err := logstore.Open("data", logstore.Options{FS: fs, SegmentSize: 16 << 10, Limits: event.Limits{Payload: 4 << 10}})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Settled: func(e storetest.Engine) { e.(*logstore.Store).WaitMarked() },
		// The manifest is Pebble's.
		Foreign: func(path string) bool { return filepath.Base(filepath.Dir(path)) == "state" },
	}
}

func TestCrash(t *testing.T) {
	storetest.Crash(t, crashes(), storetest.CrashOptions{})
	storetest.Crash(t, crashes(), storetest.CrashOptions{Steps: 160, Seed: 2})
}

func TestCrashFaults(t *testing.T) { storetest.Faults(t, crashes(), storetest.CrashOptions{}) }
func TestCrashRot(t *testing.T)    { storetest.Rot(t, crashes(), storetest.CrashOptions{}) }
