package gvisor

import "testing"

// TestCapturesChanges: a runtime is captured by an image taker only if its own gVisor
// survives the death of that, whichever build it is of.
func TestCapturesChanges(t *testing.T) {
	d := &Driver{}
	if got, want := d.CapturesChanges(), edits != ""; got != want {
		t.Errorf("a build with the edits %q captures changes: %t", edits, got)
	}
	for name, tt := range map[string]struct {
		c    control
		peer *peer
		want bool
	}{
		"this build's":                {local{}, nil, edits != ""},
		"another build's, edited":     {local{}, &peer{edited: true}, true},
		"another build's, not edited": {local{}, &peer{}, false},
		"another gVisor's":            {&remote{}, &peer{edited: true}, false},
	} {
		if got := (&instance{d: d, c: tt.c, peer: tt.peer}).CapturesChanges(); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestPeersSayTheirEdits: another build says whether its gVisor is edited.
func TestPeersSayTheirEdits(t *testing.T) {
	needStatic(t)
	d, err := at(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is known
		if p, err := d.of(copyOfSelf(t)); err != nil || p.edited != (edits != "") || p.mute {
			t.Errorf("a build with the edits %q is taken for %+v, %v", edits, p, err)
		}
	}
}
