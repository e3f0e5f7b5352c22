package sweep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/layer"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime/builds"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/template"
	"github.com/drowse-dev/drowse/internal/volume"
)

// runtimes are directories.
type runtimes struct{ dir string }

func (r runtimes) Dir(id string) string { return filepath.Join(r.dir, id) }

func (r runtimes) List(context.Context) (ids []string, err error) {
	entries, err := os.ReadDir(r.dir)
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, err
}

func (r runtimes) Remove(_ context.Context, id string) error { return os.RemoveAll(r.Dir(id)) }

// TestFindAndRemove has one thing of every kind for every reason, and removes
// what is nobody's. What an operation in flight may still use is not.
func TestFindAndRemove(t *testing.T) {
	dir := t.TempDir()
	s := Sweeper{
		Runtimes: runtimes{filepath.Join(dir, "bundles")}, RunDir: filepath.Join(dir, "rootfs"),
		Layers: layer.At(dir), Templates: template.At(filepath.Join(dir, "templates")), Volumes: volume.At(filepath.Join(dir, "volumes"), 0),
	}
	id := func(name string) string { return "i" + name + strings.Repeat("0", 20-len(name)) }
	awake, asleep, waking, ended, ending := id("awake"), id("asleep"), id("waking"), id("ended"), id("ending")
	sandbox := func(id string, state lifecycle.State, launch int64, op *lifecycle.Operation) store.Sandbox {
		return store.Sandbox{ID: id, Record: lifecycle.Record{
			State: state, Launch: launch, Launches: launch, Op: op,
			Checkpoint: &lifecycle.Checkpoint{ID: "image" + id, Stack: []string{RuntimeID(id, 1)}},
		}}
	}
	records := []store.Sandbox{
		sandbox(awake, lifecycle.Running, 3, nil),
		sandbox(asleep, lifecycle.Paused, 3, nil),
		sandbox(waking, lifecycle.Paused, 3, &lifecycle.Operation{ID: "op", Phase: lifecycle.Resuming}),
		sandbox(ended, lifecycle.Terminated, 3, nil),
		sandbox(ending, lifecycle.Terminated, 3, &lifecycle.Operation{ID: "end", Phase: lifecycle.Killing}),
	}
	// It was booted from the files of its checkpoint, which has no memory any more.
	records[0].Record.Checkpoint.Mode = lifecycle.Filesystem
	booted := records[0].ID
	var want []string
	thing := func(path string, nobodys bool) {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
		if nobodys {
			want = append(want, filepath.Join(dir, path))
		}
	}
	for _, sb := range records {
		gone := sb.Record.State == lifecycle.Terminated
		thing("bundles/"+RuntimeID(sb.ID, 3), gone || sb.ID == asleep)
		thing("layers/"+RuntimeID(sb.ID, 3), gone || sb.ID == asleep)
		thing("layers/"+RuntimeID(sb.ID, 1), gone)
		thing("images/image"+sb.ID, gone || sb.ID == booted)
	}
	thing("rootfs/"+RuntimeID(awake, 2), true) // a mount alone
	thing("layers/"+RuntimeID(awake, 2), true)
	thing("images/half", true)
	thing("images/op", false)
	thing("bundles/warm-abc", true)
	thing("layers/x.deleted", true)
	thing("templates/.base-1", true)
	thing("templates/base1", false)
	stranger := RuntimeID(id("stranger"), 1)
	thing("bundles/"+stranger, true)
	thing("layers/"+stranger, true)
	// What a snapshot has stays when its source is gone.
	snapped := SnapshotLayerID(id("gone"), "0000001")
	snaps := []store.Snapshot{{ID: "s", Config: store.Config{Template: "base2"}, Checkpoint: lifecycle.Checkpoint{ID: "snapped", Mode: lifecycle.Memory, Stack: []string{snapped}}}}
	thing("layers/"+snapped, false)
	thing("images/snapped", false)
	thing("templates/base2", false)
	volumes := []store.Volume{{ID: "volkept"}}
	thing("volumes/volkept", false)
	thing("volumes/volkept.deleted", false) // that was not committed
	thing("volumes/volgone.deleted", true)
	thing("volumes/volempty", true)
	thing("volumes/volfull/file", false)
	thing("volumes/volfull", true)

	found, err := s.Find(t.Context(), Records{Sandboxes: records, Volumes: volumes, Snapshots: snaps})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, f.Path)
		if f.Why == "" || f.Since.IsZero() {
			t.Errorf("%s is not explained: %+v", f.Path, f)
		}
		if kept := strings.HasSuffix(f.Path, "volfull"); kept != (f.Kept != "") {
			t.Errorf("%+v: want one to be kept, the volume with a file", f)
		}
		if spare := strings.HasSuffix(f.Path, "warm-abc"); spare != f.Spare {
			t.Errorf("%+v: want one that is spare, the runtime that waits", f)
		}
		strange := strings.HasSuffix(f.Path, stranger) || strings.HasSuffix(f.Path, "volfull")
		if f.Stranger != strange || f.Due().After(time.Now()) != strange {
			t.Errorf("%+v is due at %s; want a grace period for strangers alone", f, f.Due())
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	for range 2 { // removal is idempotent
		for _, f := range found {
			if err := s.Remove(t.Context(), f); err != nil {
				t.Errorf("remove %s: %v", f.Path, err)
			}
		}
	}
	if left, err := s.Find(t.Context(), Records{Sandboxes: records, Volumes: volumes, Snapshots: snaps}); err != nil || len(left) != 1 || left[0].ID != "volfull" {
		t.Errorf("left: %+v, %v", left, err)
	}
}

