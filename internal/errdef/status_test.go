package errdef

import "testing"

func TestStatus(t *testing.T) {
	for code := range e2bStatuses {
		if e, known := Lookup(code); !known || e.E2B() == 0 || e.E2B() == Status(&Error{Class: e.Class, Code: code}) {
			t.Errorf("%s is no exception in the E2B dialect", code)
		}
	}
	if got := Status(&Error{Class: "new"}); got != 500 {
		t.Errorf("an unknown class is answered with %d", got)
	}
}
