package storetest

import (
	"testing"

	"promethean/internal/crashfs"
)

var _ CrashFS[*crashfs.FS] = (*crashfs.FS)(nil)

func TestJournal(t *testing.T) {
	fss := make(map[Engine]*crashfs.FS)
	open := func(t testing.TB, fs *crashfs.FS) Engine {
		j, err := openJournal(fs, sound)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		fss[j] = fs
		return j
	}
	Run(t, Harness{
		Name: "journal",
		Many: 2000,
		Open: func(t testing.TB) Engine { return open(t, crashfs.New()) },
		Reopen: func(t testing.TB, e Engine) Engine {
			_ = e.Close()
			return open(t, fss[e])
		},
	})
}

func TestCrash(t *testing.T) { Crash(t, journals(sound), CrashOptions{Steps: 60}) }

func TestCrashFaults(t *testing.T) { Faults(t, journals(sound), CrashOptions{Steps: 60}) }

func TestCrashRot(t *testing.T) { Rot(t, journals(sound), CrashOptions{Steps: 20}) }

// TestCrashSuitesNotice runs the suites on journals that are made wrongly.
func TestCrashSuitesNotice(t *testing.T) {
	crash := func(t testing.TB, f flaw) {
		for _, w := range workloads(CrashOptions{Points: 30, Steps: 60}.withDefaults()) {
			crashAll(t, journals(f), w)
		}
	}
	faultsOf := func(t testing.TB, f flaw) {
		for _, fault := range faults {
			failAll(t, journals(f), fault, CrashOptions{Points: 30, Steps: 60}.withDefaults())
		}
	}
	rots := func(t testing.TB, f flaw) {
		rotAfterClose(t, journals(f), CrashOptions{})
		rotAfterCrash(t, journals(f), CrashOptions{})
	}
	for _, c := range []struct {
		name  string
		flaw  flaw
		suite func(testing.TB, flaw)
	}{
		{"no sync", noSync, crash},
		{"no sync of the directory", noDirSync, crash},
		{"a frame for each event", frameEach, crash},
		{"shown before durable", showEarly, crash},
		{"torn tail kept", keepTail, crash},
		{"settlement apart", settleApart, crash},
		{"trims forgotten", forgetTrim, crash},
		{"compactions forgotten", forgetCompact, crash},
		{"compacts too much", compactMore, crash},
		{"goes on after a failure", goOnAfterFailure, faultsOf},
		{"no checksum, rot", noChecksum, rots},
		{"damage taken for empty", silentReset, rots},
		{"damage taken for a torn tail", dropDamaged, rots},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := record(t, func(t testing.TB) { c.suite(t, c.flaw) })
			if !r.Failed() {
				t.Fatal("the suite has not noticed")
			}
			t.Log(r.failures[0])
		})
	}
}
