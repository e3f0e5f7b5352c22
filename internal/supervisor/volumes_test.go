package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/volume"
)

func (srv *server) volume(t *testing.T, name string) store.Volume {
	t.Helper()
	v, err := srv.s.CreateVolume(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantFailure(t *testing.T, err error, class errdef.Class, code, text string) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != class || e.Code != code || !strings.Contains(e.Error(), text) {
		t.Errorf("got %v, want %s %s that says %q", err, class, code, text)
	}
}

// TestVolumes makes volumes, finds them in the next server, and deletes them.
func TestVolumes(t *testing.T) {
	w := newWorldIn(t, t.TempDir())
	srv := w.mustOpen(t)
	a := srv.volume(t, "a")
	b := srv.volume(t, "B-2_x")
	file := filepath.Join(w.dir, "volumes", a.ID, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := srv.s.CreateVolume(t.Context(), "a", 0)
	wantFailure(t, err, errdef.Exists, "volume_exists", `"a"`)
	for _, name := range []string{"", "a b", "a/b", "..", "é", "a\n", strings.Repeat("x", 129)} {
		_, err := srv.s.CreateVolume(t.Context(), name, 0)
		wantFailure(t, err, errdef.Invalid, "volume_name_invalid", "")
	}
	token := srv.s.VolumeToken("key", a.ID)
	if key, ok := srv.s.VolumeTokenKey(a.ID, token); !ok || key != "key" {
		t.Errorf("its own token is of the key %q, %t", key, ok)
	}
	for _, bad := range []string{"", ".", "key", srv.s.VolumeToken("key", b.ID), strings.Replace(token, "key", "other", 1), token + "0", "x" + token} {
		if _, ok := srv.s.VolumeTokenKey(a.ID, bad); ok {
			t.Errorf("%q opens the volume", bad)
		}
	}
	srv.crash()
	if err := os.Rename(filepath.Dir(file), filepath.Dir(file)+volume.Discarded); err != nil { // as a deletion that was not committed
		t.Fatal(err)
	}

	srv = w.mustOpen(t)
	if list, err := srv.s.Volumes(t.Context()); err != nil || !slices.Equal(list, []store.Volume{a, b}) {
		t.Errorf("after a crash there are %+v, %v; want %+v and %+v", list, err, a, b)
	}
	if !isThere(file) {
		t.Error("the file is gone")
	}
	if err := srv.s.DeleteVolume(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if isThere(filepath.Dir(file)) {
		t.Error("the files of a deleted volume are there")
	}
	wantFailure(t, srv.s.DeleteVolume(t.Context(), a.ID), errdef.NotFound, "volume_not_found", a.ID)
	_, err = srv.s.Volume(t.Context(), a.ID)
	wantFailure(t, err, errdef.NotFound, "volume_not_found", a.ID)
	if again := srv.volume(t, "a"); again.ID == a.ID {
		t.Error("an id is used again")
	}
	srv.crash()
}

// TestMountVolumes has sandboxes mount volumes, and sees what their runtimes are
// told, also when they are woken and by a later server.
func TestMountVolumes(t *testing.T) {
	w := newWorldIn(t, t.TempDir())
	var mu sync.Mutex
	told := map[string][]runtime.Mount{}
	w.spec = func(s runtime.Spec) {
		mu.Lock()
		defer mu.Unlock()
		told[s.ID] = s.Mounts
	}
	srv := w.mustOpen(t)
	v := srv.volume(t, "data")
	create := func(mounts ...store.VolumeMount) (store.Sandbox, error) {
		return srv.s.Create(t.Context(), CreateRequest{
			Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}, Config: store.Config{Volumes: mounts},
		})
	}
	at := func(paths ...string) (mounts []store.VolumeMount) {
		for _, p := range paths {
			mounts = append(mounts, store.VolumeMount{Name: "data", Path: p})
		}
		return mounts
	}
	for _, bad := range [][]store.VolumeMount{
		{{Name: "other", Path: "/mnt"}}, {{Name: v.ID + "0", Path: "/mnt"}},
		at(""), at("mnt"), at("/"), at("//"), at("/proc"), at("/proc/x"), at("/sys"), at("/dev/shm"), at("/run"), at("/run/drowse"), at("/run/drowse/x"),
		at("/tmp"), at("/usr"), at("/usr/lib/drowse"), at("/mnt/../proc"), at("/mnt/a\nb"), at("/" + strings.Repeat("x", 2000)),
		at("/mnt", "/mnt"), at("/mnt", "/mnt/"), at("/mnt/a", "/mnt"), at("/mnt", "/mnt/a"),
		at(strings.Split(strings.TrimSuffix(strings.Repeat("/mnt/x,", 32+1), ","), ",")...),
	} {
		_, err := create(bad...)
		wantFailure(t, err, errdef.Invalid, "volume_mount_invalid", "")
	}
	if list, err := srv.s.All(t.Context()); err != nil || len(list) > 0 {
		t.Fatalf("refused sandboxes are known: %+v, %v", list, err)
	}

	mounts := at("/mnt/data/", "/tmp/x", "/mnt/data2")
	mounts[1].Name = v.ID
	sb, err := create(mounts...)
	if err != nil {
		t.Fatal(err)
	}
	if got := sb.Config.Volumes[1].Name; got != "data" {
		t.Errorf("a volume that was named by its id is shown as %q", got)
	}
	dir := filepath.Join(w.dir, "volumes", v.ID)
	want := []runtime.Mount{{Source: dir, Path: "/mnt/data"}, {Source: dir, Path: "/tmp/x"}, {Source: dir, Path: "/mnt/data2"}}
	sees := func(launch int64) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if got := told[sweep.RuntimeID(sb.ID, launch)]; !slices.Equal(got, want) {
			t.Errorf("launch %d mounts %v, want %v", launch, got, want)
		}
	}
	sees(1)
	inUse := func() {
		t.Helper()
		wantFailure(t, srv.s.DeleteVolume(t.Context(), v.ID), errdef.Conflict, "volume_in_use", sb.ID)
	}
	inUse()
	if err := srv.s.Pause(t.Context(), sb.ID, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	inUse()
	srv.crash()

	srv = w.mustOpen(t)
	inUse()
	if _, err := srv.s.Connect(t.Context(), sb.ID, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	sees(2)
	if err := srv.s.Kill(t.Context(), sb.ID, ""); err != nil {
		t.Fatal(err)
	}
	if err := srv.s.DeleteVolume(t.Context(), v.ID); err != nil {
		t.Error(err)
	}
	srv.crash()
}

// TestMoveWithVolumes takes a sandbox that has a volume to another server, where
// it gets the one of that name: its files stay behind.
func TestMoveWithVolumes(t *testing.T) {
	from, to := newBench(t), newBench(t)
	first, _ := from.open()
	second, _ := to.open()
	there, err := first.CreateVolume(t.Context(), "data", 0)
	if err != nil {
		t.Fatal(err)
	}
	mounts := []store.VolumeMount{{Name: "data", Path: "/mnt/data"}}
	file := exportOf(t, first, from.asleep(first, CreateRequest{Config: store.Config{Volumes: mounts}}))

	_, err = second.Import(t.Context(), bytes.NewReader(file), ImportRequest{})
	wantFailure(t, err, errdef.Invalid, "volume_mount_invalid", `there is no volume "data"`)
	here, err := second.CreateVolume(t.Context(), "data", 0)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := second.Import(t.Context(), bytes.NewReader(file), ImportRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := sb.Config.Volumes[0].Volume; got != here.ID || got == there.ID {
		t.Errorf("it has volume %s, want %s", got, here.ID)
	}
}
