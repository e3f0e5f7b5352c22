package services

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/drowse-dev/drowse/internal/service"
)

// log keeps the last lines that a service has written.
type log struct {
	mu      sync.Mutex
	lines   []service.Line // oldest first
	bytes   int
	seq     int64
	partial []byte // what follows the last end of a line
}

// Write implements io.Writer. It never fails.
func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n')
		part := rest
		if end >= 0 {
			part = rest[:end]
		}
		part = part[:min(len(part), service.MaxLine-len(l.partial))]
		l.partial, rest = append(l.partial, part...), rest[len(part):]
		ended := len(rest) > 0 && rest[0] == '\n'
		if ended {
			rest = rest[1:]
		}
		if ended || len(l.partial) == service.MaxLine {
			l.flush()
		}
	}
	return len(b), nil
}

// say adds a line of the agent's own.
func (l *log) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.flush()
	}
	text := fmt.Sprintf(format, args...)
	l.partial = append(l.partial, text[:min(len(text), service.MaxLine)]...)
	l.flush()
}

// flush makes a line of what there is. It is called with mu held.
func (l *log) flush() {
	l.seq++
	l.lines = append(l.lines, service.Line{Seq: l.seq, At: now(), Text: string(l.partial)})
	l.bytes += len(l.partial)
	l.partial = l.partial[:0]
	if len(l.lines) <= service.MaxLines && l.bytes <= service.MaxLogBytes {
		return
	}
	// More than must go goes at once, so that not every line moves all others.
	drop := 0
	for len(l.lines)-drop > service.MaxLines*3/4 || l.bytes > service.MaxLogBytes*3/4 {
		l.bytes -= len(l.lines[drop].Text)
		drop++
	}
	l.lines = slices.Delete(l.lines, 0, drop)
}

// part ends the line that is under way: what follows is of another process.
func (l *log) part() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.flush()
	}
}

// after returns the lines that follow one of them, no more than most of the last.
func (l *log) after(seq int64, most int) []service.Line {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := slices.BinarySearchFunc(l.lines, seq+1, func(line service.Line, seq int64) int { return cmp.Compare(line.Seq, seq) })
	lines := l.lines[first:]
	return slices.Clone(lines[max(len(lines)-most, 0):])
}
