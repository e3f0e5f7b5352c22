// Package secret keeps the secrets that sandboxes use without having them.
//
// A secret belongs to an API key, and the sandboxes of that key can be given its
// use. Inside, an environment variable has a placeholder; the way out puts the
// value into requests to the hosts that the secret is for (package
// egress/inject). What a sandbox was given are names: values are looked up at each
// request, so that one that is replaced or removed is so at once, for sandboxes
// that sleep as well.
//
// Values are stored encrypted, by AES-256-GCM. The key for that is in a file of its
// own, which is made with the first secret; who has the database alone has no
// value. No function returns a value to a caller of the API, and no error has one.
package secret

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/durable"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// KeyFile is the name of the file with the key, in the state directory.
const KeyFile = "secrets.key"

const keyBytes = 32

// Vault has the secrets of all API keys. It is safe for concurrent use.
type Vault struct {
	store store.UsedSecrets
	file  string
	base  context.Context // what the lives of secrets are derived from; it never ends

	// changes is held while a change is stored, so that there is one at a time; mu,
	// which is taken after it, never.
	changes sync.Mutex
	mu      sync.RWMutex
	all     []entry // never changed
	master  []byte  // what is in the file; nil until it was read
}

// entry is a stored secret.
type entry struct {
	store.Secret
	life context.Context // ends when it is removed or its rule changes
	end  context.CancelFunc
}

// Open reads the secrets of a store. Their key is in a file of dir.
func Open(ctx context.Context, s store.UsedSecrets, dir string) (*Vault, error) {
	all, err := s.AllSecrets(ctx)
	if err != nil {
		return nil, fmt.Errorf("load secrets: %w", err)
	}
	v := &Vault{store: s, file: filepath.Join(dir, KeyFile), base: context.WithoutCancel(ctx)}
	for _, x := range all {
		v.all = append(v.all, v.newEntry(x))
	}
	return v, nil
}

func (v *Vault) newEntry(x store.Secret) entry {
	e := entry{Secret: x}
	e.life, e.end = context.WithCancel(v.base)
	return e
}

func (v *Vault) list() []entry {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.all
}

func (v *Vault) set(all []entry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = all
}

func index(all []entry, key, name string) int {
	return slices.IndexFunc(all, func(e entry) bool { return e.Key == key && e.Name == name })
}

// Of returns the secrets of an API key, oldest first, without their values.
func (v *Vault) Of(key string) []store.Secret {
	var of []store.Secret
	for _, e := range v.list() {
		if e.Key == key {
			x := e.Secret
			x.Sealed = nil
			of = append(of, x)
		}
	}
	return of
}

// Get returns a secret of an API key, without its value.
func (v *Vault) Get(key, name string) (store.Secret, error) {
	for _, x := range v.Of(key) {
		if x.Name == name {
			return x, nil
		}
	}
	return store.Secret{}, notFound(name)
}

func notFound(name string) error {
	return errdef.New(errdef.NotFound, "secret_not_found", "the API key has no secret %.128q", name).
		WithRemedy("list its secrets: GET /v1/secrets, drowse secret ls")
}

// Set makes a secret of an API key, or replaces the one of its name. Without a
// value it keeps the one that it has.
func (v *Vault) Set(ctx context.Context, key, name string, rule store.SecretRule, value *string) (store.Secret, error) {
	rule, err := check(name, rule)
	if err == nil && value != nil {
		err = checkValue(*value)
	}
	if err != nil {
		return store.Secret{}, err
	}
	v.changes.Lock()
	defer v.changes.Unlock()
	all, now := v.list(), time.Now().UTC().Truncate(time.Microsecond)
	i := index(all, key, name)
	x := store.Secret{ID: newID(), Key: key, Name: name, CreatedAt: now}
	switch {
	case i >= 0:
		x = all[i].Secret
	case value == nil:
		return store.Secret{}, invalid("a new secret needs a value").With("field", "value")
	case len(v.Of(key)) >= maxSecrets:
		return store.Secret{}, errdef.New(errdef.Exhausted, "secrets_limit", "an API key has at most %d secrets", maxSecrets).
			WithRemedy("remove one first").With("allowed", maxSecrets)
	}
	x.Rule, x.UpdatedAt = rule, now
	if value != nil {
		x.Version++
		if x.Sealed, err = v.seal(x, *value); err != nil {
			return store.Secret{}, err
		}
	}
	return v.put(ctx, all, i, x, true)
}

// Rotate replaces the value of a secret. Requests under way go on with the one
// that they have.
func (v *Vault) Rotate(ctx context.Context, key, name, value string) (store.Secret, error) {
	if err := checkValue(value); err != nil {
		return store.Secret{}, err
	}
	v.changes.Lock()
	defer v.changes.Unlock()
	all := v.list()
	i := index(all, key, name)
	if i < 0 {
		return store.Secret{}, notFound(name)
	}
	x := all[i].Secret
	x.Version++
	x.UpdatedAt = time.Now().UTC().Truncate(time.Microsecond)
	var err error
	if x.Sealed, err = v.seal(x, value); err != nil {
		return store.Secret{}, err
	}
	return v.put(ctx, all, i, x, false)
}

