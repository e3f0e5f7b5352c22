package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/disklimit"
	"github.com/drowse-dev/drowse/internal/supervisor/quota"
	"github.com/drowse-dev/drowse/internal/supervisor/volumes"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/internal/volume"
)

// tenants are sandboxes that share a volume, and one that has none.
type tenants struct {
	*bench
	s        *Supervisor
	v        store.Volume
	ids      []string
	stranger string
}

// sharing makes sandboxes that have a volume with a limit.
func (b *bench) sharing() *tenants {
	b.t.Helper()
	s, _ := b.open()
	v, err := s.CreateVolume(b.t.Context(), "data", tenantLimit)
	if err != nil {
		b.t.Fatal(err)
	}
	tn := &tenants{bench: b, s: s, v: v, stranger: create(b.t, s, CreateRequest{Settings: sleepy})}
	for range 2 {
		tn.ids = append(tn.ids, create(b.t, s, CreateRequest{Settings: sleepy, Config: store.Config{Volumes: []store.VolumeMount{{Name: "data", Path: "/a"}, {Name: "data", Path: "/b"}}}}))
	}
	return tn
}

// write adds a file of so many MiB, as a sandbox does it.
func (tn *tenants) write(name string, mib int64) {
	tn.t.Helper()
	allocate(tn.t, filepath.Join(tn.s.o.Volumes.Dir(tn.v.ID), name), mib)
}

// stayUp looks at the volume, which changes nothing.
func (tn *tenants) stayUp(why string) {
	tn.t.Helper()
	tn.s.guard.LimitVolumes(tn.t.Context())
	for _, id := range append(tn.ids, tn.stranger) {
		if rec := record(tn.t, tn.s, id); rec.State != lifecycle.Running || rec.Op != nil {
			tn.t.Fatalf("%s: %s is %s", why, id, rec.Situation())
		}
	}
}

// arePaused looks at the volume, which has all that share it paused, and nobody
// else.
func (tn *tenants) arePaused(detail string) {
	tn.t.Helper()
	tn.s.guard.LimitVolumes(tn.t.Context())
	for _, id := range tn.ids {
		(&tenant{bench: tn.bench, s: tn.s, id: id}).wantPaused(detail)
	}
	if rec := record(tn.t, tn.s, tn.stranger); rec.State != lifecycle.Running || rec.Op != nil {
		tn.t.Errorf("who has no volume is %s", rec.Situation())
	}
}

// wake wakes all and counts in each: nothing was lost.
func (tn *tenants) wake(counts int64) {
	tn.t.Helper()
	for _, id := range tn.ids {
		wantCount(tn.t, tn.s, id, counts, counts)
	}
}

// TestVolumeLimit has a sandbox fill a volume that two have. Both sleep, lose
// nothing, and may go on when they are woken, but not write much more.
func TestVolumeLimit(t *testing.T) {
	tn := newBench(t).sharing()
	tn.wake(1)
	tn.write("some", tenantLimit-1)
	tn.stayUp("below the limit")
	tn.write("more", 2)
	tn.arePaused(`its volume "data" takes 65 MiB, and the volume's limit is 64 MiB`)
	tn.s.guard.LimitVolumes(tn.t.Context()) // nobody has it awake
	tn.wake(2)
	tn.write("little", quota.LeastSlack>>20-1)
	tn.stayUp("woken past the limit")
	tn.write("much", 2)
	tn.arePaused("takes 98 MiB")
	tn.wake(3)

	// Whoever makes room has all of it again, and no more.
	for _, name := range []string{"much", "little", "more"} {
		if err := os.Remove(filepath.Join(tn.s.o.Volumes.Dir(tn.v.ID), name)); err != nil {
			t.Fatal(err)
		}
	}
	tn.stayUp("within its limit again")
	tn.write("more", 2)
	tn.arePaused("takes 65 MiB")
}

