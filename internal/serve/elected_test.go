package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// TestResigns: a server that stops lets another do what only one may do, once it does not do
// that itself any more, and while it keeps its lease.
func TestResigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const office = "office"
		data := memstore.NewData()
		one, two := memstore.Open(data, memstore.Hooks{}), memstore.Open(data, memstore.Hooks{})
		began := time.Now()
		claim := func(s *memstore.Store, id string) *tenancy {
			k, err := lease.Claim(t.Context(), s, store.Server{ID: id, Place: "of " + id}, lease.Options{Now: func() time.Duration { return time.Since(began) }})
			if err != nil {
				t.Fatal(err)
			}
			return &tenancy{Keeper: k}
		}
		hold, otherHold := claim(one, "one"), claim(two, "two")
		other := func(when, want string) {
			t.Helper()
			if got, err := two.Elect(t.Context(), office); err != nil || got != want {
				t.Errorf("%s, %q is elected, %v; want %q", when, got, err, want)
			}
		}
		var closers cleanups
		closers.add(func() error { // as that of sandboxes
			other("while the sandboxes are put to sleep", "two")
			return nil
		})
		elected := hold.elected(t.Context(), one, office, &closers)
		closers.add(func() error { // as that of the sender of webhooks
			other("while it is done here", "one")
			if here, _ := elected(); !here {
				t.Error("the server has resigned before it has stopped")
			}
			return nil
		})
		synctest.Wait()
		if here, server := elected(); !here || server != "" {
			t.Errorf("of the only server it is said that it is elected: %v, or %q", here, server)
		}
		var others cleanups
		closers.add(others.run)
		ask := otherHold.elected(t.Context(), two, office, &others)
		synctest.Wait()
		if here, server := ask(); here || server != "one" {
			t.Errorf("to the other server it is said that it is elected: %v, or %q", here, server)
		}
		if err := closers.run(); err != nil {
			t.Error(err)
		}
		if here, server := elected(); here || server != "" || hold.Check() != nil {
			t.Errorf("a server that has stopped is elected: %v, or %q; its lease: %v", here, server, hold.Check())
		}
	})
}
