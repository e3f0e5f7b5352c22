package supervisor

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
)

// volumeDisk is what is known of what a volume takes of the disk. All but
// measuring is guarded by volumes.mu.
type volumeDisk struct {
	measuring sync.Mutex // held while it is measured, which is before volumes.mu

	met     bool        // this server has looked at it, or made it
	had     layer.Usage // when sandboxes were last stopped for it, or it was met past its limit; zero if it has been within it since
	taken   layer.Usage // when it was last measured
	at      time.Time   // when that was
	written layer.Usage // through the API since
	writing layer.Usage // through the API by writes that have not ended
}

// diskOf returns a volume with the limit that holds for it, and what is known of
// what it takes; nil if there is no such volume, or no limit. The caller holds
// volumes.mu.
func (s *Supervisor) diskOf(id string) (v store.Volume, limit layer.Usage, d *volumeDisk) {
	v, is := s.volumes.byID[id]
	v = s.limited(v)
	if limit = quota.OfDisk(v.DiskMiB); !is || limit == (layer.Usage{}) {
		return v, limit, nil
	}
	if s.volumes.disk[id] == nil {
		s.volumes.disk[id] = &volumeDisk{}
	}
	return v, limit, s.volumes.disk[id]
}

// measureVolume returns what a volume takes, or, once that is more than enough,
// what has been counted of it.
func (s *Supervisor) measureVolume(id string, d *volumeDisk, enough layer.Usage) (layer.Usage, error) {
	d.measuring.Lock()
	defer d.measuring.Unlock()
	at := time.Now()
	s.volumes.mu.Lock()
	written := d.written
	s.volumes.mu.Unlock()
	taken, err := layer.UsageOf(s.ctx, s.o.Volumes.Dir(id), enough)
	if err != nil {
		return taken, fmt.Errorf("usage of volume %s: %w", id, err)
	}
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	d.taken, d.at, d.written = taken, at, d.written.Minus(written)
	return taken, nil
}

// limitVolumes measures the volumes that running sandboxes have. Where one takes
// more than its limit, all of these sandboxes are stopped as one is that is past
// its own, whichever of them writes.
func (s *Supervisor) limitVolumes() {
	users := map[string][]*box{}
	s.eachRunning(func(b *box) {
		sb := b.snapshot()
		if sb.Record.Op != nil {
			return
		}
		for _, m := range sb.Config.Volumes {
			if !slices.Contains(users[m.Volume], b) {
				users[m.Volume] = append(users[m.Volume], b)
			}
		}
	})
	for id, boxes := range users {
		s.limitVolume(id, boxes)
	}
}

// meetVolumes looks at the volumes of a sandbox that is about to run, if this
// server has not yet: one that is past its limit was so before, and leaves it the
// slack to make room.
func (s *Supervisor) meetVolumes(c store.Config) {
	for _, m := range c.Volumes {
		s.volumes.mu.Lock()
		_, _, d := s.diskOf(m.Volume)
		strange := d != nil && !d.met
		s.volumes.mu.Unlock()
		if strange {
			s.work.Go(func() { s.limitVolume(m.Volume, nil) })
		}
	}
}

// most is what a volume may have until sandboxes are stopped for it.
func (d *volumeDisk) most(limit layer.Usage) layer.Usage {
	if d.had.Exceeds(limit) {
		return quota.Slack(d.had, limit)
	}
	return limit
}

func (s *Supervisor) limitVolume(id string, users []*box) {
	s.volumes.mu.Lock()
	v, limit, d := s.diskOf(id)
	if d == nil {
		s.volumes.mu.Unlock()
		return
	}
	most := d.most(limit)
	s.volumes.mu.Unlock()
	taken, err := s.measureVolume(id, d, most)
	if err == nil && taken.Exceeds(most) { // to its end, because that much may stay
		taken, err = s.measureVolume(id, d, layer.Unbounded)
	}
	if err != nil {
		s.log.Warn("volume could not be measured", "volume", v.Name, "err", err)
		if s.ctx.Err() == nil && s.hasVolume(id) {
			s.stopUsers(users, fmt.Sprintf("the files in its volume %q could not be counted, which is taken for more than its limit: %v", v.Name, err))
		}
		return
	}
	s.volumes.mu.Lock()
	past, met := taken.Exceeds(d.most(limit)), d.met
	d.met = true
	switch {
	case past:
		d.had = taken
	case !taken.Exceeds(limit):
		d.had = layer.Usage{}
	}
	s.volumes.mu.Unlock()
	if !past || !met {
		return
	}
	s.stopUsers(users, fmt.Sprintf("its volume %q takes %s", v.Name, quota.Describe(taken, limit, "the volume's")))
}

