package supervisor

import (
	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/space"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// volumes is which volumes there are. Its lock is held while a sandbox that
// mounts some becomes known, and while one is deleted, so that none is deleted
// that a sandbox has.
type volumes struct {
	mu   sync.Mutex
	byID map[string]store.Volume
	disk map[string]*volumeDisk // of volumes that were measured
}

func (s *Supervisor) loadVolumes(ctx context.Context) error {
	list, err := s.o.Store.Volumes(ctx)
	s.volumes.byID, s.volumes.disk = map[string]store.Volume{}, map[string]*volumeDisk{}
	for _, v := range list {
		s.volumes.byID[v.ID] = v
		err = errors.Join(err, s.o.Volumes.Recall(v.ID)) // its deletion was not committed
	}
	return err
}

// volumeName is what E2B's clients may call a volume.
var volumeName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)

// CreateVolume makes an empty volume, with a limit on disk of its own or 0. A name
// that is taken is an errdef.Exists with code "volume_exists".
func (s *Supervisor) CreateVolume(ctx context.Context, name string, diskMiB int) (store.Volume, error) {
	if !volumeName.MatchString(name) {
		return store.Volume{}, errdef.New(errdef.Invalid, "volume_name_invalid", "%.200q cannot name a volume", name).
			WithRemedy("use letters, digits, - and _, 128 at most")
	}
	if diskMiB != 0 && (diskMiB < quota.Least.DiskMiB || diskMiB > math.MaxInt32) {
		return store.Volume{}, quota.OutOfRange("diskMiB", diskMiB, quota.Least.DiskMiB, math.MaxInt32, s.o.VolumeDiskMiB)
	}
	if err := s.space.Check(space.Least); err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{ID: "vol" + newOp(), Name: name, CreatedAt: now(), DiskMiB: diskMiB}
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	if _, taken := s.volumes.named(name); taken {
		return store.Volume{}, store.ErrVolumeExists(v)
	}
	err := s.o.Volumes.Make(v.ID)
	if err == nil {
		err = s.o.Store.AddVolume(ctx, v)
	}
	if err != nil {
		s.removeVolumeFiles(v.ID)
		return store.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	s.volumes.byID[v.ID] = v
	s.volumes.disk[v.ID] = &volumeDisk{met: true}
	return s.limited(v), nil
}

// limited returns a volume with the limit that holds for it.
func (s *Supervisor) limited(v store.Volume) store.Volume {
	v.DiskMiB = cmp.Or(v.DiskMiB, s.o.VolumeDiskMiB)
	return v
}

// named returns the volume of that name.
func (v *volumes) named(name string) (store.Volume, bool) {
	for _, has := range v.byID {
		if has.Name == name {
			return has, true
		}
	}
	return store.Volume{}, false
}

// Volumes returns all volumes, oldest first, with the limits that hold for them.
func (s *Supervisor) Volumes(context.Context) ([]store.Volume, error) {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	all := slices.SortedFunc(maps.Values(s.volumes.byID), func(a, b store.Volume) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	for i := range all {
		all[i] = s.limited(all[i])
	}
	return all, nil
}

// Volume returns a volume by its id.
func (s *Supervisor) Volume(_ context.Context, id string) (store.Volume, error) {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	v, ok := s.volumes.byID[id]
	if !ok {
		return store.Volume{}, store.ErrVolumeNotFound(id)
	}
	return s.limited(v), nil
}

// VolumeToken returns the token that opens the files of a volume. It is the same
// for all its life.
func (s *Supervisor) VolumeToken(id string) string { return s.derive("volume", id) }

// CheckVolumeToken reports whether a token opens a volume, whether or not there
// is such a volume.
func (s *Supervisor) CheckVolumeToken(id, token string) bool {
	return hmac.Equal([]byte(token), []byte(s.VolumeToken(id)))
}

// VolumeFiles opens the files of a volume that there is.
func (s *Supervisor) VolumeFiles(id string) (*volume.Files, error) { return s.o.Volumes.Files(id) }

// DeleteVolume deletes a volume and all its files. One that a sandbox has,
// running or paused, is an errdef.Conflict with code "volume_in_use".
func (s *Supervisor) DeleteVolume(ctx context.Context, id string) error {
	discarded, err := s.strikeVolume(ctx, id)
	if err != nil {
		s.insist(func() error { return s.recallVolume(id) }, "volume that was not deleted could not be put back", "volume", id)
		return err
	}
	s.removeVolumeFiles(discarded)
	return nil
}

// strikeVolume takes a volume off the list, and returns the name of the directory
// that remains of it.
func (s *Supervisor) strikeVolume(ctx context.Context, id string) (discarded string, err error) {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	v, ok := s.volumes.byID[id]
	if !ok {
		return "", store.ErrVolumeNotFound(id)
	}
	if users := s.usersOf(id); len(users) > 0 {
		return "", errdef.New(errdef.Conflict, "volume_in_use", "volume %q is mounted in %s", v.Name, strings.Join(users, ", ")).
			WithRemedy("end these sandboxes first").With("sandboxes", users)
	}
	discarded, err = s.o.Volumes.Discard(id)
	if err == nil {
		err = s.o.Store.RemoveVolume(ctx, id)
	}
	if err != nil {
		return "", fmt.Errorf("delete volume %s: %w", v.Name, err)
	}
	delete(s.volumes.byID, id)
	delete(s.volumes.disk, id)
	return discarded, nil
}

// recallVolume puts the directory of a volume back that could not be deleted.
func (s *Supervisor) recallVolume(id string) error {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	if _, is := s.volumes.byID[id]; !is {
		return nil
	}
	return s.o.Volumes.Recall(id)
}

func (s *Supervisor) removeVolumeFiles(name string) {
	s.insist(func() error { return s.o.Volumes.Remove(name) }, "deleted volume could not be removed", "volume", name)
}

// usersOf returns the sandboxes that have a volume, sorted. Those that end count
// until nothing of them runs.
func (s *Supervisor) usersOf(id string) []string {
	var users []string
	s.each(func(b *box) {
		sb := b.snapshot()
		if sb.Record.State == lifecycle.Terminated && sb.Record.Op == nil {
			return
		}
		if slices.ContainsFunc(sb.Config.Volumes, func(m store.VolumeMount) bool { return m.Volume == id }) {
			users = append(users, sb.ID)
		}
	})
	slices.Sort(users)
	return users
}

// checkVolumes returns an error unless there is what a sandbox asks for.
func (s *Supervisor) checkVolumes(c store.Config) error {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	_, err := s.volumes.resolve(c.Volumes)
	return err
}

// maxVolumeMounts is how many volumes a sandbox may have.
const maxVolumeMounts = 32

// resolve returns what is asked for with the ids of the volumes.
func (v *volumes) resolve(asked []store.VolumeMount) ([]store.VolumeMount, error) {
	if len(asked) > maxVolumeMounts {
		return nil, mountError("%d volumes are too many", len(asked)).WithRemedy("mount %d at most", maxVolumeMounts)
	}
	mounts := slices.Clone(asked)
	for i := range mounts {
		m := &mounts[i]
		has, ok := v.named(m.Name)
		if !ok {
			return nil, mountError("there is no volume %.200q", m.Name).WithRemedy("create it first")
		}
		m.Volume = has.ID
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

// mountsOf returns what a runtime mounts of the volumes of a sandbox.
func (s *Supervisor) mountsOf(c store.Config) []runtime.Mount {
	var mounts []runtime.Mount
	for _, m := range c.Volumes {
		mounts = append(mounts, runtime.Mount{Source: s.o.Volumes.Dir(m.Volume), Path: m.Path})
	}
	return mounts
}