// TestBuilds: a program goes when no memory image needs it that a sandbox has.
// While an image cannot be read, none goes but what was left unfinished.
func TestBuilds(t *testing.T) {
	dir := t.TempDir()
	s := Sweeper{
		Runtimes: runtimes{t.TempDir()}, RunDir: t.TempDir(), Layers: layer.At(dir), Templates: template.At(t.TempDir()), Volumes: volume.At(t.TempDir(), 0),
		Builds: builds.At(filepath.Join(dir, "builds")),
	}
	digest := func(n int) string { return strings.Repeat(fmt.Sprint(n), 64) }
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	for n, image := range []string{"asleep", "ended", "awake"} {
		write("builds/"+digest(n), "program")
		write("images/"+image+"/manifest.json", `{"version": 2, "build": "`+digest(n)+`"}`)
	}
	write("builds/"+digest(7), "program") // of no image
	write("builds/"+digest(8)+".new", "half a program")
	write("images/old/manifest.json", `{"version": 1}`)
	records := []store.Sandbox{
		{ID: "1", Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &lifecycle.Checkpoint{ID: "asleep"}}},
		{ID: "2", Record: lifecycle.Record{State: lifecycle.Terminated, Checkpoint: &lifecycle.Checkpoint{ID: "ended"}}},
		{ID: "3", Record: lifecycle.Record{State: lifecycle.Running, Checkpoint: &lifecycle.Checkpoint{ID: "awake"}}},
		{ID: "4", Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &lifecycle.Checkpoint{ID: "old"}}},
		{ID: "5", Record: lifecycle.Record{State: lifecycle.Paused, Op: &lifecycle.Operation{ID: "unwritten", Phase: lifecycle.Pausing}}},
	}
	nobodys := func() (ids []string) {
		t.Helper()
		found, err := s.Find(t.Context(), Records{Sandboxes: records})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if f.Kind != Build {
				continue
			}
			if f.Why == "" || f.Stranger || f.Spare != !strings.HasSuffix(f.ID, ".new") {
				t.Errorf("%+v is not explained, has a grace period, or is a fault where it is none", f)
			}
			ids = append(ids, f.ID)
		}
		slices.Sort(ids)
		return ids
	}
	if got, want := nobodys(), []string{digest(1), digest(7), digest(8) + ".new"}; !slices.Equal(got, want) {
		t.Errorf("nobody's are %q, want %q", got, want)
	}
	write("images/old/manifest.json", "garbage")
	if got, want := nobodys(), []string{digest(8) + ".new"}; !slices.Equal(got, want) {
		t.Errorf("beside an image that cannot be read, nobody's are %q, want %q", got, want)
	}
	for range 2 {
		if err := s.Remove(t.Context(), Thing{Kind: Build, ID: digest(7)}); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(s.Builds.Path(digest(7))); !os.IsNotExist(err) {
		t.Errorf("it was not removed: %v", err)
	}
}
