package volumes

import (
	"errors"
	"path"
	"strings"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
)

// ownMounts are where every sandbox has file systems of its own, which hide what
// its layers have there.
var ownMounts = []string{"/proc", "/sys", "/dev", "/run", "/tmp"}

// Mounts returns what a runtime mounts of the volumes of a sandbox whose layers are
// mounted at rootfs, with the program of its agent at a path in them.
//
// An image, and root in a sandbox, may have links on the way to where a volume is
// mounted. No link leads one over what the sandbox needs, nor through another: a
// volume is changed from other sandboxes and over the API at any time, and what
// makes the directories to mount on would follow a link that is put there then.
func (r *Room) Mounts(c store.Config, rootfs, agent string) ([]runtime.Mount, error) {
	var mounts []runtime.Mount
	places := make([]layer.Place, len(c.Volumes))
	for i, m := range c.Volumes {
		var err error
		if places[i], err = layer.ResolvePlace(rootfs, m.Path, ownMounts); err != nil {
			if errors.Is(err, layer.ErrNoPlace) {
				return nil, misplaced(m, strings.TrimPrefix(err.Error(), layer.ErrNoPlace.Error()+": "))
			}
			return nil, err
		}
		for _, need := range append(reserved, path.Dir(agent)) {
			if at := places[i].Path; within(at, need) || within(need, at) {
				return nil, misplaced(m, "it leads to "+at+", and the sandbox needs "+need)
			}
		}
		r.VolumeChanged(m.Volume)
		mounts = append(mounts, runtime.Mount{Source: r.o.Files.Dir(m.Volume), Path: m.Path})
	}
	for i, p := range places {
		for j, other := range places {
			if i == j {
				continue
			}
			for _, at := range append(p.Trail, p.Path) {
				if within(at, other.Path) {
					return nil, misplaced(c.Volumes[i], "it leads through the volume at "+c.Volumes[j].Path)
				}
			}
		}
	}
	return mounts, nil
}

func misplaced(m store.VolumeMount, because string) error {
	return mountError("the volume %s cannot be mounted at %s: %s", m.Name, m.Path, because).
		WithRemedy("use another path, or remove the links on the way to this one")
}
