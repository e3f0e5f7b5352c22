package sleeps

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/internal/cli/paint"
)

const (
	labels = 17 // cells of the column with what a line is about
	bar    = 16 // cells of a bar that is full
)

// draw shows everything anew. The terminal gets what differs.
func (s *screen) draw() {
	w, h := s.tty.Size()
	s.tty.Clear()
	s.tty.HideCursor()
	x := paint.Text(s.tty, 0, 0, w, "drowse demo", paint.Bold)
	paint.Text(s.tty, x+2, 0, w-x-2, s.URL, paint.Plain)
	y := 2
	for _, l := range s.lives {
		state, style := l.state(s.now)
		for _, line := range []struct {
			label, text string
			style       tcell.Style
		}{
			{"sandbox", l.sandbox.ID(), paint.Bold},
			{"", state, style},
			{"takes of the host", l.shown.host, paint.Plain},
			{"process", l.shown.process(), paint.Plain},
			{"memory", l.shown.kept(l.shown.last.Memory), paint.Plain},
			{"files", l.shown.kept(l.shown.last.Files), paint.Plain},
		} {
			paint.Text(s.tty, 0, y, labels, line.label, paint.Dim)
			paint.Text(s.tty, labels+2, y, w-labels-2, line.text, line.style)
			y++
		}
		y++
	}
	s.table(w, y, h-y-2)
	if h > 2 {
		paint.Text(s.tty, 0, h-1, w, "space puts them to sleep or wakes them now · q ends the demo", paint.Dim)
	}
	s.tty.Show()
}

// state says what the sandbox is doing, and what comes next.
func (l *life) state(now time.Time) (string, tcell.Style) {
	left := l.shown.until.Sub(now)
	switch l.shown.phase {
	case awake:
		return fmt.Sprintf("is awake      %s  falls asleep in %s", filled(left, l.Awake), tenths(left)), paint.Running
	case fallingAsleep:
		return "falls asleep", paint.Moving
	case asleep:
		return fmt.Sprintf("sleeps        %s  a request wakes it in %s", filled(left, l.Asleep), tenths(left)), paint.Dim
	case waking:
		return "wakes", paint.Moving
	}
	return "starts", paint.Moving
}

// filled is a bar of what is left of all.
func filled(left, all time.Duration) string {
	n := int(int64(bar) * int64(max(left, 0)) / int64(max(all, 1)))
	n = min(n, bar)
	return strings.Repeat("█", n) + strings.Repeat("░", bar-n)
}

func tenths(d time.Duration) string { return fmt.Sprintf("%.1f s", max(d, 0).Seconds()) }

func (s *shown) process() string {
	if s.last.PID == 0 {
		return ""
	}
	return fmt.Sprintf("pid %d, had counted to %d when it was asked last", s.last.PID, s.last.Count)
}

// kept says how something has come through the sleeps. The beginning of its digest is
// for people, to see what it is.
func (s *shown) kept(what []byte) string {
	if what == nil {
		return ""
	}
	text := fmt.Sprintf("%d bytes, sha256 %.4x…", len(what), sha256.Sum256(what))
	switch s.sleeps {
	case 0:
		return text
	case 1:
		return text + ", each the same after 1 sleep"
	}
	return fmt.Sprintf("%s, each the same after %d sleeps", text, s.sleeps)
}

// row is a line of the table.
const row = "%6s  %-21s  %8s  %10s  %8s  %s"

// table lists the latest sleeps, newest first.
func (s *screen) table(w, y, height int) {
	if height < 2 || len(s.sleeps) == 0 {
		return
	}
	head := fmt.Sprintf(row, "SLEEP", "SANDBOX", "ASLEEP", "WRITTEN", "WOKEN IN", "COUNT")
	paint.Text(s.tty, 0, y, w, head, paint.Bold)
	for n := range min(height-1, len(s.sleeps)) {
		at := len(s.sleeps) - 1 - n
		z := s.sleeps[at]
		paint.Text(s.tty, 0, y+1+n, w, fmt.Sprintf(row, fmt.Sprint(at+1), z.ID, tenths(z.Lasted), fmt.Sprintf("%.1f MiB", float64(z.Written)/(1<<20)),
			fmt.Sprintf("%d ms", z.After.FirstByte.Milliseconds()), fmt.Sprintf("%d, then %d", z.Before.Count, z.After.Count)), paint.Plain)
	}
}
