package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/sweep"
)

// newer is a driver of another version than the one that wrote the images.
type newer struct{ runtime.Driver }

func (newer) Capabilities() runtime.Capabilities {
	return runtime.Capabilities{Isolation: "none", MemoryPause: true, Version: "fake 2"}
}

// TestUnreadableImage has a server meet a memory image that its runtime cannot
// read: the sandbox stays paused and says why, until its owner lets it boot
// afresh. With the old runtime it wakes as it was.
func TestUnreadableImage(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	old := create(t, s, CreateRequest{Settings: sleepy})
	for _, id := range []string{id, old} {
		wantCount(t, s, id, 1, 1)
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	stop()

	b.driver = newer{b.machine.Driver()}
	s, stop = b.open()
	before := b.started()
	_, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour})
	hasCode(t, "resume", err, "checkpoint_unreadable", "")
	_, _, err = count(t.Context(), s, id)
	hasCode(t, "access", err, "checkpoint_unreadable", "")
	if r := record(t, s, id); r.State != lifecycle.Paused || r.LastError == "" || b.started() != before {
		t.Errorf("it is %s with the error %q after %d starts", r.State, r.LastError, b.started()-before)
	}
	if _, err := s.Patch(t.Context(), id, Patch{Settings: lifecycle.Patch{FilesystemFallback: new(true)}}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, id, 1, 2) // its memory is new
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil || events[len(events)-1].Detail == "" {
		t.Errorf("the log does not say that it has booted afresh: %+v, %v", events, err)
	}
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wantWriter(t, s, id, "fake 2")
	stop()

	b.driver = nil
	s, _ = b.open()
	wantCount(t, s, old, 2, 2)
}

// wantWriter checks what wrote a sandbox's memory image.
func wantWriter(t *testing.T, s *Supervisor, id, version string) {
	t.Helper()
	m, err := s.checkpoints.Verify(t.Context(), *record(t, s, id).Checkpoint)
	if err != nil || m.Runtime != version {
		t.Errorf("the image is of %s, %v; want %s", m.Runtime, err, version)
	}
}

// TestSystemChangesUnderASleeper: a sandbox whose programs run from files of the
// host that have changed while it slept is not woken with its memory: old pages
// would meet new files. With its files put back it wakes as it was.
func TestSystemChangesUnderASleeper(t *testing.T) {
	b := newBench(t)
	lib := filepath.Join(b.dir, "lower", "lib.so")
	replace := func(text string) {
		t.Helper()
		path := lib + ".new"
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, time.Time{}, time.Unix(int64(text[0]), 0)), os.Rename(path, lib)); err != nil {
			t.Fatal(err)
		}
	}
	replace("old")
	s, stop := b.open()
	var ids []string
	for range 3 {
		id := create(t, s, CreateRequest{Settings: sleepy})
		wantCount(t, s, id, 1, 1)
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	refused, files, restarted := ids[0], ids[1], ids[2]

	replace("new") // of the same size
	before := b.started()
	_, err := s.Connect(t.Context(), refused, WakeRequest{Timeout: time.Hour})
	hasCode(t, "resume", err, "checkpoint_unreadable", "")
	if !strings.Contains(err.Error(), "upgrade of packages") {
		t.Errorf("the error does not say why: %v", err)
	}
	_, _, err = count(t.Context(), s, refused)
	hasCode(t, "access", err, "checkpoint_unreadable", "")
	if r := record(t, s, refused); r.State != lifecycle.Paused || b.started() != before {
		t.Errorf("it is %s after %d starts", r.State, b.started()-before)
	}
	if _, err := s.Patch(t.Context(), files, Patch{Settings: lifecycle.Patch{FilesystemFallback: new(true)}}, ""); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, files, 1, 2) // its memory is new
	events, err := s.Events(t.Context(), files, 0, 100)
	if err != nil || !strings.Contains(events[len(events)-1].Detail, "booted afresh") {
		t.Errorf("the log does not say that it has booted afresh: %+v, %v", events, err)
	}
	stop()

	s, _ = b.open()
	_, _, err = count(t.Context(), s, restarted)
	hasCode(t, "access to another server", err, "checkpoint_unreadable", "")
	replace("old")
	for _, id := range []string{refused, restarted} {
		wantCount(t, s, id, 2, 2)
	}
	// What changes as it runs is not held against it.
	replace("new")
	wantCount(t, s, refused, 3, 2)
	if err := s.Pause(t.Context(), refused, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, refused, 4, 3)
}

// TestReplacedFilesInUse: where it is known which files of the host a sandbox's
// programs have open, those alone keep it from waking with its memory.
func TestReplacedFilesInUse(t *testing.T) {
	b := newBench(t)
	lower := filepath.Join(b.dir, "lower")
	replace := func(name, text string) {
		t.Helper()
		path := filepath.Join(lower, name)
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Chtimes(path+".new", time.Time{}, time.Unix(int64(text[0]), 0)), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(name string) runtime.OpenFile {
		t.Helper()
		info, err := os.Stat(filepath.Join(lower, name))
		if err != nil {
			t.Fatal(err)
		}
		return runtime.OpenFile{Path: "/" + name, Size: info.Size(), Modified: info.ModTime()}
	}
	for _, name := range []string{"libc.so", "libssl.so", "unused", "mine"} {
		replace(name, "old")
	}
	open := []runtime.OpenFile{holds("libc.so"), holds("libssl.so"), holds("mine"), {Path: "/home/user/notes"}}
	b.held = func() []runtime.OpenFile { return open }
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: sleepy})
	wantCount(t, s, id, 1, 1)
	// A file of the sandbox's own hides the host's.
	inst := sweep.RuntimeID(id, record(t, s, id).Launch)
	if err := os.WriteFile(filepath.Join(b.dir, "rootfs", inst, "mine"), []byte("own"), 0o644); err != nil {
		t.Fatal(err)
	}
	pause := func() {
		t.Helper()
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	pause()
	replace("unused", "new")
	replace("mine", "new")
	replace("another", "new")
	wantCount(t, s, id, 2, 2) // none of them is in use

	pause()
	replace("libssl.so", "new")
	_, _, err := count(t.Context(), s, id)
	hasCode(t, "access", err, "checkpoint_unreadable", "")
	if !strings.Contains(err.Error(), "/libssl.so, which") {
		t.Errorf("the error does not name the file: %v", err)
	}
	if err := os.Remove(filepath.Join(lower, "libc.so")); err != nil {
		t.Fatal(err)
	}
	if _, _, err = count(t.Context(), s, id); !strings.Contains(err.Error(), "/libc.so and 1 more") {
		t.Errorf("the error does not name the files: %v", err)
	}
	replace("libssl.so", "old")
	replace("libc.so", "old")
	wantCount(t, s, id, 3, 3)

	// A program that runs keeps the file that it has opened; a restored one
	// would find another under its name.
	replace("libc.so", "new")
	pause()
	_, _, err = count(t.Context(), s, id)
	hasCode(t, "access after a change as it ran", err, "checkpoint_unreadable", "")
}

// TestExportAfterAnUpgrade: what an export needs is what its memory was taken
// over, not what the host has by now.
func TestExportAfterAnUpgrade(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := b.asleep(s, CreateRequest{Settings: sleepy})
	needs := func() string {
		t.Helper()
		e, err := s.Export(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Release()
		return e.Manifest.Needs.System
	}
	before := needs()
	if err := os.WriteFile(filepath.Join(b.dir, "lower", "tool"), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := needs(); got != before || got == "" {
		t.Errorf("it needs the system %q, want %q", got, before)
	}
}
