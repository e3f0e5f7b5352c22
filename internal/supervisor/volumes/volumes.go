// Package volumes knows which volumes there are, which of them sandboxes mount and
// where, and what each may hold. A volume that a sandbox has is not deleted.
package volumes

import (
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"time"

	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lazyregexp"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/follow"
	"github.com/drowse-dev/drowse/internal/supervisor/putoff"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// Store is where volumes are kept.
type Store interface {
	store.Volumes
	// Self returns the server whose volumes this one has the files of.
	Self() string
}

// Options are what a room of volumes is made of.
type Options struct {
	Store Store
	Files *volume.Store
	Space *space.Disk
	// DiskMiB is what a volume may hold that has no limit of its own; 0 for no
	// limit.
	DiskMiB int
	// Sign returns what nobody else can make of a text.
	Sign func(text string) string
	// Users returns the sandboxes that have a volume, sorted.
	Users func(id string) []string
	// Written returns the volumes that sandboxes may be writing to.
	Written func() map[string]bool
	// Insist removes something, and tries again for as long as it fails.
	Insist func(remove func() error, failed string, args ...any)
	PutOff *putoff.Queue // what backups may read
	Log    *slog.Logger
}

// Room is all volumes, those of other servers of the same database included. Its lock is held while a sandbox that mounts some becomes
// known, and while one is deleted, so that none is deleted that a sandbox has.
type Room struct {
	o     Options
	again follow.Again // see known

	// mu is held while a volume is committed or deleted, and while the store is read again.
	mu     sync.Mutex
	byID   map[string]store.Volume
	disk   map[string]*usage // of volumes that were measured
	struck map[string]bool   // volumes whose deletion may have been committed

	mostCounted int64 // names of a volume, by the survey
}

// Open returns the volumes that the store knows.
func Open(ctx context.Context, o Options) (*Room, error) {
	r := &Room{o: o, byID: map[string]store.Volume{}, disk: map[string]*usage{}, struck: map[string]bool{}, mostCounted: mostCounted}
	list, err := o.Store.Volumes(ctx)
	for _, v := range list {
		r.byID[v.ID] = v
		if r.owns(v) {
			err = errors.Join(err, o.Files.Recall(v.ID)) // its deletion was not committed
		}
	}
	r.again.Read = r.RefreshVolumes
	return r, err
}

// owns reports whether this server has the files of a volume.
func (r *Room) owns(v store.Volume) bool { return v.Owner == r.o.Store.Self() }

// here returns the error for a volume whose files another server has.
func (r *Room) here(v store.Volume) error {
	if r.owns(v) {
		return nil
	}
	return store.ErrElsewhere("volume "+v.Name, v.Owner)
}

// known returns the volume that is found, also one that another server has just made. It
// calls find with mu.
func (r *Room) known(find func() (store.Volume, bool)) (v store.Volume, ok bool, err error) {
	look := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		v, ok = find()
	}
	if look(); ok || r.o.Store.Self() == "" {
		return v, ok, nil
	}
	if err := r.again.Now(context.Background()); err != nil {
		return v, false, err
	}
	look()
	return v, ok, nil
}

// byIDHere returns a volume, to do something with it.
func (r *Room) byIDHere(id string) (store.Volume, error) {
	v, err := r.Volume(context.Background(), id)
	if err == nil {
		err = r.here(v)
	}
	return v, err
}

// volumeName is what E2B's clients may call a volume.
var volumeName = lazyregexp.New(`^[a-zA-Z0-9_-]{1,128}$`)

// Check judges what a volume is asked to be. What holds otherwise, without a limit of
// its own, is for the error to say.
func Check(name string, diskMiB, otherwise int) error {
	if !volumeName.MatchString(name) {
		return errdef.New(errdef.Invalid, "volume_name_invalid", "%.200q cannot name a volume", name).
			WithRemedy("use letters, digits, - and _, 128 at most")
	}
	if diskMiB != 0 && (diskMiB < quota.Least.DiskMiB || diskMiB > math.MaxInt32) {
		return quota.OutOfRange("diskMiB", diskMiB, quota.Least.DiskMiB, math.MaxInt32, otherwise)
	}
	return nil
}