// TestVolumeLimitAfterRestart has a server start with a volume past its limit, or
// with one that has room: who wakes may clean up, and not fill it.
func TestVolumeLimitAfterRestart(t *testing.T) {
	for name, mib := range map[string]int64{"past its limit": tenantLimit + 1, "within it": 1} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tn := b.sharing()
			tn.write("file", mib)
			for _, id := range tn.ids {
				if err := tn.s.Pause(t.Context(), id, PauseRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := tn.s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			tn.s, _ = b.open()
			for _, id := range tn.ids {
				wantCount(t, tn.s, id, 1, 2)
			}
			testmode.Eventually(t, "a first look", func() bool {
				return len(tn.s.Strange(store.Config{Volumes: []store.VolumeMount{{Volume: tn.v.ID}}})) == 0
			})
			tn.write("little", quota.LeastSlack>>20-1)
			tn.stayUp("woken")
			tn.write("much", max(2, tenantLimit-mib))
			tn.arePaused("and the volume's limit is 64 MiB")
		})
	}
}

func TestVolumeLimitOfFiles(t *testing.T) {
	tn := newBench(t).sharing()
	for i := range tenantLimit<<20/quota.BytesPerName + 1 {
		tn.write(strconv.Itoa(i), 0)
	}
	tn.arePaused("names, one for each 16 KiB, and the volume's limit is 64 MiB")
}

// TestVolumeLimitWithoutRoom has no room for a pause: who has the volume goes,
// and the volume stays.
func TestVolumeLimitWithoutRoom(t *testing.T) {
	b := newBench(t)
	b.littleDisk(disklimit.ScarceSpace>>20 - 1)
	tn := b.sharing()
	tn.write("much", tenantLimit+1)
	tn.s.guard.LimitVolumes(tn.t.Context())
	for _, id := range tn.ids {
		testmode.Eventually(t, "the end", func() bool { return record(t, tn.s, id).State == lifecycle.Terminated })
		if stone := record(t, tn.s, id).Tombstone; stone.Reason != lifecycle.OutOfDisk || !strings.Contains(stone.Detail, `its volume "data" takes 65 MiB`) {
			t.Errorf("it ended of %s (%s)", stone.Reason, stone.Detail)
		}
	}
	if rec := record(t, tn.s, tn.stranger); rec.State != lifecycle.Running {
		t.Errorf("who has no volume is %s", rec.Situation())
	}
}

// TestWrittenVolumes: a volume is counted anew for as long as a sandbox that has it does
// not rest.
func TestWrittenVolumes(t *testing.T) {
	tn := newBench(t).sharing()
	written := func(want bool, when string) {
		t.Helper()
		if got := tn.s.writtenVolumes(); got[tn.v.ID] != want || len(got) > 1 {
			t.Errorf("%s: written are %v", when, got)
		}
	}
	written(true, "both run")
	if err := tn.s.Pause(t.Context(), tn.ids[0], PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	written(true, "one is paused")
	if err := tn.s.Pause(t.Context(), tn.ids[1], PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	written(false, "both are paused")
	wantCount(t, tn.s, tn.ids[0], 1, 2)
	written(true, "one has woken")
	if err := tn.s.Kill(t.Context(), tn.ids[0], ""); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "the end of what ran", func() bool { return len(tn.s.writtenVolumes()) == 0 })
}

// TestVolumeUse: what two sandboxes write is known after a while, with no call that
// measures it, and stays known when they sleep.
func TestVolumeUse(t *testing.T) {
	tn := newBench(t).sharing()
	tn.write("some", 3)
	tn.s.guard.LimitVolumes(t.Context())
	used, at := tn.s.VolumeUse(tn.v.ID)
	if used>>20 != 3 || time.Since(at) > time.Minute {
		t.Errorf("it takes %d bytes, as of %s", used, at)
	}
	if err := tn.s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	tn.s, _ = tn.open()
	if used, at := tn.s.VolumeUse(tn.v.ID); used != 0 || !at.IsZero() {
		t.Errorf("a server that has just started says %d bytes, as of %s", used, at)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tn.s.Survey(ctx, time.Millisecond)
	}()
	testmode.Eventually(t, "a count", func() bool { used, _ := tn.s.VolumeUse(tn.v.ID); return used>>20 == 3 })
	stop()
	<-ended
}

// upload writes a file through the API.
func (tn *tenants) upload(name string, body io.Reader) error {
	tn.t.Helper()
	room, err := tn.s.VolumeUpload(tn.t.Context(), tn.v.ID, body, 1)
	if err != nil {
		return err
	}
	defer room.Close()
	files, err := tn.s.VolumeFiles(tn.v.ID)
	if err != nil {
		tn.t.Fatal(err)
	}
	defer files.Close()
	_, err = files.Write(name, room, volume.Attributes{}, volume.NeedParents)
	return err
}

// some is a body of so many bytes that no file system makes less of.
func some(bytes int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{}), bytes)
}

