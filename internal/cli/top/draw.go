package top

import (
	"fmt"
	"strings"

	"github.com/clipperhouse/displaywidth"
	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/paint"
)

// gap is how far columns are apart.
const gap = 2

// height is how many lines are between the first two and the last.
func (s *screen) height() int {
	_, h := s.tty.Size()
	return max(h-3, 0)
}

// draw shows everything anew. The terminal gets what differs.
func (s *screen) draw() {
	w, h := s.tty.Size()
	s.tty.Clear()
	s.head(w)
	if s.page != nil {
		s.drawPage(w)
	} else {
		s.drawList(w)
	}
	if h > 2 {
		s.foot(w, h-1)
	}
	s.tty.Show()
}

// write puts a text at a place, cut at width cells, and returns where it ends.
func (s *screen) write(x, y, width int, text string, style tcell.Style) int {
	return paint.Text(s.tty, x, y, width, text, style)
}

// head says which server this is, and how it does.
func (s *screen) head(w int) {
	count := map[string]int{}
	for _, i := range s.list {
		switch {
		case i.Phase != "":
			count["changing"]++
		default:
			count[string(i.State)]++
		}
	}
	parts := []string{s.URL}
	for _, state := range []string{"running", "paused", "changing", "pending", "terminated"} {
		if n := count[state]; n > 0 || state == "running" || state == "paused" {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	parts = append(parts, fmt.Sprintf("wakes %d/min, pauses %d/min", s.rate("resumed"), s.rate("paused")))
	if s.filter != "" {
		parts = append(parts, fmt.Sprintf("%d have %q", len(s.shown), s.filter))
	}
	x := s.write(0, 0, w, "drowse top", paint.Bold)
	s.write(x+gap, 0, w-x-gap, strings.Join(parts, " · "), paint.Plain)
}

// foot asks, says what came of the last action, or names the keys.
func (s *screen) foot(w, y int) {
	switch {
	case s.question != nil:
		s.write(0, y, w, s.question.text, paint.Bad)
	case s.typing:
		x := s.write(0, y, w-1, "/"+s.filter, paint.Bold)
		s.tty.ShowCursor(x, y)
		return
	case s.note.text != "":
		style := paint.Plain
		if s.note.bad {
			style = paint.Bad
		}
		s.write(0, y, w, s.note.text, style)
	case s.loaded.err != nil:
		s.write(0, y, w, "the list is old: "+s.loaded.err.Error(), paint.Bad)
	case s.page != nil:
		s.write(0, y, w, "arrows move · Esc goes back", paint.Dim)
	default:
		s.write(0, y, w, "Enter why · p pause · w wake · s shell · x end · / filter · o order · a ended · ? keys · q quit", paint.Dim)
	}
	s.tty.HideCursor()
}

// drawPage shows a text instead of the list.
func (s *screen) drawPage(w int) {
	s.write(0, 1, w, s.page.title, paint.Bold)
	lines := strings.Split(strings.TrimRight(s.page.text, "\n"), "\n")
	s.page.first = max(min(s.page.first, len(lines)-s.height()), 0)
	for i, line := range lines[s.page.first:] {
		if i >= s.height() {
			break
		}
		s.write(0, 2+i, w, line, paint.Plain)
	}
}

// drawList shows the sandboxes that have a place, the selected one among them.
func (s *screen) drawList(w int) {
	at, height := s.index(), s.height()
	s.first = max(min(s.first, at, len(s.shown)-height), at-height+1, 0)
	some := s.shown[s.first:min(s.first+height, len(s.shown))]
	rows := make([][]string, len(some))
	for n, i := range some {
		rows[n] = s.Row(i, s.now)
	}
	widths := widthsOf(s.Columns, rows)
	s.line(w, 1, s.Columns, widths, paint.Bold.Underline(true), nil)
	for n, row := range rows {
		i := some[n]
		style := paint.Plain
		if s.first+n == at {
			style = style.Reverse(true)
			s.write(0, 2+n, w, strings.Repeat(" ", w), style)
		}
		s.line(w, 2+n, row, widths, style, &i)
	}
	if len(s.shown) == 0 {
		s.write(0, 2, w, empty(s.filter), paint.Dim)
	}
}

func empty(filter string) string {
	if filter != "" {
		return "no sandbox has this text; Esc shows all"
	}
	return "no sandboxes: drowse create makes one"
}

// widthsOf is how wide columns must be.
func widthsOf(columns []string, rows [][]string) []int {
	widths := make([]int, len(columns))
	for n, c := range columns {
		widths[n] = len(c)
	}
	for _, row := range rows {
		for n, text := range row {
			widths[n] = max(widths[n], displaywidth.String(text))
		}
	}
	return widths
}

// line writes a row. The state of a sandbox has a colour, unless it is selected.
func (s *screen) line(w, y int, cells []string, widths []int, style tcell.Style, of *client.Info) {
	x := 0
	for n, text := range cells {
		if x >= w {
			return
		}
		its := style
		if of != nil && n == 1 && style == paint.Plain {
			its = styleOf(*of)
		}
		s.write(x, y, min(widths[n], w-x), text, its)
		x += widths[n] + gap
	}
}

func styleOf(i client.Info) tcell.Style {
	switch {
	case i.Phase != "":
		return paint.Moving
	case i.State == client.Running:
		return paint.Running
	}
	return paint.Dim
}
