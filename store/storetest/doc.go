// Package storetest proves storage engines. Whoever writes one, or wraps one,
// runs these suites in its tests:
//
//   - [Run]: the promises of package store, case by case.
//   - [Model]: random operations, compared call by call with [Reference].
//   - [Crash]: a workload cut off at its k-th write or sync, for every k, and
//     what must be there afterwards.
//   - [Faults]: the same workload with a disk that fails instead.
//   - [Rot]: single damaged bytes, which must be noticed or not matter.
//   - [Bench]: figures that can be compared between engines.
//   - [RunDocs], [DocsModel], [DocsCrash], [DocsFaults]: the same for documents,
//     compared with [DocsReference].
//
// An engine's test is a few lines:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Name: "logstore",
//			Open: func(t testing.TB) storetest.Engine {
//				s, err := logstore.Open(t.TempDir(), logstore.Options{})
//				if err != nil {
//					t.Fatal(err)
//				}
//				t.Cleanup(func() { _ = s.Close() })
//				return s
//			},
//		})
//	}
//
// The crash suites take a disk that can be told to crash, such as
// internal/crashfs for engines that write through Pebble's vfs:
//
//	func TestCrash(t *testing.T) {
//		storetest.Crash(t, storetest.CrashHarness[*crashfs.FS]{
//			Name: "logstore",
//			New:  crashfs.New,
//			Open: func(fs *crashfs.FS) (storetest.Engine, error) {
//				return logstore.Open("data", logstore.Options{FS: fs, SegmentSize: 16 << 10})
//			},
//		}, storetest.CrashOptions{})
//	}
//
// A failure names the seed and the place; CrashOptions.At tries that place
// alone.
//
// # Guarantees
//
// A case fails only on what the contracts in package store promise; where they
// leave something open, every choice passes. Cases wait for conditions with a
// deadline and never sleep. They use nothing but the ports, so an engine
// cannot pass by knowing the suite, and each case works on a fresh store, so
// that one failure does not hide another.
//
// What an engine cannot do is skipped with a reason: abilities are found by
// assertion, everything else is declared in [Harness.Skip].
package storetest
