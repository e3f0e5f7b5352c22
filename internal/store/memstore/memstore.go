// Package memstore is a store without a disk, for tests that need many
// lifecycles in little time or on virtual time. It passes the same contract
// suite as the real one.
//
// [Data] is what outlives a server; a [Store] is one server's way to it. A
// store never sleeps: a commit happens, or fails, at one instant. Tests see and
// bend every commit through the hooks of [Open].
package memstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Commit is one change of a record as the hooks see it. Nothing of it may be
// changed.
type Commit struct {
	Before  store.Sandbox // as committed last; its ID is empty for a new one
	After   store.Sandbox
	Entries []lifecycle.Entry
}

// Hooks bend the commits of one store. They run with the data locked, so they
// see commits one after the other in the order that counts, and must not use
// the data.
type Hooks struct {
	// Before is called ahead of a commit, which does not happen if it returns
	// an error.
	Before func(Commit) error
	// After is called when the commit has happened. An error of its is what the
	// committer gets, as if the answer had been lost.
	After func(Commit) error
}

// Data is what the stores opened over it share.
type Data struct {
	mu       sync.Mutex
	births   []birth // of sandboxes, oldest first; some may have been forgotten
	born     int64   // how many there were
	gone     int     // how many were forgotten, and are among births
	boxes    map[string]stored
	names    map[claim]string // of the sandboxes that have not ended
	bound    map[claim]string // the sandboxes that idempotency keys have made
	events   []event          // oldest first; of forgotten sandboxes too
	seq      int64
	keys     []store.Key
	sshKeys  []store.SSHKey
	used     []store.Secret
	volumes  []store.Volume
	snaps    []snapshot
	parts    parts
	built    map[string]template            // by id
	settings map[claim]settings             // by API key and template
	contexts map[string][]store.CodeContext // by sandbox, oldest first
	hooks    []store.Webhook
	secrets  map[string][]byte
	servers  map[string]store.Server // by id
	// heldSince is since when their leases have had no gap.
	heldSince map[string]time.Time
	changes   map[store.Kind]int64
	offices   map[string]office        // by name
	replicas  map[string]store.Replica // by sandbox or snapshot
}

// stored is a record in the form that survives, and as it was given, with its
// revision.
type stored struct {
	data  []byte
	given store.Sandbox
	birth birth
	parts []string
}

// read returns the record as a store returns it.
func (x stored) read() (store.Sandbox, error) {
	sb, err := decode[store.Sandbox](x.data)
	if err != nil {
		return store.Sandbox{}, fmt.Errorf("read sandbox %s: %w", x.given.ID, err)
	}
	sb.Rev, sb.Owner = x.given.Rev, x.given.Owner
	return sb, nil
}

// claim is a name, or an idempotency key, of an API key.
type claim struct{ key, text string }

// birth tells a sandbox from a forgotten one of the same id.
type birth struct {
	id     string
	number int64
}

// lives reports whether a sandbox has not been forgotten.
func (d *Data) lives(b birth) bool { return d.boxes[b.id].birth == b }

// snapshot is one in the form that survives.
type snapshot struct {
	id, key, name string
	owner         string
	diskMiB       int
	ofBuild       bool
	parts         []string
	data          []byte
}

// snapshot returns where the snapshot of an id is in snaps; below 0 for nowhere.
func (d *Data) snapshot(id string) int {
	return slices.IndexFunc(d.snaps, func(x snapshot) bool { return x.id == id })
}

// read returns the snapshot as a store returns it.
func (x snapshot) read(d *Data) (store.Snapshot, error) {
	snap, err := decode[store.Snapshot](x.data)
	if err != nil {
		return snap, fmt.Errorf("read snapshot %s: %w", x.id, err)
	}
	snap.Owner = x.owner
	if _, copied := d.replicas[x.id]; copied {
		snap.Durability = store.Replicated
	}
	return snap, nil
}

type event struct {
	seq   int64
	birth birth
	key   string
	data  []byte
}

// NewData returns data with nothing in it.
func NewData() *Data {
	return &Data{boxes: map[string]stored{}, names: map[claim]string{}, bound: map[claim]string{}, built: map[string]template{}, settings: map[claim]settings{}, contexts: map[string][]store.CodeContext{}, parts: parts{}, secrets: map[string][]byte{}, servers: map[string]store.Server{}, heldSince: map[string]time.Time{}, changes: map[store.Kind]int64{}, offices: map[string]office{}, replicas: map[string]store.Replica{}}
}

