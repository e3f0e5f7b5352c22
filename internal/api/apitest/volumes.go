package apitest

import (
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/volumes"
)

// CreateVolume makes a volume.
func (f *Fake) CreateVolume(_ context.Context, name string, diskMiB int) (store.Volume, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Volume{}, err
	}
	if err := volumes.Check(name, diskMiB, 0); err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{ID: "vol" + f.nextID(), Name: name, CreatedAt: f.Now, DiskMiB: diskMiB}
	if slices.ContainsFunc(f.volumes, func(has store.Volume) bool { return has.Name == name }) {
		return store.Volume{}, store.ErrVolumeExists(v)
	}
	f.volumes = append(f.volumes, v)
	return v, nil
}

// Volumes returns all volumes, oldest first.
func (f *Fake) Volumes(context.Context) ([]store.Volume, error) {
	err := f.enter()
	defer f.mu.Unlock()
	return slices.Clone(f.volumes), err
}

// Volume returns a volume.
func (f *Fake) Volume(_ context.Context, id string) (store.Volume, error) {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return store.Volume{}, err
	}
	i, err := f.indexOfVolume(id)
	if err != nil {
		return store.Volume{}, err
	}
	return f.volumes[i], nil
}

// DeleteVolume deletes a volume that no sandbox has asked for.
func (f *Fake) DeleteVolume(_ context.Context, id string) error {
	err := f.enter()
	defer f.mu.Unlock()
	if err != nil {
		return err
	}
	i, err := f.indexOfVolume(id)
	if err != nil {
		return err
	}
	for _, sb := range f.Sandboxes {
		if sb.Record.State != lifecycle.Terminated && slices.ContainsFunc(sb.Config.Volumes, func(m store.VolumeMount) bool { return m.Volume == id }) {
			return errdef.New(errdef.Conflict, "volume_in_use", "volume %q is mounted in %s", f.volumes[i].Name, sb.ID)
		}
	}
	f.volumes = slices.Delete(f.volumes, i, i+1)
	return nil
}

// SetVolumeUse says how many bytes a volume uses; nil for unknown.
func (f *Fake) SetVolumeUse(id string, bytes *int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumeUses[id] = bytes
}

// VolumeUse returns what SetVolumeUse said; 0 now for a volume of which nothing is said.
func (f *Fake) VolumeUse(id string) (bytes int64, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	use, said := f.volumeUses[id]
	if _, err := f.indexOfVolume(id); err != nil || said && use == nil {
		return 0, time.Time{}
	}
	if said {
		bytes = *use
	}
	return bytes, f.Now
}

// VolumeToken returns the token that opens a volume to the holder of a key.
func (f *Fake) VolumeToken(key, id string) string { return "volume" + Tokens() + id + "-for-" + key }

func (f *Fake) indexOfVolume(id string) (int, error) {
	i := slices.IndexFunc(f.volumes, func(v store.Volume) bool { return v.ID == id })
	if i < 0 {
		return 0, store.ErrVolumeNotFound(id)
	}
	return i, nil
}

// WithVolumes makes volumes of these names, which Samples ask for.
func (w *World) WithVolumes(names ...string) {
	w.T.Helper()
	for _, name := range names {
		if _, err := w.Fake.CreateVolume(w.T.Context(), name, 0); err != nil {
			w.T.Fatal(err)
		}
	}
}

// mounted returns what is asked for with the ids of the volumes.
func mounted(f *Fake, asked []store.VolumeMount) ([]store.VolumeMount, error) {
	return volumes.Resolve(asked, func(ref string) (store.Volume, bool) {
		i := slices.IndexFunc(f.volumes, func(v store.Volume) bool { return v.Name == ref || v.ID == ref })
		if i < 0 {
			return store.Volume{}, false
		}
		return f.volumes[i], true
	})
}
