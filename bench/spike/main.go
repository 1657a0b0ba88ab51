// Command spike measures the two candidate layouts of the embedded engine
// against each other; docs/decisions/0001-layout.md holds its figures.
//
//	a        shared log for good, one Pebble entry each for position, id and key
//	b-pebble journal, per-topic sections in sealed chunks, id and key as tables ingested by Pebble
//	b-runs   the same chunks, id and key as our own sorted runs of fixed-width entries
//
// Every layout sits behind the same group-commit writer, so that what differs
// is only what happens behind it. It is a measuring tool: no recovery, no
// checksums on read, no error handling beyond stopping.
package main

import (
	"crypto/rand"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"log"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	segSize                                 = 32 << 20
	topics                                  = 10
	recSize                                 = 340
	offLen, offTopic, offSeq, offID, offKey = 0, 4, 8, 16, 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type layout interface {
	// absorb takes a full segment's bytes; it owns them.
	absorb(seg int, buf []byte)
	// finish waits until all derived state answers.
	finish()
	lookup(id []byte, topic uint32, key uint64) (byID, byKey bool)
	scan(topic uint32) int
	// expire drops all topics but 0 and gives the space back; it returns the bytes written.
	expire() int64
	keepsSegments() bool
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

type request struct {
	rec  []byte
	done chan struct{}
}

// writer is group commit into preallocated segments.
type writer struct {
	mu    sync.Mutex
	queue []*request
	wake  chan struct{}
	dir   string
	lay   layout
	full  chan job
	free  chan *os.File
	bufs  chan []byte
	seqs  [topics]uint64
	segs  int
}

type job struct {
	n   int
	f   *os.File
	buf []byte
}

func (w *writer) newSegment() *os.File {
	if !w.lay.keepsSegments() {
		select {
		case f := <-w.free:
			return f
		default:
		}
	}
	f, err := os.Create(filepath.Join(w.dir, fmt.Sprintf("%06d.seg", w.segs)))
	must(err)
	zero := make([]byte, 1<<20)
	for i := 0; i < segSize>>20; i++ {
		_, err = f.Write(zero)
		must(err)
	}
	must(f.Sync())
	w.segs++
	return f
}

func (w *writer) run(stop chan struct{}) {
	f, buf, n := w.newSegment(), make([]byte, 0, segSize), 0
	for {
		w.mu.Lock()
		q := w.queue
		w.queue = nil
		w.mu.Unlock()
		if len(q) == 0 {
			select {
			case <-w.wake:
				continue
			case <-stop:
				w.full <- job{n, f, buf}
				close(w.full)
				return
			}
		}
		if len(buf)+len(q)*recSize+16 > segSize {
			w.full <- job{n, f, buf}
			n++
			f = w.newSegment()
			select {
			case buf = <-w.bufs:
				buf = buf[:0]
			default:
				buf = make([]byte, 0, segSize)
			}
		}
		start := len(buf)
		for _, r := range q {
			t := binary.LittleEndian.Uint32(r.rec[offTopic:])
			w.seqs[t]++
			binary.LittleEndian.PutUint64(r.rec[offSeq:], w.seqs[t])
			buf = append(buf, r.rec...)
		}
		_ = crc32.Checksum(buf[start:], castagnoli)
		_, err := f.WriteAt(buf[start:], int64(start))
		must(err)
		must(syscall.Fdatasync(int(f.Fd())))
		for _, r := range q {
			r.done <- struct{}{}
		}
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func main() {
	name := flag.String("layout", "b-runs", "a, b-pebble or b-runs")
	dir := flag.String("dir", "", "a scratch directory")
	count := flag.Int("n", 5_000_000, "events")
	keys := flag.Int("keys", 1_000_000, "keys")
	batch := flag.Int("batch", 1, "events a publish")
	pubs := flag.Int("p", 64, "publishers")
	v4 := flag.Bool("v4", false, "random ids instead of time-ordered ones")
	flag.Parse()
	if *dir == "" {
		log.Fatal("spike: -dir is required")
	}
	must(os.RemoveAll(*dir))
	must(os.MkdirAll(*dir, 0o755))
	var lay layout
	switch *name {
	case "a":
		lay = newShared(*dir)
	case "b-pebble":
		lay = newChunked(*dir, newPebbleIndex(*dir))
	case "b-runs":
		lay = newChunked(*dir, newRunIndex(*dir))
	default:
		log.Fatalf("spike: unknown layout %q", *name)
	}
	w := &writer{wake: make(chan struct{}, 1), dir: *dir, lay: lay, full: make(chan job, 2), free: make(chan *os.File, 64), bufs: make(chan []byte, 8)}
	stop, absorbed := make(chan struct{}), make(chan struct{})
	go w.run(stop)
	go func() {
		for j := range w.full {
			lay.absorb(j.n, j.buf)
			if !lay.keepsSegments() {
				w.free <- j.f
			}
			select {
			case w.bufs <- j.buf:
			default:
			}
		}
		close(absorbed)
	}()
	start, c0 := time.Now(), cpu()
	var wg sync.WaitGroup
	var last [16]byte
	var lastKey uint64
	per := *count / *pubs / *batch
	for p := range *pubs {
		wg.Go(func() {
			rng := mrand.New(mrand.NewPCG(uint64(p), 7))
			rs := make([]*request, *batch)
			for i := range rs {
				rs[i] = &request{rec: make([]byte, recSize), done: make(chan struct{}, 1)}
				_, err := rand.Read(rs[i].rec)
				must(err)
				binary.LittleEndian.PutUint32(rs[i].rec, recSize)
			}
			for i := range per {
				for j, r := range rs {
					binary.LittleEndian.PutUint32(r.rec[offTopic:], uint32((i**batch+j+p)%topics))
					if *v4 {
						binary.BigEndian.PutUint64(r.rec[offID:], rng.Uint64())
					} else {
						binary.BigEndian.PutUint64(r.rec[offID:], uint64(time.Now().UnixNano()))
					}
					binary.BigEndian.PutUint64(r.rec[offID+8:], rng.Uint64())
					binary.LittleEndian.PutUint64(r.rec[offKey:], uint64(rng.IntN(*keys)))
				}
				w.mu.Lock()
				w.queue = append(w.queue, rs...)
				w.mu.Unlock()
				select {
				case w.wake <- struct{}{}:
				default:
				}
				for _, r := range rs {
					<-r.done
				}
			}
			if p == 0 {
				copy(last[:], rs[0].rec[offID:])
				lastKey = binary.LittleEndian.Uint64(rs[0].rec[offKey:])<<8 | uint64(binary.LittleEndian.Uint32(rs[0].rec[offTopic:]))
			}
		})
	}
	wg.Wait()
	published := time.Since(start)
	close(stop)
	<-absorbed
	lay.finish()
	total, used := time.Since(start), cpu()-c0
	n := per * *pubs * *batch
	i, k := lay.lookup(last[:], uint32(lastKey&0xff), lastKey>>8)
	fmt.Printf("%-9s publish %8.0f/s  with lookups answering %8.0f/s  cpu %.2f µs/event  id %v key %v  rss %d MiB\n",
		*name, float64(n)/published.Seconds(), float64(n)/total.Seconds(), float64(used.Microseconds())/float64(n), i, k, rss())
	must(os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0o200))
	t := time.Now()
	got := lay.scan(3)
	fmt.Printf("%-9s cold scan of one topic in ten: %d events, %8.0f/s\n", *name, got, float64(got)/time.Since(t).Seconds())
	t = time.Now()
	written := lay.expire()
	fmt.Printf("%-9s expire nine topics of ten: %v, %d MiB written, disk now %d MiB  rss %d MiB\n", *name, time.Since(t).Round(time.Millisecond), written>>20, du(*dir)>>20, rss())
	must(os.RemoveAll(*dir))
}

func rss() int {
	b, err := os.ReadFile("/proc/self/statm")
	must(err)
	var a, r int
	_, err = fmt.Sscan(string(b), &a, &r)
	must(err)
	return r * os.Getpagesize() >> 20
}

func du(dir string) (n int64) {
	must(filepath.Walk(dir, func(_ string, i os.FileInfo, err error) error {
		if err == nil && !i.IsDir() {
			n += i.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}))
	return n
}
