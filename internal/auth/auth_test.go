package auth

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// memory is a Store of keys.
type memory struct {
	mu   sync.Mutex
	keys []store.Key
	uses int   // how often uses were noted
	err  error // returned by every call if set
}

func (m *memory) AddKey(_ context.Context, k store.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	for _, have := range m.keys {
		if have.Hash == k.Hash || have.ID == k.ID {
			return errdef.New(errdef.Exists, "key_exists", "this key exists")
		}
	}
	m.keys = append(m.keys, k)
	return nil
}

func (m *memory) Keys(context.Context) ([]store.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]store.Key(nil), m.keys...), m.err
}

func (m *memory) KeysUsed(_ context.Context, at map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	m.uses++
	for i := range m.keys {
		if t, used := at[m.keys[i].ID]; used {
			m.keys[i].LastUsedAt = t
		}
	}
	return nil
}

func (m *memory) noted() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.uses
}

func (m *memory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) UpdateKey(_ context.Context, id string, c store.KeyChange) (store.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return store.Key{}, m.err
	}
	i := slices.IndexFunc(m.keys, func(have store.Key) bool { return have.ID == id })
	next := m.keys[i]
	if err := c.Apply(&next); err != nil {
		return store.Key{}, err
	}
	m.keys[i] = next
	return next, nil
}

func (m *memory) RemoveKey(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	rest := slices.DeleteFunc(slices.Clone(m.keys), func(k store.Key) bool { return k.ID == id })
	if !slices.ContainsFunc(rest, store.Key.Lasting) && slices.ContainsFunc(m.keys, store.Key.Lasting) {
		return store.ErrLastAdmin()
	}
	m.keys = rest
	return nil
}

const preset = "e2b_0123456789abcdef0123456789abcdef01234567"

func load(t *testing.T, s Store) *Keys {
	t.Helper()
	k, err := Load(t.Context(), s)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return k
}

