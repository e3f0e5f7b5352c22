package serve

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode"
)

// NewLogger returns the log of a server, as text or JSON. Each entry is one line of
// bounded length, with nothing in it that acts on a terminal: some of the values are
// what clients and guests have sent.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	o := &slog.HandlerOptions{Level: least, ReplaceAttr: shortened}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}

// maxLogValue is how many bytes of one value the log has. A stack of our own is as
// long as it is.
const maxLogValue = 2048

// shortened cuts a value, and escapes what no handler does.
func shortened(_ []string, a slog.Attr) slog.Attr {
	if a.Key == "stack" {
		return a
	}
	var text string
	switch a.Value.Kind() {
	case slog.KindString:
		text = a.Value.String()
	case slog.KindAny:
		if _, level := a.Value.Any().(slog.Level); level {
			return a
		}
		text = fmt.Sprint(a.Value.Any())
	default:
		return a
	}
	short := text
	if len(text) > maxLogValue {
		short = strings.ToValidUTF8(text[:maxLogValue], "") + fmt.Sprintf("... (%d bytes)", len(text))
	}
	if short = inPrint(short); short != text {
		a.Value = slog.StringValue(short)
	}
	return a
}

// inPrint escapes what JSON may have as it is, and a terminal would act on: controls
// from U+007F on, and marks that turn the direction of a text. Those below U+0020 every
// handler escapes.
func inPrint(text string) string {
	acts := func(r rune) bool { return r >= 0x7f && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }
	if strings.IndexFunc(text, acts) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if acts(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
