package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drowse-dev/drowse/client"
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
		enc := json.NewEncoder(a.Stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	}
	var b strings.Builder
	text(&b)
	_, err := io.WriteString(a.Stdout, b.String())
	return err
}

// table writes rows in columns.
func table(w io.Writer, rows [][]string) {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	_ = tw.Flush()
	for line := range strings.Lines(b.String()) {
		_, _ = fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
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
