package seal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestAKeyIsNotPrinted, however it is, and in whatever.
func TestAKeyIsNotPrinted(t *testing.T) {
	key := Key("0123456789abcdef0123456789abcdef")
	row := struct {
		Key  Key
		Keys map[string][]Key
	}{key, map[string][]Key{"": {key}}}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		fmt.Fprintf(&out, verb+verb+verb+"\n", key, row, &row)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(h).Info("message", "key", key, "row", row, "rows", []any{&row})
	}
	if err := json.NewEncoder(&out).Encode([]any{key, row}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{string(key), fmt.Sprintf("%x", string(key)), fmt.Sprintf("%X", string(key)), "48 49 50"} {
		if strings.Contains(out.String(), form) {
			t.Errorf("printed is %s", &out)
		}
	}
}

func TestKeysDiffer(t *testing.T) {
	one, two := New(), New()
	if len(one) != size || one == two || one.Digest(nil) == two.Digest(nil) {
		t.Error("two keys are the same")
	}
	// What somebody has copied does not make a digest that is a key.
	if digest := one.Digest([]byte("copy of a checkpoint: blob place\x01")); digest == fmt.Sprintf("%x", one.derive("blob place")) {
		t.Error("a digest is the key of a blob")
	}
}

// TestSealed opens what was sealed, in its space, and nothing else.
func TestSealed(t *testing.T) {
	key, data := New(), []byte("data")
	buf := append(make([]byte, 0, len(data)+Overhead), data...)
	sealed := key.Seal("place", buf)
	if len(sealed) != len(data)+Overhead || &sealed[0] != &buf[0] {
		t.Errorf("%d bytes, not in their place", len(sealed))
	}
	for name, open := range map[string]func() ([]byte, error){
		"another key":   func() ([]byte, error) { return New().Open("place", bytes.Clone(sealed)) },
		"another place": func() ([]byte, error) { return key.Open("palace", bytes.Clone(sealed)) },
		"cut":           func() ([]byte, error) { return key.Open("place", bytes.Clone(sealed[:len(sealed)-1])) },
		"no tag":        func() ([]byte, error) { return key.Open("place", bytes.Clone(sealed[:3])) },
		"nothing":       func() ([]byte, error) { return key.Open("place", nil) },
	} {
		if got, err := open(); err == nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got, err := key.Open("place", sealed); err != nil || !bytes.Equal(got, data) {
		t.Errorf("opened is %q, %v", got, err)
	}
}
