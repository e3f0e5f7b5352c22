package serve

import (
	"strings"
	"testing"
)

// TestFaultsAreCounted: the last line of fsck says what is left only where something was
// found, and what was repaired only where something was.
func TestFaultsAreCounted(t *testing.T) {
	for want, faults := range map[string][]Fault{
		"; no faults\n":                    nil,
		"; 2 faults\n":                     {{}, {}},
		"; 2 faults, 1 repaired, 1 left\n": {{}, {Repaired: true}},
		"; 1 faults, 1 repaired, 0 left\n": {{Repaired: true}},
	} {
		var out strings.Builder
		if err := printFaults(&out, fsckReport{Faults: faults}); err != nil || !strings.HasSuffix(out.String(), want) {
			t.Errorf("%v, want %q:\n%s", err, want, &out)
		}
	}
}
