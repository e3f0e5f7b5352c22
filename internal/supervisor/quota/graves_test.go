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
	g.Bury("b", "other")
	for i := range MostTombstones {
		if forget := g.Bury("a", strconv.Itoa(i)); forget != nil {
			t.Fatalf("the %d. has %q forgotten", i, forget)
		}
	}
	if forget := g.Bury("a", "x"); !slices.Equal(forget, []string{"0"}) {
		t.Errorf("one too many has %q forgotten", forget)
	}
	g.Forget("a", "1")
	g.Forget("a", "5")
	if forget := append(g.Bury("a", "y"), g.Bury("a", "z")...); forget != nil {
		t.Errorf("where there is room, %q are forgotten", forget)
	}
	if forget := g.Bury("a", "w"); !slices.Equal(forget, []string{"2"}) {
		t.Errorf("one too many has %q forgotten", forget)
	}
	g.Forget("b", "other")
	if len(g.byKey) != 1 {
		t.Errorf("there are %d keys", len(g.byKey))
	}
}