// TestVolumeLimitOfUploads holds the API to the limit: before, in the middle of a
// file, and of several at once.
func TestVolumeLimitOfUploads(t *testing.T) {
	tn := newBench(t).sharing()
	full := func(err error, says string) {
		t.Helper()
		wantFailure(t, err, errdef.Exhausted, "volume_full", says)
	}
	tn.write("some", tenantLimit-8)
	if err := tn.upload("file", some(2<<20)); err != nil {
		t.Fatal(err)
	}
	full(tn.upload("file", some(7<<20)), `volume "data" has no room for that: it takes 63 MiB in 3 files, and its limit is 64 MiB`)
	if err := tn.upload("file", some(1<<20)); err != nil { // what was cut off takes nothing
		t.Error(err)
	}
	begun, err := tn.s.VolumeUpload(t.Context(), tn.v.ID, some(6<<20), 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, begun); err != nil {
		t.Fatal(err)
	}
	full(tn.upload("other", some(2<<20)), "")
	if err := begun.Close(); err != nil {
		t.Fatal(err)
	}
	if err := tn.upload("other", some(2<<20)); err != nil { // nothing has become of the one before
		t.Error(err)
	}

	// What a sandbox has written since is found before it is too much.
	tn.write("more", tenantLimit)
	tn.s.guard.LimitVolumes(tn.t.Context())
	full(tn.upload("last", bytes.NewReader(nil)), "")
	if err := os.Remove(filepath.Join(tn.s.o.Volumes.Dir(tn.v.ID), "more")); err != nil {
		t.Fatal(err)
	}
	if err := tn.upload("last", bytes.NewReader(nil)); err != nil {
		t.Error(err)
	}
	got, err := layer.UsageOf(tn.t.Context(), tn.s.o.Volumes.Dir(tn.v.ID), layer.Unbounded)
	if err != nil || got.Exceeds(quota.OfDisk(tenantLimit)) {
		t.Errorf("the volume takes %+v, %v", got, err)
	}
}

// TestVolumeLimits are those of volumes with one of their own, and of others.
func TestVolumeLimits(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	limits := func(want ...int) {
		t.Helper()
		all, err := s.Volumes(t.Context())
		if err != nil || len(all) != len(want) {
			t.Fatalf("%+v, %v", all, err)
		}
		for i, v := range all {
			one, err := s.Volume(t.Context(), v.ID)
			if err != nil || v.DiskMiB != want[i] || one != v {
				t.Errorf("volume %+v is %+v, %v; want a limit of %d", v, one, err, want[i])
			}
		}
	}
	for _, bad := range []int{-1, 1, quota.Least.DiskMiB - 1, 1 << 31} {
		_, err := s.CreateVolume(t.Context(), "bad", bad)
		wantFailure(t, err, errdef.Invalid, "limit_out_of_range", "diskMiB")
	}
	_, own := s.CreateVolume(t.Context(), "own", 70)
	_, none := s.CreateVolume(t.Context(), "none", 0)
	if err := errors.Join(own, none); err != nil {
		t.Fatal(err)
	}
	limits(70, 0)
	s.o.VolumeDiskMiB = 80
	var err error
	if s.Room, err = volumes.Open(t.Context(), s.volumeOptions()); err != nil {
		t.Fatal(err)
	}
	limits(70, 80)
}
