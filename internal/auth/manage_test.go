package auth

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// makeKey returns a key and its text.
func makeKey(t *testing.T, k *Keys, req Request) (store.Key, string) {
	t.Helper()
	key, text, err := k.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return key, text
}

func wantCode(t *testing.T, err error, class errdef.Class, code string) {
	t.Helper()
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Class != class || e.Code != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

func TestCreate(t *testing.T) {
	s := &memory{}
	keys := load(t, s)
	want := Request{Name: "build machine", Role: store.RoleOwn, For: time.Hour, Limits: store.KeyLimits{Running: 2, Sandboxes: 5, MemoryMiB: 4096, DiskMiB: 50_000}}
	key, text := makeKey(t, keys, want)
	for _, k := range []*Keys{keys, load(t, s)} {
		got, err := k.Check(text)
		if err != nil || got != key {
			t.Errorf("Check = %+v, %v; want %+v", got, err, key)
		}
	}
	if key.Name != want.Name || key.Role != want.Role || key.Limits != want.Limits || key.ExpiresAt.Sub(key.CreatedAt) != want.For {
		t.Errorf("the key is %+v", key)
	}
	if got := keys.Limits(key.ID); got != want.Limits {
		t.Errorf("Limits = %+v, want %+v", got, want.Limits)
	}
	if got := keys.Limits("other"); got != (store.KeyLimits{}) {
		t.Errorf("a key that there is not has the limits %+v", got)
	}
	if list := keys.List(); len(list) != 1 || list[0].ID != key.ID {
		t.Errorf("List = %+v", list)
	}
}

func TestCreateRefuses(t *testing.T) {
	for name, req := range map[string]Request{
		"no name":        {Role: store.RoleFull},
		"two lines":      {Name: "a\nb", Role: store.RoleFull},
		"escape":         {Name: "a\x1b[2J", Role: store.RoleFull},
		"no text":        {Name: "a\xff", Role: store.RoleFull},
		"long":           {Name: strings.Repeat("a", 101), Role: store.RoleFull},
		"no role":        {Name: "a"},
		"unknown role":   {Name: "a", Role: "owner"},
		"past":           {Name: "a", Role: store.RoleFull, For: -1},
		"negative limit": {Name: "a", Role: store.RoleFull, Limits: store.KeyLimits{MemoryMiB: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &memory{}
			_, text, err := load(t, s).Create(t.Context(), req)
			wantCode(t, err, errdef.Invalid, "key_invalid")
			if text != "" || len(s.keys) != 0 {
				t.Error("a key was made all the same")
			}
		})
	}
}

// TestRotate: a key that is rotated is the same key with another text, after a restart
// too, and what was opened with the old one ends.
func TestRotate(t *testing.T) {
	s := &memory{}
	keys := load(t, s)
	key, old := makeKey(t, keys, Request{Name: "a", Role: store.RoleAdmin, Limits: store.KeyLimits{Running: 3}})
	bound, cancel := keys.Bind(t.Context(), key.ID)
	defer cancel()
	borrowed := keys.Lend(t.Context(), key.ID)

	_, _, err := keys.Rotate(t.Context(), key.ID, "e2b_short")
	wantCode(t, err, errdef.Invalid, "key_invalid")
	_, _, err = keys.Rotate(t.Context(), "nobody", "")
	wantCode(t, err, errdef.NotFound, "key_not_found")
	s.err = errors.New("disk on fire")
	if _, _, err := keys.Rotate(t.Context(), key.ID, ""); !errors.Is(err, s.err) {
		t.Errorf("Rotate = %v, want the store's error", err)
	}
	s.err = nil
	if _, err := keys.Check(old); err != nil || bound.Err() != nil {
		t.Fatalf("after rotations that were refused: %v, %v", err, bound.Err())
	}

	_, text, err := keys.Rotate(t.Context(), key.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	<-bound.Done()
	for _, k := range []*Keys{keys, load(t, s)} {
		for _, gone := range []string{old, borrowed} {
			_, err := k.Check(gone)
			wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
		}
		got, err := k.Check(text)
		if err != nil || got.ID != key.ID || got.Name != "a" || got.Role != store.RoleAdmin || got.Limits != key.Limits || got.Suffix != text[len(text)-4:] {
			t.Errorf("the key with its new text is %+v, %v", got, err)
		}
	}
	if _, text, err := keys.Rotate(t.Context(), key.ID, preset); err != nil || text != preset {
		t.Errorf("Rotate to a given text: %q, %v", text, err)
	}
}

func TestRevoke(t *testing.T) {
	s := &memory{}
	keys := load(t, s)
	if _, _, err := keys.EnsureFirst(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	key, text := makeKey(t, keys, Request{Name: "a", Role: store.RoleFull})
	bound, cancel := keys.Bind(t.Context(), key.ID)
	defer cancel()
	if bound.Err() != nil {
		t.Fatal("what a good key does ends at once")
	}

	s.err = errors.New("disk on fire")
	if err := keys.Revoke(t.Context(), key.ID); !errors.Is(err, s.err) {
		t.Errorf("Revoke = %v, want the store's error", err)
	}
	if _, err := keys.Check(text); err != nil || bound.Err() != nil || !keys.Lives(key.ID) {
		t.Errorf("after a revocation that was not stored: %v, %v", err, bound.Err())
	}
	s.err = nil
	if err := keys.Revoke(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	<-bound.Done()
	for _, k := range []*Keys{keys, load(t, s)} {
		_, err := k.Check(text)
		wantCode(t, err, errdef.Unauthorized, "api_key_unknown")
		if k.Lives(key.ID) {
			t.Error("a revoked key lives")
		}
	}
	late, cancel := keys.Bind(t.Context(), key.ID)
	defer cancel()
	if late.Err() == nil {
		t.Error("what a revoked key begins goes on")
	}
	wantCode(t, keys.Revoke(t.Context(), key.ID), errdef.NotFound, "key_not_found")
	if _, err := keys.Check(preset); err != nil {
		t.Errorf("another key: %v", err)
	}
}

// TestLastAdminStays: without it nobody could make another key.
func TestLastAdminStays(t *testing.T) {
	keys := load(t, &memory{})
	if _, _, err := keys.EnsureFirst(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	first := keys.List()[0]
	makeKey(t, keys, Request{Name: "no admin", Role: store.RoleFull})
	brief, _ := makeKey(t, keys, Request{Name: "brief", Role: store.RoleAdmin, For: time.Hour})
	wantCode(t, keys.Revoke(t.Context(), first.ID), errdef.Conflict, "last_admin_key")
	second, _ := makeKey(t, keys, Request{Name: "second", Role: store.RoleAdmin})
	for _, id := range []string{first.ID, brief.ID} {
		if err := keys.Revoke(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	wantCode(t, keys.Revoke(t.Context(), second.ID), errdef.Conflict, "last_admin_key")
}

// TestConcurrentRevokesLeaveAnAdmin revokes every admin key at once.
func TestConcurrentRevokesLeaveAnAdmin(t *testing.T) {
	keys := load(t, &memory{})
	for range 8 {
		makeKey(t, keys, Request{Name: "admin", Role: store.RoleAdmin})
	}
	var wg sync.WaitGroup
	for _, k := range keys.List() {
		wg.Go(func() { keys.Revoke(t.Context(), k.ID) })
	}
	wg.Wait()
	if got := len(keys.List()); got != 1 {
		t.Errorf("%d keys are left, want 1", got)
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memory{}
		keys := load(t, s)
		key, text := makeKey(t, keys, Request{Name: "a", Role: store.RoleFull, For: time.Hour})
		bound, cancel := keys.Bind(t.Context(), key.ID)
		defer cancel()
		time.Sleep(time.Hour - time.Second)
		if _, err := keys.Check(text); err != nil || bound.Err() != nil || !keys.Lives(key.ID) {
			t.Errorf("a second before its end: %v, %v", err, bound.Err())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for _, k := range []*Keys{keys, load(t, s)} {
			_, err := k.Check(text)
			wantCode(t, err, errdef.Unauthorized, "api_key_expired")
			if strings.Contains(err.Error(), text) {
				t.Error("the error contains the key")
			}
			if k.Lives(key.ID) {
				t.Error("an expired key lives")
			}
		}
		if bound.Err() == nil {
			t.Error("what the key does goes on after its end")
		}
	})
}

// TestUseIsNotedNowAndThen: a request writes nothing, and what is noted outlives
// the server.
func TestUseIsNotedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &memory{}
		keys := load(t, s)
		_, text := makeKey(t, keys, Request{Name: "used", Role: store.RoleFull})
		makeKey(t, keys, Request{Name: "idle", Role: store.RoleFull})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { keys.Run(ctx, slog.New(slog.DiscardHandler)) })
		used := func() time.Time {
			for range 1000 {
				if _, err := keys.Check(text); err != nil {
					t.Fatal(err)
				}
			}
			return time.Now().UTC().Truncate(time.Second)
		}

		at := used()
		if got := keys.List()[0].LastUsedAt; !got.Equal(at) {
			t.Errorf("last used at %v, want %v", got, at)
		}
		if s.noted() != 0 {
			t.Error("a request was written")
		}
		s.fail(errors.New("disk is full"))
		time.Sleep(noteEvery + time.Second)
		synctest.Wait()
		s.fail(nil)
		time.Sleep(10 * noteEvery)
		synctest.Wait()
		if n := s.noted(); n != 1 {
			t.Errorf("noted %d times, want once after the failure", n)
		}
		at = used()
		stop()
		running.Wait()
		list := load(t, s).List()
		if !list[0].LastUsedAt.Equal(at) || !list[1].LastUsedAt.IsZero() {
			t.Errorf("after a restart: used at %v, want %v; idle at %v", list[0].LastUsedAt, at, list[1].LastUsedAt)
		}
	})
}

func TestRoles(t *testing.T) {
	want := map[store.Role]string{
		store.RoleAdmin: "look use manage", store.RoleFull: "look use", store.RoleOwn: "look use", store.RoleRead: "look", "": "", "owner": "",
	}
	for role, can := range want {
		for _, p := range []Permission{Look, Use, Manage} {
			key := store.Key{ID: "k", Role: role}
			err := Require(key, p)
			if may := strings.Contains(can, string(p)); may != (err == nil) || may != May(key, p) {
				t.Errorf("a key of role %q, asked for %s: %v", role, p, err)
			}
			if err != nil {
				wantCode(t, err, errdef.Forbidden, "role_insufficient")
			}
		}
	}
}

func TestSees(t *testing.T) {
	for _, role := range []store.Role{store.RoleAdmin, store.RoleFull, store.RoleRead} {
		if k := (store.Key{ID: "k", Role: role}); !SeesAll(k) || !Sees(k, "other") {
			t.Errorf("%s does not see what another key has made", role)
		}
	}
	own := store.Key{ID: "k", Role: store.RoleOwn}
	if SeesAll(own) || !Sees(own, "k") || Sees(own, "other") || Sees(own, "") {
		t.Error("a key of role own must see what it has made, and nothing else")
	}
}

func TestPresetMustBeAnAdmin(t *testing.T) {
	for name, req := range map[string]Request{
		"no admin": {Name: "a", Role: store.RoleFull},
		"expires":  {Name: "a", Role: store.RoleAdmin, For: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			keys := load(t, &memory{})
			_, text := makeKey(t, keys, req)
			_, _, err := keys.EnsureFirst(t.Context(), text)
			wantCode(t, err, errdef.Invalid, "invalid_api_key_preset")
			if strings.Contains(err.Error(), text) {
				t.Error("the error contains the key")
			}
		})
	}
}
