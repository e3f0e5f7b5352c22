package auth

import (
	"net/http"
	"net/http/httptest"
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
