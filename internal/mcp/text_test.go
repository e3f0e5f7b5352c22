package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"
)

var plains = map[string]struct{ in, want string }{
	"text":                     {"a\tb\nü 👩\u200d👧 \u200c", "a\tb\nü 👩\u200d👧 \u200c"},
	"colours":                  {"\x1b[1;31mred\x1b[0m", "red"},
	"colours by one character": {"\u009b31mred", "red"},
	"a title":                  {"a\x1b]0;title\x07b\x1b]2;title\x1b\\c", "abc"},
	"a title by one character": {"a\u009d0;title\u009cb", "ab"},
	"a title without an end":   {"a\x1b]0;title\nthe rest", "a0;title\nthe rest"},
	"a device string":          {"a\x1bPq#0\x1b\\b", "ab"},
	"a character set":          {"\x1b(Ba\x1b7b\x1bc", "ab"},
	"cut sequences":            {"a\x1b", "a"},
	"cut parameters":           {"a\x1b[31", "a"},
	"lines":                    {"a\r\nb\rc\u2028d", "a\nb\nc\nd"},
	"other controls":           {"a\x00\x07\x7f\u0085b", "ab"},
	"direction":                {"a\u202eb\u2066c\u200fd", "abcd"},
	"hidden text":              {"a\U000e0041\U000e0042b\U000e0101c\ufeffd\u200be", "abcde"},
	"no UTF-8":                 {"a\xffb", "a\ufffdb"},
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for name, c := range plains {
		if got := plain(c.in); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// FuzzPlain: nothing that acts is left, whatever comes, and what is left stays as
// it is.
func FuzzPlain(f *testing.F) {
	for _, seed := range []string{"", "a", "\x1b[31m", "\x1b]0;\x1b[m\x07", "\xc2", "\xc2\x9b\x1b", "\x1b\x1b[", "\r\r\n", "\U000e0100"} {
		f.Add(seed)
	}
	for _, c := range plains {
		f.Add(c.in)
	}
	for _, seed := range []string{
		"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1b[?1049h", "\x1b_apc\x1b\\", "\x1b^pm\x9c", "\x1bX\x1b[m", "\x1b%G", "\x1b#8", "\x1b[\x1b[31m", "\x1b[3\n1m",
		"\u009b", "\u009d\u009c", "\u0090\x1b", "\x1b\u009b", "\x9b31m", "\xe2\x80", "\xf0\x9f\x91", "\u2028\r\n\u2029\r", "\u200d\u200c\u200b", "\u061c\u202a\u2069",
		"\U000e0020\U000e007f", "\ufe0f\ufff9\ufffb", "\x1b[" + strings.Repeat("1;", 1000) + "m", "\x1b]" + strings.Repeat("x", 5000),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := plain(in)
		if strings.ContainsFunc(got, acts) || !utf8.ValidString(got) || plain(got) != got {
			t.Errorf("%q became %q", in, got)
		}
	})
}

func TestCapture(t *testing.T) {
	t.Parallel()
	write := func(limit int, parts ...string) *capture {
		c := &capture{limit: limit}
		for _, p := range parts {
			if n, err := c.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatalf("wrote %d of %d bytes: %v", n, len(p), err)
			}
		}
		return c
	}
	for name, c := range map[string]struct {
		capture *capture
		want    string
		cut     int64
	}{
		"nothing":                 {write(8), "", 0},
		"as much as there may be": {write(8, "12345678"), "12345678", 0},
		"one byte more":           {write(8, "123456789"), "12\n[1 bytes cut here]\n456789", 1},
		"byte by byte":            {write(8, strings.Split("abcdefghijklmnopqrstuvwxyz", "")...), "ab\n[18 bytes cut here]\nuvwxyz", 18},
		"all at once":             {write(8, strings.Repeat("x", 1<<20)+"end"), "xx\n[1048571 bytes cut here]\nxxxend", 1<<20 + 3 - 8},
		"whole characters":        {write(8, "aüüüüüüb"), "a\n[8 bytes cut here]\nüüb", 8},
	} {
		text, cut := c.capture.text()
		if text != c.want || cut != c.cut {
			t.Errorf("%s: got %q and %d, want %q and %d", name, text, cut, c.want, c.cut)
		}
		if kept := len(c.capture.head) + cap(c.capture.tail); kept > 1<<20 {
			t.Errorf("%s: %d bytes are kept", name, kept)
		}
	}
	text, next := write(100, "gr\xc3").take()
	_, _ = next.Write([]byte("\xbc\xc3\x9fe"))
	if rest, _ := next.take(); text != "gr" || rest != "üße" {
		t.Errorf("in two parts: %q and %q", text, rest)
	}
}

// TestPlainIsLinear has a megabyte of beginnings of what never ends removed, which
// must not take long for each of them.
func TestPlainIsLinear(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"\x1b]", "\x1b[", "\u009d", "\x1bP\x1b]x", "\x1b"} {
		if got := plain(strings.Repeat(part, 1<<20/len(part))); strings.ContainsFunc(got, acts) {
			t.Errorf("of %q control characters are left", part)
		}
	}
}
