package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// encode returns a value as JSON for a model: what only HTML needs escaped is not.
func encode(v any) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// plain returns text of a sandbox as a model gets it: without control sequences
// of terminals, and without characters that control or hide. A carriage return
// ends a line.
func plain(text string) string {
	if !strings.ContainsFunc(text, acts) && utf8.ValidString(text) {
		return text
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var b strings.Builder
	for len(text) > 0 {
		if n := sequence(text); n > 0 {
			text = text[n:]
			continue
		}
		r, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		switch {
		case r == '\r' || r == '\u2028' || r == '\u2029':
			b.WriteByte('\n')
		case !acts(r):
			b.WriteRune(r) // U+FFFD for what is no UTF-8
		}
	}
	return b.String()
}

// allPlain makes every string of a value plain, whoever chose it. The value is a
// pointer, and its maps hold strings.
func allPlain(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			allPlain(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				allPlain(v.Field(i))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			allPlain(v.Index(i))
		}
	case reflect.Map:
		m := v.Interface().(map[string]string)
		for name, text := range maps.Clone(m) {
			delete(m, name)
			m[plain(name)] = plain(text)
		}
	case reflect.String:
		v.SetString(plain(v.String()))
	}
}

// acts reports whether a character does something other than to be shown. Joiners
// stay: scripts and emoji need them.
func acts(r rune) bool {
	switch {
	case r == '\n', r == '\t', r == '\u200c', r == '\u200d':
		return false
	case r >= 0xe0100 && r <= 0xe01ef: // selectors that can carry hidden text
		return true
	}
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// longestString bounds a string to a terminal, such as a title. One that is longer
// or has no end is taken for text.
const longestString = 4096

// sequence returns the length of the control sequence with which text begins, 0 if
// it begins with none.
func sequence(text string) int {
	at, kind := 0, byte(0)
	switch {
	case len(text) > 1 && text[0] == 0x1b:
		at, kind = 2, text[1]
	case len(text) > 1 && text[0] == 0xc2 && text[1] >= 0x80 && text[1] <= 0x9f: // the same in one character
		at, kind = 2, text[1]-0x40
	default:
		return 0
	}
	switch {
	case kind == '[':
		for at < len(text) && text[at] >= 0x20 && text[at] <= 0x3f {
			at++
		}
		if at < len(text) && text[at] >= 0x40 && text[at] <= 0x7e {
			at++
		}
		return at
	case strings.IndexByte("]PX^_", kind) >= 0:
		return at + stringEnd(text[at:min(len(text), at+longestString)])
	case kind >= 0x20 && kind <= 0x2f: // such as the choice of a character set
		for at < len(text) && text[at] >= 0x20 && text[at] <= 0x2f {
			at++
		}
		return min(at+1, len(text))
	}
	return at
}

// stringEnd returns where a string to a terminal is over, 0 if it has no end. Nothing
// but text is in one: another control character before its end says that there is
// none.
func stringEnd(text string) int {
	for i := range len(text) {
		switch {
		case text[i] == '\a':
			return i + 1
		case strings.HasPrefix(text[i:], "\x1b\\"), strings.HasPrefix(text[i:], "\u009c"):
			return i + 2
		case text[i] < 0x20, text[i] == 0xc2 && i+1 < len(text) && text[i+1] < 0xa0:
			return 0
		}
	}
	return 0
}

// capture keeps the beginning and the end of what is written to it.
type capture struct {
	limit int // bytes that are kept
	head  []byte
	tail  []byte // of what does not fit into head; at most twice what is kept of it
	total int64
}

// Write implements io.Writer.
func (c *capture) Write(b []byte) (int, error) {
	n := len(b)
	c.total += int64(n)
	if room := c.limit/4 - len(c.head); room > 0 {
		take := min(room, len(b))
		c.head, b = append(c.head, b[:take]...), b[take:]
	}
	keep := c.limit - c.limit/4
	if len(b) > keep {
		b = b[len(b)-keep:]
	}
	if c.tail = append(c.tail, b...); len(c.tail) > 2*keep {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-keep:]...)
	}
	return n, nil
}

// text returns what was kept, and how many bytes were cut out of its middle.
func (c *capture) text() (text string, cut int64) {
	tail := c.tail
	if keep := c.limit - c.limit/4; len(tail) > keep {
		tail = tail[len(tail)-keep:]
	}
	if int64(len(c.head)+len(tail)) == c.total {
		return plain(string(append(bytes.Clone(c.head), tail...))), 0
	}
	head := whole(c.head)
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	cut = c.total - int64(len(head)+len(tail))
	return fmt.Sprintf("%s\n[%d bytes cut here]\n%s", plain(string(head)), cut, plain(string(tail))), cut
}

// take returns what text does, less the beginning of a character at the end, which
// is the first of what the next capture holds.
func (c *capture) take() (string, *capture) {
	next := &capture{limit: c.limit}
	end := &c.head
	if len(c.tail) > 0 {
		end = &c.tail
	}
	all := *end
	*end = whole(all)
	part := all[len(*end):]
	c.total -= int64(len(part))
	_, _ = next.Write(part)
	text, _ := c.text()
	return text, next
}

// whole returns b without the beginning of a character at its end.
func whole(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// short is text of a sandbox that has no bound of its own, such as a name.
func short(text string) string {
	c := capture{limit: 2000}
	_, _ = c.Write([]byte(text))
	text, _ = c.text()
	return text
}

// labels are labels of a sandbox, as a model gets them.
func labels(m map[string]string) map[string]string {
	shown := make(map[string]string, len(m))
	for k, v := range m {
		shown[short(k)] = short(v)
	}
	return shown
}
