package human

import (
	"strings"
	"testing"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 4096: "4.0 KiB", 5 << 20: "5.0 MiB", 3 << 30: "3.0 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"plain": "plain", "a\nb\tc": "a b c", "\x1b[2J": "?[2J", "\xff": "?", "Grüße": "Grüße",
		strings.Repeat("ü", 200): strings.Repeat("ü", 100), "x" + strings.Repeat("ü", 200): "x" + strings.Repeat("ü", 99),
	} {
		if got := Line(text, 200); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}
