package sleeps

import (
	"fmt"
	"strings"
	"time"

	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/internal/cli/paint"
)

const (
	labels = 17 // cells of the column with what a line is about
	bar    = 24 // cells of a bar that is full
)

// draw shows everything anew. The terminal gets what differs.
func (s *screen) draw() {
	w, h := s.tty.Size()
	s.tty.Clear()
	s.tty.HideCursor()
	x := paint.Text(s.tty, 0, 0, w, "drowse demo", paint.Bold)
	paint.Text(s.tty, x+2, 0, w-x-2, s.ID+" · "+s.URL, paint.Plain)
	state, style := s.state()
	y := 2
	for _, line := range []struct {
		label, text string
		style       tcell.Style
	}{
		{"the sandbox", state, style},
		{"takes of the host", s.host, paint.Plain},
		{"process", s.process(), paint.Plain},
		{"memory", s.kept(s.last.Memory), paint.Plain},
		{"files", s.kept(s.last.Files), paint.Plain},
	} {
		paint.Text(s.tty, 0, y, labels, line.label, paint.Dim)
		paint.Text(s.tty, labels+2, y, w-labels-2, line.text, line.style)
		y++
	}
	s.table(w, y+1, h-y-3)
	if h > 2 {
		paint.Text(s.tty, 0, h-1, w, "space puts it to sleep or wakes it now · q ends the demo", paint.Dim)
	}
	s.tty.Show()
}

// state says what the sandbox is doing, and what comes next.
func (s *screen) state() (string, tcell.Style) {
	left := s.until.Sub(s.now)
	switch s.phase {
	case awake:
		return fmt.Sprintf("is awake      %s  falls asleep in %s", filled(left, s.Awake), tenths(left)), paint.Running
	case fallingAsleep:
		return "falls asleep", paint.Moving
	case asleep:
		return fmt.Sprintf("sleeps        %s  a request wakes it in %s", filled(left, s.Asleep), tenths(left)), paint.Dim
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

func (s *screen) process() string {
	if s.last.PID == 0 {
		return ""
	}
	return fmt.Sprintf("pid %d, had counted to %d when it was asked last", s.last.PID, s.last.Count)
}

// kept says how something has come through the sleeps.
func (s *screen) kept(digest string) string {
	switch n := len(s.sleeps); {
	case digest == "":
		return ""
	case n == 0:
		return "sha256 " + digest
	case n == 1:
		return "sha256 " + digest + ", the same after 1 sleep"
	default:
		return fmt.Sprintf("sha256 %s, the same after %d sleeps", digest, n)
	}
}

// row is a line of the table.
const row = "%6s  %8s  %10s  %8s  %s"

// table lists the latest sleeps, newest first.
func (s *screen) table(w, y, height int) {
	if height < 2 || len(s.sleeps) == 0 {
		return
	}
	head := fmt.Sprintf(row, "SLEEP", "ASLEEP", "WRITTEN", "WOKEN IN", "COUNT")
	paint.Text(s.tty, 0, y, w, head, paint.Bold)
	for n := range min(height-1, len(s.sleeps)) {
		at := len(s.sleeps) - 1 - n
		z := s.sleeps[at]
		paint.Text(s.tty, 0, y+1+n, w, fmt.Sprintf(row, fmt.Sprint(at+1), tenths(z.Lasted), fmt.Sprintf("%.1f MiB", float64(z.Written)/(1<<20)),
			fmt.Sprintf("%d ms", z.After.FirstByte.Milliseconds()), fmt.Sprintf("%d, then %d", z.Before.Count, z.After.Count)), paint.Plain)
	}
}