func TestEnsureFirstMakesOneKeyOnce(t *testing.T) {
	s := &memory{}
	text, created, err := load(t, s).EnsureFirst(t.Context(), "")
	if err != nil || !created {
		t.Fatalf("EnsureFirst = %v, %v; want a key", created, err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(text) {
		t.Errorf("the key has the wrong form (%d characters)", len(text))
	}
	again, created, err := load(t, s).EnsureFirst(t.Context(), "")
	if again != "" || created || err != nil {
		t.Errorf("second EnsureFirst = %q, %v, %v; want nothing new", again, created, err)
	}
	if got, err := load(t, s).Check(text); err != nil || got.ID != s.keys[0].ID || got.Role != store.RoleAdmin {
		t.Errorf("Check after a restart = %v, %v", got, err)
	}
}

func TestStoredKeyHasNoSecret(t *testing.T) {
	s := &memory{}
	text, _, err := load(t, s).EnsureFirst(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	k := s.keys[0]
	if k.Hash != sha256.Sum256([]byte(text)) {
		t.Error("the hash is not the SHA-256 of the text")
	}
	if k.Prefix != text[:6] || k.Suffix != text[40:] || len(k.Suffix) != 4 {
		t.Errorf("prefix %q, suffix %q", k.Prefix, k.Suffix)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(k.ID) {
		t.Errorf("id %q is no UUID", k.ID)
	}
	if k.CreatedAt.Location() != time.UTC || k.CreatedAt.Nanosecond()%1000 != 0 {
		t.Errorf("created at %v: want UTC in microseconds", k.CreatedAt)
	}
}

func TestPreset(t *testing.T) {
	s := &memory{}
	keys := load(t, s)
	if _, _, err := keys.EnsureFirst(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	shown, created, err := keys.EnsureFirst(t.Context(), preset)
	if shown != "" || !created || err != nil {
		t.Fatalf("EnsureFirst(preset) = %q, %v, %v; want created and not shown", shown, created, err)
	}
	if got, err := keys.Check(preset); err != nil || got.Role != store.RoleAdmin {
		t.Errorf("Check(preset) = %v, %v", got, err)
	}
	if _, created, err = load(t, s).EnsureFirst(t.Context(), preset); created || err != nil {
		t.Errorf("the same preset after a restart: %v, %v; want nothing new", created, err)
	}
	if len(s.keys) != 2 {
		t.Errorf("%d keys stored, want 2", len(s.keys))
	}
	// Another preset is another key, and has another name.
	if _, created, err = load(t, s).EnsureFirst(t.Context(), preset+"00"); !created || err != nil || s.keys[2].Name == s.keys[1].Name {
		t.Errorf("another preset: %v, %v, %v", created, err, s.keys)
	}
}

func TestPresetOfTheWrongFormIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"short":      "e2b_0123456789abcdef",
		"31 digits":  "e2b_" + strings.Repeat("a", 31),
		"uppercase":  "e2b_" + strings.Repeat("A", 40),
		"no prefix":  strings.Repeat("a", 40),
		"other":      "my-secret-password-my-secret-password",
		"new line":   preset + "\n",
		"empty text": "e2b_",
		"huge":       "e2b_" + strings.Repeat("a", 600),
	} {
		t.Run(name, func(t *testing.T) {
			s := &memory{}
			_, created, err := load(t, s).EnsureFirst(t.Context(), text)
			if !errdef.Is(err, errdef.Invalid) || created || len(s.keys) != 0 {
				t.Fatalf("EnsureFirst = %v, %v; want a refusal", created, err)
			}
			if len(text) > 4 && strings.Contains(err.Error(), text) {
				t.Error("the error contains the key")
			}
		})
	}
}

func TestCheckRefuses(t *testing.T) {
	keys := load(t, &memory{})
	if _, _, err := keys.EnsureFirst(t.Context(), preset); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ key, code string }{
		"missing":        {"", "api_key_missing"},
		"no prefix":      {"abc", "api_key_malformed"},
		"legacy token":   {"sk_" + preset, "api_key_malformed"},
		"uppercase":      {strings.ToUpper(preset), "api_key_malformed"},
		"trailing space": {preset + " ", "api_key_malformed"},
		"huge":           {"e2b_" + strings.Repeat("a", 1<<20), "api_key_malformed"},
		"unknown":        {"e2b_ff23456789abcdef0123456789abcdef01234567", "api_key_unknown"},
		"truncated":      {preset[:43], "api_key_unknown"},
		"extended":       {preset + "0", "api_key_unknown"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := keys.Check(tt.key)
			e, ok := errors.AsType[*errdef.Error](err)
			if !ok || e.Class != errdef.Unauthorized || e.Code != tt.code {
				t.Fatalf("Check = %v; want %s", err, tt.code)
			}
			if tt.key != "" && strings.Contains(err.Error(), tt.key) {
				t.Error("the error contains the key")
			}
		})
	}
}

func TestStoreFailureIsReported(t *testing.T) {
	broken := errors.New("disk on fire")
	if _, err := Load(t.Context(), &memory{err: broken}); !errors.Is(err, broken) {
		t.Errorf("Load = %v, want the store's error", err)
	}
	s := &memory{}
	keys := load(t, s)
	s.err = broken
	text, created, err := keys.EnsureFirst(t.Context(), "")
	if text != "" || created || !errors.Is(err, broken) {
		t.Errorf("EnsureFirst = %v, %v; want the store's error and no key", created, err)
	}
	if _, err := keys.Check(preset); err == nil {
		t.Error("a key that was not stored is valid")
	}
}

func TestConcurrentEnsureFirstMakesOneKey(t *testing.T) {
	s := &memory{}
	keys := load(t, s)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			keys.EnsureFirst(t.Context(), "")
			keys.Check(preset)
		})
	}
	wg.Wait()
	if len(s.keys) != 1 {
		t.Errorf("%d keys, want 1", len(s.keys))
	}
}

func TestFromHeader(t *testing.T) {
	tests := map[string]struct {
		header map[string]string
		want   string
	}{
		"none":               {nil, ""},
		"X-API-Key":          {map[string]string{"X-API-KEY": "e2b_1"}, "e2b_1"},
		"malformed is kept":  {map[string]string{"X-API-Key": "x"}, "x"},
		"bearer":             {map[string]string{"Authorization": "Bearer e2b_2"}, "e2b_2"},
		"bearer, lower case": {map[string]string{"Authorization": "bearer  e2b_2 "}, "e2b_2"},
		"other bearer token": {map[string]string{"Authorization": "Bearer eyJhbGciOi"}, ""},
		"basic":              {map[string]string{"Authorization": "Basic e2b_2"}, ""},
		"both":               {map[string]string{"X-API-Key": "e2b_1", "Authorization": "Bearer e2b_2"}, "e2b_1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for k, v := range tt.header {
				h.Set(k, v)
			}
			if got := FromHeader(h); got != tt.want {
				t.Errorf("FromHeader = %q, want %q", got, tt.want)
			}
		})
	}
}
