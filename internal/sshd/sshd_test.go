package sshd

import "testing"

func TestPrintable(t *testing.T) {
	if got, want := printable(" a\x1b[2J\r\nb \u202e"), "a [2J  b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
