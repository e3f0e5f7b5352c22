package build

import (
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/human"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
)

// Level is how much a line of a log matters.
type Level string

// The levels.
const (
	Debug Level = "debug"
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Line is a line of the log of a build.
type Line struct {
	At    time.Time
	Level Level
	Text  string
	Step  string // "base", "finalize", or the number of a step from 1; empty for none
}

// Bounds of the log of one build. Commands can say as much as they like.
const (
	mostLines = 10_000
	mostBytes = 1 << 20
	mostLine  = 4 << 10
)

// journal is the log of a build.
type journal struct {
	mu    sync.Mutex
	lines []Line
	bytes int
	full  bool
}

// colours are the sequences by which programs talk to a terminal.
var colours = lazyregexp.New("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_])")

// add appends a line. What is past the bounds is left out, and that is said once.
func (j *journal) add(level Level, step, text string) {
	text = human.Line(colours.ReplaceAllString(text, ""), mostLine)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.full {
		return
	}
	if j.bytes += len(text) + 64; len(j.lines) >= mostLines || j.bytes > mostBytes {
		j.full = true
		level, text = Warn, "the log is full: the build goes on, and what it says is not kept"
	}
	j.lines = append(j.lines, Line{At: time.Now().UTC(), Level: level, Text: text, Step: step})
}

// from returns up to most lines after the first so many.
func (j *journal) from(offset, most int) []Line {
	j.mu.Lock()
	defer j.mu.Unlock()
	offset = min(max(offset, 0), len(j.lines))
	return append([]Line(nil), j.lines[offset:min(offset+most, len(j.lines))]...)
}

// speaker passes on what a command says, line by line.
type speaker struct {
	say  func(text string)
	mu   sync.Mutex
	rest string
}

// write takes a piece of output, which ends anywhere.
func (s *speaker) write(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest += text
	for {
		line, rest, whole := strings.Cut(s.rest, "\n")
		if !whole && len(s.rest) <= mostLine {
			return
		}
		if !whole {
			line, rest = s.rest[:mostLine], s.rest[mostLine:]
		}
		s.rest = rest
		s.emit(line)
	}
}

// emit passes on a line. Of one that a program has written over, the last counts.
func (s *speaker) emit(line string) {
	line = strings.TrimRight(line, "\r")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	s.say(line)
}

// end passes on what no line end came after.
func (s *speaker) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rest != "" {
		s.emit(s.rest)
		s.rest = ""
	}
}
