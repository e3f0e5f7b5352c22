package supervisor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/ids"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// limited has the keys of a supervisor that the tests use bounded.
func limited(t *testing.T, s *Supervisor, most store.KeyLimits) {
	t.Helper()
	s.slots.Bound(s.o.MaxRunning, func(string) store.KeyLimits { return most })
	for n, id := range []string{"k", "a", "b", "other"} {
		err := s.o.Store.RemoveKey(t.Context(), id)
		if err != nil && !errdef.Is(err, errdef.NotFound) {
			t.Fatal(err)
		}
		if err := s.o.Store.AddKey(t.Context(), store.Key{ID: id, Name: id, Hash: [32]byte{byte(n + 1)}, Limits: most}); err != nil {
			t.Fatal(err)
		}
	}
}

// of is a request of a key.
func of(key string, memoryMiB int) CreateRequest {
	return CreateRequest{
		Template: "test", Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Kill},
		Config: store.Config{Key: key, Limits: store.Limits{MemoryMiB: memoryMiB}},
	}
}

// wantLimit checks a refusal by a limit of a key, and that it says how it stands
// and what to do.
func wantLimit(t *testing.T, err error, limit string, used, requested, allowed int) {
	t.Helper()
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != errdef.Exhausted || e.Code != "key_limit_reached" {
		t.Fatalf("got %v, want key_limit_reached", err)
	}
	if e.Context["limit"] != limit || e.Context["used"] != used || e.Context["requested"] != requested || e.Context["allowed"] != allowed {
		t.Errorf("it says %v, want %s with %d used, %d requested, %d allowed", e.Context, limit, used, requested, allowed)
	}
	if !strings.Contains(e.Remedy, "kill") || strings.Contains(e.Error(), "%!") {
		t.Errorf("it reads %q", e.Error())
	}
}

func wantUse(t *testing.T, s *Supervisor, key string, running, sandboxes, memory int) {
	t.Helper()
	if got, want := s.KeyUse(key), (store.Use{Running: running, Sandboxes: sandboxes, MemoryMiB: memory}); got != want {
		t.Errorf("key %s uses %+v, want %+v", key, got, want)
	}
}

