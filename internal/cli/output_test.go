package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/client"
)

// TestTenantTextIsHarmless: what a tenant writes into a field neither acts on the
// terminal of who lists it, nor looks like another line or column.
func TestTenantTextIsHarmless(t *testing.T) {
	for text, want := range map[string]string{
		"plain ünïcode 日本 🙂":         "plain ünïcode 日本 🙂",
		"\x1b[2J\x1b]0;title\x07":    `\x1b[2J\x1b]0;title\a`,
		"a\rb":                       `a\rb`,
		"\u009b31m":                  `\u009b31m`,
		"\u202etxt.exe":              `\u202etxt.exe`,
		"\u2066x\u2069":              `\u2066x\u2069`,
		"\xff\xfe":                   `\xff\xfe`,
		"\x7f\b":                     `\x7f\b`,
		"\ufffd":                     "\ufffd",
		"id\nadmin   running   base": `id\nadmin   running   base`,
		"id\tadmin":                  `id\tadmin`,
		"line\u2028separator\u2029s": `line\u2028separator\u2029s`,
		`\x1b is what it looks like`: `\x1b is what it looks like`,
	} {
		if got := cell(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	var b strings.Builder
	table(&b, [][]string{{"ID", "METADATA"}, {"i1", "a\nFORGED\tline\x1b[1A"}})
	if got := strings.Count(b.String(), "\n"); got != 2 || strings.Contains(b.String(), "\x1b") {
		t.Errorf("the table is %q", b.String())
	}
}

// TestActive: the list says when a sandbox was last active, and what keeps it
// awake.
func TestActive(t *testing.T) {
	now := time.Now()
	was := now.Add(-90 * time.Second)
	for want, i := range map[string]client.Info{
		"-":                       {State: client.Running},
		"1m30s ago":               {State: client.Paused, LastActiveAt: was},
		"now (process)":           {State: client.Running, LastActiveAt: now, AwakeBecause: "process: sleep 60"},
		"now (process, 1 stream)": {State: client.Running, LastActiveAt: now, AwakeBecause: "process: sleep 60", OpenStreams: 1},
		"now (2 streams)":         {State: client.Running, LastActiveAt: now, AwakeBecause: "stream: exec", OpenStreams: 2},
		"now (asked)":             {State: client.Running, LastActiveAt: now, AwakeBecause: "asked: a: b"},
		"1m30s ago (1 stream)":    {State: client.Running, LastActiveAt: was, OpenStreams: 1}, // it has stalled
	} {
		if got := active(i, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := active(client.Info{State: client.Terminated, LastActiveAt: was}, now); got != "-" {
		t.Errorf("one that has ended: %q", got)
	}
}
