package secret

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// beside returns the secrets of another server with the same store, and a directory of
// its own.
func (w *world) beside(t *testing.T) *world {
	t.Helper()
	other := &world{st: w.st, dir: t.TempDir()}
	var err error
	if other.Vault, err = Open(t.Context(), w.st, other.dir); err != nil {
		t.Fatal(err)
	}
	return other
}

func (w *world) refresh(t *testing.T) {
	t.Helper()
	if err := w.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// keyFrom copies the file of another server.
func (w *world) keyFrom(t *testing.T, other *world) {
	t.Helper()
	key, err := os.ReadFile(other.file)
	if err == nil {
		err = durable.Replace(filepath.Join(w.dir, KeyFile), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestFollow: what one server does to secrets holds on the other.
func TestFollow(t *testing.T) {
	one := newWorld(t)
	one.put(t, "A", value, "a.example")
	one.put(t, "B", value, "b.example")
	two := one.beside(t)
	two.keyFrom(t, one)
	two.refresh(t)
	for _, name := range []string{"A", "B"} {
		if got := two.valueAt(t, two.lent(name), strings.ToLower(name)+".example"); got != value {
			t.Fatalf("secret %s is %q", name, got)
		}
	}
	life := func(name string) func() error {
		all := two.list()
		return all[index(all, owner, name)].life.Err
	}
	a, b := life("A"), life("B")
	if _, err := one.Rotate(t.Context(), owner, "A", "other"); err != nil {
		t.Fatal(err)
	}
	two.refresh(t)
	if got := two.valueAt(t, two.lent("A"), "a.example"); got != "other" || a() != nil || b() != nil {
		t.Errorf("after a rotation it is %q, %v, %v", got, a(), b())
	}
	if _, err := one.Set(t.Context(), owner, "A", store.SecretRule{Hosts: []string{"c.example"}}, nil); err != nil {
		t.Fatal(err)
	}
	two.refresh(t)
	if got := two.valueAt(t, two.lent("A"), "c.example"); got != "other" || a() == nil || b() != nil {
		t.Errorf("after a change of the rule it is %q, %v, %v", got, a(), b())
	}
	a = life("A")
	if err := one.Remove(t.Context(), owner, "A"); err != nil {
		t.Fatal(err)
	}
	one.put(t, "A", value, "c.example")
	two.refresh(t)
	if got := two.valueAt(t, two.lent("A"), "c.example"); got != value || a() == nil {
		t.Errorf("removed and set again it is %q, %v", got, a())
	}
	if err := one.Remove(t.Context(), owner, "B"); err != nil {
		t.Fatal(err)
	}
	two.refresh(t)
	if _, err := two.Get(owner, "B"); !errdef.Is(err, errdef.NotFound) || b() == nil {
		t.Errorf("removed: %v, %v", err, b())
	}
}

// TestOtherKeyFile: a server without the file of the others makes none of its own once
// there are secrets, and with another one it says what to do.
func TestOtherKeyFile(t *testing.T) {
	one := newWorld(t)
	two := one.beside(t)
	one.put(t, "A", value, "a.example")
	text := "text"
	_, err := two.Set(t.Context(), owner, "B", store.SecretRule{Hosts: []string{"b.example"}}, &text)
	if errdef.CodeOf(err) != "secrets_unreadable" || !strings.Contains(err.Error(), KeyFile) {
		t.Errorf("a secret of a server without the file: %v", err)
	}
	if _, err := makeKey(two.file); err != nil {
		t.Fatal(err)
	}
	two.refresh(t)
	all := two.list()
	_, err = two.open(all[0].Secret)
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "secrets_unreadable" || !strings.Contains(e.Remedy, "copy "+KeyFile) {
		t.Errorf("a secret of a server with another file: %v", err)
	}
}

// TestChangeOfOthers: what a server changes that has not heard yet of what another one did
// leaves that as it is.
func TestChangeOfOthers(t *testing.T) {
	one := newWorld(t)
	made := one.put(t, "A", value, "a.example")
	one.put(t, "B", value, "b.example")
	one.put(t, "C", value, "c.example")
	two := one.beside(t)
	two.keyFrom(t, one)
	stored := func() map[string]store.Secret {
		all, err := one.st.AllSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]store.Secret{}
		for _, x := range all {
			names[x.Name] = x
		}
		return names
	}
	rule := func(host string) store.SecretRule { return store.SecretRule{Hosts: []string{host}} }

	if _, err := one.Rotate(t.Context(), owner, "A", "rotated"); err != nil {
		t.Fatal(err)
	}
	x, err := two.Set(t.Context(), owner, "A", rule("d.example"), nil)
	if err != nil || x.Version != 2 || x.ID != made.ID || x.Sealed != nil {
		t.Errorf("a rule after a rotation elsewhere: %+v, %v", x, err)
	}
	if got := two.valueAt(t, two.lent("A"), "d.example"); got != "rotated" {
		t.Errorf("after a rotation elsewhere and another rule the value is %q", got)
	}
	has, _ := one.find(owner, "A")
	if x, err := one.Rotate(t.Context(), owner, "A", "again"); err != nil || x.Version != 3 {
		t.Errorf("a rotation after a rule elsewhere: %+v, %v", x, err)
	}
	if got := one.valueAt(t, one.lent("A"), "d.example"); got != "again" || has.life.Err() == nil {
		t.Errorf("after a rule elsewhere and a rotation the value is %q; what went on by the old rule: %v", got, has.life.Err())
	}

	gone, _ := two.find(owner, "B")
	for _, name := range []string{"B", "C"} {
		if err := one.Remove(t.Context(), owner, name); err != nil {
			t.Fatal(err)
		}
	}
	_, err = two.Rotate(t.Context(), owner, "B", "other")
	if !errdef.Is(err, errdef.NotFound) || err.Error() != notFound("B").Error() || gone.life.Err() == nil {
		t.Errorf("a rotation of what was removed elsewhere: %v; what went on by it: %v", err, gone.life.Err())
	}
	if _, err := two.Set(t.Context(), owner, "B", rule("b.example"), nil); !errdef.Is(err, errdef.Invalid) {
		t.Errorf("a rule without a value for what was removed elsewhere: %v", err)
	}
	if all := stored(); len(all) != 1 || all["A"].Version != 3 {
		t.Errorf("stored is %+v", all)
	}
}

// TestSetAgain: what another server has removed is made anew, and what it has made, or
// removed and made, is changed.
func TestSetAgain(t *testing.T) {
	one := newWorld(t)
	made := one.put(t, "A", value, "a.example")
	two := one.beside(t)
	two.keyFrom(t, one)
	if err := one.Remove(t.Context(), owner, "A"); err != nil {
		t.Fatal(err)
	}
	again := two.put(t, "A", "second", "a.example")
	if again.Version != 1 || again.ID == made.ID {
		t.Errorf("removed elsewhere and set: %+v", again)
	}
	if x := one.put(t, "A", "third", "a.example"); x.Version != 2 || x.ID != again.ID {
		t.Errorf("made elsewhere and set: %+v", x)
	}
	if err := one.Remove(t.Context(), owner, "A"); err != nil {
		t.Fatal(err)
	}
	again = one.put(t, "A", "fourth", "a.example")
	if x, err := two.Rotate(t.Context(), owner, "A", "fifth"); err != nil || x.Version != 2 || x.ID != again.ID {
		t.Errorf("removed and made elsewhere, and rotated: %+v, %v", x, err)
	}

	servers := []*world{one, two}
	got, errs := make([]store.Secret, len(servers)), make([]error, len(servers))
	var both sync.WaitGroup
	for i, w := range servers {
		both.Go(func() {
			text := fmt.Sprint("of server ", i)
			got[i], errs[i] = w.Set(t.Context(), owner, "new", store.SecretRule{Hosts: []string{"new.example"}}, &text)
		})
	}
	both.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	last := slices.MaxFunc(got, func(a, b store.Secret) int { return cmp.Compare(a.Version, b.Version) })
	if got[0].ID != got[1].ID || got[0].Version+got[1].Version != 3 {
		t.Errorf("set on both at once: %+v", got)
	}
	for _, w := range servers {
		w.refresh(t)
		if value := w.valueAt(t, w.lent("new"), "new.example"); value != fmt.Sprint("of server ", slices.IndexFunc(got, func(x store.Secret) bool { return x.Version == last.Version })) {
			t.Errorf("set on both at once, the value is %q, and they got %+v", value, got)
		}
	}
}

// asked is a store that calls a function before it reads.
type asked struct {
	store.UsedSecrets
	first func()
}

func (a *asked) AllSecrets(ctx context.Context) ([]store.Secret, error) {
	a.first()
	return a.UsedSecrets.AllSecrets(ctx)
}

// TestLooksGoOn: while the database is asked whether the file may be made, look-ups go on.
func TestLooksGoOn(t *testing.T) {
	w := newWorld(t)
	seen := 0
	w.store = &asked{w.st, func() {
		looked := make(chan struct{})
		go func() {
			w.Of(owner)
			close(looked)
		}()
		select {
		case <-looked:
			seen++
		case <-time.After(10 * time.Second):
			t.Error("a look-up waits for the database")
		}
	}}
	if w.put(t, "A", value, "a.example"); seen != 1 {
		t.Errorf("looked up %d times, want once", seen)
	}
}
