// Package snapshots keeps the snapshots: checkpoints that sandboxes can start
// from, and that live on when the sandbox they were taken of has ended.
//
// A snapshot shares layers and memory images with its source and with the
// sandboxes that start from it; nothing is copied for them. The store knows who needs
// each, and the package removes it when nobody does any more.
package snapshots

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
	"github.com/drowse-dev/drowse/internal/supervisor/checkpoint"
	"github.com/drowse-dev/drowse/internal/supervisor/putoff"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/replication"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
)

// Store is where snapshots are kept.
type Store interface {
	store.Sandboxes
	store.Snapshots
	FreeForSnapshot(ctx context.Context, snap store.Snapshot) error
	// Self returns the server whose snapshots this one has the files of.
	Self() string
}

// Options are what a shelf of snapshots is made of.
type Options struct {
	Store       Store
	Layers      *layer.Store
	Checkpoints checkpoint.Reader
	// AgentToken returns the secret by which the agent of a sandbox knows this
	// server.
	AgentToken func(sandbox string) string
	Slots      *quota.Slots
	Space      *space.Disk
	// Copies has the snapshots of this server copied to object storage.
	Copies replication.Snapshots
	// Insist removes something, and tries again for as long as it fails.
	Insist func(remove func() error, failed string, args ...any)
	// Relieve makes room where the disk is full, and returns whether it has.
	Relieve func() bool
	PutOff  *putoff.Queue // what backups may read
	Log     *slog.Logger
}

// Shelf is all snapshots, those of other servers of the same database included.
type Shelf struct {
	o     Options
	again follow.Again // see known

	// writing is held while a snapshot is committed, changed or removed, and is taken
	// after the lock of the sandbox that it is taken of.
	writing sync.Mutex

	// mu is taken after writing, and is never held while anything is written. byID
	// changes with both held.
	mu    sync.Mutex
	byID  map[string]store.Snapshot
	names map[owned]bool // of snapshots that are being taken; true for results of builds
	// replaced are those whose name another has got, or that are too many since
	// then, until Tidy
	replaced []store.Snapshot
	looks    chan struct{}  // see look
	reading  map[string]int // how many read a part, to send it out
}

// owned is a name in the space of an API key: what one key names takes no name from
// another.
type owned struct{ key, name string }

// base is the name of the template to which a name would belong, were it that of a
// result.
func (n owned) base() owned {
	name, _, _ := strings.Cut(n.name, ":")
	return owned{n.key, name}
}

// Open returns the snapshots that the store knows.
func Open(ctx context.Context, o Options) (*Shelf, error) {
	s := &Shelf{o: o, byID: map[string]store.Snapshot{}, names: map[owned]bool{}, looks: make(chan struct{}, 1), reading: map[string]int{}}
	list, err := o.Store.Snapshots(ctx)
	if err != nil {
		return nil, fmt.Errorf("open snapshots: %w", err)
	}
	for _, snap := range list {
		s.byID[snap.ID] = snap
		if s.o.has(snap) {
			o.Slots.HoldKept(snap.Key, snap.DiskMiB())
			o.Copies.Keep(snap)
		}
	}
	s.again.Read = s.RefreshSnapshots
	return s, nil
}

// has reports whether this server has the files of a snapshot.
func (o Options) has(snap store.Snapshot) bool { return snap.Owner == o.Store.Self() }

// here returns the error for a snapshot whose files another server has.
func (o Options) here(snap store.Snapshot) error {
	if o.has(snap) {
		return nil
	}
	return store.ErrElsewhere("snapshot "+snap.ID, snap.Owner)
}

// Read keeps what a checkpoint is made of that a sandbox has, also where nobody needs it
// any more, until done is called. Whoever does then has it removed.
func (s *Shelf) Read(cp lifecycle.Checkpoint) (done func()) {
	count := func(by int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range cp.Parts() {
			if s.reading[id] += by; s.reading[id] == 0 {
				delete(s.reading, id)
			}
		}
	}
	count(1)
	return func() { count(-1) }
}

