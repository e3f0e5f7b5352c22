package auth

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// counted is a store that counts how often all keys are read.
type counted struct {
	*memstore.Store
	reads atomic.Int64
	err   atomic.Pointer[error] // of reading them
	read  func()                // is called when they were read; nil for nothing
}

func (c *counted) Keys(ctx context.Context) ([]store.Key, error) {
	c.reads.Add(1)
	if err := c.err.Load(); err != nil {
		return nil, *err
	}
	all, err := c.Store.Keys(ctx)
	if c.read != nil {
		c.read()
	}
	return all, err
}

// pair returns the keys of two servers with one store, the second of which follows.
func pair(t *testing.T) (one, two *Keys, data *memstore.Data, second *counted) {
	data = memstore.NewData()
	second = &counted{Store: memstore.Open(data, memstore.Hooks{})}
	one, two = load(t, memstore.Open(data, memstore.Hooks{})), load(t, second)
	two.Follow()
	return one, two, data, second
}

func refresh(t *testing.T, k interface{ Refresh(context.Context) error }) {
	t.Helper()
	if err := k.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFollowKeys: what one server does to keys holds on the other.
func TestFollowKeys(t *testing.T) {
	one, two, _, _ := pair(t)
	two.SetRate(7)
	var revoked []string
	two.OnRevoke(func(id string) { revoked = append(revoked, id) })
	admin, adminText := makeKey(t, one, Request{Name: "admin", Role: store.RoleAdmin})
	key, text := makeKey(t, one, Request{Name: "key", Role: store.RoleFull})
	for _, want := range []string{adminText, text} { // at once
		if _, err := two.Check(want); err != nil {
			t.Fatal(err)
		}
	}
	life, cancel := two.Bind(t.Context(), key.ID)
	defer cancel()
	lent := two.Lend(t.Context(), key.ID)

	if _, err := one.Change(t.Context(), key.ID, Change{Name: new("renamed"), Limits: func(l *store.KeyLimits) { l.Rate = 3; l.Running = 2 }}); err != nil {
		t.Fatal(err)
	}
	refresh(t, two)
	got, err := two.Check(text)
	if err != nil || got.Name != "renamed" || got.Limits.Running != 2 || two.Limits(key.ID).Rate != 3 {
		t.Errorf("the changed key is %+v, %v", got, err)
	}
	if burst := two.byID(key.ID).calls.Burst(); burst != 3*rateSeconds {
		t.Errorf("it may make %d calls at once, want %d", burst, 3*rateSeconds)
	}
	if burst := two.byID(admin.ID).calls.Burst(); burst != 7*rateSeconds {
		t.Errorf("the other may make %d calls at once, want %d", burst, 7*rateSeconds)
	}
	if _, err := two.Check(lent); err != nil || life.Err() != nil {
		t.Errorf("after a change of the key: %v, %v", err, life.Err())
	}

	_, rotated, err := one.Rotate(t.Context(), key.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	refresh(t, two)
	_, err = two.Check(text)
	wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	if _, err := two.Check(rotated); err != nil {
		t.Errorf("the new text: %v", err)
	}
	<-life.Done()
	if len(revoked) != 0 {
		t.Errorf("revoked: %q, and it was rotated", revoked)
	}

	life, cancel = two.Bind(t.Context(), key.ID)
	defer cancel()
	lent = two.Lend(t.Context(), key.ID)
	if err := one.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	refresh(t, two)
	<-life.Done()
	for _, worthless := range []string{rotated, lent} {
		_, err := two.Check(worthless)
		wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	}
	if !slices.Equal(revoked, []string{key.ID}) || two.Lives(key.ID) || len(two.List()) != 1 {
		t.Errorf("revoked: %q, and there are %+v", revoked, two.List())
	}
}

// TestFollowKeepsUse: what is to be noted of the use of a key is not lost, and what
// another server has noted is not undone.
func TestFollowKeepsUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, data, _ := pair(t)
		stored := func() time.Time {
			all, _ := memstore.Open(data, memstore.Hooks{}).Keys(t.Context())
			return all[0].LastUsedAt
		}
		_, text := makeKey(t, one, Request{Name: "key", Role: store.RoleAdmin})
		_, _ = two.Check(text)
		used := time.Now().UTC()
		time.Sleep(time.Hour)
		refresh(t, two)
		two.noteUse(t.Context(), slog.New(slog.DiscardHandler))
		if got := stored(); !got.Equal(used) {
			t.Errorf("used at %v by the store, want %v", got, used)
		}
		_, _ = two.Check(text)
		time.Sleep(time.Hour)
		_, _ = one.Check(text)
		later := time.Now().UTC()
		one.noteUse(t.Context(), slog.New(slog.DiscardHandler))
		refresh(t, two)
		two.noteUse(t.Context(), slog.New(slog.DiscardHandler))
		if got := two.List()[0].LastUsedAt; !got.Equal(later) || !stored().Equal(later) {
			t.Errorf("used at %v, and %v by the store, want %v", got, stored(), later)
		}
		time.Sleep(time.Hour)
		_, _ = two.Check(text)
		used = time.Now().UTC()
		refresh(t, two)
		two.noteUse(t.Context(), slog.New(slog.DiscardHandler))
		if got := stored(); !got.Equal(used) {
			t.Errorf("after another note, used at %v by the store, want %v", got, used)
		}
	})
}

