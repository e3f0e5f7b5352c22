package errdef

import "testing"

// TestStatusIsInTheCatalogue: the native dialect has no status of its own.
func TestStatusIsInTheCatalogue(t *testing.T) {
	for _, e := range Catalogue() {
		if got := Status(&Error{Class: e.Class, Code: e.Code}); e.Native != 0 && e.Native != got {
			t.Errorf("%s is answered with %d, the catalogue says %d", e.Code, got, e.Native)
		}
	}
	if got := Status(&Error{Class: "new"}); got != 500 {
		t.Errorf("an unknown class is answered with %d", got)
	}
}
