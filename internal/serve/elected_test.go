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
		hold := &tenancy{}
		var err error
		if hold.Keeper, err = lease.Claim(t.Context(), one, store.Server{ID: "one", Place: "here"}, lease.Options{Now: func() time.Duration { return time.Since(began) }}); err != nil {
			t.Fatal(err)
		}
		if _, err := two.Claim(t.Context(), store.Server{ID: "two", Place: "there"}, time.Hour); err != nil {
			t.Fatal(err)
		}
		other := func(when string, want bool) {
			t.Helper()
			if got, err := two.Elect(t.Context(), office); err != nil || got != want {
				t.Errorf("%s the other server is elected: %v, %v", when, got, err)
			}
		}
		var closers cleanups
		closers.add(func() error { // as that of sandboxes
			other("while the sandboxes are put to sleep", true)
			return nil
		})
		elected := hold.elected(t.Context(), one, office, &closers)
		closers.add(func() error { // as that of the sender of webhooks
			other("while it is done here", false)
			if !elected() {
				t.Error("the server has resigned before it has stopped")
			}
			return nil
		})
		synctest.Wait()
		if !elected() {
			t.Error("the only server is not elected")
		}
		if err := closers.run(); err != nil {
			t.Error(err)
		}
		if elected() || hold.Check() != nil {
			t.Errorf("a server that has stopped is elected: %v; its lease: %v", elected(), hold.Check())
		}
	})
}
