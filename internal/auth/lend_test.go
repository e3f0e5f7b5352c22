package auth

import (
	"context"
	"testing"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// TestLentKeyEnds: what is lent is as good as the key, until it is given back or
// the key is revoked.
func TestLentKeyEnds(t *testing.T) {
	keys, err := Load(t.Context(), memstore.Open(memstore.NewData(), memstore.Hooks{}))
	if err != nil {
		t.Fatal(err)
	}
	key, _, err := keys.Create(t.Context(), Request{Name: "n", Role: store.RoleOwn})
	if err != nil {
		t.Fatal(err)
	}
	ctx, back := context.WithCancel(t.Context())
	lent, other := keys.Lend(ctx, key.ID), keys.Lend(t.Context(), key.ID)
	for _, text := range []string{lent, other} {
		if got, err := keys.Check(text); err != nil || got.ID != key.ID {
			t.Errorf("it is %v, %v", got, err)
		}
	}
	if _, err := keys.Check(keys.Lend(t.Context(), "nothing")); err == nil {
		t.Error("a key that there is not was lent")
	}
	refused := func(text string) {
		t.Helper()
		if _, err := keys.Check(text); !errdef.Is(err, errdef.Unauthorized) {
			t.Errorf("what was lent is good for ever: %v", err)
		}
	}
	back()
	refused(lent)
	if err := keys.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	refused(other)
}