// TestStrangersDoNotFollow: whoever sends keys that there are not has the store read
// seldom, and is refused; a server that is alone reads nothing.
func TestStrangersDoNotFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two, _, second := pair(t)
		_, _ = makeKey(t, one, Request{Name: "admin", Role: store.RoleAdmin})
		begin, before := time.Now(), second.reads.Load()
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				_, err := two.Check(fmt.Sprintf("e2b_%040x", i))
				wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
			})
		}
		time.Sleep(500 * time.Millisecond)
		_, text := makeKey(t, one, Request{Name: "key", Role: store.RoleFull})
		if _, err := two.Check(text); err != nil {
			t.Errorf("a new key among strangers': %v", err)
		}
		all.Wait()
		if n, most := second.reads.Load()-before, int64(time.Since(begin)/(200*time.Millisecond))+1; n > most {
			t.Errorf("all keys were read %d times in %v, want %d at most", n, time.Since(begin), most)
		}
		before = second.reads.Load()
		_, _ = two.Check("malformed")
		_, _ = two.Check(strings.Repeat("e2b_0", 1000))
		if n := second.reads.Load() - before; n != 0 {
			t.Errorf("malformed keys had the store read %d times", n)
		}
		bad := errdef.New(errdef.Unavailable, "store_unavailable", "injected")
		second.err.Store(new(error(bad)))
		if _, err := two.Check("e2b_" + strings.Repeat("1", 40)); !errors.Is(err, bad) && !errdef.Is(err, errdef.Unavailable) {
			t.Errorf("without a database: %v", err)
		}
		alone := load(t, &counted{Store: second.Store})
		_, _ = alone.Check("e2b_" + strings.Repeat("1", 40))
		if n := alone.store.(*counted).reads.Load(); n != 1 {
			t.Errorf("a server that is alone has read %d times", n)
		}
	})
}

// TestRefreshBesideChanges: no change of this server is undone by a list that was read
// before it.
func TestRefreshBesideChanges(t *testing.T) {
	_, two, _, second := pair(t)
	_, _ = makeKey(t, two, Request{Name: "admin", Role: store.RoleAdmin})
	for i := range 20 {
		key, gone := makeKey(t, two, Request{Name: fmt.Sprint("old ", i), Role: store.RoleFull})
		var text string
		var all sync.WaitGroup
		var done atomic.Bool
		second.read = func() {
			second.read = nil
			all.Go(func() {
				defer done.Store(true)
				_, text = makeKey(t, two, Request{Name: fmt.Sprint("new ", i), Role: store.RoleFull})
				if err := two.Revoke(t.Context(), key.ID); err != nil {
					t.Error(err)
				}
			})
			for n := 0; n < 10_000 && !done.Load(); n++ {
				runtime.Gosched() // it is to wait until the list is taken over
			}
		}
		refresh(t, two)
		all.Wait()
		if find(two.entries(), text) == nil || find(two.entries(), gone) != nil {
			t.Fatalf("a change while the list was read is lost")
		}
	}
}