// RemoveLayer removes a layer that nobody needs any more, but for a sandbox that has
// ended, if that is named. One that somebody needs, or reads, stays. It is idempotent.
func (s *Shelf) RemoveLayer(id, but string) error {
	return s.remove(id, but, s.o.Layers.LayerDir, s.o.Layers.RemoveLayer)
}

// RemoveImage does the same for a memory image.
func (s *Shelf) RemoveImage(id, but string) error {
	return s.remove(id, but, s.o.Layers.ImageDir, s.o.Layers.RemoveImage)
}

func (s *Shelf) remove(id, but string, dir func(id string) string, remove func(id string) error) error {
	needed, err := s.o.Store.Needed(context.Background(), id, but)
	if err != nil || needed {
		return err
	}
	s.mu.Lock()
	reads := s.reading[id] > 0
	s.mu.Unlock()
	if reads {
		return nil
	}
	if s.o.PutOff.Later(dir(id), func() error { return s.remove(id, but, dir, remove) }) {
		return nil
	}
	return remove(id)
}

// RemoveParts removes what nobody needs any more of what a checkpoint is made of: others can
// build on the same layers, and have the same image where a sandbox went back to a
// snapshot.
func (s *Shelf) RemoveParts(cp lifecycle.Checkpoint) error {
	var errs []error
	if cp.Mode == lifecycle.Memory { // one without is called like the image that it was made of
		errs = append(errs, s.RemoveImage(cp.ID, ""))
	}
	for _, id := range cp.Stack {
		errs = append(errs, s.RemoveLayer(id, ""))
	}
	return errors.Join(errs...)
}

// removeOf does so for a snapshot that is gone.
func (s *Shelf) removeOf(snap store.Snapshot) {
	s.o.Insist(func() error { return s.RemoveParts(snap.Checkpoint) }, "what a snapshot was made of could not be removed", "snapshot", snap.ID)
}

// form is what an id looks like, and nameForm a name, in which there may be a
// namespace and a tag.
var (
	form     = lazyregexp.New(`^s[0-9a-z]{20}$`)
	nameForm = lazyregexp.New(`^[a-z0-9][a-z0-9._/:-]{0,127}$`)
)

// IsID reports whether a text looks like the id of a snapshot.
func IsID(text string) bool { return form.MatchString(text) }

// NewID returns an id that was never used.
func NewID() string {
	text := strings.ToLower(rand.Text()) // 26 letters and digits
	return "s" + text[:20]
}

// CheckName judges the name that a snapshot is to have, if any.
func CheckName(name string) error {
	if name != "" && (!nameForm.MatchString(name) || IsID(name)) {
		return errdef.New(errdef.Invalid, "snapshot_name_invalid", "%.200q cannot name a snapshot", name).
			WithRemedy("use lower-case letters, digits, and . _ / : - between them, 128 at most")
	}
	if strings.HasPrefix(name, "default/") || strings.HasSuffix(name, ":default") {
		return errdef.New(errdef.Invalid, "snapshot_name_invalid", "%q cannot name a snapshot: to some clients it is the same as the name without default", name).
			WithRemedy("use that name")
	}
	return nil
}

