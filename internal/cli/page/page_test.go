package page

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	rows := [][]string{
		{"ID", "NAME", "STATUS", "LAST"},
		{"i0abc", "app", "ok", "3 s ago"},
		{"i0def", "a-name-that-is-long-enough", "failing: the answer was 418 for 12 times", "never"},
	}
	for columns, want := range map[int]string{
		0: `
ID     NAME                        STATUS                                    LAST
i0abc  app                         ok                                        3 s ago
i0def  a-name-that-is-long-enough  failing: the answer was 418 for 12 times  never
`,
		64: `
ID     NAME                        STATUS                LAST
i0abc  app                         ok                    3 s ago
i0def  a-name-that-is-long-enough  failing: the answer   never
                                   was 418 for 12 times
`,
		50: `
ID     NAME          STATUS                LAST
i0abc  app           ok                    3 s ago
i0def  a-name-that-is-long-enough
                     failing: the answer   never
                     was 418 for 12 times
`,
		20: `
ID     NAME
    STATUS
    LAST
i0abc  app       ok
    3 s ago
i0def
    a-name-that-is-long-enough
    failing: the
    answer was
    418 for 12 times
    never
`,
	} {
		if got := "\n" + Table(rows, columns); got != want {
			t.Errorf("%d columns:\n%s\nwant:\n%s", columns, got, want)
		}
	}
}

func TestFold(t *testing.T) {
	for text, want := range map[string]string{
		"short\n": "short\n",
		"next: it is paused in 10 m by its timeout":                     "next: it is paused\n  in 10 m by its\n  timeout",
		"ok  root  running as root, as it must\nend\n":                  "ok  root  running as\n          root, as it\n          must\nend\n",
		"  detail of what has happened to it\n":                         "  detail of what has\n  happened to it\n",
		"https://example.com/" + strings.Repeat("x", 30) + " is a link": "https://example.com/" + strings.Repeat("x", 30) + "\n  is a link",
	} {
		if got := Fold(text, 22); got != want {
			t.Errorf("%q: got %q", text, got)
		}
		if got := Fold(text, 0); got != text {
			t.Errorf("%q in a pipe: got %q", text, got)
		}
	}
}
