package auth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/store"
)

// Request says what a new key is to be.
type Request struct {
	Name   string
	Role   store.Role
	For    time.Duration // how long it is good; 0 for ever
	Limits store.KeyLimits
}

// maxName bounds the name of a key, in bytes.
const maxName = 100

// check refuses what no key can be.
func (r Request) check() error {
	if err := checkName(r.Name); err != nil {
		return err
	}
	if _, known := granted[r.Role]; !known {
		return errdef.New(errdef.Invalid, "key_invalid", "%.40q is not a role of a key", r.Role).
			WithRemedy("use admin, full, own or read")
	}
	if r.For < 0 {
		return errdef.New(errdef.Invalid, "key_invalid", "the expiry of a key cannot be negative").
			WithRemedy("leave it out for a key that does not expire")
	}
	return checkLimits(r.Limits)
}

func checkName(name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || !isPrintable(name) {
		return errdef.New(errdef.Invalid, "key_invalid", "the name of a key must have 1 to %d bytes of text in one line", maxName).
			WithRemedy("say what or whom it is for")
	}
	return nil
}

func checkLimits(l store.KeyLimits) error {
	if min(l.Running, l.Sandboxes, l.MemoryMiB, l.DiskMiB, l.Rate) < 0 {
		return errdef.New(errdef.Invalid, "key_invalid", "the limits of a key cannot be negative").
			WithRemedy("use 0 for no limit")
	}
	return nil
}

// isPrintable keeps out what would do something to a terminal or to a list.
func isPrintable(text string) bool {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}

// Create makes a key. Its text is returned here and never again.
func (k *Keys) Create(ctx context.Context, req Request) (store.Key, string, error) {
	if err := req.check(); err != nil {
		return store.Key{}, "", err
	}
	k.changes.Lock()
	defer k.changes.Unlock()
	text := newText()
	key, err := k.add(ctx, req, text)
	if err != nil {
		return store.Key{}, "", err
	}
	return key, text, nil
}

// List returns all keys, oldest first, those that have expired included.
func (k *Keys) List() []store.Key {
	var list []store.Key
	for _, e := range k.entries() {
		list = append(list, e.current())
	}
	return list
}

// Change is what is to change of a key. What is nil stays.
type Change struct {
	Name   *string
	Limits func(*store.KeyLimits) // changes those that the key has; it may be called more than once
}

// Change changes a key. What goes on in its name goes on, and new limits hold from the
// next call, start and wake on.
func (k *Keys) Change(ctx context.Context, id string, c Change) (store.Key, error) {
	if c.Name != nil {
		if err := checkName(*c.Name); err != nil {
			return store.Key{}, err
		}
	}
	if err := k.look(id); err != nil {
		return store.Key{}, err
	}
	// Without a change of the name, the store must not judge it: older servers let keys
	// have the same name.
	var next store.KeyChange
	if c.Name != nil {
		next.Name = *c.Name
	}
	if c.Limits != nil {
		next.Limits = func(l *store.KeyLimits) error {
			c.Limits(l)
			return checkLimits(*l)
		}
	}
	return k.update(ctx, id, next)
}

// look returns an error unless there is a key of that id, which another server may just
// have made.
func (k *Keys) look(id string) error {
	if k.byID(id) == nil && k.again != nil {
		if err := k.again.Now(k.base); err != nil {
			return err
		}
	}
	if k.byID(id) == nil {
		return unknownKey(id)
	}
	return nil
}

// update changes a key as it is stored, which another server may have changed since it
// was read, and takes over what it is then.
func (k *Keys) update(ctx context.Context, id string, c store.KeyChange) (store.Key, error) {
	k.changes.Lock()
	defer k.changes.Unlock()
	key, err := k.store.UpdateKey(ctx, id, c)
	if err != nil {
		return store.Key{}, k.missed(id, err)
	}
	keys := k.entries()
	i := slices.IndexFunc(keys, func(e *entry) bool { return e.ID == id })
	if i < 0 { // Refresh has come in between, and may be behind
		i = len(keys)
		keys = append(slices.Clip(keys), nil)
	}
	has := keys[i]
	k.mu.Lock()
	e := k.follow(has, key)
	k.keys = slices.Clone(keys)
	k.keys[i] = e
	k.mu.Unlock()
	if has != nil && e != has {
		has.revoke()
	}
	return e.current(), nil
}

// missed forgets a key if an error of the store says that it is gone: another server has
// revoked it. The caller holds changes.
func (k *Keys) missed(id string, err error) error {
	if !errdef.Is(err, errdef.NotFound) {
		return err
	}
	k.forget(id)
	return unknownKey(id)
}

// Rotate gives a key another text, of the caller's choice or a new one: id, role,
// limits and sandboxes stay. What was opened with the text before ends, which is
// worthless when Rotate returns; what the key was given for others stays good. It has
// no more calls left than before.
func (k *Keys) Rotate(ctx context.Context, id, text string) (store.Key, string, error) {
	if text == "" {
		text = newText()
	}
	if !strong.MatchString(text) {
		return store.Key{}, "", errdef.New(errdef.Invalid, "key_invalid", `the new API key has the wrong form: want "e2b_" and 32 to 128 lowercase hex digits`).
			WithRemedy("leave it out, and one is made")
	}
	if err := k.look(id); err != nil {
		return store.Key{}, "", err
	}
	var next store.KeyChange
	next.Hash, next.Prefix, next.Suffix = parts(text)
	key, err := k.update(ctx, id, next)
	if err != nil {
		return store.Key{}, "", err
	}
	return key, text, nil
}