// Reserve waits until the checkpoint that a sandbox has is whole, which a snapshot may share,
// and makes sure that a snapshot of the sandbox can have its
// name, if any, and its part of the disk, until release is called. A name that is
// taken is an errdef.Exists with code "snapshot_exists", unless the snapshot to
// replace has it. That one keeps its part of the disk until then. Names are those of
// an API key; a template that it has built has all names that the template can be built
// to. That is asked of the store here, before the sandbox stands still, and decided by it
// when it commits.
func (s *Shelf) Reserve(ctx context.Context, req Request, sb store.Sandbox) (release func(), err error) {
	if err := s.o.Checkpoints.Whole(ctx, sb.Record.Checkpoint); err != nil {
		return nil, err
	}
	of := sb.Config.Limits
	name, key := req.Name, req.Key
	if err := CheckName(name); err != nil {
		return nil, err
	}
	if err := s.o.Store.FreeForSnapshot(context.Background(), store.Snapshot{Key: key, Name: name, Config: store.Config{Build: req.Build}}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	as := owned{key, name}
	if err := s.free(as, req); err != nil {
		return nil, err
	}
	has := 0
	for _, snap := range s.byID {
		if snap.Key == key && snap.ID != req.Replace {
			has++
		}
	}
	if err := store.FitSnapshots(has); err != nil {
		return nil, err
	}
	if !req.Passing {
		if err := s.o.Slots.Keep(key, of); err != nil {
			return nil, err
		}
	}
	if name != "" {
		s.names[as] = req.Build != ""
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !req.Passing {
			s.o.Slots.HoldKept(key, -of.DiskMiB-of.MemoryMiB)
		}
		delete(s.names, as)
	}, nil
}

// free refuses a name that a snapshot of the key has, or is about to have, and one that
// belongs to a template: a snapshot that somebody took is beside the results of no
// build. The caller holds mu.
func (s *Shelf) free(as owned, req Request) error {
	if as.name == "" {
		return nil
	}
	built := req.Build != ""
	for other, ofBuild := range s.names {
		if other == as || ofBuild != built && other.base() == as.base() {
			return store.ErrSnapshotExists(store.Snapshot{Name: other.name})
		}
	}
	for _, snap := range s.byID {
		other := owned{snap.Key, snap.Name}
		switch {
		case snap.ID == req.Replace && !built && snap.Config.Build != "":
			return OfTemplate(snap)
		case snap.ID == req.Replace && !s.o.has(snap):
			return s.o.here(snap)
		case snap.Name == "" || snap.ID == req.Replace:
		case other == as, (snap.Config.Build != "") != built && other.base() == as.base():
			return store.ErrSnapshotExists(snap)
		}
	}
	return nil
}

// named returns the snapshot that an API key has under a name. The caller holds mu.
func (s *Shelf) named(key, name string) (store.Snapshot, bool) {
	for _, snap := range s.byID {
		if name != "" && snap.Key == key && snap.Name == name {
			return snap, true
		}
	}
	return store.Snapshot{}, false
}

func (s *Shelf) find(id string) (store.Snapshot, error) {
	if snap, ok := s.byID[id]; ok {
		return snap, nil
	}
	return store.Snapshot{}, store.ErrSnapshotNotFound(id)
}

// Request says what a snapshot is to be.
type Request struct {
	Name    string          // empty for none
	Replace string          // the id of the snapshot that may have the name, and goes then
	Mode    lifecycle.Mode  // what is kept; empty for memory
	Key     string          // the id of the API key whose it will be
	Only    lifecycle.State // that the sandbox must be in; empty for any
	Actor   string
	Passing bool   // a fork removes it
	Build   string // the build that it is for; empty for none

	// How long it is kept, and what goes for it.
	ExpiresAt time.Time // zero for never
	Pinned    bool      // it neither expires nor counts for KeepLast
	KeepLast  int       // of its sandbox and key with a KeepLast, this one included; older ones go; 0 for all
}

// Of returns what a snapshot of a sandbox with this checkpoint is.
func (s *Shelf) Of(sb store.Sandbox, cp lifecycle.Checkpoint, req Request) store.Snapshot {
	if req.Mode == lifecycle.Filesystem {
		cp = cp.Files()
	}
	if cp.Mode == lifecycle.Memory && cp.AgentToken == "" {
		cp.AgentToken = s.o.AgentToken(sb.ID)
	}
	c := sb.Config
	c.Name, c.Previews, c.Idempotency, c.Before, c.Build = "", nil, nil, nil, req.Build
	return s.o.described(store.Snapshot{
		ID: NewID(), Owner: s.o.Store.Self(), Name: req.Name, Key: req.Key, Passing: req.Passing, CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
		Sandbox: sb.ID, Generation: sb.Record.Generation, Checkpoint: cp, Settings: sb.Record.Settings, Config: c, Bytes: cp.Bytes,
		ExpiresAt: req.ExpiresAt.UTC().Truncate(time.Microsecond), Pinned: req.Pinned, KeepLast: req.KeepLast,
	})
}

// Commit makes a change of a sandbox durable, with a snapshot of it unless that is nil.
// The snapshot takes the place of the one that has its name, or that is an undo of the
// same sandbox as it is.
func (s *Shelf) Commit(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry, snap *store.Snapshot) error {
	if snap == nil {
		return s.o.Store.Commit(ctx, sb, entries)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	snap.Owner = s.o.Store.Self()
	gone := s.makeRoom(snap)
	if err := s.o.Store.CommitSnapshot(ctx, *snap, sb, entries); err != nil {
		snap.Replaces, snap.Drops = "", nil
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	add(s, *snap)
	for _, x := range gone {
		drop(s, x)
		s.o.Copies.Ended(x.ID)
	}
	s.replaced = append(s.replaced, gone...)
	s.look()
	return nil
}

// makeRoom says in a snapshot which others go for it, and returns those.
func (s *Shelf) makeRoom(snap *store.Snapshot) (gone []store.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, replaces := s.named(snap.Key, snap.Name)
	if replaces && !s.o.has(old) { // the store refuses the name
		old, replaces = store.Snapshot{}, false
	}
	if snap.Undo {
		old, replaces = s.undoOf(snap.Sandbox)
	}
	snap.Replaces, snap.Drops = old.ID, nil
	gone = s.surplus(*snap)
	for _, x := range gone {
		snap.Drops = append(snap.Drops, x.ID)
	}
	if replaces && old.ID != snap.ID { // it is itself where an answer was lost
		gone = append(gone, old)
	}
	return gone
}

// Tidy removes what nobody needs any more of the snapshots that have gone for
// others. It is not part of Commit, since a sandbox stands still for that.
func (s *Shelf) Tidy() {
	s.mu.Lock()
	old := s.replaced
	s.replaced = nil
	s.mu.Unlock()
	for _, snap := range old {
		s.o.Log.Info("snapshot made room for a newer one", "snapshot", snap.ID, "name", snap.Name, "sandbox", snap.Sandbox)
		s.removeOf(snap)
	}
}

// ByID returns a snapshot by its id, to do something with it. One that is unknown is an
// errdef.NotFound with code "snapshot_not_found", and one whose files another server has
// a store.ErrElsewhere.
func (s *Shelf) ByID(id string) (store.Snapshot, error) {
	snap, err := known(s, func() (store.Snapshot, error) { return s.find(id) })
	if err == nil {
		err = s.o.here(snap)
	}
	return snap, err
}

// Snapshot returns a snapshot, whoever has it, by its id, or by its name among those of
// an API key. One that is unknown is an errdef.NotFound with code "snapshot_not_found".
func (s *Shelf) Snapshot(key, ref string) (store.Snapshot, error) {
	look := func() (store.Snapshot, error) {
		snap, ok := s.named(key, ref)
		if !ok {
			var err error
			if snap, err = s.find(ref); err != nil {
				return snap, err
			}
		}
		return s.o.described(snap), nil
	}
	if formOfTemplate.MatchString(ref) { // no other server has just called a snapshot so
		s.mu.Lock()
		defer s.mu.Unlock()
		return look()
	}
	return known(s, look)
}

// formOfTemplate is what ids of built templates look like, which are looked for here first.
var formOfTemplate = lazyregexp.New(`^t[0-9a-z]{20}$`)

// known returns the snapshot that is found, also one that another server has just made.
// It calls find with mu.
func known(s *Shelf, find func() (store.Snapshot, error)) (store.Snapshot, error) {
	look := func() (store.Snapshot, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return find()
	}
	snap, err := look()
	if err == nil || s.o.Store.Self() == "" {
		return snap, err
	}
	if err := s.again.Now(context.Background()); err != nil {
		return snap, err
	}
	return look()
}

// Snapshots returns the snapshots that somebody has taken, newest first: those that
// forks need for a moment, and those of builds, are not among them.
func (s *Shelf) Snapshots() ([]store.Snapshot, error) {
	return slices.DeleteFunc(s.AllSnapshots(), func(snap store.Snapshot) bool { return snap.Passing || snap.Config.Build != "" }), nil
}

// OwnSnapshots returns those whose files this server has, newest first.
func (s *Shelf) OwnSnapshots() []store.Snapshot {
	return slices.DeleteFunc(s.AllSnapshots(), func(snap store.Snapshot) bool { return !s.o.has(snap) })
}

// AllSnapshots returns all that are in the store, newest first.
func (s *Shelf) AllSnapshots() []store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.SortedFunc(maps.Values(s.byID), newestFirst)
	for i := range all {
		all[i] = s.o.described(all[i])
	}
	return all
}

func newestFirst(a, b store.Snapshot) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.ID, b.ID))
}

