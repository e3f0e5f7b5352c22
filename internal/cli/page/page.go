// Package page lays text out for a terminal of a number of columns, 0 for a pipe, where
// lines are as long as they are. Nothing is cut: prose is wrapped between words, and a
// word that has no room, such as an id, goes on over the columns to its right. Only a
// word that is longer than the terminal is wide makes a line that is.
package page

import (
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

const (
	gap      = 2
	indent   = 4  // where a cell begins that is too long for its own place
	least    = 8  // the width that a column has in any case
	readable = 20 // the width to which prose is wrapped if it can be
)

// Table returns rows in columns. The cells have no tabs and no ends of lines.
func Table(rows [][]string, columns int) string {
	var b, trimmed strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, gap, ' ', 0)
	for _, row := range rows {
		_, _ = tw.Write([]byte(strings.Join(row, "\t") + "\n"))
	}
	_ = tw.Flush()
	widest := 0
	for line := range strings.Lines(b.String()) {
		line = strings.TrimRight(line, " \n")
		widest = max(widest, utf8.RuneCountInString(line))
		trimmed.WriteString(line + "\n")
	}
	if columns == 0 || widest <= columns {
		return trimmed.String()
	}
	widths := shrink(rows, columns)
	trimmed.Reset()
	for _, row := range rows {
		trimmed.WriteString(Row(row, widths, columns))
	}
	return trimmed.String()
}

// shrink returns how wide columns are that fit. Prose is wrapped to a readable width,
// then the longest word stands over, then prose is wrapped more, and at last any word
// stands over.
func shrink(rows [][]string, columns int) []int {
	var widths, words, prose []int
	for _, row := range rows {
		for i, text := range row {
			if i == len(widths) {
				widths, words, prose = append(widths, 0), append(words, 0), append(prose, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
			words[i] = max(words[i], longest(wrap(text, 1)))
			prose[i] = max(words[i], min(widths[i], readable))
		}
	}
	over := -columns - gap
	for _, w := range widths {
		over += w + gap
	}
	over = wrapTo(widths, prose, over)
	if longest := slices.Max(words); longest > readable {
		over = standOver(widths, slices.Index(words, longest), over)
	}
	over = wrapTo(widths, words, over)
	for range widths {
		over = standOver(widths, slices.Index(widths, slices.Max(widths)), over)
	}
	return widths // what is too much even so goes below
}

// wrapTo makes the widest columns narrower, each down to its floor, and returns what is
// still too much.
func wrapTo(widths, floors []int, over int) int {
	for ; over > 0; over-- {
		widest := -1
		for i, w := range widths {
			if w > floors[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return over
}

// standOver makes a column as narrow as it must be, and returns what is still too much.
func standOver(widths []int, i, over int) int {
	less := max(min(over, widths[i]-least), 0)
	widths[i] -= less
	return over - less
}

// Row returns one row for a terminal whose cells are in columns of these widths.
func Row(cells []string, widths []int, columns int) string {
	var lines []string
	top, start := 0, 0
	for i, text := range cells {
		room := widths[i]
		if i == len(cells)-1 {
			room = max(columns-start, least)
		}
		parts, at := wrap(text, room), start
		if i > 0 && start+longest(parts) > columns {
			at = min(indent, start)
			parts = wrap(text, columns-at)
		}
		for start += widths[i] + gap; !free(lines, top, at, len(parts)); {
			top++
		}
		for n, part := range parts {
			if top+n == len(lines) {
				lines = append(lines, "")
			}
			if part != "" {
				lines[top+n] += strings.Repeat(" ", at-utf8.RuneCountInString(lines[top+n])) + part
			}
		}
	}
	return strings.TrimRight(strings.Join(lines, "\n"), " ") + "\n"
}

// free reports whether a number of lines have nothing where a cell would begin.
func free(lines []string, top, at, number int) bool {
	for n := top; n < min(top+number, len(lines)); n++ {
		if used := utf8.RuneCountInString(lines[n]); used > 0 && used+gap > at {
			return false
		}
	}
	return true
}

// Fold wraps lines that are longer than a terminal is wide. They go on below the last
// column that they seem to have.
func Fold(text string, columns int) string {
	if columns == 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, end := strings.CutSuffix(line, "\n")
		if utf8.RuneCountInString(line) > columns {
			at := hang(line, columns)
			margin := strings.Repeat(" ", max(at, gap))
			rest := wrap(margin+string([]rune(line)[at:]), columns)
			line = string([]rune(line)[:at]) + strings.TrimPrefix(strings.Join(rest, "\n"), margin)
		}
		b.WriteString(line)
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// hang returns where the last column of a line begins, in the first half of it.
func hang(line string, columns int) int {
	at, spaces := 0, 0
	for i, r := range []rune(line)[:columns/2] {
		switch {
		case r == ' ':
			spaces++
			continue
		case spaces >= gap:
			at = i
		}
		spaces = 0
	}
	return at
}

// wrap parts a text between words, so that no part with more than one word is wider. A
// number stays with its unit, and the parts have the indentation of the text.
func wrap(text string, width int) []string {
	if utf8.RuneCountInString(text) <= width {
		return []string{text}
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return []string{text}
	}
	for i := len(words) - 2; i >= 0; i-- {
		if strings.Trim(words[i], "0123456789.,") == "" {
			words = slices.Replace(words, i, i+2, words[i]+" "+words[i+1])
		}
	}
	margin := text[:len(text)-len(strings.TrimLeft(text, " "))]
	parts := []string{margin + words[0]}
	for _, word := range words[1:] {
		last := &parts[len(parts)-1]
		if utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) <= width {
			*last += " " + word
			continue
		}
		parts = append(parts, margin+word)
	}
	return parts
}

func longest(parts []string) (n int) {
	for _, part := range parts {
		n = max(n, utf8.RuneCountInString(part))
	}
	return n
}
