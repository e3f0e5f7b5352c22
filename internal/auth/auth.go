// Package auth holds the API keys of a server: who may use its control plane,
// and for what.
//
// A key is the text "e2b_" followed by lowercase hex digits, the only form that
// every E2B client sends without complaint. Only its SHA-256 is stored, so a
// key can be shown once, when it is made, and never again. All keys are held in
// memory: Check does no I/O and takes the same time for every well-formed key. Where
// several servers share a store, it looks there for one that is unknown, once in a
// while (see [Keys.Follow]).
//
// A missing, a malformed, an unknown and an expired key are all
// errdef.Unauthorized; the messages differ, so that a user knows what to mend. A
// good key whose role does not suffice is errdef.Forbidden. No error and no log
// line contains a key.
//
// A key that is revoked is worthless when Revoke returns, and what goes on in
// its name ends (see [Keys.Bind]). When a key was last used is kept in memory
// and stored now and then: a crash can lose some minutes of it.
package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/drowse-dev/drowse/internal/audit"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
)

const (
	// Prefix begins every key.
	Prefix = "e2b_"
	// maxLen bounds what is hashed for a stranger.
	maxLen = 512
	// madeBytes is the entropy of a key made here, as E2B's own: 40 hex digits.
	madeBytes = 20
	// MadeLen is how long the text of a key is that is made here.
	MadeLen = len(Prefix) + 2*madeBytes
)

var (
	wellFormed = lazyregexp.New(`^e2b_[0-9a-f]+$`)
	// strong is what a key that a user chose must match: 128 bits at least.
	strong = lazyregexp.New(`^e2b_[0-9a-f]{32,128}$`)
)

// Store is the part of the server's store that keeps keys.
type Store interface {
	AddKey(ctx context.Context, k store.Key) error
	Keys(ctx context.Context) ([]store.Key, error)
	KeysUsed(ctx context.Context, at map[string]time.Time) error
	UpdateKey(ctx context.Context, id string, c store.KeyChange) (store.Key, error)
	RemoveKey(ctx context.Context, id string) error
}

// Keys answers whether a key is good. It is safe for concurrent use.
type Keys struct {
	store Store
	base  context.Context // what the lives of keys are derived from; it never ends

	// changes is held while a change is stored, so that there is one at a time;
	// mu, which is taken after it, never.
	changes sync.Mutex

	mu   sync.RWMutex
	keys []*entry          // all that the store has, oldest first
	lent map[[32]byte]loan // by the digests of texts that Lend returned

	again   *follow.Again     // see Follow
	relays  relays            // see Share
	rate    int               // see SetRate
	revoked []func(id string) // see OnRevoke
	refused atomic.Uint64     // checks that failed
}

// entry is a stored key.
type entry struct {
	store.Key                                 // as it was stored first; never changed, but for its name and limits
	name      atomic.Pointer[string]          // that it has now
	limits    atomic.Pointer[store.KeyLimits] // that it has now
	used      atomic.Int64                    // when it was last used, in Unix seconds; 0 for never
	calls     *rate.Limiter                   // counts them
	noted     int64                           // of used, what the store has; guarded by Keys.changes
	life      context.Context                 // ends when the key is revoked
	revoke    context.CancelFunc              // ends life
}

// loan is a key in other hands than its holder's.
type loan struct {
	*entry
	until context.Context
}

func (k *Keys) newEntry(key store.Key) *entry {
	e := &entry{Key: key, calls: rate.NewLimiter(rate.Inf, math.MaxInt)}
	e.name.Store(&key.Name)
	e.limits.Store(&key.Limits)
	k.bound(e)
	if !key.LastUsedAt.IsZero() {
		e.noted = key.LastUsedAt.Unix()
		e.used.Store(e.noted)
	}
	e.life, e.revoke = context.WithCancel(k.base)
	return e
}

// current returns the key with its last use.
func (e *entry) current() store.Key {
	k := e.now()
	if used := e.used.Load(); used > 0 {
		k.LastUsedAt = time.Unix(used, 0).UTC()
	}
	return k
}

// now returns the key with the name and the limits that it has now.
func (e *entry) now() store.Key {
	k := e.Key
	k.Name, k.Limits = *e.name.Load(), *e.limits.Load()
	return k
}

func (e *entry) expired(now time.Time) bool { return !e.ExpiresAt.IsZero() && !now.Before(e.ExpiresAt) }

// Load reads the keys of s.
func Load(ctx context.Context, s Store) (*Keys, error) {
	keys, err := s.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("load API keys: %w", err)
	}
	k := &Keys{store: s, base: context.WithoutCancel(ctx)}
	for _, key := range keys {
		k.keys = append(k.keys, k.newEntry(key))
	}
	return k, nil
}

