package body

import (
	"net/http"
	"strings"
	"testing"
)

func TestIdempotency(t *testing.T) {
	of := func(t *testing.T, path, body string, keys ...string) string {
		t.Helper()
		got, err := Idempotency(http.Header{"Idempotency-Key": keys}, path, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return got.Key + " " + got.Request
	}
	one := of(t, "/a", `{"a":1,"b":[{"x":2,"y":null}]}`, "k-1")
	for name, same := range map[string]string{
		"quoted":         of(t, "/a", `{"a":1,"b":[{"x":2,"y":null}]}`, `"k-1"`),
		"spaces around":  of(t, "/a", `{"a":1,"b":[{"x":2,"y":null}]}`, " k-1 "),
		"order of names": of(t, "/a", ` {"b": [{"y":null,"x":2}], "a":1}`, "k-1"),
	} {
		if same != one {
			t.Errorf("%s: another request: %s, %s", name, same, one)
		}
	}
	for name, other := range map[string]string{
		"another path":   of(t, "/b", `{"a":1,"b":[{"x":2,"y":null}]}`, "k-1"),
		"another value":  of(t, "/a", `{"a":2,"b":[{"x":2,"y":null}]}`, "k-1"),
		"large numbers":  of(t, "/a", `{"a":100000000000000000001}`, "k-1"),
		"larger numbers": of(t, "/a", `{"a":100000000000000000002}`, "k-1"),
		"nothing":        of(t, "/a", "", "k-1"),
	} {
		if other == one {
			t.Errorf("%s is the same request", name)
		}
	}
	if of(t, "/a", `{"a":100000000000000000001}`, "k") == of(t, "/a", `{"a":100000000000000000002}`, "k") {
		t.Error("numbers are rounded")
	}
	if got, err := Idempotency(http.Header{}, "/a", nil); got != nil || err != nil {
		t.Errorf("without the header: %v, %v", got, err)
	}
	for name, keys := range map[string][]string{
		"empty": {""}, "empty quotes": {`""`}, "two": {"a", "b"}, "a space": {"a b"}, "a quote": {`a"b`}, "no ASCII": {"ä"}, "a control": {"a\x01b"},
		"long": {strings.Repeat("x", 256)},
	} {
		if got, err := Idempotency(http.Header{"Idempotency-Key": keys}, "/a", nil); err == nil {
			t.Errorf("%s: accepted as %+v", name, got)
		}
	}
	of(t, "/a", "", strings.Repeat("x", 255))
}