func TestKeyRunningLimit(t *testing.T) {
	s, _ := newBench(t).open()
	limited(t, s, store.KeyLimits{Running: 2})
	first := create(t, s, of("k", 256))
	create(t, s, of("k", 256))
	_, err := s.Create(t.Context(), of("k", 256))
	wantLimit(t, err, "maxRunning", 2, 1, 2)
	create(t, s, of("other", 256)) // is bounded by itself
	create(t, s, of("", 256))      // is nobody's
	if err := s.Pause(t.Context(), first, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wantUse(t, s, "k", 1, 2, 256)
	third := create(t, s, of("k", 256))
	_, err = s.Connect(t.Context(), first, WakeRequest{Timeout: time.Minute, Actor: "key:admin"})
	wantLimit(t, err, "maxRunning", 2, 1, 2)
	if err := s.Kill(t.Context(), third, ""); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Connect(t.Context(), first, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestKeyLimitBoundsAWakeByTraffic: who asks has no key at all.
func TestKeyLimitBoundsAWakeByTraffic(t *testing.T) {
	s, _ := newBench(t).open()
	limited(t, s, store.KeyLimits{Running: 1})
	req := of("k", 256)
	req.Settings.OnTimeout, req.Settings.AutoResume = lifecycle.Pause, true
	id := create(t, s, req)
	if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	other := create(t, s, of("k", 256))
	_, _, err := count(t.Context(), s, id)
	wantLimit(t, err, "maxRunning", 1, 1, 1)
	if err := s.Kill(t.Context(), other, ""); err != nil {
		t.Fatal(err)
	}
	wantCount(t, s, id, 1, 2)
}

func TestKeySandboxesLimit(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	limited(t, s, store.KeyLimits{Sandboxes: 2})
	awake, asleep := create(t, s, of("k", 256)), b.asleep(s, of("k", 256))
	file := exportOf(t, s, asleep)
	_, err := s.Create(t.Context(), of("k", 256))
	wantLimit(t, err, "maxSandboxes", 2, 1, 2)
	_, err = s.Import(t.Context(), bytes.NewReader(file), ImportRequest{NewID: true, Key: "k"})
	wantLimit(t, err, "maxSandboxes", 2, 1, 2)
	if _, err := s.Connect(t.Context(), asleep, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Errorf("a wake needs no more than there is: %v", err)
	}
	if err := s.Pause(t.Context(), asleep, PauseRequest{}); err != nil {
		t.Errorf("nor does a pause: %v", err)
	}

	stop() // and over a restart
	s, _ = b.open()
	limited(t, s, store.KeyLimits{Sandboxes: 2})
	wantUse(t, s, "k", 1, 2, 256)
	_, err = s.Create(t.Context(), of("k", 256))
	wantLimit(t, err, "maxSandboxes", 2, 1, 2)
	if err := s.Kill(t.Context(), asleep, ""); err != nil {
		t.Fatal(err)
	}
	copied, err := s.Import(t.Context(), bytes.NewReader(file), ImportRequest{NewID: true, Key: "k"})
	if err != nil || copied.Config.Key != "k" {
		t.Fatalf("with room again: %+v, %v", copied.Config, err)
	}
	for _, id := range []string{awake, copied.ID} {
		if err := s.Kill(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	wantUse(t, s, "k", 0, 0, 0)
	if s.slots.Keys() != 0 {
		t.Error("a key without sandboxes is remembered")
	}
}

// TestExportTellsNoKey: elsewhere it means nothing, or another.
func TestExportTellsNoKey(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	id := b.asleep(s, of("the-key", 256))
	if bytes.Contains(exportOf(t, s, id), []byte("the-key")) {
		t.Error("the export names the key")
	}
}

func TestKeyMemoryLimit(t *testing.T) {
	s, _ := newBench(t).open()
	limited(t, s, store.KeyLimits{MemoryMiB: 1000})
	big := create(t, s, of("k", 700))
	_, err := s.Create(t.Context(), of("k", 301))
	wantLimit(t, err, "maxMemoryMiB", 700, 301, 1000)
	create(t, s, of("k", 300))
	wantUse(t, s, "k", 2, 2, 1000)
	if err := s.Pause(t.Context(), big, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	wantUse(t, s, "k", 1, 2, 300)
	create(t, s, of("k", 700))
	_, err = s.Resume(t.Context(), big, WakeRequest{Timeout: time.Minute})
	wantLimit(t, err, "maxMemoryMiB", 1000, 700, 1000)
}

// TestKeyDiskLimit: what a sandbox may take of the disk counts asleep and awake,
// and one without a bound would make the key's worthless.
func TestKeyDiskLimit(t *testing.T) {
	s, _ := newBench(t).open()
	limited(t, s, store.KeyLimits{DiskMiB: 1000})
	of := func(diskMiB int) CreateRequest {
		req := of("k", 256)
		req.Config.Limits.DiskMiB = diskMiB
		return req
	}
	big := create(t, s, of(700))
	if err := s.Pause(t.Context(), big, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Create(t.Context(), of(301))
	wantLimit(t, err, "maxDiskMiB", 700, 301, 1000)
	create(t, s, of(300))
	if _, err = s.Resume(t.Context(), big, WakeRequest{Timeout: time.Minute}); err != nil {
		t.Errorf("a wake takes no more of the disk: %v", err)
	}
	if got := s.KeyUse("k").DiskMiB; got != 1000 {
		t.Errorf("the key has %d MiB, want 1000", got)
	}
	_, err = s.Create(t.Context(), of(0))
	if e, ok := errors.AsType[*errdef.Error](err); !ok || e.Code != "key_limit_reached" || !strings.Contains(e.Remedy, "diskMiB") {
		t.Errorf("a sandbox without a limit: %v", err)
	}
	if err := s.Kill(t.Context(), big, ""); err != nil {
		t.Fatal(err)
	}
	create(t, s, of(700))
}

// TestKeyLimitUnderConcurrentCreates: of 50 creates at once against a limit of
// 10, exactly 10 succeed, and nothing is left of the others.
func TestKeyLimitUnderConcurrentCreates(t *testing.T) {
	for name, most := range map[string]store.KeyLimits{
		"running": {Running: 10}, "sandboxes": {Sandboxes: 10}, "memory": {MemoryMiB: 10*256 + 255},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newBench(t).open()
			limited(t, s, most)
			if made := atOnce(50, func(int) error {
				_, err := s.Create(context.WithoutCancel(t.Context()), of("k", 256))
				return err
			}, t); made != 10 {
				t.Errorf("%d of 50 were made, want 10", made)
			}
			all, err := s.All(t.Context())
			if err != nil || len(all) != 10 {
				t.Errorf("there are %d sandboxes, %v; want 10", len(all), err)
			}
			wantUse(t, s, "k", 10, 10, 10*256)
			for _, sb := range all {
				if err := s.Kill(t.Context(), sb.ID, ""); err != nil {
					t.Error(err)
				}
			}
			wantUse(t, s, "k", 0, 0, 0)
		})
	}
}

// atOnce calls f n times at once and returns how often it succeeded. All other
// errors must be refusals by a limit of a key.
func atOnce(n int, f func(i int) error, t *testing.T) int {
	var calls sync.WaitGroup
	var done atomic.Int64
	begin := make(chan struct{})
	for i := range n {
		calls.Go(func() {
			<-begin
			switch err := f(i); {
			case err == nil:
				done.Add(1)
			case code(err) != "key_limit_reached":
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	close(begin)
	calls.Wait()
	return int(done.Load())
}

// TestKeyLimitUnderConcurrentWakes: a resume needs room as a create does.
func TestKeyLimitUnderConcurrentWakes(t *testing.T) {
	s, _ := newBench(t).open()
	var ids []string
	for range 12 {
		id := create(t, s, of("k", 256))
		if err := s.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	limited(t, s, store.KeyLimits{Running: 4})
	if woken := atOnce(len(ids), func(i int) error {
		_, err := s.Connect(context.WithoutCancel(t.Context()), ids[i], WakeRequest{Timeout: time.Minute})
		return err
	}, t); woken != 4 {
		t.Errorf("%d of 12 woke, want 4", woken)
	}
	wantUse(t, s, "k", 4, 12, 4*256)
}

// TestKeyLimitIsGivenBackByAFailure: what did not start takes nothing.
func TestKeyLimitIsGivenBackByAFailure(t *testing.T) {
	b := newBench(t)
	s, _ := b.open()
	limited(t, s, store.KeyLimits{Running: 1, Sandboxes: 1, MemoryMiB: 256})
	b.set(func() { b.boot = func() error { return errors.New("no processor today") } })
	if _, err := s.Create(t.Context(), of("k", 256)); code(err) != "sandbox_create_failed" {
		t.Errorf("got %v", err)
	}
	b.set(func() { b.boot = nil })
	create(t, s, of("k", 256))
	wantUse(t, s, "k", 1, 1, 256)
}

// TestCheckpointNeedsNoRoom: a checkpoint of a running sandbox is a pause and a
// resume, and must not lose its place in between.
func TestCheckpointNeedsNoRoom(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		srv := w.mustOpen(t)
		limited(t, srv.s, store.KeyLimits{Running: 1, Sandboxes: 1, MemoryMiB: 256})
		req := of("k", 256)
		req.Settings.CheckpointEvery = 10 * time.Minute
		id := create(t, srv.s, req)
		time.Sleep(15 * time.Minute)
		checkServes(t, srv, id, 2, 1)
		wantUse(t, srv.s, "k", 1, 1, 256)
		w.end(t, srv)
	})
}

// buryAside has the store know of a sandbox that has ended, whose tombstone takes so
// many bytes, of which the supervisor knows nothing.
func buryAside(t *testing.T, s *Supervisor, key, id string, bytes int) {
	t.Helper()
	sb := store.Sandbox{ID: id, Config: store.Config{Key: key}}
	sb.Record = lifecycle.Record{State: lifecycle.Terminated, CreatedAt: ids.Now(), Tombstone: &lifecycle.Tombstone{Reason: lifecycle.Killed, At: ids.Now()}}
	sb.Config.Alias = strings.Repeat("x", bytes-fields.Bytes(sb)-len(`,"alias":""`))
	if _, err := s.o.Store.CommitEnd(t.Context(), sb, nil); err != nil {
		t.Fatal(err)
	}
}

// buried returns the sandboxes of a key that have ended and are in the store, those
// that were created first ahead.
func buried(t *testing.T, s *Supervisor, key string) (all []string) {
	t.Helper()
	list, err := s.o.Store.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		if sb.Config.Key == key && sb.Ended() {
			all = append(all, sb.ID)
		}
	}
	return all
}

// TestTombstonesOfAKeyAreBounded: where a key has as many as are remembered, the
// oldest goes when another sandbox ends, from memory and from the store. After a
// restart they are counted as before.
func TestTombstonesOfAKeyAreBounded(t *testing.T) {
	b := newBench(t)
	s, stop := b.open()
	first, second, third, other := create(t, s, of("k", 256)), create(t, s, of("k", 256)), create(t, s, of("k", 256)), create(t, s, of("x", 256))
	kill(t, s, second)
	testmode.Eventually(t, "it is buried", func() bool { return len(buried(t, s, "k")) == 1 })
	kill(t, s, first, other)
	testmode.Eventually(t, "they are buried", func() bool { return len(buried(t, s, "k")) == 2 && len(buried(t, s, "x")) == 1 })
	stop()
	s, _ = b.open()
	if left := buried(t, s, "k"); !slices.Equal(left, []string{first, second}) {
		t.Fatalf("after a restart there are %q", left)
	}
	room := store.MostTombstoneBytes
	for _, id := range []string{first, second} {
		sb, err := s.Find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		room -= fields.Bytes(sb)
	}
	buryAside(t, s, "k", "aside", room-300) // which leaves no room for a third
	kill(t, s, third)
	testmode.Eventually(t, "the oldest is forgotten", func() bool { _, err := s.Find(t.Context(), second); return errdef.Is(err, errdef.NotFound) })
	if list, err := s.o.Store.Sandboxes(t.Context()); err != nil || slices.ContainsFunc(list, func(sb store.Sandbox) bool { return sb.ID == second }) {
		t.Errorf("it is in the store: %v", err)
	}
	for _, id := range []string{first, third, other} {
		if sb, err := s.Find(t.Context(), id); err != nil || sb.Record.Tombstone == nil {
			t.Errorf("%s: %v, want its tombstone", id, err)
		}
	}
}
