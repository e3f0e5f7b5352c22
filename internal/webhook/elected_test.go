package webhook

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// several are servers with one store, of which one is elected.
type several struct {
	*world
	elected atomic.Int64
	senders [2]*Sender
}

// server returns the server that is elected.
func (x *several) server() string { return map[int64]string{0: "one", 1: "two"}[x.elected.Load()] }

func onServers(t *testing.T, test func(t *testing.T, x *several)) {
	synctest.Test(t, func(t *testing.T) {
		x := &several{world: &world{t: t, data: memstore.NewData(), events: newEvents(), to: &receiver{}, log: &bytes.Buffer{}}}
		for i := range x.senders {
			s, err := New(t.Context(), Options{
				Store: memstore.Open(x.data, memstore.Hooks{}), Events: x.events, Encode: encode, Transport: x.to,
				Elected: func() (bool, string) { return x.elected.Load() == int64(i), x.server() }, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			x.senders[i] = s
		}
		x.s = x.senders[0]
		test(t, x)
		for _, s := range x.senders {
			s.Stop()
		}
	})
}

// elect elects a server, or none, and waits until both know.
func (x *several) elect(i int64) {
	x.elected.Store(i)
	time.Sleep(2 * watchEvery)
	synctest.Wait()
}

// follow has both take over what is stored.
func (x *several) follow() {
	x.t.Helper()
	for _, s := range x.senders {
		if err := s.Refresh(x.t.Context()); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *several) stored() store.Webhook {
	x.t.Helper()
	all, err := memstore.Open(x.data, memstore.Hooks{}).Webhooks(x.t.Context())
	if err != nil || len(all) != 1 {
		x.t.Fatalf("stored are %+v, %v", all, err)
	}
	return all[0]
}

// TestElected: one server delivers, and the next goes on from where it has got.
func TestElected(t *testing.T) {
	onServers(t, func(t *testing.T, x *several) {
		x.elect(-1)
		hook, err := x.senders[1].Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := x.senders[0].Get(hook.ID); err != nil || got.Name != hook.Name {
			t.Errorf("the other server knows %+v, %v", got, err)
		}
		x.events.add(3, "a")
		x.want("without one that is elected", "")
		x.elect(0)
		x.want("when one is", numbers(1, 3))
		x.events.add(2, "a")
		x.want("then", numbers(1, 5))
		x.elect(1)
		x.want("when another is", numbers(1, 5))
		x.events.add(2, "a")
		x.want("then", numbers(1, 7))
		x.elect(0)
		x.events.add(1, "a")
		x.want("back at the first", numbers(1, 8))
		if w := x.stored(); w.Cursor != 8 || w.Delivered != 8 {
			t.Errorf("stored is %+v", w)
		}
	})
}

// TestDismissed: a server that is not elected any more breaks off what it delivers.
func TestDismissed(t *testing.T) {
	onServers(t, func(t *testing.T, x *several) {
		hook, err := x.senders[0].Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		x.elect(0)
		broken := make(chan time.Time, 1)
		x.to.set(func(r *http.Request) (int, error) {
			<-r.Context().Done()
			broken <- time.Now()
			return 0, r.Context().Err()
		})
		x.events.add(2, "a")
		synctest.Wait()
		x.elected.Store(-1)
		at := time.Now()
		if took := (<-broken).Sub(at); took > watchEvery {
			t.Errorf("it was broken off after %v", took)
		}
		x.to.set(nil)
		x.elect(-1)
		x.want("without one that is elected", "")
		x.elect(1)
		x.want("from the next one", numbers(1, 2))
		if w, err := x.senders[1].Get(hook.ID); err != nil || w.Cursor != 2 {
			t.Errorf("the next one has %+v, %v", w, err)
		}
	})
}

// TestChangesElsewhere: what a server changes that does not deliver holds for the one
// that does, and neither undoes what the other has stored.
func TestChangesElsewhere(t *testing.T) {
	onServers(t, func(t *testing.T, x *several) {
		hook, err := x.senders[0].Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		x.elect(0)
		x.follow()
		change := func(about string, f func(w *store.Webhook)) {
			t.Helper()
			if _, err := x.senders[1].Change(t.Context(), hook.ID, f); err != nil {
				t.Fatalf("%s: %v", about, err)
			}
		}
		x.events.add(4, "a")
		x.want("at first", numbers(1, 4))
		change("name", func(w *store.Webhook) { w.Name = "renamed" })
		if w := x.stored(); w.Cursor != 4 || w.Name != "renamed" {
			t.Errorf("after a change elsewhere, %+v is stored", w)
		}
		x.events.add(1, "a") // before the server that delivers knows
		x.want("after that", numbers(1, 5))
		if w := x.stored(); w.Cursor != 5 || w.Name != "renamed" {
			t.Errorf("after a delivery, %+v is stored", w)
		}
		x.follow()
		if w, err := x.senders[0].Get(hook.ID); err != nil || w.Name != "renamed" || w.Cursor != 5 {
			t.Errorf("the server that delivers has %+v, %v", w, err)
		}

		change("types", func(w *store.Webhook) { w.Events = []string{"b"} })
		x.follow()
		x.events.add(1, "a")
		x.events.add(1, "b")
		x.want("of other types", numbers(1, 5)+` {"n":7}`)
		change("disable", func(w *store.Webhook) { w.Enabled = false })
		x.follow()
		x.events.add(2, "b")
		x.want("disabled", numbers(1, 5)+` {"n":7}`)
		change("enable", func(w *store.Webhook) { w.Enabled = true })
		x.follow()
		x.want("enabled", numbers(1, 5)+` {"n":7}`)
		x.events.add(1, "b")
		x.want("then", numbers(1, 5)+` {"n":7} {"n":10}`)
		change("back", func(w *store.Webhook) { w.Cursor = 8 })
		x.events.add(1, "b") // is delivered before the server that delivers knows
		synctest.Wait()
		x.follow()
		x.want("gone back", numbers(1, 5)+` {"n":7} {"n":10} {"n":11} {"n":9} {"n":10} {"n":11}`)

		if err := x.senders[1].Delete(t.Context(), hook.ID); err != nil {
			t.Fatal(err)
		}
		x.events.add(1, "b") // may come once more
		synctest.Wait()
		x.follow()
		x.events.add(5, "b")
		synctest.Wait()
		if n := x.to.got(); len(x.senders[0].List()) != 0 || bytes.Contains([]byte(n), []byte(`{"n":13}`)) {
			t.Errorf("after it was deleted there is %+v, and the receiver has %s", x.senders[0].List(), n)
		}
		if err := x.senders[0].Delete(t.Context(), hook.ID); !errdef.Is(err, errdef.NotFound) {
			t.Errorf("deleted twice: %v", err)
		}
	})
}

// TestStateElsewhere: how a webhook does tells the server that delivers, or what is stored where
// none does; and what waits after a failure is tried again at once, whichever server is asked.
func TestStateElsewhere(t *testing.T) {
	onServers(t, func(t *testing.T, x *several) {
		hook, err := x.senders[1].Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		x.elect(0)
		x.follow()
		x.events.add(3, "a")
		x.want("at first", numbers(1, 3))
		x.to.set(func(*http.Request) (int, error) { return http.StatusTeapot, nil })
		x.events.add(1, "a")
		synctest.Wait()

		st, err := x.senders[0].Stats(t.Context(), hook.ID)
		if tries, _ := x.senders[0].Deliveries(t.Context(), hook.ID); err != nil || st.Delivered != 3 || st.Failures != 1 || len(tries) != 4 {
			t.Errorf("the server that delivers says %+v, %v, and %d deliveries", st, err, len(tries))
		}
		_, failed := x.senders[1].Stats(t.Context(), hook.ID)
		_, failed2 := x.senders[1].Deliveries(t.Context(), hook.ID)
		for _, err := range []error{failed, failed2} {
			if server, is := store.Elsewhere(err); !is || server != "one" {
				t.Errorf("the other one says %v", err)
			}
		}
		if _, err := x.senders[1].Stats(t.Context(), "none"); !errdef.Is(err, errdef.NotFound) {
			t.Errorf("of no webhook: %v", err)
		}

		x.to.set(nil)
		if _, err := x.senders[1].Change(t.Context(), hook.ID, func(*store.Webhook) {}); err != nil {
			t.Fatal(err)
		}
		x.follow()
		x.want("tried again by the other server", numbers(1, 4))

		x.elect(-1)
		if st, err := x.senders[1].Stats(t.Context(), hook.ID); err != nil || st.Delivered != 4 || st.Cursor != 4 {
			t.Errorf("where none delivers: %+v, %v", st, err)
		}
	})
}

// TestChangesTogether: with changes on both servers and deliveries at once, each change
// is there in the end, and no event is missing.
func TestChangesTogether(t *testing.T) {
	onServers(t, func(t *testing.T, x *several) {
		hook, err := x.senders[0].Create(t.Context(), good())
		if err != nil {
			t.Fatal(err)
		}
		x.elect(0)
		x.follow()
		ctx, cancel := context.WithCancel(t.Context())
		var all, followers sync.WaitGroup
		for i, s := range x.senders {
			followers.Go(func() {
				for ctx.Err() == nil {
					_ = s.Refresh(t.Context())
					time.Sleep(time.Millisecond)
				}
			})
			all.Go(func() {
				for n := range 50 {
					time.Sleep(time.Millisecond)
					_, err := s.Change(t.Context(), hook.ID, func(w *store.Webhook) {
						if i == 0 {
							w.Name += "x"
						} else {
							w.Secret = secret
							w.URL += "y"
						}
					})
					if err != nil {
						t.Errorf("change %d: %v", n, err)
					}
				}
			})
		}
		all.Go(func() {
			for range 50 {
				x.events.add(1, "a")
				time.Sleep(time.Millisecond)
			}
		})
		all.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		cancel()
		followers.Wait()
		w := x.stored()
		if len(w.Name) != len(hook.Name)+50 || len(w.URL) != len(hook.URL)+50 || w.Cursor != 50 {
			t.Errorf("in the end %+v is stored", w)
		}
		x.follow()
		if got, err := x.senders[1].Get(hook.ID); err != nil || got.Cursor != 50 || got.Name != w.Name {
			t.Errorf("the other server has %+v, %v", got, err)
		}
	})
}
