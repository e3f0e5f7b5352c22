package supervisor

import (
	"slices"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/supervisor/volumes"
)

// volumeOptions returns what the volumes are made of.
func (s *Supervisor) volumeOptions() volumes.Options {
	return volumes.Options{
		Store: s.o.Store, Files: s.o.Volumes, Space: s.space, DiskMiB: s.o.VolumeDiskMiB, Log: s.log,
		Sign:  func(text string) string { return s.Derive("volume", text) },
		Users: s.usersOf, Written: s.writtenVolumes,
		Insist: s.removals.Insist,
		PutOff: s.putOff,
	}
}

// usersOf returns the sandboxes that have a volume, sorted.
func (s *Supervisor) usersOf(id string) []string {
	return s.thoseWith(func(c store.Config) bool {
		return slices.ContainsFunc(c.Volumes, func(m store.VolumeMount) bool { return m.Volume == id })
	})
}

// writtenVolumes returns the volumes of the sandboxes that do not rest.
func (s *Supervisor) writtenVolumes() map[string]bool {
	written := map[string]bool{}
	s.each(func(b *box) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if state := b.sb.Record.State; b.sb.Record.Op == nil && (state == lifecycle.Paused || state == lifecycle.Terminated) {
			return
		}
		for _, m := range b.sb.Config.Volumes {
			written[m.Volume] = true
		}
	})
	return written
}

// thoseWith returns the sandboxes that have something, sorted. Those that end
// count until nothing of them runs.
func (s *Supervisor) thoseWith(has func(store.Config) bool) []string {
	var users []string
	s.each(func(b *box) {
		sb := b.snapshot()
		if sb.Record.State == lifecycle.Terminated && sb.Record.Op == nil {
			return
		}
		if has(sb.Config) {
			users = append(users, sb.ID)
		}
	})
	for _, snap := range s.OwnSnapshots() {
		if has(snap.Config) {
			users = append(users, "snapshot "+snapshots.Describe(snap))
		}
	}
	slices.Sort(users)
	return users
}

// mountsOf returns where the volumes of a sandbox are that is about to run. Those
// that this server has not looked at yet it looks at.
func (s *Supervisor) mountsOf(c store.Config, rootfs, agent string) ([]runtime.Mount, error) {
	for _, id := range s.Strange(c) {
		s.work.Go(func() { s.Limit(s.ctx, id) })
	}
	return s.Mounts(c, rootfs, agent)
}
