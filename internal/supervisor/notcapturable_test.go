package supervisor

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/testmode"
)

const unsavable = "process 12 (python3) holds /dev/net/tun"

// notCapturable returns a server whose sandboxes cannot be captured with memory.
func notCapturable(t *testing.T) (*bench, *Supervisor) {
	b := newBench(t)
	b.set(func() { b.checkpoint = func() error { return runtime.NotCapturable(unsavable) } })
	s, _ := b.open()
	return b, s
}

// failures returns how many pauses of a sandbox have failed.
func failures(t *testing.T, s *Supervisor, id string) (n int) {
	t.Helper()
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Type == lifecycle.EntryPauseFailed {
			n++
		}
	}
	return n
}

// wantByFiles waits until a sandbox sleeps by its files, and the reason is told.
func wantByFiles(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	testmode.Eventually(t, "the sleep", func() bool { return record(t, s, id).Situation() == lifecycle.Situation(lifecycle.Paused) })
	if cp := record(t, s, id).Checkpoint; cp.Mode != lifecycle.Filesystem || cp.Without != unsavable {
		t.Errorf("it sleeps with %+v", cp)
	}
	events, err := s.Events(t.Context(), id, 0, 100)
	i := slices.IndexFunc(events, func(e store.Event) bool { return e.Type == lifecycle.EntryPaused })
	if err != nil || i < 0 || events[i].Detail != "filesystem: memory_not_capturable: "+unsavable {
		t.Errorf("the event log says %+v, %v", events, err)
	}
}

// TestWhoCannotBeCapturedSleepsByFiles: no guest keeps itself awake. It wakes by
// booting, with its files.
func TestWhoCannotBeCapturedSleepsByFiles(t *testing.T) {
	b, s := notCapturable(t)
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}})
	put(t, s, id, "own")
	failThrice(t, s, id)
	wantByFiles(t, s, id)
	if _, err := s.Acquire(t.Context(), id, Access{Port: 80}); code(err) != "not_resumable" {
		t.Errorf("a request: %v", err)
	}
	b.set(func() { b.checkpoint = nil })
	if _, err := s.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, s, id, "own")
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Errorf("and then a pause with memory: %v", err)
	}
}

// failThrice has three automatic pauses fail.
func failThrice(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	for n := range 3 {
		if _, err := s.SetTimeout(t.Context(), id, time.Millisecond, ""); err != nil {
			t.Fatal(err)
		}
		testmode.Eventually(t, "the failure", func() bool { return failures(t, s, id) == n+1 })
	}
}

// TestAgentThatDoesNotAnswerKeepsNobodyAwake: the last resort does without it.
func TestAgentThatDoesNotAnswerKeepsNobodyAwake(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, PauseMode: lifecycle.Filesystem}})
	b.set(func() { b.last.deaf.Store(true) })
	err := s.Pause(t.Context(), id, PauseRequest{Strict: true})
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "agent_unreachable" || record(t, s, id).Phase() != lifecycle.None {
		t.Errorf("a strict pause: %v", err)
	}
	failThrice(t, s, id)
	testmode.Eventually(t, "the sleep", func() bool { return record(t, s, id).Situation() == lifecycle.Situation(lifecycle.Paused) })
}

// TestHostThatLacksSomethingCostsNoMemory: what is not the guest's doing is not counted.
func TestHostThatLacksSomethingCostsNoMemory(t *testing.T) {
	b := newBench(t)
	b.set(func() { b.checkpoint = func() error { return unix.ENOSPC } })
	s, _ := b.open()
	id := create(t, s, CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause}})
	failThrice(t, s, id)
	if rec := record(t, s, id); rec.State != lifecycle.Running || rec.Hindered.Times != 0 || !rec.PauseRetryAt.After(time.Now()) {
		t.Errorf("after three failures it is %+v", rec)
	}
	b.set(func() { b.last.checkpoint = nil })
	if err := s.Pause(t.Context(), id, PauseRequest{Strict: true}); err != nil {
		t.Error(err)
	}
}

// TestNoMemoryIsAStateError: who asks for memory that cannot be had is told so, and
// what to do. The sandbox runs on.
func TestNoMemoryIsAStateError(t *testing.T) {
	_, s := notCapturable(t)
	id := create(t, s, CreateRequest{})
	_, ofSnapshot := s.TakeSnapshot(t.Context(), id, SnapshotRequest{})
	_, ofFork := s.Fork(t.Context(), id, ForkRequest{Count: 1})
	for what, err := range map[string]error{"a pause": s.Pause(t.Context(), id, PauseRequest{}), "a snapshot": ofSnapshot, "a fork": ofFork} {
		e, ok := errors.AsType[*errdef.Error](err)
		if !ok || e.Class != errdef.WrongState || e.Code != runtime.CodeNotCapturable || !strings.Contains(e.Message, unsavable) || !strings.Contains(e.Remedy, "filesystem") {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantCount(t, s, id, 1, 1)
	if err := s.Pause(t.Context(), id, PauseRequest{Mode: lifecycle.Filesystem}); err != nil {
		t.Errorf("a pause by files: %v", err)
	}
}

// TestShutdownPausesByFilesAtOnce: the server does not ask again.
func TestShutdownPausesByFilesAtOnce(t *testing.T) {
	_, s := notCapturable(t)
	id := create(t, s, CreateRequest{})
	if left := s.PauseAll(t.Context()); left != 0 {
		t.Errorf("%d sandboxes run on", left)
	}
	wantByFiles(t, s, id)
}

// TestDiskLimitKeepsFilesOfWhoCannotBeCaptured: the limit takes effect, and costs no
// files.
func TestDiskLimitKeepsFilesOfWhoCannotBeCaptured(t *testing.T) {
	b := newBench(t)
	b.set(func() { b.checkpoint = func() error { return runtime.NotCapturable(unsavable) } })
	tn := b.tenant()
	tn.write("much", tenantLimit+1)
	tn.box.tenant.Limit(t.Context())
	wantByFiles(t, tn.s, tn.id)
}

// TestEventsHaveNoDumps: what failed is told in a line, without the host's directories.
func TestEventsHaveNoDumps(t *testing.T) {
	b := newBench(t)
	b.set(func() {
		b.checkpoint = func() error {
			return errors.Join(&fs.PathError{Op: "write", Path: "/var/lib/drowse/images/x/pages", Err: errors.New("input/output error")}, errors.New("goroutine 7 [running]:\nmain.main()"))
		}
	})
	s, _ := b.open()
	id := create(t, s, CreateRequest{})
	_, ofSnapshot := s.TakeSnapshot(t.Context(), id, SnapshotRequest{})
	events, err := s.Events(t.Context(), id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	said := []string{s.Pause(t.Context(), id, PauseRequest{}).Error(), ofSnapshot.Error(), record(t, s, id).LastError}
	for _, e := range events {
		if e.Type == lifecycle.EntrySnapshotFailed {
			said = append(said, e.Detail)
		}
	}
	if len(said) != 4 {
		t.Fatalf("not all was told: %q", said)
	}
	for _, text := range said {
		if !strings.Contains(text, "write pages: input/output error") || strings.Contains(text, "/var") || strings.Contains(text, "\n") || strings.Contains(text, "goroutine") {
			t.Errorf("it is told %q", text)
		}
	}
}