// Get returns the record of a sandbox as it was last committed. It is cheap,
// and the result must not be changed.
func (d *Data) Get(id string) (store.Sandbox, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	sb, ok := d.boxes[id]
	return sb.given, ok
}

// Store implements store.Store.
type Store struct {
	*writer
	codeContexts
	owners
	replicas
	usedSecrets
	lists
	hooks Hooks
}

var _ store.Store = (*Store)(nil)

// Open returns a store over data.
func Open(d *Data, hooks Hooks) *Store {
	w := &writer{d: d}
	s := &Store{writer: w, codeContexts: codeContexts{w}, owners: owners{w}, usedSecrets: usedSecrets{w}, hooks: hooks}
	s.lists.s = s
	s.replicas.s = s
	return s
}

// Close implements store.Store.
func (s *Store) Close() error { return nil }

// Commit implements store.Store.
func (s *Store) Commit(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	return s.commit(ctx, sb, entries, beside{})
}

// beside is what happens in the same transaction as a commit.
type beside struct {
	may  func(has store.Sandbox) error // refuses it, rather than that another server has the sandbox; nil for that
	snap *store.Snapshot               // nil for none
	also func()                        // nil for nothing
}

// commit is Commit with something else.
func (s *Store) commit(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry, with beside) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
	}
	data, err := encode(sb)
	if err != nil {
		return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
	}
	lines := make([][]byte, len(entries))
	for i, e := range entries {
		if lines[i], err = encode(e); err != nil {
			return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
		}
	}
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	old, known := s.d.boxes[sb.ID]
	may := with.may
	if may == nil {
		may = func(has store.Sandbox) error { return s.own("sandbox", sb.ID, has.Owner) }
	}
	if with.may != nil || known && sb.Rev > 0 {
		if err := may(old.given); err != nil {
			return err
		}
	}
	sb.Owner = s.server
	if err := s.d.admit(sb, old.given); err != nil {
		return err
	}
	if err := s.d.parts.adopt(sb, old.parts, entries); err != nil {
		return err
	}
	c := Commit{Before: old.given, After: sb, Entries: entries}
	if s.hooks.Before != nil {
		if err := s.hooks.Before(c); err != nil {
			return fmt.Errorf("commit sandbox %s: %w", sb.ID, err)
		}
	}
	if with.snap != nil {
		if err := s.addSnapshot(*with.snap); err != nil {
			return err
		}
	}
	if !known {
		s.d.born++
		old.birth = birth{sb.ID, s.d.born}
		s.d.births = append(s.d.births, old.birth)
	}
	s.d.claim(sb)
	s.d.parts.drop(sb.ID, old.parts)
	old.parts = sb.Parts()
	s.d.parts.hold(sb.ID, old.parts, false)
	if sb.Record.State == lifecycle.Terminated {
		delete(s.d.contexts, sb.ID)
		delete(s.d.replicas, sb.ID)
	}
	sb.Rev++
	sb.Light, sb.Durability, sb.Unreplicated = false, "", ""
	s.d.boxes[sb.ID] = stored{data, sb, old.birth, old.parts}
	for _, line := range lines {
		s.d.seq++
		s.d.events = append(s.d.events, event{s.d.seq, old.birth, sb.Config.Key, line})
	}
	if with.also != nil {
		with.also()
	}
	if s.hooks.After != nil {
		if err := s.hooks.After(c); err != nil {
			return fmt.Errorf("commit sandbox %s: %w", sb.ID, store.ErrUnlearned(err))
		}
	}
	return nil
}

// encode returns v as JSON, which is a copy that shares nothing.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

// decode returns what encode was given, with its times in UTC.
func decode[T any](data []byte) (v T, err error) {
	err = json.Unmarshal(data, &v)
	inUTC(reflect.ValueOf(&v).Elem())
	return v, err
}