// EnsureFirst sees to it that the server has an admin key. With a preset, that
// very key is one, whatever others there are; without one, a key is made if the
// server has none.
//
// Created says that a key was added. Shown is its text if it was made here: the
// only chance to tell the user. A preset is never shown, its owner has it.
func (k *Keys) EnsureFirst(ctx context.Context, preset string) (shown string, created bool, err error) {
	k.changes.Lock()
	defer k.changes.Unlock()
	if preset != "" {
		created, err = k.ensurePreset(ctx, preset)
		return "", created, err
	}
	if len(k.entries()) > 0 {
		return "", false, nil
	}
	text := newText()
	if _, err := k.add(ctx, Request{Name: "first key", Role: store.RoleAdmin}, text); err != nil {
		return "", false, err
	}
	return text, true, nil
}

// ensurePreset adds the preset key unless it is known. The caller holds changes.
func (k *Keys) ensurePreset(ctx context.Context, preset string) (bool, error) {
	if !strong.MatchString(preset) {
		return false, errdef.New(errdef.Invalid, "invalid_api_key_preset",
			`the preset API key has the wrong form (it has %d characters): E2B clients accept only "e2b_" followed by lowercase hex digits, and at least 32 of them are required`, len(preset)).
			WithRemedy(`make one with: echo "e2b_$(openssl rand -hex 20)"`)
	}
	e := find(k.entries(), preset)
	switch {
	case e == nil:
		_, err := k.add(ctx, Request{Name: k.unused("preset key"), Role: store.RoleAdmin}, preset)
		return err == nil, err
	case !e.Lasting():
		return false, errdef.New(errdef.Invalid, "invalid_api_key_preset",
			"the preset API key is key %s, which was made with the role %s or to expire: a server is given an admin key without an end", e.ID, e.Role).
			WithRemedy("leave it out, or preset another")
	}
	return false, nil
}

// unused returns a name that no key has: the one given, or with a number after it.
func (k *Keys) unused(name string) string {
	free := name
	for n := 2; slices.ContainsFunc(k.entries(), func(e *entry) bool { return *e.name.Load() == free }); n++ {
		free = fmt.Sprintf("%s %d", name, n)
	}
	return free
}

