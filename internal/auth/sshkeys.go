package auth

import (
	"context"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/crypto/ssh"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Bounds of SSH keys.
const (
	maxPublicKey  = 16 << 10
	minRSABits    = 2048
	invalidSSHKey = "ssh_key_invalid"
)

// SSHKeys are the public keys by which SSH clients get in, each in the name of an
// API key. It is safe for concurrent use.
type SSHKeys struct {
	store store.SSHKeys
	keys  *Keys

	changes sync.Mutex // as of Keys
	mu      sync.RWMutex
	all     []sshEntry // never changed
}

// sshEntry is a stored key.
type sshEntry struct {
	store.SSHKey
	life   context.Context    // ends when the key is removed
	remove context.CancelFunc // ends life
}

func (k *SSHKeys) newEntry(key store.SSHKey) sshEntry {
	e := sshEntry{SSHKey: key}
	e.life, e.remove = context.WithCancel(k.keys.base)
	return e
}

// LoadSSHKeys reads the SSH keys of s.
func LoadSSHKeys(ctx context.Context, s store.SSHKeys, keys *Keys) (*SSHKeys, error) {
	all, err := s.SSHKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("load SSH keys: %w", err)
	}
	k := &SSHKeys{store: s, keys: keys}
	for _, key := range all {
		k.all = append(k.all, k.newEntry(key))
	}
	return k, nil
}

// Add lets the holder of a key in by SSH, as the API key of the id key. Text is a
// line of a .pub file; without a name, its comment is the name.
func (k *SSHKeys) Add(ctx context.Context, key, name, text string) (store.SSHKey, error) {
	public, comment, err := parsePublicKey(text)
	if err != nil {
		return store.SSHKey{}, err
	}
	if name == "" {
		name = strings.TrimSpace(comment)
	}
	if len(name) > maxName || !utf8.ValidString(name) || !isPrintable(name) {
		return store.SSHKey{}, errdef.New(errdef.Invalid, invalidSSHKey, "the name of an SSH key must have at most %d bytes of text in one line", maxName).
			WithRemedy("give it a name of its own: its comment is none")
	}
	k.changes.Lock()
	defer k.changes.Unlock()
	added := store.SSHKey{ID: newUUID(), Key: key, Name: name, PublicKey: public, CreatedAt: time.Now().UTC().Truncate(time.Microsecond)}
	if err := k.store.AddSSHKey(ctx, added); err != nil {
		return store.SSHKey{}, err
	}
	k.set(append(slices.Clone(k.list()), k.newEntry(added)))
	return added, nil
}

// parsePublicKey returns a key as it is stored.
func parsePublicKey(text string) (public, comment string, err error) {
	refuse := func(format string, args ...any) (string, string, error) {
		return "", "", errdef.New(errdef.Invalid, invalidSSHKey, format, args...).
			WithRemedy("send the line of a .pub file; ssh-keygen -t ed25519 makes one")
	}
	switch text = strings.TrimSpace(text); {
	case strings.Contains(text, "PRIVATE KEY"):
		return refuse("this is a private key: keep it where it is, and send the file beside it that ends in .pub")
	case len(text) > maxPublicKey || strings.Contains(text, "\n"):
		return refuse("an SSH key is one line of at most %d bytes", maxPublicKey)
	}
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return refuse("this is no public key of SSH: %w", err)
	case len(options) > 0:
		return refuse("options before a key, such as %.40q, are not supported", options[0])
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoSKED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKECDSA256:
	case ssh.KeyAlgoRSA:
		if k, ok := key.(ssh.CryptoPublicKey); ok {
			if r, ok := k.CryptoPublicKey().(*rsa.PublicKey); ok && r.N.BitLen() < minRSABits {
				return refuse("an RSA key needs %d bits or more; this one has %d", minRSABits, r.N.BitLen())
			}
		}
	default:
		return refuse("keys of type %.60q are not supported", key.Type())
	}
	return stored(key), comment, nil
}

// stored is a key as it is stored.
func stored(key ssh.PublicKey) string {
	return key.Type() + " " + base64.StdEncoding.EncodeToString(key.Marshal())
}

func (k *SSHKeys) list() []sshEntry {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.all
}

func (k *SSHKeys) set(all []sshEntry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = all
}

// Of returns the SSH keys of an API key, oldest first.
func (k *SSHKeys) Of(key string) []store.SSHKey {
	var of []store.SSHKey
	for _, s := range k.list() {
		if s.Key == key {
			of = append(of, s.SSHKey)
		}
	}
	return of
}

// Remove makes an SSH key of an API key worthless, and ends what goes on by it.
func (k *SSHKeys) Remove(ctx context.Context, key, id string) error {
	k.changes.Lock()
	defer k.changes.Unlock()
	all := k.list()
	i := slices.IndexFunc(all, func(s sshEntry) bool { return s.ID == id && s.Key == key })
	if i < 0 {
		return errdef.New(errdef.NotFound, "ssh_key_not_found", "the API key has no SSH key %.100q", id).
			WithRemedy("list the SSH keys to find its id")
	}
	if err := k.store.RemoveSSHKey(ctx, id); err != nil {
		return err
	}
	k.set(slices.Delete(slices.Clone(all), i, i+1))
	all[i].remove()
	return nil
}

// Refresh takes over what other servers have changed. What goes on by a key that they
// have removed ends.
func (k *SSHKeys) Refresh(ctx context.Context) error {
	k.changes.Lock()
	defer k.changes.Unlock()
	list, err := k.store.SSHKeys(ctx)
	if err != nil {
		return fmt.Errorf("read SSH keys again: %w", err)
	}
	gone := map[string]sshEntry{}
	for _, e := range k.list() {
		gone[e.ID] = e
	}
	var next []sshEntry
	for _, key := range list {
		e, known := gone[key.ID]
		if !known {
			e = k.newEntry(key)
		}
		delete(gone, key.ID)
		next = append(next, e)
	}
	k.set(next)
	for _, e := range gone {
		e.remove()
	}
	return nil
}

// Holder is an API key in whose name an SSH key gets in.
type Holder struct {
	Key  store.Key
	Life context.Context // ends when the SSH key is removed
}

// Holders returns the API keys in whose names a public key gets in: none that was
// revoked or has expired.
func (k *SSHKeys) Holders(public ssh.PublicKey) []Holder {
	text := stored(public)
	var holders []Holder
	for _, s := range k.list() {
		if s.PublicKey != text {
			continue
		}
		if e := k.keys.byID(s.Key); e != nil && !e.expired(time.Now()) {
			holders = append(holders, Holder{Key: e.Key, Life: s.life})
		}
	}
	return holders
}
