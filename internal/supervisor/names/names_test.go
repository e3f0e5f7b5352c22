package names

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
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

func TestNames(t *testing.T) {
	over := map[string]bool{}
	b := New(func(id string) bool { return over[id] })
	as := func(key, name string) store.Config { return store.Config{Key: key, Name: name} }
	claim := func(key, name, id string) error {
		t.Helper()
		return b.TakeName(as(key, name), id)
	}
	holds := func(key, name, want string) {
		t.Helper()
		if id, ok := b.Named(key, name); id != want || ok != (want != "") {
			t.Errorf("%s of %s is %q, %v; want %q", name, key, id, ok, want)
		}
	}
	for id := range 2 { // without a name there is nothing to be unique
		if err := claim("k", "", fmt.Sprint(id)); err != nil {
			t.Fatal(err)
		}
	}
	holds("k", "", "")
	if err := claim("k", "n", "a"); err != nil {
		t.Fatal(err)
	}
	if err := claim("other", "n", "b"); err != nil {
		t.Errorf("a name of another key: %v", err)
	}
	if err := claim("k", "n", "c"); !errdef.Is(err, errdef.Exists) || !strings.Contains(err.Error(), "sandbox a has") {
		t.Errorf("a name that is taken: %v", err)
	}
	holds("k", "n", "a")
	holds("other", "n", "b")
	b.Forget(as("k", "n"), "c") // which never had it
	holds("k", "n", "a")
	over["a"] = true
	holds("k", "n", "a") // its tombstone
	if err := claim("k", "n", "c"); err != nil {
		t.Errorf("the name of a sandbox that has ended: %v", err)
	}
	b.Forget(as("k", "n"), "a") // the record of the first goes
	holds("k", "n", "c")
	b.Forget(as("k", "n"), "c")
	holds("k", "n", "")
}

// TestRestore: whatever the order of the records, the youngest sandbox has the
// name.
func TestRestore(t *testing.T) {
	record := func(id string, created int64, ended bool) store.Sandbox {
		sb := store.Sandbox{ID: id, Config: store.Config{Key: "k", Name: "n"}}
		sb.Record.CreatedAt = time.Unix(created, 0)
		if ended {
			sb.Record.Tombstone = &lifecycle.Tombstone{At: time.Unix(created+1, 0)}
		}
		return sb
	}
	old, older, live := record("old", 20, true), record("older", 10, true), record("live", 30, false)
	for _, order := range [][]store.Sandbox{{old, older, live}, {live, older, old}, {older, live, old}} {
		b := New(func(id string) bool { return id != "live" })
		for _, sb := range order {
			b.Restore(sb)
		}
		if id, _ := b.Named("k", "n"); id != "live" {
			t.Errorf("%q has the name", id)
		}
		if err := b.TakeName(store.Config{Key: "k", Name: "n"}, "new"); !errdef.Is(err, errdef.Exists) {
			t.Errorf("a second one after a restart: %v", err)
		}
	}
}

func TestOnlyOneGetsIt(t *testing.T) {
	b := New(func(string) bool { return false })
	var won atomic.Int32
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if b.TakeName(store.Config{Key: "k", Name: "n"}, fmt.Sprint(i)) == nil {
				won.Add(1)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 {
		t.Errorf("%d sandboxes have the name", won.Load())
	}
}
