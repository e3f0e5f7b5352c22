package quota

import (
	"slices"
	"strconv"
	"testing"
)

// TestGraves: of each key the oldest are forgotten, and of the others none.
func TestGraves(t *testing.T) {
	var g Graves
	g.Forget("a", "0")
	g.Bury("b", "other", 1000)
	for i := range MostTombstones {
		if forget := g.Bury("a", strconv.Itoa(i), 1000); forget != nil {
			t.Fatalf("the %d. has %q forgotten", i, forget)
		}
	}
	if forget := g.Bury("a", "x", 1000); !slices.Equal(forget, []string{"0"}) {
		t.Errorf("one too many has %q forgotten", forget)
	}
	g.Forget("a", "1")
	g.Forget("a", "5")
	if forget := append(g.Bury("a", "y", 1000), g.Bury("a", "z", 1000)...); forget != nil {
		t.Errorf("where there is room, %q are forgotten", forget)
	}
	if forget := g.Bury("a", "w", 1000); !slices.Equal(forget, []string{"2"}) {
		t.Errorf("one too many has %q forgotten", forget)
	}
	g.Forget("b", "other")
	if len(g.byKey) != 1 {
		t.Errorf("there are %d keys", len(g.byKey))
	}
}

// TestGravesAreBoundedByBytes: with little in each there are many, and with much few.
func TestGravesAreBoundedByBytes(t *testing.T) {
	var g Graves
	const large = MostTombstoneBytes / 4
	for i := range 4 {
		if forget := g.Bury("a", strconv.Itoa(i), large); forget != nil {
			t.Fatalf("%q are forgotten where there is room", forget)
		}
	}
	if forget := g.Bury("a", "small", 1); !slices.Equal(forget, []string{"0"}) {
		t.Errorf("for one more byte, %q are forgotten", forget)
	}
	if forget := g.Bury("a", "more", 2*large); !slices.Equal(forget, []string{"1", "2"}) {
		t.Errorf("for a large one, %q are forgotten", forget)
	}
	g.Forget("a", "3")
	if forget := g.Bury("a", "again", 2*large-1); forget != nil {
		t.Errorf("%q are forgotten where there is room again", forget)
	}
	if forget := g.Bury("a", "huge", 2*MostTombstoneBytes); g.Of("a") != 1 || len(forget) != 3 {
		t.Errorf("there are %d beside one that is too large; %q are forgotten", g.Of("a")-1, forget)
	}
}
