package version

import "testing"

func TestFull(t *testing.T) {
	defer func(l, c string) { linked, commit = l, c }(linked, commit)
	linked, commit = "1.2.3", "0123456789abcdef0123456789abcdef01234567"
	if got := Full(); got != "1.2.3 (commit 0123456789ab)" {
		t.Errorf("got %q", got)
	}
	if commit = ""; Commit() == "" && Full() != "1.2.3" {
		t.Errorf("without a commit: %q", Full())
	}
}