// stopUsers stops the sandboxes that have a volume which is past its limit.
func (s *Supervisor) stopUsers(users []*box, detail string) {
	for _, b := range users {
		sb := b.snapshot()
		if sb.Record.State == lifecycle.Running && sb.Record.Op == nil {
			b.stopPast(sb, detail)
		}
	}
}

// hasVolume reports whether a volume has not been deleted.
func (s *Supervisor) hasVolume(id string) bool {
	s.volumes.mu.Lock()
	defer s.volumes.mu.Unlock()
	_, is := s.volumes.byID[id]
	return is
}

// errVolumeFull says that a volume has no room for more.
func errVolumeFull(v store.Volume, taken layer.Usage) error {
	return errdef.New(errdef.Exhausted, "volume_full", "volume %q has no room for that: it takes %d MiB in %d files, and its limit is %d MiB, and one file for each %d KiB",
		v.Name, taken.Bytes>>20, taken.Files, v.DiskMiB, quota.BytesPerName>>10).WithRemedy("remove files from it")
}

// VolumeUpload returns what reads r for as long as a volume, and the disk, have
// room for what is read and for so many new files. It is to be closed when what
// was read is in the volume, or never will be.
func (s *Supervisor) VolumeUpload(ctx context.Context, id string, r io.Reader, files int) (io.ReadCloser, error) {
	u := &volumeUpload{s: s, id: id, r: s.space.Within(ctx, r)}
	// Each takes a block at least.
	return u, u.take(layer.Usage{Bytes: int64(files) * leastBlock, Files: int64(files)})
}

// leastBlock is what a file takes that has next to nothing in it.
const leastBlock = 4096

// volumeUpload is a file on its way into a volume.
type volumeUpload struct {
	s     *Supervisor
	id    string
	r     io.Reader
	taken layer.Usage // of what the volume may have
}

// Read implements io.Reader.
func (u *volumeUpload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if full := u.take(layer.Usage{Bytes: int64(n)}); full != nil {
		return 0, full
	}
	return n, err
}

// Close implements io.Closer.
func (u *volumeUpload) Close() error {
	u.s.volumes.mu.Lock()
	defer u.s.volumes.mu.Unlock()
	if _, _, d := u.s.diskOf(u.id); d != nil {
		d.writing, d.written = d.writing.Minus(u.taken), d.written.Plus(u.taken)
	}
	u.taken = layer.Usage{}
	return nil
}

// take takes more of what the volume may have, by what is known of it. Where that
// is old, or says that there is no room, it is measured first.
func (u *volumeUpload) take(more layer.Usage) error {
	fresh := diskAnyway
	for {
		u.s.volumes.mu.Lock()
		v, limit, d := u.s.diskOf(u.id)
		if d == nil {
			u.s.volumes.mu.Unlock()
			return nil
		}
		taken := d.taken.Plus(d.written).Plus(d.writing)
		known := !d.at.IsZero() && time.Since(d.at) < fresh
		if known && !taken.Plus(more).Exceeds(limit) {
			d.writing, u.taken = d.writing.Plus(more), u.taken.Plus(more)
			u.s.volumes.mu.Unlock()
			return nil
		}
		u.s.volumes.mu.Unlock()
		if fresh == math.MaxInt64 {
			return errVolumeFull(v, taken)
		}
		if _, err := u.s.measureVolume(u.id, d, limit); err != nil {
			return err
		}
		fresh = math.MaxInt64 // it has just been measured
	}
}