// inUTC moves every time that v reaches through structs, pointers and slices to
// UTC.
func inUTC(v reflect.Value) {
	if t, ok := v.Interface().(time.Time); ok {
		v.Set(reflect.ValueOf(t.UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			inUTC(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			inUTC(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			inUTC(v.Index(i))
		}
	}
}

// Sandboxes implements store.Store; the oldest come first.
func (s *Store) Sandboxes(context.Context) ([]store.Sandbox, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []store.Sandbox
	for _, b := range s.d.births {
		if !s.d.lives(b) {
			continue
		}
		sb, err := s.d.boxes[b.id].read()
		if err != nil {
			return nil, err
		}
		all = append(all, sb)
	}
	return all, nil
}

// Forget implements store.Store. It refuses a sandbox that is not terminated
// with errdef.WrongState.
func (s *Store) Forget(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	sb, err := s.d.known(id)
	if err != nil {
		return err
	}
	if err := s.own("sandbox", id, sb.given.Owner); err != nil {
		return err
	}
	if state := sb.given.Record.State; state != lifecycle.Terminated {
		return errdef.New(errdef.WrongState, "sandbox_not_terminated",
			"sandbox %s is %s; only a terminated one can be forgotten", id, state).WithRemedy("kill it first")
	}
	s.d.forget(sb.given)
	return nil
}

func (d *Data) forget(sb store.Sandbox) {
	d.parts.drop(sb.ID, d.boxes[sb.ID].parts)
	delete(d.boxes, sb.ID)
	d.release(d.bound, boundBy(sb), sb.ID)
	if d.gone++; d.gone > len(d.boxes) {
		d.gone = 0
		d.births = slices.DeleteFunc(d.births, func(b birth) bool { return !d.lives(b) })
		d.events = slices.DeleteFunc(d.events, func(e event) bool { return !d.lives(e.birth) })
	}
}

func (d *Data) known(id string) (stored, error) {
	sb, ok := d.boxes[id]
	if !ok {
		return stored{}, store.ErrSandboxNotFound(id)
	}
	return sb, nil
}

// Events implements store.Store. A sandbox without a record is
// errdef.NotFound.
func (s *Store) Events(_ context.Context, sandbox string, after int64, limit int) ([]store.Event, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if sandbox != "" {
		if _, err := s.d.known(sandbox); err != nil {
			return nil, err
		}
	}
	return s.d.eventsAfter(after, limit, func(e event) bool { return sandbox == "" || e.birth.id == sandbox })
}

// EventsOfKey implements store.Store.
func (s *Store) EventsOfKey(_ context.Context, key string, after int64, limit int) ([]store.Event, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.eventsAfter(after, limit, func(e event) bool { return e.key == key })
}

// eventsAfter returns up to limit events after one that are wanted. Events are in
// the order of seq. The caller holds the lock.
func (d *Data) eventsAfter(after int64, limit int, wanted func(event) bool) (list []store.Event, err error) {
	first, _ := slices.BinarySearchFunc(d.events, after+1, func(e event, seq int64) int { return int(e.seq - seq) })
	for _, e := range d.events[first:] {
		if len(list) >= limit {
			break
		}
		if d.lives(e.birth) && wanted(e) {
			if err := e.appendTo(&list); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// LastEvents implements store.Store.
func (s *Store) LastEvents(ctx context.Context, sandbox string, n int) ([]store.Event, error) {
	return s.EventsBefore(ctx, sandbox, math.MaxInt64, n)
}

// EventsBefore implements store.Store.
func (s *Store) EventsBefore(_ context.Context, sandbox string, before int64, limit int) ([]store.Event, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if sandbox != "" {
		if _, err := s.d.known(sandbox); err != nil {
			return nil, err
		}
	}
	var list []store.Event
	for i := len(s.d.events) - 1; i >= 0 && len(list) < limit; i-- {
		if e := s.d.events[i]; e.seq < before && s.d.lives(e.birth) && (sandbox == "" || e.birth.id == sandbox) {
			if err := e.appendTo(&list); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

func (e event) appendTo(list *[]store.Event) error {
	entry, err := decode[lifecycle.Entry](e.data)
	if err != nil {
		return fmt.Errorf("read log entry %d: %w", e.seq, err)
	}
	*list = append(*list, store.Event{Seq: e.seq, Sandbox: e.birth.id, Key: e.key, Entry: entry})
	return nil
}

// AddKey implements store.Store.
func (s *Store) AddKey(_ context.Context, k store.Key) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	if slices.ContainsFunc(s.d.keys, func(x store.Key) bool { return x.ID == k.ID || x.Hash == k.Hash }) {
		return errdef.New(errdef.Exists, "key_exists", "key %s, or another with the same text, is there already", k.ID)
	}
	if err := freeName(s.d.keys, k.ID, k.Name); err != nil {
		return err
	}
	inUTC(reflect.ValueOf(&k).Elem())
	s.d.keys = append(s.d.keys, k)
	s.d.changed(store.KindKeys)
	return nil
}

func freeName(keys []store.Key, id, name string) error {
	for _, k := range keys {
		if k.Name == name && k.ID != id {
			return store.NameOfKeyTaken(k.ID, name)
		}
	}
	return nil
}

// Keys implements store.Store.
func (s *Store) Keys(context.Context) ([]store.Key, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return oldestFirst(s.d.keys, func(k store.Key) time.Time { return k.CreatedAt }), nil
}

// KeysUsed implements store.Store.
func (s *Store) KeysUsed(_ context.Context, at map[string]time.Time) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	for i := range s.d.keys {
		if t, used := at[s.d.keys[i].ID]; used && t.After(s.d.keys[i].LastUsedAt) {
			s.d.keys[i].LastUsedAt = t.UTC()
		}
	}
	return nil
}

// UpdateKey implements store.Store.
func (s *Store) UpdateKey(_ context.Context, id string, c store.KeyChange) (store.Key, error) {
	if err := s.lock(); err != nil {
		return store.Key{}, err
	}
	defer s.d.mu.Unlock()
	i, err := s.d.key(id)
	if err != nil {
		return store.Key{}, err
	}
	k := s.d.keys[i]
	if err := c.Apply(&k); err != nil {
		return store.Key{}, err
	}
	if c.Name != "" {
		if err := freeName(s.d.keys, id, c.Name); err != nil {
			return store.Key{}, err
		}
	}
	if c.Hash != [32]byte{} && slices.ContainsFunc(s.d.keys, func(other store.Key) bool { return other.Hash == c.Hash }) {
		return store.Key{}, errdef.New(errdef.Exists, "key_exists", "an API key with the same text is there already")
	}
	s.d.keys = slices.Clone(s.d.keys)
	s.d.keys[i] = k
	s.d.changed(store.KindKeys)
	return k, nil
}

// key returns where the key of an id is. The caller holds mu.
func (d *Data) key(id string) (int, error) {
	i := slices.IndexFunc(d.keys, func(k store.Key) bool { return k.ID == id })
	if i < 0 {
		return 0, errdef.New(errdef.NotFound, "key_not_found", "no API key %q", id)
	}
	return i, nil
}

// RemoveKey implements store.Store.
func (s *Store) RemoveKey(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	i, err := s.d.key(id)
	if err != nil {
		return err
	}
	if s.d.keys[i].Lasting() && !slices.ContainsFunc(s.d.keys, func(k store.Key) bool { return k.ID != id && k.Lasting() }) {
		return store.ErrLastAdmin()
	}
	without(&s.d.keys, func(k store.Key) bool { return k.ID == id })
	without(&s.d.sshKeys, func(k store.SSHKey) bool { return k.Key == id })
	without(&s.d.used, func(x store.Secret) bool { return x.Key == id })
	maps.DeleteFunc(s.d.settings, func(as claim, _ settings) bool { return as.key == id })
	s.d.changed(store.KindKeys, store.KindSSHKeys, store.KindSecrets)
	return nil
}

// AddSSHKey implements store.Store.
func (s *Store) AddSSHKey(_ context.Context, k store.SSHKey) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	if _, err := s.d.key(k.Key); err != nil {
		return err
	}
	known := func(x store.SSHKey) bool { return x.ID == k.ID || x.Key == k.Key && x.PublicKey == k.PublicKey }
	if slices.ContainsFunc(s.d.sshKeys, known) {
		return errdef.New(errdef.Exists, "ssh_key_exists", "the API key has this SSH key already")
	}
	if has(s.d.sshKeys, func(x store.SSHKey) bool { return x.Key == k.Key }) >= store.MostSSHKeys {
		return store.ErrTooManySSHKeys()
	}
	k.CreatedAt = k.CreatedAt.UTC()
	s.d.sshKeys = append(s.d.sshKeys, k)
	s.d.changed(store.KindSSHKeys)
	return nil
}

// SSHKeys implements store.Store.
func (s *Store) SSHKeys(context.Context) ([]store.SSHKey, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return oldestFirst(s.d.sshKeys, func(k store.SSHKey) time.Time { return k.CreatedAt }), nil
}

// RemoveSSHKey implements store.Store.
func (s *Store) RemoveSSHKey(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	if !without(&s.d.sshKeys, func(k store.SSHKey) bool { return k.ID == id }) {
		return errdef.New(errdef.NotFound, "ssh_key_not_found", "no SSH key %q", id)
	}
	s.d.changed(store.KindSSHKeys)
	return nil
}

// has returns how many of all are meant.
func has[T any](all []T, meant func(T) bool) (n int) {
	for _, x := range all {
		if meant(x) {
			n++
		}
	}
	return n
}

// oldestFirst returns a copy in the order in which they were made.
func oldestFirst[T any](all []T, made func(T) time.Time) []T {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b T) int { return made(a).Compare(made(b)) })
	return all
}

// without makes all a copy that lacks what is meant, and reports whether that was
// there.
func without[T any](all *[]T, meant func(T) bool) bool {
	left := slices.DeleteFunc(slices.Clone(*all), meant)
	had := len(left) < len(*all)
	*all = left
	return had
}

// AddVolume implements store.Store.
func (s *Store) AddVolume(_ context.Context, v store.Volume) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	if slices.ContainsFunc(s.d.volumes, func(x store.Volume) bool { return x.ID == v.ID || x.Name == v.Name }) {
		return store.ErrVolumeExists(v)
	}
	v.CreatedAt, v.Owner = v.CreatedAt.UTC(), s.server
	s.d.volumes = append(s.d.volumes, v)
	s.d.changed(store.KindVolumes)
	return nil
}

// Volumes implements store.Store.
func (s *Store) Volumes(context.Context) ([]store.Volume, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return oldestFirst(s.d.volumes, func(v store.Volume) time.Time { return v.CreatedAt }), nil
}

// RemoveVolume implements store.Store.
func (s *Store) RemoveVolume(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	i := slices.IndexFunc(s.d.volumes, func(v store.Volume) bool { return v.ID == id })
	if i < 0 {
		return store.ErrVolumeNotFound(id)
	}
	if err := s.own("volume", id, s.d.volumes[i].Owner); err != nil {
		return err
	}
	s.d.volumes = slices.Delete(s.d.volumes, i, i+1)
	s.d.changed(store.KindVolumes)
	return nil
}

// CommitSnapshot implements store.Store.
func (s *Store) CommitSnapshot(ctx context.Context, snap store.Snapshot, sb store.Sandbox, entries []lifecycle.Entry) error {
	return s.commit(ctx, sb, entries, beside{snap: &snap})
}

func (w *writer) addSnapshot(snap store.Snapshot) error {
	d := w.d
	if err := d.freeForSnapshot(snap); err != nil {
		return err
	}
	var others []snapshot
	for _, x := range d.snaps {
		if goes := x.id == snap.Replaces || slices.Contains(snap.Drops, x.id) || snap.Undo && x.id == snap.ID; !goes {
			others = append(others, x)
		} else if err := w.own("snapshot", x.id, x.owner); err != nil {
			return err
		}
	}
	if err := d.fitSnapshot(snap, others); err != nil {
		return err
	}
	if slices.ContainsFunc(others, func(x snapshot) bool {
		return x.id == snap.ID || x.name != "" && x.name == snap.Name && x.key == snap.Key
	}) {
		return store.ErrSnapshotExists(snap)
	}
	data, err := encode(snap)
	if err != nil {
		return fmt.Errorf("commit snapshot %s: %w", snap.ID, err)
	}
	if err := w.tagTemplate(snap); err != nil {
		return err
	}
	for _, x := range d.snaps {
		if !slices.ContainsFunc(others, func(stays snapshot) bool { return stays.id == x.id }) {
			d.parts.drop(x.id, x.parts)
			delete(d.replicas, x.id)
		}
	}
	made := snapshot{snap.ID, snap.Key, snap.Name, w.server, snap.DiskMiB(), snap.Config.Build != "", snap.Checkpoint.Parts(), data}
	d.parts.hold(made.id, made.parts, true)
	d.snaps = append(others, made)
	d.changed(store.KindSnapshots)
	return nil
}

// Snapshots implements store.Store.
func (s *Store) Snapshots(context.Context) ([]store.Snapshot, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []store.Snapshot
	for _, one := range s.d.snaps {
		snap, err := one.read(s.d)
		if err != nil {
			return nil, err
		}
		all = append(all, snap)
	}
	return oldestFirst(all, func(s store.Snapshot) time.Time { return s.CreatedAt }), nil
}

// ChangeSnapshot implements store.Store.
func (s *Store) ChangeSnapshot(_ context.Context, snap store.Snapshot) error {
	data, err := encode(snap)
	if err != nil {
		return fmt.Errorf("change snapshot %s: %w", snap.ID, err)
	}
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	i := s.d.snapshot(snap.ID)
	if i < 0 {
		return store.ErrSnapshotNotFound(snap.ID)
	}
	if err := s.own("snapshot", snap.ID, s.d.snaps[i].owner); err != nil {
		return err
	}
	s.d.snaps[i].data = data
	s.d.changed(store.KindSnapshots)
	return nil
}

// RemoveSnapshot implements store.Store.
func (s *Store) RemoveSnapshot(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	i := s.d.snapshot(id)
	if i < 0 {
		return store.ErrSnapshotNotFound(id)
	}
	if err := s.own("snapshot", id, s.d.snaps[i].owner); err != nil {
		return err
	}
	s.d.removeSnapshot(i)
	return nil
}

// removeSnapshot removes one by where it is.
func (d *Data) removeSnapshot(i int) {
	id := d.snaps[i].id
	d.parts.drop(id, d.snaps[i].parts)
	delete(d.replicas, id)
	d.changed(store.KindSnapshots)
	d.snaps = slices.Delete(d.snaps, i, i+1)
}

// PutWebhook implements store.Store.
func (s *Store) PutWebhook(_ context.Context, w store.Webhook) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	w.CreatedAt, w.Events = w.CreatedAt.UTC(), slices.Clone(w.Events)
	if i := s.d.hook(w.ID); i >= 0 {
		if s.d.hooks[i].Differs(w) {
			s.d.changed(store.KindWebhooks)
		}
		s.d.hooks[i] = w
		return nil
	}
	if len(s.d.hooks) >= store.MostWebhooks {
		return store.ErrTooManyWebhooks()
	}
	s.d.hooks = append(s.d.hooks, w)
	s.d.changed(store.KindWebhooks)
	return nil
}

func (d *Data) hook(id string) int {
	return slices.IndexFunc(d.hooks, func(w store.Webhook) bool { return w.ID == id })
}

// ChangeWebhook implements store.Store.
func (s *Store) ChangeWebhook(_ context.Context, id string, change func(*store.Webhook) error) (store.Webhook, error) {
	if err := s.lock(); err != nil {
		return store.Webhook{}, err
	}
	defer s.d.mu.Unlock()
	i := s.d.hook(id)
	if i < 0 {
		return store.Webhook{}, store.ErrWebhookNotFound(id)
	}
	was := s.d.hooks[i]
	w := was
	w.Events = slices.Clone(was.Events)
	if err := change(&w); err != nil {
		return w, err
	}
	w.CreatedAt = w.CreatedAt.UTC()
	if was.Differs(w) {
		s.d.changed(store.KindWebhooks)
	}
	s.d.hooks[i] = w
	w.Events = slices.Clone(w.Events)
	return w, nil
}

// Webhooks implements store.Store.
func (s *Store) Webhooks(context.Context) ([]store.Webhook, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	all := oldestFirst(s.d.hooks, func(w store.Webhook) time.Time { return w.CreatedAt })
	for i := range all {
		all[i].Events = slices.Clone(all[i].Events)
	}
	return all, nil
}

// DeleteWebhook implements store.Store.
func (s *Store) DeleteWebhook(_ context.Context, id string) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.d.mu.Unlock()
	i := s.d.hook(id)
	if i < 0 {
		return store.ErrWebhookNotFound(id)
	}
	s.d.hooks = slices.Delete(s.d.hooks, i, i+1)
	s.d.changed(store.KindWebhooks)
	return nil
}

// Secret implements store.Store.
func (s *Store) Secret(_ context.Context, name string) ([]byte, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	secret, ok := s.d.secrets[name]
	if !ok {
		if err := s.fenced(); err != nil {
			return nil, err
		}
		secret = make([]byte, 32)
		rand.Read(secret) // never fails
		s.d.secrets[name] = secret
	}
	return bytes.Clone(secret), nil
}

// ErrFull is a failure for hooks to inject.
var ErrFull = errors.New("database or disk is full")
