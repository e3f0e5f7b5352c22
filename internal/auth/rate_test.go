package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// TestRate: a key that calls too often waits, and costs no other key a call. One that
// is made later is bounded as well.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := load(t, &memory{})
		admitted := func(text string, calls int) (n int) {
			t.Helper()
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-API-Key", text)
			for range calls {
				switch _, err := Admit(keys, r, Look); {
				case err == nil:
					n++
				case !errdef.Is(err, errdef.Exhausted):
					t.Fatal(err)
				}
			}
			return n
		}
		made := func() string {
			t.Helper()
			_, text, err := keys.Create(t.Context(), Request{Name: "one", Role: store.RoleRead})
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		before := made()
		if n := admitted(before, 1000); n != 1000 {
			t.Errorf("without a bound: %d of 1000 calls", n)
		}
		keys.SetRate(2)
		after := made()
		for _, step := range []struct {
			what  string
			key   string
			wait  time.Duration
			wants int
		}{
			{"at once", before, 0, 20},
			{"of another key", after, 0, 20},
			{"after a second", before, time.Second, 2},
			{"after a minute", before, time.Minute, 20},
		} {
			time.Sleep(step.wait)
			if n := admitted(step.key, 50); n != step.wants {
				t.Errorf("%s: %d of 50 calls, want %d", step.what, n, step.wants)
			}
		}
	})
}

// TestOwnRate: the rate of a key holds in place of the server's, from a change on, and
// neither a restart nor another text nor what was lent takes it away.
func TestOwnRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memory{}
		keys := load(t, s)
		keys.SetRate(2)
		key, _ := makeKey(t, keys, Request{Name: "own", Role: store.RoleAdmin, Limits: store.KeyLimits{Running: 7, Rate: 1}})
		other, _ := makeKey(t, keys, Request{Name: "other", Role: store.RoleRead})
		taken := func(id string) (n int, err error) {
			for range 1000 {
				if e := keys.Take(id); e != nil {
					err = e
				} else {
					n++
				}
			}
			return n, err
		}
		wants := func(what string, want int) error {
			t.Helper()
			n, err := taken(key.ID)
			if n != want {
				t.Errorf("%s: %d of 1000 calls, want %d", what, n, want)
			}
			return err
		}
		refused := func(err error, limit string, allowed int, words ...string) {
			t.Helper()
			e, ok := errors.AsType[*errdef.Error](err)
			if !ok || e.Code != CodeRate || e.Context["limit"] != limit || e.Context["allowed"] != allowed {
				t.Fatalf("refused with %#v", err)
			}
			for _, w := range words {
				if !strings.Contains(e.Message+"; "+e.Remedy, w) {
					t.Errorf("%q does not say %q", e.Message+"; "+e.Remedy, w)
				}
			}
		}
		change := func(rate int) {
			t.Helper()
			got, err := keys.Change(t.Context(), key.ID, Change{Limits: func(l *store.KeyLimits) { l.Rate = rate }})
			if err != nil || got.Limits != (store.KeyLimits{Running: 7, Rate: rate}) || keys.Limits(key.ID) != got.Limits {
				t.Fatalf("changed to %+v, %v", got, err)
			}
		}
		refused(wants("a rate of one", 10), "maxRate", 1, "its own limit of 1", "drowse keys limit "+key.ID+" --max-rate")
		if n, err := taken(other.ID); n != 20 {
			t.Errorf("a key without a rate: %d calls, want 20", n)
		} else {
			refused(err, "max-key-rate", 2, "the server's limit for each key, 2", "drowse keys limit "+other.ID+" --max-rate", "--max-key-rate")
		}

		change(50)
		wants("at once after a higher rate", 0)
		time.Sleep(time.Second)
		wants("a second later", 50)
		time.Sleep(time.Minute)
		change(3)
		refused(wants("a lower rate when it was idle", 30), "maxRate", 3)

		if _, _, err := keys.Rotate(t.Context(), key.ID, ""); err != nil {
			t.Fatal(err)
		}
		wants("another text", 0)
		lent := keys.Lend(t.Context(), key.ID)
		if k, err := keys.Check(lent); err != nil || k.ID != key.ID || k.Limits.Rate != 3 {
			t.Fatalf("lent: %+v, %v", k, err)
		}
		wants("what was lent", 0)
		time.Sleep(time.Second)
		wants("another text, a second later", 3)

		change(0)
		time.Sleep(time.Minute)
		refused(wants("none of its own", 20), "max-key-rate", 2)

		change(4)
		keys = load(t, s)
		keys.SetRate(0)
		refused(wants("after a restart", 40), "maxRate", 4)
		change(0)
		if err := wants("without a bound", 1000); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		change(1)
		wants("a bound again", 10)
		if _, err := keys.Change(t.Context(), key.ID, Change{Limits: func(l *store.KeyLimits) { l.Rate = -1 }}); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("a negative rate: %v", err)
		}
		if _, err := keys.Change(t.Context(), "nobody", Change{}); !errdef.Is(err, errdef.NotFound) {
			t.Errorf("of no key: %v", err)
		}
		s.fail(errors.New("disk on fire"))
		if _, err := keys.Change(t.Context(), key.ID, Change{Limits: func(l *store.KeyLimits) { l.Rate = 9 }}); err == nil || keys.Limits(key.ID).Rate != 1 {
			t.Errorf("a change that was not stored: %v, %+v", err, keys.Limits(key.ID))
		}
	})
}
