package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
)

// beside opens a server of an id on the records of a world, and a machine of its own.
func (w *world) beside(t *testing.T, id string) *Supervisor {
	t.Helper()
	other := newWorldIn(t, t.TempDir())
	other.data = w.data
	return other.claimed(t, id)
}

// claimed opens a server of an id.
func (w *world) claimed(t *testing.T, id string) *Supervisor {
	t.Helper()
	w.tune = func(o *Options) {
		if _, err := o.Store.Claim(t.Context(), store.Server{ID: id, Place: id}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	srv := w.mustOpen(t)
	t.Cleanup(func() { w.end(t, srv) })
	return srv.s
}

// wantElsewhere holds that something fails because a server has what it is about.
func wantElsewhere(t *testing.T, about string, err error, what, server string) {
	t.Helper()
	if got, ok := store.Elsewhere(err); !ok || got != server || !strings.Contains(err.Error(), what) {
		t.Errorf("%s: %v, want that server %s has %s", about, err, server, what)
	}
}

// TestServersOfOneDatabase: each server brings up its own sandboxes alone, knows the
// snapshots and volumes of all, and says whose they are where it is to use them.
func TestServersOfOneDatabase(t *testing.T) {
	w := newWorldIn(t, t.TempDir())
	one := w.claimed(t, "one")
	a := create(t, one, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour}, Config: store.Config{Limits: store.Limits{DiskMiB: 1024}}})
	put(t, one, a, "before")
	take := func(name string) store.Snapshot {
		t.Helper()
		snap, err := one.TakeSnapshot(t.Context(), a, SnapshotRequest{Name: name, Key: "k", ExpiresAt: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	volume := func(name string) store.Volume {
		t.Helper()
		v, err := one.CreateVolume(t.Context(), name, 100)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first, data := take("first"), volume("data")
	generation := record(t, one, a).Generation

	two := w.beside(t, "two")
	if list, err := two.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("the second server has %+v, %v", list, err)
	}
	if got := record(t, one, a); got.State != lifecycle.Running || got.Generation != generation {
		t.Errorf("beside another server the sandbox is %+v", got)
	}
	b := create(t, two, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour}, Config: store.Config{Limits: store.Limits{DiskMiB: 1024}}})

	// What is made while the other runs is known as soon as it is asked for.
	second, more := take("second"), volume("more")
	for _, snap := range []store.Snapshot{first, second} {
		for _, ref := range []string{snap.ID, snap.Name} {
			if got, err := two.Snapshot("k", ref); err != nil || got.ID != snap.ID || got.Owner != "one" {
				t.Errorf("snapshot %s is %+v, %v", ref, got, err)
			}
		}
		_, err := two.Create(t.Context(), CreateRequest{Snapshot: snap.ID})
		wantElsewhere(t, "start", err, snap.ID, "one")
		_, _, err = two.Restore(t.Context(), b, RestoreRequest{Snapshot: snap.ID})
		if errdef.CodeOf(err) != "snapshot_of_other" {
			t.Errorf("restore: %v", err)
		}
		_, err = two.ChangeSnapshot(t.Context(), snap.ID, snapshots.Change{Pinned: new(true)})
		wantElsewhere(t, "pin", err, snap.ID, "one")
		wantElsewhere(t, "remove", two.RemoveSnapshot(t.Context(), snap.ID, "test"), snap.ID, "one")
		_, err = two.TakeSnapshot(t.Context(), b, SnapshotRequest{Name: snap.Name, Key: "k", Replace: snap.ID})
		wantElsewhere(t, "replace", err, snap.ID, "one")
	}
	if _, err := two.TakeSnapshot(t.Context(), b, SnapshotRequest{Name: "first", Key: "k"}); !errdef.Is(err, errdef.Exists) {
		t.Errorf("the name of another server's snapshot: %v", err)
	}
	for _, v := range []store.Volume{data, more} {
		if got, err := two.Volume(t.Context(), v.ID); err != nil || got != v {
			t.Errorf("volume %s is %+v, %v", v.Name, got, err)
		}
		_, err := two.Create(t.Context(), CreateRequest{Template: "test", Config: store.Config{Volumes: []store.VolumeMount{{Name: v.Name, Path: "/mnt/v"}}}})
		wantElsewhere(t, "mount", err, v.Name, "one")
		wantElsewhere(t, "delete", two.DeleteVolume(t.Context(), v.ID), v.Name, "one")
		_, err = two.VolumeFiles(v.ID)
		wantElsewhere(t, "files", err, v.Name, "one")
		_, err = two.VolumeUpload(t.Context(), v.ID, strings.NewReader("x"), 1)
		wantElsewhere(t, "upload", err, v.Name, "one")
	}
	if _, err := two.CreateVolume(t.Context(), "data", 0); !errdef.Is(err, errdef.Exists) {
		t.Errorf("the name of another server's volume: %v", err)
	}

	// What has gone is gone with the next look.
	if err := one.RemoveSnapshot(t.Context(), first.ID, "test"); err != nil {
		t.Fatal(err)
	}
	if err := one.DeleteVolume(t.Context(), data.ID); err != nil {
		t.Fatal(err)
	}
	own, err := two.TakeSnapshot(t.Context(), b, SnapshotRequest{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.CreateVolume(t.Context(), "own", 0); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{two.RefreshSnapshots(t.Context()), two.RefreshVolumes(t.Context()), one.RefreshSnapshots(t.Context()), one.RefreshVolumes(t.Context())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for id, s := range map[string]*Supervisor{"one": one, "two": two} {
		var has []string
		for _, snap := range s.AllSnapshots() {
			has = append(has, snap.ID)
		}
		if want := []string{own.ID, second.ID}; !slices.Equal(has, want) {
			t.Errorf("server %s knows the snapshots %q, want %q", id, has, want)
		}
		var names []string
		volumes, err := s.Volumes(t.Context())
		for _, v := range volumes {
			names = append(names, v.Name)
		}
		if want := []string{"more", "own"}; err != nil || !slices.Equal(names, want) {
			t.Errorf("server %s knows the volumes %q, %v, want %q", id, names, err, want)
		}
		if got, want := s.slots.Of("k").DiskMiB, s.OwnSnapshots()[0].DiskMiB(); got != want || want == 0 {
			t.Errorf("server %s counts %d MiB for snapshots, want %d", id, got, want)
		}
		if kept := s.OwnSnapshots(); len(kept) != 1 || kept[0].Owner != id {
			t.Errorf("server %s has %+v", id, kept)
		}
	}
	if _, err := two.Create(t.Context(), CreateRequest{Snapshot: own.ID}); err != nil {
		t.Errorf("start from its own snapshot: %v", err)
	}
	if _, err := two.Snapshot("k", "nothing"); !errdef.Is(err, errdef.NotFound) {
		t.Errorf("a snapshot that there is not: %v", err)
	}
}