func unknownKey(id string) error {
	return errdef.New(errdef.NotFound, "key_not_found", "no API key %.100q", id).
		WithRemedy("list the keys to find its id")
}

// Revoke makes a key worthless. Its sandboxes live on. The last admin key that
// does not expire is errdef.Conflict: nobody could make another.
func (k *Keys) Revoke(ctx context.Context, id string) error {
	if err := k.look(id); err != nil {
		return err
	}
	k.changes.Lock()
	defer k.changes.Unlock()
	if err := k.store.RemoveKey(ctx, id); err != nil {
		return k.missed(id, err)
	}
	k.forget(id)
	return nil
}

// forget has a key that is stored no more worthless here. The caller holds changes.
func (k *Keys) forget(id string) {
	e := k.byID(id)
	if e == nil {
		return
	}
	k.mu.Lock()
	k.keys = slices.DeleteFunc(slices.Clone(k.keys), func(other *entry) bool { return other == e })
	k.mu.Unlock()
	k.end(e)
}

// end ends what goes on in the name of a key that is no more.
func (k *Keys) end(e *entry) {
	e.revoke()
	for _, f := range k.revoked {
		f(e.ID)
	}
}

// OnRevoke has f called with the id of each key that is revoked from now on, before
// Revoke returns. It is called before there is more than one caller.
func (k *Keys) OnRevoke(f func(id string)) { k.revoked = append(k.revoked, f) }

// Limits returns what the sandboxes of a key may take together: nothing is
// bounded for a key that there is not, or no more.
func (k *Keys) Limits(id string) store.KeyLimits {
	if e := k.byID(id); e != nil {
		return *e.limits.Load()
	}
	return store.KeyLimits{}
}

// Lives reports whether a key is still one: neither revoked nor expired. To ask is
// no use of it.
func (k *Keys) Lives(id string) bool {
	e := k.byID(id)
	return e != nil && !e.expired(time.Now())
}

func (k *Keys) byID(id string) *entry {
	for _, e := range k.entries() {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// Bind returns a context for what goes on in the name of a key for longer: it
// ends with ctx, and when the key is revoked or expires. The caller must call
// the function that it returns.
func (k *Keys) Bind(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	e := k.byID(id)
	if e == nil { // revoked since it was checked
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, cancel
	}
	ctx, cancel := e.untilExpiry(ctx)
	unbind := context.AfterFunc(e.life, cancel)
	return ctx, func() {
		unbind()
		cancel()
	}
}

// Lend returns a text that is as good as the key of that id until ctx ends or
// the key does. With it a part of this server does in the key's name, by the same
// doors and rules, what its holder has asked for by other means.
func (k *Keys) Lend(ctx context.Context, id string) string {
	text := newText()
	if e := k.byID(id); e != nil {
		sum := sha256.Sum256([]byte(text))
		k.mu.Lock()
		if k.lent == nil {
			k.lent = map[[32]byte]loan{}
		}
		k.lent[sum] = loan{e, ctx}
		k.mu.Unlock()
		context.AfterFunc(ctx, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.lent, sum)
		})
	}
	return text
}

// borrowed returns the key for which a text stands that Lend returned; nil if it
// is none, or if the key was revoked.
func (k *Keys) borrowed(text string) *entry {
	sum := sha256.Sum256([]byte(text))
	k.mu.RLock()
	l, ok := k.lent[sum]
	k.mu.RUnlock()
	if !ok {
		if id := k.relays.key(text, time.Now()); id != "" {
			return k.byID(id)
		}
		return nil
	}
	if l.until.Err() != nil || l.life.Err() != nil {
		return nil
	}
	return l.entry
}

func (e *entry) untilExpiry(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.ExpiresAt.IsZero() {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, e.ExpiresAt)
}

// noteEvery is how often the store is told which keys were used.
const noteEvery = 5 * time.Minute

// noteWait bounds the last time, when the server stops.
const noteWait = 5 * time.Second

// Run tells the store now and then which keys were used, until ctx ends, and
// then once more.
func (k *Keys) Run(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(noteEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.noteUse(ctx, log)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteWait)
			defer cancel()
			k.noteUse(last, log)
			return
		}
	}
}

// noteUse stores the last use of the keys that were used since it was stored. It
// is no more than a hint, so a failure waits for the next time.
func (k *Keys) noteUse(ctx context.Context, log *slog.Logger) {
	k.changes.Lock()
	defer k.changes.Unlock()
	uses := map[string]time.Time{}
	var used []*entry
	for _, e := range k.entries() {
		if at := e.used.Load(); at != e.noted {
			uses[e.ID] = time.Unix(at, 0).UTC()
			used = append(used, e)
		}
	}
	if len(uses) == 0 {
		return
	}
	if err := k.store.KeysUsed(ctx, uses); err != nil {
		log.Warn("use of API keys not noted", "err", err)
		return
	}
	for _, e := range used {
		e.noted = uses[e.ID].Unix()
	}
}
