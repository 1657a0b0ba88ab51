package app

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// progress is a bar on a terminal, and nothing elsewhere. It takes at most 40
// columns and no control sequence but carriage return, so that every terminal
// can show it.
type progress struct {
	out   io.Writer // nil where there is no terminal
	label string
	drawn bool
	next  time.Time
}

const (
	barWidth      = 20
	progressWidth = 39
	progressEvery = 100 * time.Millisecond
)

func (a *app) progress(label string) *progress {
	p := &progress{label: label}
	if _, terminal := terminalWidth(a.stderr); terminal {
		p.out = a.stderr
		p.draw(label + " …")
	}
	return p
}

// show draws how much is done, not more often than people can see.
func (p *progress) show(done, total int64) {
	if p.out == nil || total <= 0 || time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(progressEvery)
	n := int(barWidth * done / total)
	p.draw(fmt.Sprintf("%-10s [%s%s] %3d%%", p.label, strings.Repeat("#", n), strings.Repeat(".", barWidth-n), 100*done/total))
}

func (p *progress) draw(text string) {
	fmt.Fprintf(p.out, "\r%-*s", progressWidth, text)
	p.drawn = true
}

// clear takes the bar away, before other output and at the end.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprintf(p.out, "\r%*s\r", progressWidth, "")
		p.drawn = false
	}
}
