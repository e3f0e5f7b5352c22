package planted

import "testing"

// TestCatalogue holds that each bug is listed once, with what it is and the test
// that finds it.
func TestCatalogue(t *testing.T) {
	listed := map[Bug]bool{}
	for _, p := range Catalogue() {
		if listed[p.Bug] || p.What == "" || p.Package == "" || p.Test == "" {
			t.Errorf("%s is listed twice, or without what it is", p.Bug)
		}
		listed[p.Bug] = true
		if In(p.Bug) {
			t.Errorf("this build has the bug %s", p.Bug)
		}
	}
}
