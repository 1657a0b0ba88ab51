// Package crashfs is a disk in memory that crashes and fails on command. It is
// a Pebble vfs.FS for tests of engines that write through one.
//
//	fs := crashfs.New()
//	fs.Arm(crashfs.Plan{At: 17}) // the 17th change crashes
//	work(fs)                     // until it meets crashfs.ErrCrashed
//	for seed := range uint64(5) {
//		recover(fs.Image(seed, crashfs.Config{})) // five disks it may find
//	}
//
// A plan can also let the power fail unnoticed ([Lose]), or let operations
// fail with an error, once or from then on ([Fail]).
//
// # What a crash leaves
//
// Image gives the disk as it may look after power was lost:
//
//   - What was synced is there. A file's content is synced by Sync or SyncData
//     on any handle of it, a name by a Sync of its directory. SyncTo promises
//     nothing.
//   - Of the writes since then, each sector of 512 bytes is there on its own:
//     as synced, as last written, or as written in between. Sectors of
//     different files, and of one file, are in no order.
//   - A file that grew is as long as the last sector that is there, or as long
//     as it was made, with zeros where a sector is missing.
//   - Names that were made, changed or removed are so up to some moment, which
//     is different for each directory, and not so after it; KeepAny gives up
//     this order too. A rename never leaves both names or neither.
//   - After a Sync that failed, what it should have written may be missing for
//     good, even if a later Sync succeeds: kernels drop such pages.
//
// Pebble's own vfs.MemFS tears at 4 KiB, copies a file on each sync and loses
// the identity of linked files in its clones, so this is a file system of its
// own and not a wrapper around it.
//
// # Guarantees
//
// The same seed and configuration give the same image of the same disk. An FS
// may be used from any number of goroutines; the count of changes is then in
// the order in which they came. An image shares nothing with its origin, is
// fully synced, and can be armed and crashed in turn.
package crashfs
