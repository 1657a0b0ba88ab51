package app

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// progress is a bar on a terminal, and nothing elsewhere. It takes at most 40
// columns and no control sequence but carriage return, so that every terminal
// can show it. It is safe for concurrent use.
type progress struct {
	out   io.Writer // nil where there is no terminal
	label string

	mu    sync.Mutex
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
	if p.out == nil || total <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(progressEvery)
	done = min(done, total)
	n := int(barWidth * done / total)
	p.draw(fmt.Sprintf("%-10s [%s%s] %3d%%", p.label, strings.Repeat("#", n), strings.Repeat(".", barWidth-n), 100*done/total))
}

// say draws a text in the place of a bar, where nobody knows how much there is.
func (p *progress) say(format string, args ...any) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(progressEvery)
	p.draw(clipped(fmt.Sprintf("%-10s ", p.label)+fmt.Sprintf(format, args...), progressWidth))
}

func (p *progress) draw(text string) {
	fmt.Fprintf(p.out, "\r%-*s", progressWidth, text)
	p.drawn = true
}

// clear takes the bar away, before other output and at the end.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprintf(p.out, "\r%*s\r", progressWidth, "")
		p.drawn = false
	}
}
