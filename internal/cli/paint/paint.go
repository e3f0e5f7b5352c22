// Package paint puts texts on a terminal's screen: cut where their room ends, and
// without the characters that do something to a terminal.
package paint

import (
	"strings"
	"unicode"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
)

// Colours are of the terminal's own palette, so that they fit its background.
var (
	Plain   = tcell.StyleDefault
	Bold    = Plain.Bold(true)
	Dim     = Plain.Dim(true)
	Bad     = Plain.Foreground(color.Red).Bold(true)
	Running = Plain.Foreground(color.Green)
	Moving  = Plain.Foreground(color.Yellow)
)

// Text puts the first line of a text at a place, cut at width cells, and returns
// where it ends.
func Text(tty tcell.Screen, x, y, width int, text string, style tcell.Style) int {
	text, _, more := strings.Cut(text, "\n")
	text = strings.Map(visible, text)
	end := x + width
	for text != "" && x < end {
		rest, wide := tty.Put(x, y, text, style)
		if wide == 0 { // outside the screen, or nothing that could be seen
			return x
		}
		x, text = x+wide, rest
	}
	if text != "" || more {
		tty.Put(end-1, y, "…", style)
	}
	return x
}

// visible puts something that can be seen in the place of a character that only
// does something to a terminal. Errors quote what tenants have written.
func visible(r rune) rune {
	if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
		return unicode.ReplacementChar
	}
	return r
}
