package lazyregexp

import "testing"

func TestRegexp(t *testing.T) {
	r := New(`^([a-z]+)-(\d+)$`)
	if !r.MatchString("a-1") || r.MatchString("a-") || r.ReplaceAllString("ab-12", "$2") != "12" {
		t.Error("it matches other than it says")
	}
	if m := r.FindStringSubmatch("ab-12"); len(m) != 3 || m[2] != "12" {
		t.Errorf("submatches are %q", m)
	}
}

// TestMalformed: a package's tests find a malformed expression, used or not.
func TestMalformed(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New("(")
}
