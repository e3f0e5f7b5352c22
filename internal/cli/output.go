package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/cli/page"
)

// errStdout tells a failure to write a result from that of a connection.
var errStdout = errors.New("write to stdout")

// stdout marks the errors of a writer with errStdout.
type stdout struct{ io.Writer }

func (s stdout) Write(b []byte) (int, error) {
	n, err := s.Writer.Write(b)
	if err != nil {
		err = fmt.Errorf("%w: %w", errStdout, err)
	}
	return n, err
}

// print writes a result: value as JSON, or what text writes.
func (a *app) print(value any, text func(w io.Writer)) error {
	if a.output == "json" {
		enc := json.NewEncoder(tame(a))
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	}
	s := sheet{columns: columnsOf(a.Stdout)}
	text(&s)
	_, err := io.WriteString(tame(a), page.Fold(s.String(), s.columns))
	return err
}

// sheet is what a result is written on: it knows how wide the terminal is, 0 for a
// pipe.
type sheet struct {
	strings.Builder
	columns int
}

// unfolded has lines stay as long as they are: those that somebody else wrote.
func unfolded(w io.Writer) {
	if s, ok := w.(*sheet); ok {
		s.columns = 0
	}
}

// tame returns where results are written that tenants had a part in, in the
// format of this invocation. What a command in a sandbox prints, and the contents
// of files, are not results: they go to Stdout as they are.
func tame(a *app) io.Writer { return tamed{to: a.Stdout, json: a.output == "json"} }

// tamed makes text harmless for a terminal. Each Write has whole characters, and
// whole lines where they are folded.
type tamed struct {
	to      io.Writer
	json    bool
	columns int // of the terminal for which lines are folded; 0 not to
}

// Write implements io.Writer.
func (t tamed) Write(b []byte) (int, error) {
	safe := page.Fold(harmless(string(b)), t.columns)
	if t.json {
		safe = harmlessJSON(string(b))
	}
	if _, err := io.WriteString(t.to, safe); err != nil {
		return 0, err
	}
	return len(b), nil
}

// folded is tame with lines that fit the terminal.
func folded(a *app) io.Writer {
	return tamed{to: a.Stdout, json: a.output == "json", columns: columnsOf(a.Stdout)}
}

// harmlessJSON is harmless for a text in JSON, which means the same afterwards.
// Its encoder escapes the control characters of ASCII, and no others.
func harmlessJSON(text string) string {
	if !strings.ContainsFunc(text, acts) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case !acts(r) || r == '\t' || r == '\r': // between values
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// harmless returns text for a terminal. Much of what a command prints comes from
// tenants: what would move the cursor, change colours, ring, or turn the direction
// of writing shows as an escape of Go's.
func harmless(text string) string {
	if !strings.ContainsFunc(text, acts) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		if acts(r) || r == utf8.RuneError && size == 1 {
			quoted := strconv.QuoteToASCII(text[i : i+size])
			b.WriteString(quoted[1 : len(quoted)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// acts reports whether a character does something to a terminal other than to be
// shown, but for the end of a line.
func acts(r rune) bool {
	return r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp))
}

// cell returns text for one cell of a table, which ends neither the cell nor the
// line.
func cell(text string) string {
	return strings.ReplaceAll(harmless(text), "\n", `\n`)
}

// table writes rows in columns.
func table(w io.Writer, rows [][]string) {
	safe := make([][]string, len(rows))
	for i, row := range rows {
		for _, text := range row {
			safe[i] = append(safe[i], cell(text))
		}
	}
	_, _ = io.WriteString(w, page.Table(safe, columnsFor(w)))
}

// columnsFor returns how wide the terminal is for which a result is written; 0 if it
// is for a pipe.
func columnsFor(w io.Writer) int {
	if s, ok := w.(*sheet); ok {
		return s.columns
	}
	return 0
}

// isNarrow reports whether a terminal has no room for what is told in other words too.
func isNarrow(columns int) bool { return columns > 0 && columns < 120 }

// wideVar adds the flag for more columns than a narrow terminal has room for.
func wideVar(cmd *cobra.Command, wide *bool) {
	cmd.Flags().BoolVar(wide, "wide", false, "show more columns, for a wide terminal")
}

// narrow reports whether a result is for a narrow terminal. If all columns are asked
// for, their lines are as long as they are.
func narrow(w io.Writer, wide bool) bool {
	if wide {
		unfolded(w)
	}
	return isNarrow(columnsFor(w))
}

// without returns a table without some of its columns.
func without(rows [][]string, headings ...string) [][]string {
	var list [][]string
	for _, row := range rows {
		var kept []string
		for i, text := range row {
			if !slices.Contains(headings, rows[0][i]) {
				kept = append(kept, text)
			}
		}
		list = append(list, kept)
	}
	return list
}

// span is a length of time as people say it: the two largest units.
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	const day = 24 * time.Hour
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// age is a length of time where there is little room: its largest unit.
func age(d time.Duration) string {
	text := span(d)
	return text[:strings.IndexFunc(text, unicode.IsLetter)+1]
}

func templateName(i client.Info) string {
	if i.Alias != "" {
		return i.Alias
	}
	return i.Template
}

// length is a duration as it was asked for, without units of zero.
func length(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// moment is a point in time, with how far away it is; "" for none.
func moment(t, now time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.After(now):
		return fmt.Sprintf("%s (in %s)", t.Format(time.RFC3339), span(t.Sub(now)))
	}
	return fmt.Sprintf("%s (%s ago)", t.Format(time.RFC3339), span(now.Sub(t)))
}

// clock is a time as a wall clock here shows it, with the day if that is
// another.
func clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format(time.TimeOnly)
	}
	return t.Format("Jan 2 15:04:05")
}

// dated is a time with its day, on a narrow terminal as short as clock has it.
func dated(w io.Writer, t time.Time) string {
	if isNarrow(columnsFor(w)) {
		return clock(t, time.Now())
	}
	return t.Local().Format(time.DateTime)
}

// by names who did something: an API key by the beginning of its id, and what
// nobody did.
func by(actor string) string {
	if actor == "" {
		return "itself"
	}
	kind, id, ok := strings.Cut(actor, ":")
	if first, _, long := strings.Cut(id, "-"); ok && long {
		return kind + ":" + first
	}
	return actor
}

// withField encodes v, an object, with one more field.
func withField(v any, name string, value any) ([]byte, error) {
	object, err := marshal(v)
	if err != nil {
		return nil, err
	}
	field, err := marshal(map[string]any{name: value})
	if err != nil {
		return nil, err
	}
	return append(append(object[:len(object)-1], ','), field[1:]...), nil
}

// marshal encodes without escaping what only HTML needs escaped.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}