// put stores a secret, in the place of number i if that is not negative. If the
// rule is new, what goes on by the old one ends. The caller holds changes.
func (v *Vault) put(ctx context.Context, all []entry, i int, x store.Secret, rule bool) (store.Secret, error) {
	if err := v.store.PutSecret(ctx, x); err != nil {
		return store.Secret{}, err
	}
	next := slices.Clone(all)
	switch {
	case i < 0:
		next = append(next, v.newEntry(x))
	case rule:
		next[i] = v.newEntry(x)
	default:
		next[i].Secret = x
	}
	v.set(next)
	if i >= 0 && rule {
		all[i].end()
	}
	x.Sealed = nil
	return x, nil
}

// Remove makes a secret worthless, and ends what goes on by it.
func (v *Vault) Remove(ctx context.Context, key, name string) error {
	v.changes.Lock()
	defer v.changes.Unlock()
	all := v.list()
	i := index(all, key, name)
	if i < 0 {
		return notFound(name)
	}
	if err := v.store.RemoveSecret(ctx, all[i].ID); err != nil {
		return err
	}
	v.set(slices.Delete(slices.Clone(all), i, i+1))
	all[i].end()
	return nil
}

// Drop forgets the secrets of an API key that was revoked. The store has removed
// them with it.
func (v *Vault) Drop(key string) {
	v.changes.Lock()
	defer v.changes.Unlock()
	all := v.list()
	v.set(slices.DeleteFunc(slices.Clone(all), func(e entry) bool { return e.Key == key }))
	for _, e := range all {
		if e.Key == key {
			e.end()
		}
	}
}

func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails: it would end the process
	return "sec_" + hex.EncodeToString(b[:])
}

// key returns a key for one purpose. The file is made if there is none and no
// secret needs the one that was there.
func (v *Vault) key(purpose string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.master == nil {
		master, err := readKey(v.file)
		if errors.Is(err, fs.ErrNotExist) {
			if len(v.all) > 0 {
				return nil, errdef.New(errdef.Unavailable, "secrets_unreadable", "the file %s is missing, with which the values of secrets are encrypted", v.file).
					WithRemedy("put it back from a backup, or remove the secrets and set them anew")
			}
			master, err = makeKey(v.file)
		}
		if err != nil {
			return nil, err
		}
		v.master = master
	}
	return hkdf.Key(sha256.New, v.master, nil, "drowse "+purpose, keyBytes)
}

func readKey(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("key of the secrets: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != keyBytes {
		return nil, errdef.New(errdef.Unavailable, "secrets_unreadable", "the file %s is damaged: it must have %d hex digits", file, 2*keyBytes).
			WithRemedy("put it back from a backup, or remove it and the secrets, and set them anew")
	}
	return key, nil
}

// makeKey makes the file, which is durable before anything depends on it.
func makeKey(file string) ([]byte, error) {
	key := make([]byte, keyBytes)
	rand.Read(key)
	if err := durable.Replace(file, []byte(hex.EncodeToString(key)+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("make the key of the secrets: %w", err)
	}
	return key, nil
}

// valuePurpose is what the values of secrets are encrypted for.
const valuePurpose = "values of secrets"

// aead returns what encrypts for one purpose.
func (v *Vault) aead(purpose string) (cipher.AEAD, error) {
	key, err := v.key(purpose)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// bound is what a value is bound to: moved to another row, or put back in an older
// state, it does not open.
func bound(x store.Secret) []byte {
	return fmt.Appendf(nil, "%s %s %s %d", x.ID, x.Key, x.Name, x.Version)
}

func (v *Vault) seal(x store.Secret, value string) ([]byte, error) {
	a, err := v.aead(valuePurpose)
	if err != nil {
		return nil, fmt.Errorf("encrypt secret %s: %w", x.Name, err)
	}
	return a.Seal(nil, nil, []byte(value), bound(x)), nil
}

func (v *Vault) open(x store.Secret) (string, error) {
	a, err := v.aead(valuePurpose)
	if err != nil {
		return "", fmt.Errorf("read secret %s: %w", x.Name, err)
	}
	value, err := a.Open(nil, nil, x.Sealed, bound(x))
	if err != nil {
		return "", errdef.New(errdef.Unavailable, "secrets_unreadable", "the value of secret %s was encrypted with another key than that in %s, or is damaged", x.Name, v.file).
			WithRemedy("put the right file back and restart the server, or set the secret anew")
	}
	return string(value), nil
}