// CreateVolume makes an empty volume, with a limit on disk of its own or 0. A name
// that is taken is an errdef.Exists with code "volume_exists".
func (r *Room) CreateVolume(ctx context.Context, name string, diskMiB int) (store.Volume, error) {
	if err := Check(name, diskMiB, r.o.DiskMiB); err != nil {
		return store.Volume{}, err
	}
	if err := r.o.Space.Check(space.Least); err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{ID: newID(), Name: name, CreatedAt: time.Now().UTC().Truncate(time.Microsecond), DiskMiB: diskMiB, Owner: r.o.Store.Self()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.named(name); taken {
		return store.Volume{}, store.ErrVolumeExists(v)
	}
	err := r.o.Files.Make(v.ID)
	if err == nil {
		err = r.o.Store.AddVolume(ctx, v)
	}
	if err != nil {
		if !store.IsUnlearned(err) { // else RefreshVolumes finds the volume, should it be stored
			r.removeFiles(v.ID)
		}
		return store.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	r.byID[v.ID] = v
	r.disk[v.ID] = &usage{met: true, usedAt: v.CreatedAt} // it is empty
	return r.limited(v), nil
}

// limited returns a volume with the limit that holds for it.
func (r *Room) limited(v store.Volume) store.Volume {
	v.DiskMiB = cmp.Or(v.DiskMiB, r.o.DiskMiB)
	return v
}

// named returns the volume of that name. The caller holds mu.
func (r *Room) named(name string) (store.Volume, bool) {
	for _, has := range r.byID {
		if has.Name == name {
			return has, true
		}
	}
	return store.Volume{}, false
}

// Volumes returns all volumes, oldest first, with the limits that hold for them.
func (r *Room) Volumes(context.Context) ([]store.Volume, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.SortedFunc(maps.Values(r.byID), func(a, b store.Volume) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	for i := range all {
		all[i] = r.limited(all[i])
	}
	return all, nil
}

// Volume returns a volume by its id.
func (r *Room) Volume(_ context.Context, id string) (store.Volume, error) {
	v, ok, err := r.known(func() (store.Volume, bool) {
		v, ok := r.byID[id]
		return r.limited(v), ok
	})
	if err == nil && !ok {
		err = store.ErrVolumeNotFound(id)
	}
	if err != nil {
		return store.Volume{}, err
	}
	return v, nil
}

// VolumeToken returns the token with which the holder of an API key opens the files of
// a volume. It is the same for all the life of both.
func (r *Room) VolumeToken(key, id string) string {
	return key + "." + r.o.Sign(fmt.Sprintf("%q %q", id, key))
}

// VolumeTokenKey returns the id of the API key that was given a token for a volume,
// whether or not there are such a key and volume; false for what is no token.
func (r *Room) VolumeTokenKey(id, token string) (key string, ok bool) {
	key, _, _ = strings.Cut(token, ".")
	return key, hmac.Equal([]byte(token), []byte(r.VolumeToken(key, id)))
}

// VolumeFiles opens the files of a volume that there is. For one of another server it is
// a store.ErrElsewhere.
func (r *Room) VolumeFiles(id string) (*volume.Files, error) {
	if _, err := r.byIDHere(id); err != nil {
		return nil, err
	}
	return r.o.Files.Files(id)
}

// DeleteVolume deletes a volume and all its files. One that a sandbox has,
// running or paused, is an errdef.Conflict with code "volume_in_use".
func (r *Room) DeleteVolume(ctx context.Context, id string) error {
	if _, err := r.byIDHere(id); err != nil {
		return err
	}
	discarded, err := r.strike(ctx, id)
	if err != nil {
		r.o.Insist(func() error { return r.recall(id) }, "volume that was not deleted could not be put back", "volume", id)
		return err
	}
	r.removeFiles(discarded)
	return nil
}

// strike takes a volume off the list, and returns the name of the directory
// that remains of it.
func (r *Room) strike(ctx context.Context, id string) (discarded string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.byID[id]
	if !ok {
		return "", store.ErrVolumeNotFound(id)
	}
	if users := r.o.Users(id); len(users) > 0 {
		return "", errdef.New(errdef.Conflict, "volume_in_use", "volume %q is mounted in %s", v.Name, strings.Join(users, ", ")).
			WithRemedy("end these sandboxes first").With("sandboxes", users)
	}
	discarded, err = r.o.Files.Discard(id)
	if err == nil {
		err = r.o.Store.RemoveVolume(ctx, id)
	}
	if store.IsUnlearned(err) {
		r.struck[id] = true
	}
	if err != nil && !errdef.Is(err, errdef.NotFound) { // NotFound: a deletion before was committed
		return "", fmt.Errorf("delete volume %s: %w", v.Name, err)
	}
	r.dropLocked(id)
	return discarded, nil
}

// dropLocked forgets a volume. The caller holds mu.
func (r *Room) dropLocked(id string) {
	if d := r.disk[id]; d != nil && d.stop != nil {
		d.stop()
	}
	delete(r.byID, id)
	delete(r.disk, id)
	delete(r.struck, id)
}

// recall puts the directory of a volume back that could not be deleted.
func (r *Room) recall(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v, is := r.byID[id]; !is || !r.owns(v) {
		return nil
	}
	return r.o.Files.Recall(id)
}

func (r *Room) removeFiles(name string) {
	remove := func() error { return r.o.Files.Remove(name) }
	if !r.o.PutOff.Later(r.o.Files.Dir(name), remove) {
		r.o.Insist(remove, "deleted volume could not be removed", "volume", name)
	}
}

// Claim resolves the names of what a sandbox asks for, and calls claim with the
// outcome. No volume is deleted before claim has returned; what it makes known
// is then among the users. For a volume of another server it is a store.ErrElsewhere.
func (r *Room) Claim(asked []store.VolumeMount, claim func([]store.VolumeMount) error) error {
	for _, m := range asked[:min(len(asked), maxVolumeMounts)] {
		if _, ok, err := r.known(func() (store.Volume, bool) { return r.called(m.Name) }); !ok {
			if err != nil {
				return err
			}
			break // what is missing is said below
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	mounts, err := Resolve(asked, r.called)
	for i := 0; err == nil && i < len(mounts); i++ {
		err = r.here(r.byID[mounts[i].Volume])
	}
	if err != nil {
		return err
	}
	return claim(mounts)
}

// CheckMounts returns an error unless there is what a sandbox asks for.
func (r *Room) CheckMounts(c store.Config) error {
	return r.Claim(c.Volumes, func([]store.VolumeMount) error { return nil })
}

// Known returns all volumes, in no order.
func (r *Room) Known() []store.Volume {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.byID))
}

// maxVolumeMounts is how many volumes a sandbox may have.
const maxVolumeMounts = 32

// called returns the volume of a name, or of an id, as CubeSandbox's clients name it.
// The caller holds mu.
func (r *Room) called(ref string) (store.Volume, bool) {
	if v, ok := r.named(ref); ok {
		return v, true
	}
	v, ok := r.byID[ref]
	return v, ok
}

// Resolve returns what is asked for with the ids of the volumes, which find returns by
// what they are called.
func Resolve(asked []store.VolumeMount, find func(ref string) (store.Volume, bool)) ([]store.VolumeMount, error) {
	if len(asked) > maxVolumeMounts {
		return nil, mountError("%d volumes are too many", len(asked)).WithRemedy("mount %d at most", maxVolumeMounts)
	}
	mounts := slices.Clone(asked)
	for i := range mounts {
		m := &mounts[i]
		has, ok := find(m.Name)
		if !ok {
			return nil, mountError("there is no volume %.200q", m.Name).WithRemedy("create it first")
		}
		m.Volume, m.Name = has.ID, has.Name
		if err := checkMountPath(m.Path); err != nil {
			return nil, err
		}
		m.Path = path.Clean(m.Path)
		for _, other := range mounts[:i] {
			if within(m.Path, other.Path) || within(other.Path, m.Path) {
				return nil, mountError("volumes are to be mounted at %s and at %s", other.Path, m.Path).
					WithRemedy("give each a path of its own, none in another")
			}
		}
	}
	return mounts, nil
}

func mountError(format string, args ...any) *errdef.Error {
	return errdef.New(errdef.Invalid, "volume_mount_invalid", format, args...)
}

// reserved are the directories that a sandbox needs as they are: nothing is
// mounted in them, nor over what they lie in.
var reserved = []string{"/proc", "/sys", "/dev", "/run/drowse", path.Dir(template.AgentPath)}

// maxMountPath bounds the path of a volume, in bytes.
const maxMountPath = 1024

func checkMountPath(p string) error {
	bad := func(r rune) bool { return r < ' ' || r == 0x7f }
	if !path.IsAbs(p) || len(p) > maxMountPath || strings.ContainsFunc(p, bad) || slices.Contains(strings.Split(p, "/"), "..") {
		return mountError("a volume cannot be mounted at %.1100q", p).WithRemedy("give an absolute path, such as /mnt/data")
	}
	clean := path.Clean(p)
	for _, r := range append(reserved, "/tmp") {
		if within(r, clean) || r != "/tmp" && within(clean, r) {
			return mountError("a volume cannot be mounted at %s: the sandbox needs %s", clean, r).WithRemedy("use another path, such as /mnt/data")
		}
	}
	return nil
}

// within reports whether a clean path is another or lies in it.
func within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func newID() string {
	b := make([]byte, 8)
	rand.Read(b)
	return "vol" + hex.EncodeToString(b)
}
