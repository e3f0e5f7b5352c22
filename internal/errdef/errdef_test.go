package errdef

import "testing"

// TestLasting: what no retry cures is known, and of the class whose other codes
// a retry may cure.
func TestLasting(t *testing.T) {
	for _, code := range lasting {
		if e, ok := Lookup(code); !ok || e.Class != Unavailable || !Lasting(code) {
			t.Errorf("%s is %+v", code, e)
		}
	}
	if Lasting("resume_failed") {
		t.Error("a resume that failed may be tried again")
	}
}
