package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
)

// Follow has Check look for a key that is unknown in the store, where another server may
// just have put it. However many such keys are sent, it looks once in a while, and those
// who send them wait for that. It comes before the first call.
func (k *Keys) Follow() { k.again = &follow.Again{Read: k.Refresh} }

// relayLife is how long a text of Relay is good: until the request that has it has come to
// another server, whose clock may differ.
const relayLife = 5 * time.Minute

// relays makes texts that stand for keys, and knows those that were made with the same secret; nil
// does neither.
type relays []byte

// Share has the texts of Relay count that servers with the same secret have made. It comes
// before the first call.
func (k *Keys) Share(secret []byte) { k.relays = secret }

// Relay puts into the header of a request that goes on to another server, in the place of a text
// that Lend returned, one that counts there.
func (k *Keys) Relay(h http.Header) {
	if e := k.borrowed(FromHeader(h)); e != nil && k.relays != nil {
		h.Set("X-API-Key", k.relays.text(e.ID, time.Now().Add(relayLife)))
	}
}

// text returns what stands for a key until then.
func (r relays) text(key string, until time.Time) string {
	what := binary.BigEndian.AppendUint64(nil, uint64(until.Unix()))
	what = append(what, key...)
	return Prefix + hex.EncodeToString(append(r.sign(what), what...))
}

// key returns the key for which a text stands at a time; empty if it is none, or too old.
func (r relays) key(text string, now time.Time) string {
	data, err := hex.DecodeString(strings.TrimPrefix(text, Prefix))
	if err != nil || r == nil || len(data) < sha256.Size+8 {
		return ""
	}
	what := data[sha256.Size:]
	if !hmac.Equal(data[:sha256.Size], r.sign(what)) || now.Unix() > int64(binary.BigEndian.Uint64(what)) {
		return ""
	}
	return string(what[8:])
}

func (r relays) sign(what []byte) []byte {
	mac := hmac.New(sha256.New, r)
	mac.Write(what)
	return mac.Sum(nil)
}

// Refresh takes over what other servers have changed: their new keys are good, those that
// they have revoked or rotated are worthless when it returns, and names and limits are
// those that they have given.
func (k *Keys) Refresh(ctx context.Context) error {
	k.changes.Lock()
	defer k.changes.Unlock()
	list, err := k.store.Keys(ctx)
	if err != nil {
		return fmt.Errorf("read API keys again: %w", err)
	}
	before := map[string]*entry{}
	for _, e := range k.entries() {
		before[e.ID] = e
	}
	var next, rotated []*entry
	k.mu.Lock()
	for _, key := range list {
		has := before[key.ID]
		delete(before, key.ID)
		e := k.follow(has, key)
		if has != nil && e != has {
			rotated = append(rotated, has)
		}
		next = append(next, e)
	}
	k.keys = next
	k.mu.Unlock()
	for _, e := range rotated {
		e.revoke()
	}
	for _, e := range before {
		k.end(e)
	}
	return nil
}

// follow returns the entry of a key as it is stored, which was has; nil for one that is
// new. A key with another text gets a new one. The caller holds changes and mu.
func (k *Keys) follow(has *entry, key store.Key) *entry {
	if has == nil {
		return k.newEntry(key)
	}
	if has.Hash != key.Hash {
		e := k.newEntry(key)
		e.calls = has.calls
		e.used.Store(max(e.used.Load(), has.used.Load()))
		k.bound(e)
		return e
	}
	if key.Name != *has.name.Load() {
		has.name.Store(&key.Name)
	}
	if key.Limits != *has.limits.Load() {
		has.limits.Store(&key.Limits)
		k.bound(has)
	}
	if !key.LastUsedAt.IsZero() {
		has.noted = key.LastUsedAt.Unix()
		for { // requests note a use at any time
			used := has.used.Load()
			if used >= has.noted || has.used.CompareAndSwap(used, has.noted) {
				break
			}
		}
	}
	return has
}