// add stores a key and makes it valid. The caller holds changes.
func (k *Keys) add(ctx context.Context, req Request, text string) (store.Key, error) {
	key := store.Key{
		ID:        newUUID(),
		Name:      req.Name,
		Role:      req.Role,
		Limits:    req.Limits,
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	key.Hash, key.Prefix, key.Suffix = parts(text)
	if req.For > 0 {
		key.ExpiresAt = key.CreatedAt.Add(req.For)
	}
	if err := k.store.AddKey(ctx, key); err != nil {
		return store.Key{}, fmt.Errorf("store API key %q: %w", req.Name, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = append(slices.Clone(k.keys), k.newEntry(key))
	return key, nil
}

// parts are what is stored of a key's text.
func parts(text string) (hash [32]byte, prefix, suffix string) {
	return sha256.Sum256([]byte(text)), text[:len(Prefix)+2], text[len(text)-4:]
}

// entries returns the keys as they are now. The list never changes.
func (k *Keys) entries() []*entry {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys
}

// Check returns the key that text is, or an errdef.Unauthorized.
func (k *Keys) Check(text string) (store.Key, error) {
	key, err := k.check(text)
	if err != nil && text != "" {
		k.refused.Add(1)
	}
	return key, err
}

// Checker knows the API keys of calls, as [Keys] does.
type Checker interface {
	// Check returns the key that a text is, or an errdef.Unauthorized.
	Check(text string) (store.Key, error)
	// Take counts a call of the key of an id, or returns an errdef.Exhausted.
	Take(id string) error
}

// Admit returns the API key of a request if it is good, its role has a permission, and
// it does not call too often. The audit log is told, and that to read is to look, unless it needs Use: who reads
// what is in a sandbox goes in.
func Admit(keys Checker, r *http.Request, needs Permission) (store.Key, error) {
	key, err := keys.Check(FromHeader(r.Header))
	if err != nil {
		return key, err
	}
	reads := needs == Look || needs == LookAll || r.Method == http.MethodGet || r.Method == http.MethodHead
	audit.By(r.Context(), audit.Actor{ID: key.ID, Name: key.Name, Role: string(key.Role)}, reads && needs != Use)
	if err := keys.Take(key.ID); err != nil {
		return key, err
	}
	return key, Require(key, needs)
}

// Admits reports whether a request has an API key that is good. It counts for nothing.
func (k *Keys) Admits(r *http.Request) bool {
	_, good := k.of(r)
	return good
}

// AdmitsTo is Admits, for a key that sees what the key of the id maker has made.
func (k *Keys) AdmitsTo(r *http.Request, maker string) bool {
	key, good := k.of(r)
	return good && Sees(key, maker)
}

func (k *Keys) of(r *http.Request) (key store.Key, good bool) {
	text := FromHeader(r.Header)
	if text == "" || len(text) > maxLen {
		return key, false
	}
	key, err := k.check(text)
	return key, err == nil
}

// CodeRate is the code of the error of a key that calls too often.
const CodeRate = "key_rate_exceeded"

// rateSeconds is how many seconds' calls a key can make at once that made none for
// as long.
const rateSeconds = 10

// SetRate bounds how many calls each key may make per second that has no limit of its
// own; 0 is no bound. It comes before the first call.
func (k *Keys) SetRate(perSecond int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rate = perSecond
	for _, e := range k.keys {
		k.bound(e)
	}
}

// bound has the calls of a key counted by the rate that holds for it now. What it has
// called lately still counts.
func (k *Keys) bound(e *entry) {
	perSecond := cmp.Or(e.limits.Load().Rate, k.rate)
	if perSecond == 0 {
		e.calls.SetLimit(rate.Inf)
		e.calls.SetBurst(math.MaxInt)
		return
	}
	e.calls.SetLimit(rate.Limit(perSecond))
	e.calls.SetBurst(perSecond * rateSeconds)
}

// Take counts a call of the key of an id, or returns an errdef.Exhausted.
func (k *Keys) Take(id string) error {
	e := k.byID(id)
	if e == nil || e.calls.Allow() {
		return nil
	}
	if own := e.limits.Load().Rate; own > 0 {
		return errdef.New(errdef.Exhausted, CodeRate, "API key %s makes more calls per second than its own limit of %d", id, own).
			WithRemedy("wait a second, then try again; an admin allows it more with drowse keys limit %s --max-rate N", id).
			With("limit", "maxRate").With("allowed", own).With("key", id)
	}
	return errdef.New(errdef.Exhausted, CodeRate, "API key %s makes more calls per second than the server's limit for each key, %d", id, k.rate).
		WithRemedy("wait a second, then try again; an admin allows this key more with drowse keys limit %s --max-rate N, and an operator every key with drowse serve --max-key-rate", id).
		With("limit", "max-key-rate").With("allowed", k.rate).With("key", id)
}

// Refused returns how often Check has refused a text that is not empty.
func (k *Keys) Refused() uint64 { return k.refused.Load() }

func (k *Keys) check(text string) (store.Key, error) {
	if text == "" {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_missing", "no API key").
			WithRemedy("send it in the X-API-Key header")
	}
	if len(text) > maxLen || !wellFormed.MatchString(text) {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_malformed", "malformed API key").
			WithRemedy(`a key is "e2b_" followed by lowercase hex digits`)
	}
	e := find(k.entries(), text)
	if e == nil {
		e = k.borrowed(text)
	}
	if e == nil && k.again != nil {
		if err := k.again.Now(k.base); err != nil {
			return store.Key{}, err
		}
		e = find(k.entries(), text)
	}
	if e == nil {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "unknown API key").
			WithRemedy("use a key of this server")
	}
	return e.use()
}

// Current returns the key of an id as it is now, for what its holder has asked for before.
// It is an errdef.Unauthorized for one that there is not any more.
func (k *Keys) Current(id string) (store.Key, error) {
	e := k.byID(id)
	if e == nil {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_unknown", "the API key that this was given to is no more").
			WithRemedy("use a key of this server")
	}
	return e.use()
}

// use returns the key, unless it has expired, and notes that it was used.
func (e *entry) use() (store.Key, error) {
	now := time.Now()
	if e.expired(now) {
		return store.Key{}, errdef.New(errdef.Unauthorized, "api_key_expired", "API key %s expired at %s", e.ID, e.ExpiresAt.Format(time.RFC3339)).
			WithRemedy("ask for a new one")
	}
	if seconds := now.Unix(); e.used.Load() != seconds {
		e.used.Store(seconds)
	}
	return e.now(), nil
}

// find looks at every key, so that the time taken says nothing about them. It
// returns nil if text is none of them.
func find(keys []*entry, text string) (found *entry) {
	hash := sha256.Sum256([]byte(text))
	for _, e := range keys {
		if subtle.ConstantTimeCompare(e.Hash[:], hash[:]) == 1 {
			found = e
		}
	}
	return found
}

// FromHeader returns the API key of a request, or "": the X-API-Key header, or
// else an Authorization header that bears one. Bearer tokens of other kinds are
// not ours to judge.
func FromHeader(h http.Header) string {
	if key := strings.TrimSpace(h.Get("X-API-Key")); key != "" {
		return key
	}
	if token := Bearer(h); strings.HasPrefix(token, Prefix) {
		return token
	}
	return ""
}

// Bearer returns the token of a request's Authorization header, "" if there is
// none.
func Bearer(h http.Header) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(h.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func newText() string {
	var b [madeBytes]byte
	rand.Read(b[:]) // never fails: it would end the process
	return Prefix + hex.EncodeToString(b[:])
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