// TestFollowSSHKeys: what one server does to SSH keys holds on the other.
func TestFollowSSHKeys(t *testing.T) {
	one, two, data, _ := pair(t)
	api, _ := makeKey(t, one, Request{Name: "key", Role: store.RoleAdmin})
	refresh(t, two)
	both := make([]*SSHKeys, 2)
	for i, k := range []*Keys{one, two} {
		var err error
		if both[i], err = LoadSSHKeys(t.Context(), memstore.Open(data, memstore.Hooks{}), k); err != nil {
			t.Fatal(err)
		}
	}
	raw, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	public, err := ssh.NewPublicKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	added, err := both[0].Add(t.Context(), api.ID, "laptop", string(ssh.MarshalAuthorizedKey(public)))
	if err != nil {
		t.Fatal(err)
	}
	refresh(t, both[1])
	holders := both[1].Holders(public)
	if len(holders) != 1 || holders[0].Key.ID != api.ID {
		t.Fatalf("the new key gets in as %+v", holders)
	}
	refresh(t, both[1])
	if holders[0].Life.Err() != nil {
		t.Error("without a change, what goes on by the key has ended")
	}
	if err := both[0].Remove(t.Context(), api.ID, added.ID); err != nil {
		t.Fatal(err)
	}
	refresh(t, both[1])
	if holders[0].Life.Err() == nil || len(both[1].Holders(public)) != 0 {
		t.Error("the removed key gets in still")
	}
}

// TestLastAdminOfTwo: the last admin key stays, also where a server has not heard yet
// that the other one was revoked.
func TestLastAdminOfTwo(t *testing.T) {
	one, two, data, _ := pair(t)
	first, _ := makeKey(t, one, Request{Name: "first", Role: store.RoleAdmin})
	second, text := makeKey(t, one, Request{Name: "second", Role: store.RoleAdmin})
	refresh(t, two)
	if err := one.Revoke(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, two.Revoke(t.Context(), second.ID), errdef.Conflict, "last_admin_key")
	for _, k := range []*Keys{one, two, load(t, memstore.Open(data, memstore.Hooks{}))} {
		if _, err := k.Check(text); err != nil {
			t.Errorf("the last admin key: %v", err)
		}
	}
	// Where it has not heard yet of another, it may go.
	makeKey(t, one, Request{Name: "third", Role: store.RoleAdmin})
	if err := two.Revoke(t.Context(), second.ID); err != nil {
		t.Error(err)
	}
}

