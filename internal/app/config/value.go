package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is a place in a [Config] that takes text.
type value interface {
	set(s string) error
	text() string
}

// list is a value of several texts.
type list interface {
	value
	setAll(all []string) error
	all() []string
}

// textValue takes any text that its check lets pass.
type textValue struct {
	at     *string
	check  func(string) error
	needed bool // it must not be empty
}

func (v textValue) set(s string) error {
	if v.needed && s == "" {
		return errors.New("it must not be empty")
	}
	if v.check != nil && s != "" {
		if err := v.check(s); err != nil {
			return err
		}
	}
	*v.at = s
	return nil
}

func (v textValue) text() string { return *v.at }

// boolValue takes true and false.
type boolValue struct{ at *bool }

func (v boolValue) set(s string) error {
	switch s {
	case "true":
		*v.at = true
	case "false":
		*v.at = false
	default:
		return fmt.Errorf("%q is neither true nor false", s)
	}
	return nil
}

func (v boolValue) text() string { return strconv.FormatBool(*v.at) }

// intValue takes whole numbers within bounds.
type intValue struct {
	at          *int
	least, most int
}

func (v intValue) set(s string) (err error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < v.least || n > v.most {
		return fmt.Errorf("%q is no number from %d to %d", s, v.least, v.most)
	}
	*v.at = n
	return nil
}

func (v intValue) text() string { return strconv.Itoa(*v.at) }

// durationValue takes durations that are not negative.
type durationValue struct{ at *time.Duration }

func (v durationValue) set(s string) (err error) {
	d, err := ParseDuration(s)
	if err == nil {
		*v.at = d
	}
	return err
}

func (v durationValue) text() string { return v.at.String() }

// sizeValue takes numbers of bytes.
type sizeValue struct {
	at          *int
	least, most int64
}

func (v sizeValue) set(s string) error {
	n, err := ParseSize(s)
	if err != nil {
		return err
	}
	if n < v.least || n > v.most {
		return fmt.Errorf("%s is not within %s and %s", s, formatSize(v.least), formatSize(v.most))
	}
	*v.at = int(n)
	return nil
}

func (v sizeValue) text() string { return formatSize(int64(*v.at)) }

// rateValue takes rates.
type rateValue struct{ at *float64 }

func (v rateValue) set(s string) (err error) {
	r, err := ParseRate(s)
	if err == nil {
		*v.at = r
	}
	return err
}

func (v rateValue) text() string { return formatRate(*v.at) }

// listValue takes texts, joined by commas where there is no list.
type listValue struct {
	at    *[]string
	check func(string) error
}

func (v listValue) set(s string) error {
	if s == "" {
		return v.setAll(nil)
	}
	return v.setAll(strings.Split(s, ","))
}

func (v listValue) setAll(all []string) error {
	out := make([]string, 0, len(all))
	for _, s := range all {
		s = strings.TrimSpace(s)
		if err := v.check(s); err != nil {
			return err
		}
		out = append(out, s)
	}
	*v.at = out
	return nil
}

func (v listValue) text() string { return strings.Join(*v.at, ",") }

func (v listValue) all() []string { return slices.Clone(*v.at) }

// oneOf is a check for one of a few words.
func oneOf(words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is none of %s", s, strings.Join(words, ", "))
		}
		return nil
	}
}

// ParseDuration reads a duration such as 90s, 72h, 3d or 1d12h. It is not
// negative, and 0 needs no unit.
func ParseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is no duration such as 90s, 72h or 3d", s)
	rest, days := s, int64(0)
	if n, after, found := strings.Cut(s, "d"); found {
		var err error
		if days, err = strconv.ParseInt(n, 10, 32); err != nil || days < 0 {
			return 0, bad
		}
		if rest = after; rest == "" {
			rest = "0"
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
		return 0, bad
	}
	const day = int64(24 * time.Hour)
	if days > (math.MaxInt64-int64(d))/day {
		return 0, fmt.Errorf("%q is longer than %d days", s, math.MaxInt64/day)
	}
	return time.Duration(days*day) + d, nil
}

var units = []struct {
	name string
	n    int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// ParseSize reads a number of bytes such as 1MiB, 1.5GB or 4096.
func ParseSize(s string) (int64, error) {
	for _, u := range units {
		n, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		if whole, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64); err == nil && whole >= 0 {
			if whole > math.MaxInt64/u.n {
				return 0, fmt.Errorf("%q is too large", s)
			}
			return whole * u.n, nil
		}
		f, err := decimal(strings.TrimSpace(n))
		if err != nil || f*float64(u.n) >= math.MaxInt64 {
			break
		}
		return int64(f * float64(u.n)), nil
	}
	return 0, fmt.Errorf("%q is no size such as 1MiB, 500MB or 4096", s)
}

// decimal reads digits with a point among them, and nothing else that
// strconv takes.
func decimal(s string) (float64, error) {
	if strings.Trim(s, "0123456789.") != "" {
		return 0, errors.New("no number")
	}
	return strconv.ParseFloat(s, 64)
}

func formatSize(n int64) string {
	for _, u := range units {
		if n >= u.n && n%u.n == 0 && n > 0 {
			return strconv.FormatInt(n/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// ParseRate reads how many a second: 5000/s, 300/m, 10/h, or 0 for no limit.
func ParseRate(s string) (float64, error) {
	if s == "0" {
		return 0, nil
	}
	n, per, _ := strings.Cut(s, "/")
	seconds := map[string]float64{"s": 1, "m": 60, "h": 3600}[strings.TrimSpace(per)]
	f, err := decimal(strings.TrimSpace(n))
	if err != nil || seconds == 0 || f <= 0 || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%q is no rate such as 5000/s, 300/m or 0 for no limit", s)
	}
	return f / seconds, nil
}

func formatRate(r float64) string {
	if r == 0 {
		return "0"
	}
	for _, u := range []struct {
		name string
		n    float64
	}{{"s", 1}, {"m", 60}, {"h", 3600}} {
		if x := r * u.n; x == math.Trunc(x) {
			return strconv.FormatFloat(x, 'f', -1, 64) + "/" + u.name
		}
	}
	return strconv.FormatFloat(r, 'f', -1, 64) + "/s"
}