// OfTemplate refuses what changes a snapshot that a template was built to: it is the
// template's.
func OfTemplate(snap store.Snapshot) error {
	if snap.Config.Build == "" {
		return nil
	}
	return errdef.New(errdef.Conflict, "snapshot_of_template", "snapshot %s (%q) belongs to a template that was built", snap.ID, snap.Name).
		WithRemedy("choose another snapshot or name, or delete or build the template")
}

// RemoveSnapshot removes a snapshot that no template was built to. Sandboxes that started
// from it, and its source, keep what they need.
func (s *Shelf) RemoveSnapshot(ctx context.Context, id, actor string) error {
	snap, err := s.ByID(id)
	if err == nil {
		err = OfTemplate(snap)
	}
	if err != nil {
		return err
	}
	return s.RemoveResult(ctx, id, actor)
}

// RemoveResult is RemoveSnapshot for those who own the templates.
func (s *Shelf) RemoveResult(ctx context.Context, id, actor string) error {
	snap, err := s.strike(ctx, id)
	if err != nil {
		return err
	}
	s.o.Log.Info("snapshot removed", "snapshot", snap.ID, "name", snap.Name, "sandbox", snap.Sandbox, "actor", actor)
	s.removeOf(snap)
	return nil
}

// strike takes a snapshot off the list.
func (s *Shelf) strike(ctx context.Context, id string) (store.Snapshot, error) {
	snap, release, err := s.toChange(id)
	if err != nil {
		return snap, err
	}
	defer release()
	remove := func() error { return s.o.Store.RemoveSnapshot(context.WithoutCancel(ctx), snap.ID) }
	if err = remove(); err != nil && !errdef.Is(err, errdef.NotFound) && s.o.Relieve() {
		s.o.Log.Warn("the disk is full: reserve given up", "snapshot", snap.ID, "err", err)
		err = remove()
	}
	if err != nil && !errdef.Is(err, errdef.NotFound) {
		return snap, fmt.Errorf("remove snapshot %s: %w", snap.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	drop(s, snap)
	s.o.Copies.Ended(snap.ID)
	return snap, nil
}

// toChange returns a snapshot that nobody else changes until release is called.
func (s *Shelf) toChange(id string) (snap store.Snapshot, release func(), err error) {
	if _, err := s.ByID(id); err != nil {
		return snap, nil, err
	}
	s.writing.Lock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if snap, err = s.find(id); err != nil { // it has just been removed
		s.writing.Unlock()
		return snap, nil, err
	}
	return snap, s.writing.Unlock, nil
}

// RemoveLeft removes the snapshots that a server before has left and nobody can use: those of
// its forks, and the undos of sandboxes that are not among those which this server has.
func (s *Shelf) RemoveLeft(ctx context.Context, has []store.Sandbox) {
	for _, snap := range s.OwnSnapshots() {
		lost := snap.Undo && !slices.ContainsFunc(has, func(sb store.Sandbox) bool { return sb.ID == snap.Sandbox })
		if !snap.Passing && !lost {
			continue
		}
		if err := s.RemoveSnapshot(ctx, snap.ID, ""); err != nil && !errdef.Is(err, errdef.NotFound) {
			s.o.Log.Error("snapshot that a server before has left could not be removed", "snapshot", snap.ID, "sandbox", snap.Sandbox, "err", err)
		}
	}
}
