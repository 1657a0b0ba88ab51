package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"
)

// Options of a drainer. The zero value works.
type Options struct {
	// Name is for people, in claims, logs and status. Two drainers may have the
	// same. Default "outbox".
	Name string
	// Batch is how many rows are claimed and published at a time. Default 100.
	Batch int
	// Every is how soon an idle drainer looks again. While it finds nothing the
	// pause grows to six times that. A store that wakes is looked at every 15 s,
	// or every half of the Lease if that is shorter.
	// Default 250 ms.
	Every time.Duration
	// Lease is how long claimed rows belong to the drainer. One that is killed
	// holds them up for up to one and a half of it. Publishing a batch is given
	// up after two thirds of it. Default 30 s.
	Lease time.Duration
	// MinBackoff is the pause after the first refusal of a row; it doubles with
	// each, up to MaxBackoff, and varies by a fifth. Defaults 1 s and 5 min.
	MinBackoff, MaxBackoff time.Duration
	// MaxAttempts is after how many refusals a row has failed and waits for a
	// person. Default 0: it is tried for ever.
	MaxAttempts int
	// Keep is how long rows are kept after they were sent. Default 24 h;
	// negative: for ever.
	Keep time.Duration
	// MaxBytes is about how much is published in one batch; a row that is larger
	// goes alone. Default 4 MiB.
	MaxBytes int
	// StatsEvery is how often the rows are counted for the status. Default 10 s.
	StatsEvery time.Duration
	// Outage says of an error of the publisher that it is not about the rows:
	// then no attempt is counted, and all of them wait. It is asked first; what
	// it does not know is judged by its kind. Default nil.
	Outage func(error) bool
	// Logger is told of outages, refused and failed rows. Default: none.
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	var bad []error
	refuse := func(name string, v any) { bad = append(bad, fmt.Errorf("%s %v is negative", name, v)) }
	def := func(name string, p *time.Duration, d time.Duration) {
		if *p < 0 {
			refuse(name, *p)
		}
		if *p == 0 {
			*p = d
		}
	}
	count := func(name string, p *int, d int) {
		if *p < 0 {
			refuse(name, *p)
		}
		if *p == 0 {
			*p = d
		}
	}
	def("Every", &o.Every, 250*time.Millisecond)
	def("Lease", &o.Lease, 30*time.Second)
	def("MinBackoff", &o.MinBackoff, time.Second)
	def("MaxBackoff", &o.MaxBackoff, max(5*time.Minute, o.MinBackoff))
	def("StatsEvery", &o.StatsEvery, 10*time.Second)
	count("Batch", &o.Batch, 100)
	count("MaxBytes", &o.MaxBytes, 4<<20)
	count("MaxAttempts", &o.MaxAttempts, 0)
	if o.Keep == 0 {
		o.Keep = 24 * time.Hour
	}
	if o.MaxBackoff < o.MinBackoff {
		bad = append(bad, fmt.Errorf("a MaxBackoff of %s is below the MinBackoff of %s", o.MaxBackoff, o.MinBackoff))
	}
	if o.Lease > 0 && o.Lease < 30*time.Millisecond {
		bad = append(bad, fmt.Errorf("a Lease of %s is below 30ms", o.Lease))
	}
	if o.Name == "" {
		o.Name = "outbox"
	}
	if !utf8.ValidString(o.Name) || len(o.Name) > 200 || strings.ContainsRune(o.Name, 0) {
		bad = append(bad, fmt.Errorf("the Name %.40q is not a text of up to 200 bytes", o.Name))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if len(bad) > 0 {
		return o, fmt.Errorf("drainer %s: %w", o.Name, errors.Join(bad...))
	}
	return o, nil
}
