package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/clipperhouse/displaywidth"
	"github.com/gdamore/tcell/v3"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/page"
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
	var parts []string
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
	text := strings.Join(parts, " · ")
	if with := s.URL + " · " + text; x+gap+displaywidth.String(with) <= w {
		text = with // which server it is, the user has said
	}
	s.write(x+gap, 0, w-x-gap, text, paint.Plain)
}

// keyNames are what the last line says of keys, on a wide terminal and on others.
var keyNames = []string{
	"Enter why · l log · p pause · w wake · s shell · x end · / filter · o order · a ended · ? keys · q quit",
	"Enter why · l log · p pause · w wake · s shell · x end · ? keys · q quit",
	"? keys · q quit",
}

// foot asks, says what came of the last action, or names the keys.
func (s *screen) foot(w, y int) {
	switch {
	case s.question != nil:
		s.say(w, y, s.question.text, paint.Bad)
	case s.typing:
		x := s.write(0, y, w-1, "/"+s.filter, paint.Bold)
		s.tty.ShowCursor(x, y)
		return
	case s.note.text != "":
		style := paint.Plain
		if s.note.bad {
			style = paint.Bad
		}
		s.say(w, y, s.note.text, style)
	case s.loaded.err != nil:
		s.say(w, y, "the list is old: "+s.loaded.err.Error(), paint.Bad)
	case s.page != nil:
		s.write(0, y, w, "arrows move · Esc goes back", paint.Dim)
	default:
		names := keyNames
		for len(names) > 1 && displaywidth.String(names[0]) > w {
			names = names[1:]
		}
		s.write(0, y, w, names[0], paint.Dim)
	}
	s.tty.HideCursor()
}

// say writes a text that ends on line y. What has no room there takes lines of the list.
func (s *screen) say(w, y int, text string, style tcell.Style) {
	text, _, more := strings.Cut(text, "\n")
	if more {
		text += " …"
	}
	lines := folded(text, w)
	lines = lines[:min(len(lines), y)]
	for n, line := range lines {
		at := y - len(lines) + 1 + n
		s.write(0, at, w, strings.Repeat(" ", w), style)
		s.write(0, at, w, line, style)
	}
}

// folded are the lines of a text on a terminal: those that are too long go on below.
func folded(text string, w int) (lines []string) {
	for line := range strings.SplitSeq(page.Fold(text, w), "\n") {
		for displaywidth.String(line) > w {
			begin := displaywidth.TruncateString(line, w, "")
			if begin == "" {
				break
			}
			lines, line = append(lines, begin), line[len(begin):]
		}
		lines = append(lines, line)
	}
	return lines
}

// drawPage shows a text instead of the list.
func (s *screen) drawPage(w int) {
	s.write(0, 1, w, s.page.title, paint.Bold)
	lines := folded(strings.TrimRight(s.page.text, "\n"), w)
	s.page.last = max(len(lines)-s.height(), 0)
	s.page.first = min(s.page.first, s.page.last)
	if s.page.follows {
		s.page.first = s.page.last
	}
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
	s.leaveOut(w, widths)
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

// leaveOut takes spare columns away until the others have room. They have the width 0.
func (s *screen) leaveOut(w int, widths []int) {
	over := -w - gap
	for _, width := range widths {
		over += width + gap
	}
	for _, name := range s.Spare {
		if n := slices.Index(s.Columns, name); over > 0 && n >= 0 {
			over -= widths[n] + gap
			widths[n] = 0
		}
	}
}

// line writes a row. The state of a sandbox has a colour, unless it is selected.
func (s *screen) line(w, y int, cells []string, widths []int, style tcell.Style, of *client.Info) {
	x := 0
	for n, text := range cells {
		if x >= w {
			return
		}
		if widths[n] == 0 {
			continue
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
