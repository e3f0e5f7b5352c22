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
// value. Several servers with one database need the same file. No function returns a value to a caller of the API, and no error has one.
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
	"reflect"
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

	// changes is held while a change is stored, so that there is one at a time, and opening
	// while the file is read or made; mu, which is taken after these, never.
	changes sync.Mutex
	opening sync.Mutex
	master  []byte // what is in the file; nil until it was read; of opening
	mu      sync.RWMutex
	all     []entry // never changed
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
	return v.upToDate(ctx, func() (store.Secret, error) {
		if was, known := v.find(key, name); known {
			return v.change(ctx, was, &rule, value)
		}
		return v.add(ctx, key, name, rule, value)
	})
}

// Rotate replaces the value of a secret. Requests under way go on with the one
// that they have.
func (v *Vault) Rotate(ctx context.Context, key, name, value string) (store.Secret, error) {
	if err := checkValue(value); err != nil {
		return store.Secret{}, err
	}
	return v.upToDate(ctx, func() (store.Secret, error) {
		was, known := v.find(key, name)
		if !known {
			return store.Secret{}, notFound(name)
		}
		return v.change(ctx, was, nil, &value)
	})
}

// upToDate stores a change. Where the store has made or removed what memory does not know
// of, another server has: then the change is tried again with what is stored.
func (v *Vault) upToDate(ctx context.Context, change func() (store.Secret, error)) (store.Secret, error) {
	const tries = 3
	v.changes.Lock()
	defer v.changes.Unlock()
	for try := 1; ; try++ {
		x, err := change()
		switch behind := errdef.Is(err, errdef.Exists) || errdef.Is(err, errdef.NotFound); {
		case err == nil:
			x.Sealed = nil
			return x, nil
		case !behind || try == tries:
			return store.Secret{}, err
		}
		if err := v.refresh(ctx); err != nil {
			return store.Secret{}, err
		}
	}
}

func (v *Vault) find(key, name string) (entry, bool) {
	all := v.list()
	if i := index(all, key, name); i >= 0 {
		return all[i], true
	}
	return entry{}, false
}

// add stores a new secret. The caller holds changes.
func (v *Vault) add(ctx context.Context, key, name string, rule store.SecretRule, value *string) (store.Secret, error) {
	if value == nil {
		return store.Secret{}, invalid("a new secret needs a value").With("field", "value")
	}
	a, err := v.sealer(name)
	if err != nil {
		return store.Secret{}, err
	}
	x := store.Secret{ID: newID(), Key: key, Name: name, Version: 1, Rule: rule, CreatedAt: now()}
	x.UpdatedAt, x.Sealed = x.CreatedAt, seal(a, x, *value)
	if err := v.store.PutSecret(ctx, x); err != nil {
		return store.Secret{}, err
	}
	v.set(append(slices.Clone(v.list()), v.newEntry(x)))
	return x, nil
}

// change gives a secret another rule, another value or both, and leaves the rest as it is
// stored. If the rule is new, also where another server has changed it, what goes on by the
// old one ends. The caller holds changes.
func (v *Vault) change(ctx context.Context, was entry, rule *store.SecretRule, value *string) (store.Secret, error) {
	var a cipher.AEAD // before the change, which cannot ask the store
	if value != nil {
		var err error
		if a, err = v.sealer(was.Name); err != nil {
			return store.Secret{}, err
		}
	}
	at := now()
	x, err := v.store.ChangeSecret(ctx, was.ID, func(x *store.Secret) error {
		if rule != nil {
			x.Rule = *rule
		}
		if value != nil {
			x.Version++
			x.Sealed = seal(a, *x, *value)
		}
		x.UpdatedAt = at
		return nil
	})
	if err != nil {
		return store.Secret{}, err
	}
	next, over := slices.Clone(v.list()), rule != nil || !reflect.DeepEqual(x.Rule, was.Rule)
	i := index(next, was.Key, was.Name)
	if next[i].Secret = x; over {
		next[i] = v.newEntry(x)
	}
	v.set(next)
	if over {
		was.end()
	}
	return x, nil
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

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

// Refresh takes over what other servers have changed. What goes on by a secret that they
// have removed, or by a rule that they have changed, ends.
func (v *Vault) Refresh(ctx context.Context) error {
	v.changes.Lock()
	defer v.changes.Unlock()
	return v.refresh(ctx)
}

// refresh is Refresh for who holds changes.
func (v *Vault) refresh(ctx context.Context) error {
	list, err := v.store.AllSecrets(ctx)
	if err != nil {
		return fmt.Errorf("read secrets again: %w", err)
	}
	ends := map[string]entry{}
	for _, e := range v.list() {
		ends[e.ID] = e
	}
	var next []entry
	for _, x := range list {
		e, known := ends[x.ID]
		if known && reflect.DeepEqual(e.Rule, x.Rule) {
			e.Secret = x
			delete(ends, x.ID)
		} else {
			e = v.newEntry(x)
		}
		next = append(next, e)
	}
	v.set(next)
	for _, e := range ends {
		e.end()
	}
	return nil
}

func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails: it would end the process
	return "sec_" + hex.EncodeToString(b[:])
}

// key returns a key for one purpose. The file is made if there is none and no
// secret needs the one that was there.
func (v *Vault) key(purpose string) ([]byte, error) {
	v.opening.Lock()
	defer v.opening.Unlock()
	if v.master == nil {
		master, err := readKey(v.file)
		if errors.Is(err, fs.ErrNotExist) {
			if err = v.unneeded(); err == nil {
				master, err = makeKey(v.file)
			}
		}
		if err != nil {
			return nil, err
		}
		v.master = master
	}
	return hkdf.Key(sha256.New, v.master, nil, "drowse "+purpose, keyBytes)
}

// unneeded returns an error where a secret was encrypted with a file that is not here. It
// asks the store: another server may just have made the first one.
func (v *Vault) unneeded() error {
	all, err := v.store.AllSecrets(v.base)
	if err != nil {
		return fmt.Errorf("key of the secrets: %w", err)
	}
	if len(all) == 0 && len(v.list()) == 0 {
		return nil
	}
	return errdef.New(errdef.Unavailable, "secrets_unreadable", "the file %s is missing, with which the values of secrets are encrypted", v.file).
		WithRemedy("put it back from a backup, or copy it from a server of the same database that has it; or remove the secrets and set them anew")
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

// sealer returns what encrypts the value of a secret.
func (v *Vault) sealer(name string) (cipher.AEAD, error) {
	a, err := v.aead(valuePurpose)
	if err != nil {
		return nil, fmt.Errorf("encrypt secret %s: %w", name, err)
	}
	return a, nil
}

func seal(a cipher.AEAD, x store.Secret, value string) []byte {
	return a.Seal(nil, nil, []byte(value), bound(x))
}

func (v *Vault) open(x store.Secret) (string, error) {
	a, err := v.aead(valuePurpose)
	if err != nil {
		return "", fmt.Errorf("read secret %s: %w", x.Name, err)
	}
	value, err := a.Open(nil, nil, x.Sealed, bound(x))
	if err != nil {
		return "", errdef.New(errdef.Unavailable, "secrets_unreadable", "the value of secret %s was encrypted with another key than that in %s, or is damaged", x.Name, v.file).
			WithRemedy("put the right file back, and where several servers have one database, copy %s from the one that has set the secret to all others; then restart the server. Or set the secret anew", KeyFile)
	}
	return string(value), nil
}
