package volumes

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
)

// usage is what is known of what a volume takes of the disk. All but measuring is
// guarded by Room.mu.
type usage struct {
	measuring sync.Mutex // held while it is measured, which is before Room.mu

	met     bool        // this server has looked at it, or made it
	had     layer.Usage // when sandboxes were last stopped for it, or it was met past its limit; zero if it has been within it since
	taken   layer.Usage // when it was last measured
	at      time.Time   // when that was
	written layer.Usage // through the API since
	writing layer.Usage // through the API by writes that have not ended

	used   int64     // bytes, when it was last counted to its end
	usedAt time.Time // when that count began; zero if it is not known

	// changes grows whenever its files may have changed. counted is what it was when the
	// survey began to count them, which was at tried. stop ends that count while it goes on.
	changes, counted int
	tried            time.Time
	stop             context.CancelFunc
}

// diskOf returns a volume with the limit that holds for it, and what is known of
// what it takes; nil if there is no such volume, or no limit. The caller holds mu.
func (r *Room) diskOf(id string) (v store.Volume, limit layer.Usage, d *usage) {
	v, is := r.byID[id]
	v = r.limited(v)
	if limit = quota.OfDisk(v.DiskMiB); !is || limit == (layer.Usage{}) || !r.owns(v) {
		return v, limit, nil
	}
	return v, limit, r.usageOf(id)
}

// measure returns what a volume takes, or, once that is more than enough,
// what has been counted of it.
func (r *Room) measure(ctx context.Context, id string, d *usage, enough layer.Usage) (layer.Usage, error) {
	d.measuring.Lock()
	defer d.measuring.Unlock()
	at := time.Now()
	r.mu.Lock()
	written := d.written
	r.mu.Unlock()
	taken, err := layer.UsageOf(ctx, r.o.Files.Dir(id), enough)
	if err != nil {
		return taken, fmt.Errorf("usage of volume %s: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d.taken, d.at, d.written = taken, at, d.written.Minus(written)
	if !taken.Exceeds(enough) {
		d.used, d.usedAt = taken.Bytes, at
	}
	return taken, nil
}

// Strange returns the volumes of a sandbox that this server has not looked at yet
// and that have a limit. They are to be looked at with Limit before the sandbox
// writes: one that is past its limit was so before, and leaves it the slack to
// make room.
func (r *Room) Strange(c store.Config) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var strange []string
	for _, m := range c.Volumes {
		if _, _, d := r.diskOf(m.Volume); d != nil && !d.met {
			strange = append(strange, m.Volume)
		}
	}
	return strange
}

// most is what a volume may have until sandboxes are stopped for it.
func (d *usage) most(limit layer.Usage) layer.Usage {
	if d.had.Exceeds(limit) {
		return quota.Slack(d.had, limit)
	}
	return limit
}

// Limit measures a volume, and returns why the sandboxes that have it are to be
// stopped; "" if they are not.
func (r *Room) Limit(ctx context.Context, id string) string {
	r.mu.Lock()
	v, limit, d := r.diskOf(id)
	if d == nil {
		r.mu.Unlock()
		return ""
	}
	most := d.most(limit)
	r.mu.Unlock()
	taken, err := r.measure(ctx, id, d, most)
	if err == nil && taken.Exceeds(most) { // to its end, because that much may stay
		taken, err = r.measure(ctx, id, d, layer.Unbounded)
	}
	if err != nil {
		r.o.Log.Warn("volume could not be measured", "volume", v.Name, "err", err)
		if ctx.Err() == nil && r.has(id) {
			return fmt.Sprintf("the files in its volume %q could not be counted, which is taken for more than its limit: %v", v.Name, err)
		}
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	past, met := taken.Exceeds(d.most(limit)), d.met
	d.met = true
	switch {
	case past:
		d.had = taken
	case !taken.Exceeds(limit):
		d.had = layer.Usage{}
	}
	if !past || !met {
		return ""
	}
	return fmt.Sprintf("its volume %q takes %s", v.Name, quota.Describe(taken, limit, "the volume's"))
}

// has reports whether a volume has not been deleted.
func (r *Room) has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, is := r.byID[id]
	return is
}

// errFull says that a volume has no room for more.
func errFull(v store.Volume, taken layer.Usage) error {
	return errdef.New(errdef.Exhausted, "volume_full", "volume %q has no room for that: it takes %d MiB in %d files, and its limit is %d MiB, and one file for each %d KiB",
		v.Name, taken.Bytes>>20, taken.Files, v.DiskMiB, quota.BytesPerName>>10).WithRemedy("remove files from it")
}

// VolumeUpload returns what reads from for as long as a volume, and the disk, have
// room for what is read and for so many new files. It is to be closed when what
// was read is in the volume, or never will be.
func (r *Room) VolumeUpload(ctx context.Context, id string, from io.Reader, files int) (io.ReadCloser, error) {
	if v, err := r.Volume(ctx, id); err == nil && !r.owns(v) {
		return nil, r.here(v)
	}
	u := &upload{ctx: ctx, room: r, id: id, r: r.o.Space.Within(ctx, from)}
	// Each takes a block at least.
	return u, u.take(layer.Usage{Bytes: int64(files) * leastBlock, Files: int64(files)})
}

// remeasure is how old what is known of a volume may be.
const remeasure = 30 * time.Second

// leastBlock is what a file takes that has next to nothing in it.
const leastBlock = 4096

// upload is a file on its way into a volume.
type upload struct {
	ctx   context.Context // of the request
	room  *Room
	id    string
	r     io.Reader
	taken layer.Usage // of what the volume may have
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if full := u.take(layer.Usage{Bytes: int64(n)}); full != nil {
		return 0, full
	}
	return n, err
}

// Close implements io.Closer.
func (u *upload) Close() error {
	u.room.mu.Lock()
	defer u.room.mu.Unlock()
	if _, _, d := u.room.diskOf(u.id); d != nil {
		d.writing, d.written = d.writing.Minus(u.taken), d.written.Plus(u.taken)
	}
	u.taken = layer.Usage{}
	return nil
}

// take takes more of what the volume may have, by what is known of it. Where that
// is old, or says that there is no room, it is measured first.
func (u *upload) take(more layer.Usage) error {
	fresh := remeasure
	for {
		u.room.mu.Lock()
		v, limit, d := u.room.diskOf(u.id)
		if d == nil {
			u.room.mu.Unlock()
			return nil
		}
		taken := d.taken.Plus(d.written).Plus(d.writing)
		known := !d.at.IsZero() && time.Since(d.at) < fresh
		if known && !taken.Plus(more).Exceeds(limit) {
			d.writing, u.taken = d.writing.Plus(more), u.taken.Plus(more)
			u.room.mu.Unlock()
			return nil
		}
		u.room.mu.Unlock()
		if fresh == math.MaxInt64 {
			return errFull(v, taken)
		}
		if _, err := u.room.measure(u.ctx, u.id, d, limit); err != nil {
			return err
		}
		fresh = math.MaxInt64 // it has just been measured
	}
}
