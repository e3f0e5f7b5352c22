// Command picture runs a command and draws what it prints as it came: an animated
// SVG, in which each line appears when it did.
//
//	picture -o docs/demo.svg -title 'sudo drowse demo' bin/drowse demo
package main

import (
	"bufio"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Sizes of the picture, in pixels.
const (
	charWidth  = 9 // of a monospaced font at fontSize, with some room
	fontSize   = 14
	lineHeight = 22
	margin     = 20
	columns    = 88
)

// line is one that was printed, and when.
type line struct {
	text string
	at   time.Duration
}

func main() {
	out := flag.String("o", "", "the `file` to write")
	title := flag.String("title", "", "the command as the picture shows it")
	flag.Parse()
	if *out == "" || *title == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	lines, err := record(flag.Args())
	if err == nil {
		err = os.WriteFile(*out, []byte(draw(*title, lines)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// record runs a command and notes when each line came.
func record(args []string) ([]line, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var lines []line
	for in := bufio.NewScanner(stdout); in.Scan(); {
		lines = append(lines, line{in.Text(), time.Since(begin)})
	}
	return lines, cmd.Wait()
}

const style = `
svg { font: %dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
rect { fill: #f6f8fa; stroke: #d0d7de; }
text { fill: #1f2328; white-space: pre; }
.asleep { fill: #6639ba; } .awake { fill: #1a7f37; } .typed { font-weight: bold; }
.line { opacity: 0; animation: appear 1ms forwards; }
@keyframes appear { to { opacity: 1; } }
@media (prefers-reduced-motion: reduce) { .line { opacity: 1; animation: none; } }
@media (prefers-color-scheme: dark) {
  rect { fill: #0d1117; stroke: #30363d; } text { fill: #e6edf3; }
  .asleep { fill: #d2a8ff; } .awake { fill: #7ee787; }
}
`

// draw makes the picture. Its description has the same words, for those who do not
// see it.
func draw(title string, lines []line) string {
	var b, said strings.Builder
	y := margin + fontSize
	text := func(class string, at time.Duration, text string) {
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" class=%q style=\"animation-delay: %dms\">%s</text>\n", margin, y, class, at.Milliseconds(), escape(text))
		y += lineHeight
	}
	text("typed", 0, "$ "+title)
	for _, l := range lines {
		words := elsewhere.ReplaceAllString(l.text, "")
		said.WriteString(words + "\n")
		text("line "+class(words), l.at, cut(words))
	}
	width, height := 2*margin+columns*charWidth, y+margin-fontSize
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title said">
<title id="title">%[3]s</title>
<desc id="said">%[4]s</desc>
<style>%[5]s</style>
<rect x="0.5" y="0.5" width="%[6]d" height="%[7]d" rx="8"/>
%[8]s</svg>
`, width, height, escape(title), escape(said.String()), fmt.Sprintf(style, fontSize), width-1, height-1, b.String())
}

// elsewhere are words that mean nothing on another machine.
var elsewhere = regexp.MustCompile(`; log \S+$`)

// cut returns as much of a line as the picture has room for.
func cut(text string) string {
	if r := []rune(text); len(r) > columns {
		return string(r[:columns-1]) + "…"
	}
	return text
}

// class is how a line looks.
func class(text string) string {
	switch {
	case strings.Contains(text, "asleep"), strings.Contains(text, "memory is free"):
		return "asleep"
	case strings.Contains(text, "woken"), strings.Contains(text, "carries on"), strings.Contains(text, "is the same"):
		return "awake"
	}
	return ""
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
