package memstore

import (
	"errors"
	"testing"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/storetest"
)

func TestContract(t *testing.T) {
	another := func(_ *testing.T, s store.Store) store.Store { return Open(s.(*Store).d, Hooks{}) }
	storetest.Run(t, func(*testing.T) store.Store { return Open(NewData(), Hooks{}) }, another, another)
}

func TestHooks(t *testing.T) {
	d := NewData()
	var before, after error
	var seen []Commit
	s := Open(d, Hooks{
		Before: func(Commit) error { return before },
		After:  func(c Commit) error { seen = append(seen, c); return after },
	})
	put := func(g int64) error {
		sb := store.Sandbox{ID: "a", Rev: min(g-1, 1), Light: true, Record: lifecycle.Record{Generation: g}}
		return s.Commit(t.Context(), sb, []lifecycle.Entry{{Generation: g}})
	}
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	before = ErrFull
	if err := put(2); !errors.Is(err, ErrFull) {
		t.Errorf("a commit that is to fail: %v", err)
	}
	before, after = nil, ErrFull
	if err := put(3); !errors.Is(err, ErrFull) {
		t.Errorf("a commit whose answer is lost: %v", err)
	}
	if sb, ok := d.Get("a"); !ok || sb.Record.Generation != 3 || sb.Light {
		t.Errorf("the record is at %d, light %v; want 3, and nothing of light sleep", sb.Record.Generation, sb.Light)
	}
	if len(seen) != 2 || seen[0].Before.ID != "" || seen[1].Before.Record.Generation != 1 || seen[1].After.Record.Generation != 3 {
		t.Errorf("the hook saw %+v", seen)
	}
}
