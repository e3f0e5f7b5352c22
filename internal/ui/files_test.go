package ui

import (
	"strings"
	"testing"
)

// TestJudge: a file is editable only if a page gives all of it back as it was.
func TestJudge(t *testing.T) {
	for text, want := range map[string]struct {
		crlf   bool
		closed string
	}{
		"":                                {},
		"one line":                        {},
		"two\nlines\n":                    {},
		"two\r\nlines\r\n":                {crlf: true},
		"two\r\nlines\n":                  {closed: "different ways"},
		"old\rlines\r":                    {closed: "different ways"},
		"nul\x00":                         {closed: "not text"},
		"latin \xe9":                      {closed: "not text"},
		strings.Repeat("x", maxEdit):      {},
		strings.Repeat("x", maxEdit+1):    {closed: "larger"},
		strings.Repeat("\u00e9", maxEdit): {closed: "larger"},
	} {
		crlf, closed := judge([]byte(text))
		if crlf != want.crlf || (closed == "") != (want.closed == "") || !strings.Contains(closed, want.closed) {
			t.Errorf("%.20q: %v, %q", text, crlf, closed)
		}
	}
}
