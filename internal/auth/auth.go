// Package auth holds the API keys of a server: who may use its control plane.
//
// A key is the text "e2b_" followed by lowercase hex digits, the only form that
// every E2B client sends without complaint. Only its SHA-256 is stored, so a
// key can be shown once, when it is made, and never again. All keys are held in
// memory: Check does no I/O and takes the same time for every well-formed key.
//
// A missing, a malformed and an unknown key are all errdef.Unauthorized; the
// messages differ, so that a user knows what to mend. No error and no log line
// contains a key.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

const (
	// prefix begins every key.
	prefix = "e2b_"
	// maxLen bounds what is hashed for a stranger.
	maxLen = 512
	// madeBytes is the entropy of a key made here, as E2B's own: 40 hex digits.
	madeBytes = 20
)

var (
	wellFormed = regexp.MustCompile(`^e2b_[0-9a-f]+$`)
	// strong is what a key that a user chose must match: 128 bits at least.
	strong = regexp.MustCompile(`^e2b_[0-9a-f]{32,128}$`)
)

// Store is the part of the server's store that keeps keys.
type Store interface {
	AddKey(ctx context.Context, k store.Key) error
	Keys(ctx context.Context) ([]store.Key, error)
}

// Keys answers whether a key is good. It is safe for concurrent use.
type Keys struct {
	store Store

	mu   sync.RWMutex
	keys []store.Key // all that the store has
}

// Load reads the keys of s.
func Load(ctx context.Context, s Store) (*Keys, error) {
	keys, err := s.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("load API keys: %w", err)
	}
	return &Keys{store: s, keys: keys}, nil
}

// EnsureFirst sees to it that the server has a key. With a preset, that very
// key becomes valid, whatever others there are; without one, a key is made if
// the server has none.
//
// Created says that a key was added. Shown is its text if it was made here: the
// only chance to tell the user. A preset is never shown, its owner has it.
func (k *Keys) EnsureFirst(ctx context.Context, preset string) (shown string, created bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if preset != "" {
		created, err = k.ensurePreset(ctx, preset)
		return "", created, err
	}
	if len(k.keys) > 0 {
		return "", false, nil
	}
	text := newText()
	if err := k.add(ctx, "first key", text); err != nil {
		return "", false, err
	}
	return text, true, nil
}

// ensurePreset adds the preset key unless it is known. The caller holds mu.
func (k *Keys) ensurePreset(ctx context.Context, preset string) (bool, error) {
	if !strong.MatchString(preset) {
		return false, errdef.New(errdef.Invalid, "invalid_api_key_preset",
			`the preset API key has the wrong form (it has %d characters): E2B clients accept only "e2b_" followed by lowercase hex digits, and at least 32 of them are required`, len(preset)).
			WithRemedy(`make one with: echo "e2b_$(openssl rand -hex 20)"`)
	}
	if _, known := find(k.keys, preset); known {
		return false, nil
	}
	if err := k.add(ctx, "preset key", preset); err != nil {
		return false, err
	}
	return true, nil
}

// add stores a key and makes it valid. The caller holds mu.
func (k *Keys) add(ctx context.Context, name, text string) error {
	key := store.Key{
		ID:        newUUID(),
		Name:      name,
		Hash:      sha256.Sum256([]byte(text)),
		Prefix:    text[:len(prefix)+2],
		Suffix:    text[len(text)-4:],
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	if err := k.store.AddKey(ctx, key); err != nil {
		return fmt.Errorf("store API key %q: %w", name, err)
	}
	k.keys = append(k.keys, key)
	return nil
}

// Check returns the key that text is, or an errdef.Unauthorized.
func (k *Keys) Check(text string) (store.Key, error) {
	if text == "" {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_missing", "no API key").
			WithRemedy("send it in the X-API-Key header")
	}
	if len(text) > maxLen || !wellFormed.MatchString(text) {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_malformed", "malformed API key").
			WithRemedy(`a key is "e2b_" followed by lowercase hex digits`)
	}
	k.mu.RLock()
	key, ok := find(k.keys, text)
	k.mu.RUnlock()
	if !ok {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "unknown API key").
			WithRemedy("use a key of this server")
	}
	return key, nil
}

// find looks at every key, so that the time taken says nothing about them.
func find(keys []store.Key, text string) (store.Key, bool) {
	hash := sha256.Sum256([]byte(text))
	found := -1
	for i := range keys {
		if subtle.ConstantTimeCompare(keys[i].Hash[:], hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return store.Key{}, false
	}
	return keys[found], true
}

// FromHeader returns the API key of a request, or "": the X-API-Key header, or
// else an Authorization header that bears one. Bearer tokens of other kinds are
// not ours to judge.
func FromHeader(h http.Header) string {
	if key := strings.TrimSpace(h.Get("X-API-Key")); key != "" {
		return key
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	token = strings.TrimSpace(token)
	if strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(token, prefix) {
		return token
	}
	return ""
}

func newText() string {
	var b [madeBytes]byte
	rand.Read(b[:]) // never fails: it would end the process
	return prefix + hex.EncodeToString(b[:])
}

// newUUID returns a random (version 4) UUID, as E2B's clients expect of ids of
// keys.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