// TestChangeBesideAnother: a server that has not heard yet of a change of another undoes
// nothing of it, and knows the key then as it is stored.
func TestChangeBesideAnother(t *testing.T) {
	one, two, data, _ := pair(t)
	key, text := makeKey(t, one, Request{Name: "key", Role: store.RoleFull, Limits: store.KeyLimits{DiskMiB: 7}})
	same := func(k *Keys, want store.Key) {
		t.Helper()
		want.LastUsedAt = time.Time{}
		for _, k := range []*Keys{k, load(t, memstore.Open(data, memstore.Hooks{}))} {
			got := k.List()[0]
			if got.LastUsedAt = (time.Time{}); got != want {
				t.Errorf("the key is %+v, want %+v", got, want)
			}
		}
	}
	// It was made a moment ago.
	got, err := two.Change(t.Context(), key.ID, Change{Limits: func(l *store.KeyLimits) { l.Running = 2 }})
	if key.Limits.Running = 2; err != nil || got != key {
		t.Fatalf("a new key: %+v, %v", got, err)
	}
	same(two, key)

	_, err = one.Change(t.Context(), key.ID, Change{Name: new("renamed"), Limits: func(l *store.KeyLimits) { l.Rate = 3 }})
	if err != nil {
		t.Fatal(err)
	}
	got, err = two.Change(t.Context(), key.ID, Change{Limits: func(l *store.KeyLimits) { l.Sandboxes = 5 }})
	key.Name, key.Limits = "renamed", store.KeyLimits{Running: 2, Sandboxes: 5, DiskMiB: 7, Rate: 3}
	if err != nil || got != key {
		t.Errorf("the changed key is %+v, %v; want %+v", got, err, key)
	}
	same(two, key)
	if burst := two.byID(key.ID).calls.Burst(); burst != 3*rateSeconds {
		t.Errorf("it may make %d calls at once, want %d", burst, 3*rateSeconds)
	}
	_, err = two.Change(t.Context(), key.ID, Change{Name: new("other"), Limits: func(l *store.KeyLimits) { l.Rate = -1 }})
	wantCode(t, err, errdef.Invalid, "key_invalid")
	same(two, key)

	// The last rotation holds, and a change knows of one.
	life, cancel := two.Bind(t.Context(), key.ID)
	defer cancel()
	_, middle, err := one.Rotate(t.Context(), key.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	rotated, last, err := two.Rotate(t.Context(), key.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	<-life.Done()
	same(two, rotated)
	for _, gone := range []string{text, middle} {
		_, err := two.Check(gone)
		wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	}
	if _, err := one.Change(t.Context(), key.ID, Change{Name: new("again")}); err != nil {
		t.Fatal(err)
	}
	rotated.Name = "again"
	same(one, rotated)
	if _, err := one.Check(last); err != nil {
		t.Error(err)
	}
	_, err = one.Check(middle)
	wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
}

// TestChangeOfARevokedKey: a server that is told to change a key that another has just
// revoked refuses, and knows the key no more.
func TestChangeOfARevokedKey(t *testing.T) {
	for name, do := range map[string]func(k *Keys, id string) error{
		"rotate": func(k *Keys, id string) error { _, _, err := k.Rotate(t.Context(), id, ""); return err },
		"rename": func(k *Keys, id string) error {
			_, err := k.Change(t.Context(), id, Change{Name: new("other")})
			return err
		},
		"revoke": func(k *Keys, id string) error { return k.Revoke(t.Context(), id) },
	} {
		t.Run(name, func(t *testing.T) {
			one, two, _, _ := pair(t)
			key, text := makeKey(t, one, Request{Name: "key", Role: store.RoleFull})
			refresh(t, two)
			var revoked []string
			two.OnRevoke(func(id string) { revoked = append(revoked, id) })
			life, cancel := two.Bind(t.Context(), key.ID)
			defer cancel()
			if err := one.Revoke(t.Context(), key.ID); err != nil {
				t.Fatal(err)
			}
			err := do(two, key.ID)
			wantCode(t, err, errdef.NotFound, "key_not_found")
			<-life.Done()
			if two.Lives(key.ID) || !slices.Equal(revoked, []string{key.ID}) {
				t.Errorf("the key lives: %v; revoked: %q", two.Lives(key.ID), revoked)
			}
			_, err = two.Check(text)
			wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
			refresh(t, two)
			if len(revoked) != 1 {
				t.Errorf("revoked: %q, want it once", revoked)
			}
		})
	}
}

// TestRelayedKeys: what a server has lent counts at another one, as long as the key lives.
func TestRelayedKeys(t *testing.T) {
	one, _, data, _ := pair(t)
	two := load(t, memstore.Open(data, memstore.Hooks{}))
	key, text := makeKey(t, one, Request{Name: "key", Role: store.RoleFull})
	refresh(t, two)
	relayed := func(text string) string {
		h := http.Header{"X-Api-Key": {text}}
		one.Relay(h)
		return h.Get("X-API-Key")
	}
	ctx, back := context.WithCancel(t.Context())
	lent := one.Lend(ctx, key.ID)
	if relayed(lent) != lent {
		t.Error("there is no other server, and it is replaced")
	}
	one.Share([]byte("secret"))
	if relayed(text) != text || relayed("") != "" {
		t.Error("a key of a client is replaced")
	}
	good := relayed(lent)
	if _, err := two.Check(good); err == nil {
		t.Error("it counts where no secret is shared")
	}
	two.Share([]byte("secret"))
	if got, err := two.Check(good); err != nil || got.ID != key.ID {
		t.Errorf("it is %v, %v", got, err)
	}
	for _, bad := range []string{lent, good[:len(good)-2], good + "00", Prefix + good[len(Prefix)+2:], Prefix + "00"} {
		_, err := two.Check(bad)
		wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	}
	if back(); relayed(lent) != lent {
		t.Error("what was given back is relayed")
	}
	two.Share([]byte("another"))
	_, err := two.Check(good)
	wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	two.Share([]byte("secret"))
	if err := one.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	refresh(t, two)
	_, err = two.Check(good)
	wantCode(t, err, errdef.Unauthorized, "api_key_unknown")

	synctest.Test(t, func(t *testing.T) {
		one, _, _, _ := pair(t)
		one.Share([]byte("secret"))
		key, _ := makeKey(t, one, Request{Name: "key", Role: store.RoleFull})
		h := http.Header{"X-Api-Key": {one.Lend(t.Context(), key.ID)}}
		one.Relay(h)
		if _, err := one.Check(h.Get("X-API-Key")); err != nil {
			t.Error(err)
		}
		time.Sleep(relayLife + 2*time.Second)
		_, err := one.Check(h.Get("X-API-Key"))
		wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
	})
}
