package crashfs

import "errors"

// ErrCrashed is what every change of a crashed disk fails with.
var ErrCrashed = errors.New("crashfs: the disk has crashed")

// ErrInjected is the error of a plan that names none.
var ErrInjected = errors.New("crashfs: injected error")

// Op is a set of kinds of operations that change a disk.
type Op uint

// The kinds of operations.
const (
	OpWrite Op = 1 << iota
	OpWriteAt
	OpSync     // of a file
	OpSyncData // of a file
	OpSyncTo
	OpSyncDir
	OpCreate // also by OpenReadWrite and Lock, where there is no such file
	OpMkdir
	OpLink
	OpRename // also by ReuseForWrite
	OpRemove // one for each file of a RemoveAll
)

// Sets of kinds.
const (
	Writes = OpWrite | OpWriteAt
	Syncs  = OpSync | OpSyncData | OpSyncDir
	Names  = OpCreate | OpMkdir | OpLink | OpRename | OpRemove
	All    = Writes | Syncs | OpSyncTo | Names
)

// Action is what happens to an operation that a plan is about.
type Action int

// The actions.
const (
	// Crash: the operation and all later ones change nothing and fail with
	// ErrCrashed.
	Crash Action = iota
	// CrashPartly is Crash after a write has put down some of its sectors.
	CrashPartly
	// Lose: the power fails unnoticed. The operation and all later ones
	// succeed as far as the caller can see, and Image shows the disk without
	// them. Programs that panic on a broken disk can be crashed so; whatever
	// they say once Fired is true no longer counts.
	Lose
	// LosePartly is Lose after a write has put down some of its sectors.
	LosePartly
	// Fail: the operation changes nothing and fails with the plan's error.
	Fail
	// FailPartly is Fail after a write has put down some of its bytes, and it
	// says how many.
	FailPartly
)

// Plan says which operation of a disk goes wrong, and how. The zero Plan lets
// all of them be.
type Plan struct {
	// At is the number of the operation, the first after Arm is 1. 0 is none.
	At int
	// Ops are the kinds that count. Default All.
	Ops Op
	// Path says whether operations on a file count, by the name under which it
	// was opened or is changed. Default: all files do.
	Path func(name string) bool
	// Do is what happens. Default Crash.
	Do Action
	// Err is the error of Fail and FailPartly. Default ErrInjected.
	Err error
	// Sticky makes all later operations that count fail as well.
	Sticky bool
}

// Arm sets the plan and begins to count anew. A disk that has crashed, or lost
// its power, stays so; all other trouble ends with a plan that lets it.
func (fs *FS) Arm(p Plan) {
	if p.Ops == 0 {
		p.Ops = All
	}
	if p.Err == nil {
		p.Err = ErrInjected
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.plan, fs.seen, fs.fired = p, 0, false
}

// Fired says whether the plan's operation has come, or the disk crashed or lost
// its power before.
func (fs *FS) Fired() bool {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	return fs.fired || fs.crashed || fs.frozen != nil
}

// Count says how many operations of these kinds there were since New or Image.
// Those after a crash are not counted.
func (fs *FS) Count(ops Op) (n int) {
	fs.mu.RLock()
	defer fs.mu.RUnlock()
	for kind, count := range fs.counts {
		if kind&ops != 0 {
			n += count
		}
	}
	return n
}

// judge counts one operation and says what becomes of it: the error it ends
// with, and whether some bytes of a write are put down all the same. fs.mu
// is held.
func (fs *FS) judge(op Op, name string) (partly bool, err error) {
	if fs.crashed {
		return false, ErrCrashed
	}
	fs.counts[op]++
	fs.total++
	p := &fs.plan
	if p.At == 0 || op&p.Ops == 0 || p.Path != nil && !p.Path(name) {
		return false, nil
	}
	fs.seen++
	switch {
	case fs.seen < p.At, fs.seen > p.At && !p.Sticky:
		return false, nil
	case p.Do == Crash || p.Do == CrashPartly:
		fs.fired, fs.crashed = true, true
		return p.Do == CrashPartly, ErrCrashed
	case p.Do == Lose || p.Do == LosePartly:
		if fs.frozen == nil {
			fs.freeze()
		}
		fs.fired = true
		return p.Do == LosePartly, nil
	}
	fs.fired = true
	return p.Do == FailPartly, p.Err
}

// portion says how much of a partial write of n bytes at off is put down: never
// all of it, and different for different operations. A crash leaves whole
// sectors; a write that fails may end anywhere.
func (fs *FS) portion(n int, off int64) int {
	if n == 0 {
		return 0
	}
	part := int(uint64(fs.seen) * 0x9e3779b97f4a7c15 >> 32 % uint64(n))
	if fs.plan.Do == FailPartly {
		return part
	}
	end := (off + int64(part)) / Sector * Sector
	return int(max(end-off, 0))
}

// CrashAt arms a crash that nobody notices, see Lose, at the k-th change of
// any kind from now. Where partly is set and it is a write, some of its
// sectors are put down.
func (fs *FS) CrashAt(k int, partly bool) {
	p := Plan{At: k, Do: Lose}
	if partly {
		p.Do = LosePartly
	}
	fs.Arm(p)
}

// FailWrite arms an error at the k-th write from now, after some of its bytes.
func (fs *FS) FailWrite(k int, sticky bool, err error) {
	fs.Arm(Plan{At: k, Ops: Writes, Do: FailPartly, Err: err, Sticky: sticky})
}

// FailSync arms an error at the k-th sync of a file or directory from now.
func (fs *FS) FailSync(k int, sticky bool, err error) {
	fs.Arm(Plan{At: k, Ops: Syncs, Do: Fail, Err: err, Sticky: sticky})
}

// Disarm ends the trouble of a plan that is not a crash.
func (fs *FS) Disarm() { fs.Arm(Plan{}) }

// Changes counts all changes since New or Image.
func (fs *FS) Changes() int { return fs.Count(All) }
