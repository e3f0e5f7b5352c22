package names

import (
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

func TestCheck(t *testing.T) {
	for _, name := range []string{"a", "sandbox-0f0f0f0f", "A_1", "9", strings.Repeat("x", Most), "i0", "i" + strings.Repeat("0", 19), "I" + strings.Repeat("0", 20)} {
		if err := Check(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "-a", "_a", "a b", "a/b", "a.b", "..", "é", "a\n", strings.Repeat("x", Most+1), "i" + strings.Repeat("0", 20)} {
		if err := Check(name); !errdef.Is(err, errdef.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestNames: whatever the order in which they are noted, the youngest sandbox has the
// name, until it is forgotten.
func TestNames(t *testing.T) {
	of := func(key, id string, created int64) store.Sandbox {
		sb := store.Sandbox{ID: id, Config: store.Config{Key: key, Name: "n"}}
		sb.Record.CreatedAt = time.Unix(created, 0)
		return sb
	}
	old, older, live := of("k", "old", 20), of("k", "older", 10), of("k", "live", 30)
	for _, order := range [][]store.Sandbox{{old, older, live}, {live, older, old}, {older, live, old}} {
		b := New()
		holds := func(key, want string) {
			t.Helper()
			if id, ok := b.Named(key, "n"); id != want || ok != (want != "") {
				t.Errorf("n of %s is %q, %v; want %q", key, id, ok, want)
			}
		}
		b.Note(store.Sandbox{ID: "nameless", Config: store.Config{Key: "k"}})
		holds("k", "")
		for _, sb := range order {
			b.Note(sb)
		}
		b.Note(of("other", "theirs", 5))
		holds("k", "live")
		holds("other", "theirs")
		b.Forget(old.Config, "old") // which does not have it
		holds("k", "live")
		b.Forget(live.Config, "live")
		holds("k", "")
		holds("other", "theirs")
	}
}
