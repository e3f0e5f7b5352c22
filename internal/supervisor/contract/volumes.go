package contract

import (
	"context"
	"slices"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// Volumes keeps files that outlive sandboxes.
type Volumes interface {
	CreateVolume(ctx context.Context, name string, diskMiB int) (store.Volume, error)
	Volumes(ctx context.Context) ([]store.Volume, error)
	Volume(ctx context.Context, id string) (store.Volume, error)
	DeleteVolume(ctx context.Context, id string) error
	VolumeUse(id string) (bytes int64, at time.Time)
	VolumeToken(key, id string) string
}

func (w world) volume(name string) store.Volume {
	w.t.Helper()
	v, err := w.s.Volumes.CreateVolume(w.t.Context(), name, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(time.Second) // lists are by age
	return v
}

func volumes(w world) {
	ctx, a, b := w.t.Context(), w.volume("b"), w.volume("a")
	if a.Name != "b" || a.CreatedAt.IsZero() || a.ID == b.ID {
		w.t.Errorf("the volumes are %+v and %+v", a, b)
	}
	if list, err := w.s.Volumes.Volumes(ctx); err != nil || !slices.Equal(list, []store.Volume{a, b}) {
		w.t.Errorf("the list is %+v, %v", list, err)
	}
	if got, err := w.s.Volumes.Volume(ctx, a.ID); err != nil || got != a {
		w.t.Errorf("the volume is %+v, %v", got, err)
	}
	if v, err := w.s.Volumes.CreateVolume(ctx, "large", 2048); err != nil || v.DiskMiB != 2048 {
		w.t.Errorf("with a limit it is %+v, %v", v, err)
	}
	if bytes, at := w.s.Volumes.VolumeUse(a.ID); bytes != 0 || at.Before(a.CreatedAt) {
		w.t.Errorf("a new volume takes %d bytes, at %s", bytes, at)
	}
	if bytes, at := w.s.Volumes.VolumeUse("no-volume"); bytes != 0 || !at.IsZero() {
		w.t.Errorf("no volume takes %d bytes, at %s", bytes, at)
	}
	token := w.s.Volumes.VolumeToken("k", a.ID)
	if again := w.s.Volumes.VolumeToken("k", a.ID); token == "" || again != token {
		w.t.Errorf("its token is %q, and then %q", token, again)
	}
	if token == w.s.Volumes.VolumeToken("k", b.ID) || token == w.s.Volumes.VolumeToken("l", a.ID) {
		w.t.Error("another volume, or key, has the same token")
	}
	_, err := w.s.Volumes.CreateVolume(ctx, "a", 0)
	w.refused("the same name", err, errdef.Exists, "volume_exists")
	_, err = w.s.Volumes.CreateVolume(ctx, "no name!", 0)
	w.refused("no name", err, errdef.Invalid, "volume_name_invalid")
	_, err = w.s.Volumes.CreateVolume(ctx, "small", 1)
	w.refused("small", err, errdef.Invalid, "limit_out_of_range")
	w.ok("delete", w.s.Volumes.DeleteVolume(ctx, a.ID))
	w.refused("delete again", w.s.Volumes.DeleteVolume(ctx, a.ID), errdef.NotFound, "volume_not_found")
	_, err = w.s.Volumes.Volume(ctx, a.ID)
	w.refused("one that is gone", err, errdef.NotFound, "volume_not_found")
}

// mounts: a sandbox has the volumes that it asks for, and keeps them from deletion.
func mounts(w world) {
	ctx, v := w.t.Context(), w.volume("data")
	for name, bad := range map[string][]store.VolumeMount{
		"unknown":  {{Name: "unknown", Path: "/mnt/a"}},
		"relative": {{Name: "data", Path: "mnt"}},
		"needed":   {{Name: "data", Path: "/proc/a"}},
		"nested":   {{Name: "data", Path: "/mnt/a"}, {Name: "data", Path: "/mnt/a/b"}},
	} {
		req := asked()
		req.Config.Volumes = bad
		_, err := w.s.Create(ctx, req)
		w.refused(name, err, errdef.Invalid, "volume_mount_invalid")
	}
	req := asked()
	req.Config.Volumes = []store.VolumeMount{{Name: "data", Path: "/mnt//data/"}}
	sb := w.made(req)
	if want := []store.VolumeMount{{Volume: v.ID, Name: "data", Path: "/mnt/data"}}; !slices.Equal(sb.Config.Volumes, want) {
		w.t.Errorf("it has %+v, want %+v", sb.Config.Volumes, want)
	}
	w.refused("delete while it runs", w.s.Volumes.DeleteVolume(ctx, v.ID), errdef.Conflict, "volume_in_use")
	w.pause(sb.ID)
	w.refused("delete while it sleeps", w.s.Volumes.DeleteVolume(ctx, v.ID), errdef.Conflict, "volume_in_use")
	w.is(sb.ID, lifecycle.Paused, 1)
	w.ok("kill", w.s.Kill(ctx, sb.ID, "test"))
	w.ok("delete after its end", w.s.Volumes.DeleteVolume(ctx, v.ID))
}
