package gvisor

import (
	"os"
	"testing"
)

// TestMarkWithoutFreeze is a server that was killed after it left the mark and
// before it froze: the runtime must not be thawed, which would end it.
func TestMarkWithoutFreeze(t *testing.T) {
	r := newRig(t)
	d := r.reopen(t).(*Driver)
	spec := r.newSpec(t)
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(t.Context(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	adopted := func() *instance {
		t.Helper()
		inst, err := d.Adopt(t.Context(), spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		return inst.(*instance)
	}
	first := adopted()
	if err := os.WriteFile(first.mark(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if adopted().frozen {
		t.Fatal("a running runtime is taken for a frozen one")
	}
	if err := first.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !adopted().frozen {
		t.Fatal("a frozen runtime is taken for a running one")
	}
}
