package sample

import (
	"fmt"
	"strings"
)

// format makes a string of a format; of one that is not known, anything.
func (m *Maker) format(name string) string {
	switch name {
	case "date":
		return m.date()
	case "time":
		return m.time()
	case "date-time":
		return m.date() + pick(m, []string{"T", "T", "t"}) + m.time()
	case "duration":
		return pick(m, []string{"P1Y", "PT0S", "P3Y6M4DT12H30M5S", "P4W", fmt.Sprintf("PT%dM", m.rng.IntN(1000))})
	case "period":
		return m.format("date-time") + "/" + pick(m, []string{m.format("date-time"), m.format("duration")})
	case "email":
		return pick(m, []string{"a", "first.last", "x+y", `"a b"`, "o'neil", fmt.Sprint("u", m.rng.IntN(1000))}) + "@" + pick(m, []string{m.host(), "[127.0.0.1]"})
	case "hostname":
		return m.host()
	case "ipv4":
		return fmt.Sprintf("%d.%d.%d.%d", m.rng.IntN(256), m.rng.IntN(256), m.rng.IntN(2)*255, m.rng.IntN(256))
	case "ipv6":
		return pick(m, []string{"::", "::1", "2001:db8::" + fmt.Sprintf("%x", m.rng.IntN(65536)), "::ffff:192.0.2.1", "1:2:3:4:5:6:7:8"})
	case "uri", "iri":
		return pick(m, []string{"https://" + m.host() + "/a?b=c#d", "urn:x:" + fmt.Sprint(m.rng.IntN(1000)), "mailto:a@b.c", "http://[::1]:80/", "file:///x"})
	case "uri-reference", "iri-reference":
		return pick(m, []string{"", "/a/b", "../x?y", "#z", "https://" + m.host(), fmt.Sprint("p", m.rng.IntN(1000))})
	case "uri-template":
		return pick(m, []string{"", "/a/{id}", "https://" + m.host() + "/{x}/{y}", fmt.Sprintf("/%d", m.rng.IntN(1000))})
	case "uuid":
		s := fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", m.rng.Uint32(), m.rng.IntN(65536), m.rng.IntN(65536), m.rng.IntN(65536), m.rng.Uint64()&(1<<48-1))
		if m.chance(4) {
			return strings.ToUpper(s)
		}
		return s
	case "json-pointer":
		return pick(m, []string{"", "/", "/a/0", "/~0~1", "/é/" + fmt.Sprint(m.rng.IntN(1000))})
	case "relative-json-pointer":
		return pick(m, []string{"0", "1/a", "2#", fmt.Sprint(m.rng.IntN(1000)+1, "/x")})
	case "regex":
		return pick(m, []string{"", "a+", "^x$", "[a-z]{" + fmt.Sprint(m.rng.IntN(100)) + "}"})
	case "semver":
		return fmt.Sprintf("%d.%d.%d", m.rng.IntN(100), m.rng.IntN(100), m.rng.IntN(100)) + pick(m, []string{"", "-rc.1", "+build.5", "-a-b+c"})
	}
	return m.letters(m.rng.IntN(12))
}

func (m *Maker) date() string {
	return pick(m, []string{"2024-02-29", "1970-01-01", "0001-01-01", "9999-12-31", fmt.Sprintf("20%02d-%02d-%02d", m.rng.IntN(100), m.rng.IntN(12)+1, m.rng.IntN(28)+1)})
}

func (m *Maker) time() string {
	return fmt.Sprintf("%02d:%02d:%02d", m.rng.IntN(24), m.rng.IntN(60), m.rng.IntN(60)) +
		pick(m, []string{"", "", ".5", ".123456789"}) + pick(m, []string{"Z", "Z", "z", "+00:00", "-08:30", "+14:00"})
}

func (m *Maker) host() string {
	return pick(m, []string{"a", "localhost", "example.com", "xn--bcher-kva.example", fmt.Sprintf("h%d.example.org", m.rng.IntN(1000))})
}
