package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
)

// writers is how many writers, each for itself, try the same at once.
const writers = 24

// race has all writers commit at once, and returns how many did. Another error than
// refusal fails the test.
func race(t *testing.T, refusal errdef.Class, do func(writer int) error) int {
	t.Helper()
	var won atomic.Int32
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			switch err := do(w); {
			case err == nil:
				won.Add(1)
			case !errdef.Is(err, refusal) || !store.Refused(err):
				t.Errorf("writer %d: %v, want a refusal of class %q", w, err, refusal)
			}
		})
	}
	all.Wait()
	return int(won.Load())
}

// code returns that of an error; empty for none.
func code(err error) string {
	return errdef.CodeOf(err)
}

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if code(err) != want {
		t.Errorf("got error %v, want code %q", err, want)
	}
}

// testRevisions: of those who change a record that they have read alike, one does, and
// the others change nothing.
func testRevisions(t *testing.T, h harness) {
	s := h.open(t)
	commit(t, s, sandbox("a", 1), entry(1))
	for n := int64(2); n < 5; n++ {
		read := latest(t, s, sandbox("a", n))
		won := race(t, errdef.Conflict, func(int) error { return s.Commit(t.Context(), read, []lifecycle.Entry{entry(n)}) })
		if got := generations(events(t, s, "a", 0, 100)); won != 1 || len(got) != int(n) {
			t.Fatalf("%d writers of %d changed a record; its entries are %v", won, writers, got)
		}
		s = h.reopen(t, s)
	}
	unread := sandbox("a", 9)
	unread.Rev = 7
	wantCode(t, s.Commit(t.Context(), unread, nil), "record_changed")
	unread.ID = "b"
	wantCode(t, s.Commit(t.Context(), unread, nil), "record_changed")
	stale := latest(t, s, sandbox("a", 9))
	stale.Rev--
	snap := store.Snapshot{ID: "snap", CreatedAt: epoch}
	wantCode(t, s.CommitSnapshot(t.Context(), snap, stale, nil), "record_changed")
	if got := only(t, sandboxes(t, s)); got.Record.Generation != 4 || len(snapshots(t, s)) != 0 {
		t.Errorf("a refused commit has changed something: %+v", got)
	}
}

// testSandboxExists: an id is given once, until it is forgotten.
func testSandboxExists(t *testing.T, h harness) {
	s := h.open(t)
	if won := race(t, errdef.Exists, func(int) error { return s.Commit(t.Context(), sandbox("a", 1), nil) }); won != 1 {
		t.Errorf("%d writers of %d made a sandbox of the same id", won, writers)
	}
	commit(t, s, terminated("a"))
	wantCode(t, s.Commit(t.Context(), sandbox("a", 1), nil), "sandbox_exists")
	forget(t, s, "a")
	commit(t, s, sandbox("a", 1))
}

func namedSandbox(id, key, name string) store.Sandbox {
	sb := sandbox(id, 1)
	sb.Config.Key, sb.Config.Name = key, name
	return sb
}

// ended returns a sandbox that has ended for a reason.
func ended(sb store.Sandbox, reason lifecycle.Reason) store.Sandbox {
	sb.Record.State = lifecycle.Terminated
	sb.Record.Tombstone = &lifecycle.Tombstone{Reason: reason, At: epoch}
	return sb
}

// testNames: of those of an API key that have not ended, one has a name.
func testNames(t *testing.T, h harness) {
	s := h.open(t)
	if won := race(t, errdef.Exists, func(w int) error {
		return s.Commit(t.Context(), namedSandbox(fmt.Sprint(w), "k", "n"), []lifecycle.Entry{entry(1)})
	}); won != 1 {
		t.Fatalf("%d sandboxes of %d got the same name", won, writers)
	}
	has := only(t, sandboxes(t, s))
	if got := len(events(t, s, "", 0, 100)); got != 1 {
		t.Errorf("%d entries of refused sandboxes", got-1)
	}
	s = h.reopen(t, s)
	wantCode(t, s.Commit(t.Context(), namedSandbox("x", "k", "n"), nil), "name_taken")
	commit(t, s, namedSandbox("other", "l", "n")) // what one key names takes no name from another
	commit(t, s, namedSandbox("none", "k", ""))
	commit(t, s, namedSandbox("nor", "k", ""))
	has.Record.Generation = 2
	commit(t, s, has) // it keeps its name
	wantCode(t, s.Commit(t.Context(), namedSandbox("x", "k", "n"), nil), "name_taken")
	has = ended(has, lifecycle.Killed)
	commit(t, s, has)
	commit(t, s, namedSandbox("x", "k", "n"))
	s = h.reopen(t, s)
	commit(t, s, has) // what has ended takes it from nobody
	forget(t, s, has.ID)
	wantCode(t, s.Commit(t.Context(), namedSandbox("y", "k", "n"), nil), "name_taken")
}

// testIdempotencyKeys: a key makes one sandbox in a day, unless that never came up.
func testIdempotencyKeys(t *testing.T, h harness) {
	s := h.open(t)
	under := func(id, key, idempotency string, at time.Time) store.Sandbox {
		sb := namedSandbox(id, key, "")
		sb.Record.CreatedAt = at
		sb.Config.Idempotency = &store.Idempotency{Key: idempotency, Request: "r"}
		return sb
	}
	if won := race(t, errdef.Conflict, func(w int) error { return s.Commit(t.Context(), under(fmt.Sprint(w), "k", "i", epoch), nil) }); won != 1 {
		t.Fatalf("an idempotency key has made %d sandboxes", won)
	}
	has := only(t, sandboxes(t, s))
	s = h.reopen(t, s)
	again := func(id string, at time.Time) error { return s.Commit(t.Context(), under(id, "k", "i", at), nil) }
	wantCode(t, again("x", epoch.Add(store.IdempotencyLife-time.Second)), "idempotency_key_used")
	commit(t, s, under("y", "k", "other", epoch))
	commit(t, s, under("z", "other", "i", epoch))
	commit(t, s, ended(has, lifecycle.Killed)) // it has made one all the same
	wantCode(t, again("x", epoch.Add(time.Hour)), "idempotency_key_used")
	later := epoch.Add(store.IdempotencyLife)
	if err := again("x", later); err != nil {
		t.Errorf("after a day: %v", err)
	}
	commit(t, s, ended(has, lifecycle.Killed))
	wantCode(t, again("late", later.Add(time.Second)), "idempotency_key_used")
	commit(t, s, ended(under("x", "k", "i", later), lifecycle.CreateFailed))
	s = h.reopen(t, s)
	if err := again("new", later.Add(time.Second)); err != nil {
		t.Errorf("after one that never came up: %v", err)
	}
	forget(t, s, has.ID)
	forget(t, s, "x")
	wantCode(t, again("newer", later.Add(2*time.Second)), "idempotency_key_used")

	full := key(1, epoch)
	full.Limits.Sandboxes = 1
	addKey(t, s, full)
	commit(t, s, under("first", full.ID, "i", epoch))
	wantCode(t, s.Commit(t.Context(), under("repeated", full.ID, "i", epoch), nil), "idempotency_key_used")
}

// testKeyLimits: what the sandboxes of a key take together stays within its limits,
// whoever commits, and within new ones once they are changed.
func testKeyLimits(t *testing.T, h harness) {
	asleep := func(sb store.Sandbox) store.Sandbox {
		sb.Record.State = lifecycle.Paused
		return sb
	}
	of := func(id, k string) store.Sandbox {
		sb := namedSandbox(id, k, "")
		sb.Config.Limits = store.Limits{CPUs: 1, MemoryMiB: 100, DiskMiB: 1000}
		return sb
	}
	for n, c := range []struct {
		limit string
		most  store.KeyLimits
		fit   int
		sleep bool // those that sleep make room
	}{
		{"maxRunning", store.KeyLimits{Running: 3}, 3, true},
		{"maxSandboxes", store.KeyLimits{Sandboxes: 5}, 5, false},
		{"maxMemoryMiB", store.KeyLimits{MemoryMiB: 299}, 2, true},
		{"maxDiskMiB", store.KeyLimits{DiskMiB: 4000}, 4, false},
	} {
		s := h.open(t)
		limited := key(byte(n+1), epoch)
		limited.Limits = c.most
		addKey(t, s, limited)
		name := func(w int) string { return fmt.Sprint("s", w) }
		if won := race(t, errdef.Exhausted, func(w int) error { return s.Commit(t.Context(), of(name(w), limited.ID), nil) }); won != c.fit {
			t.Errorf("%s: %d fit, want %d", c.limit, won, c.fit)
		}
		s = h.reopen(t, s)
		err := s.Commit(t.Context(), of("more", limited.ID), nil)
		wantCode(t, err, "key_limit_reached")
		if got := errdef.Fact(err, "limit"); got != c.limit {
			t.Errorf("%s: the error is of %v", c.limit, got)
		}
		has := sandboxes(t, s)[0]
		commit(t, s, of("free", "another"))
		commit(t, s, has) // no more than before
		commit(t, s, asleep(has))
		err = s.Commit(t.Context(), of("more", limited.ID), nil)
		if want := map[bool]string{false: "key_limit_reached"}[c.sleep]; code(err) != want {
			t.Errorf("%s: where one sleeps: %v", c.limit, err)
		}
		err = s.Commit(t.Context(), latest(t, s, has), nil)
		if want := map[bool]string{true: "key_limit_reached"}[c.sleep]; code(err) != want {
			t.Errorf("%s: when it wakes: %v", c.limit, err)
		}
		commit(t, s, ended(has, lifecycle.Killed))
		if err := s.Commit(t.Context(), of("last", limited.ID), nil); code(err) != map[bool]string{true: "key_limit_reached"}[c.sleep] {
			t.Errorf("%s: where one has ended: %v", c.limit, err)
		}
		if _, err := s.UpdateKey(t.Context(), limited.ID, store.KeyChange{Limits: toLimits(store.KeyLimits{Rate: 1})}); err != nil {
			t.Fatal(err)
		}
		for w := range 4 {
			commit(t, s, of(fmt.Sprint("unlimited", w), limited.ID))
		}
		if _, err := s.UpdateKey(t.Context(), limited.ID, store.KeyChange{Limits: toLimits(c.most)}); err != nil {
			t.Fatal(err)
		}
		wantCode(t, s.Commit(t.Context(), of("above", limited.ID), nil), "key_limit_reached")
	}
	s := h.open(t)
	limited := key(9, epoch)
	limited.Limits.DiskMiB = 1 << 20
	addKey(t, s, limited)
	wantCode(t, s.Commit(t.Context(), namedSandbox("unbounded", limited.ID, ""), nil), "key_limit_reached")
}

// testSnapshotLimits: the snapshots of a key are bounded in number, and count for what
// it may have of the disk.
func testSnapshotLimits(t *testing.T, h harness) {
	s := h.open(t)
	limited := key(1, epoch)
	limited.Limits.DiskMiB = 1000
	addKey(t, s, limited)
	source := namedSandbox("source", limited.ID, "")
	source.Config.Limits = store.Limits{MemoryMiB: 100, DiskMiB: 200}
	commit(t, s, source)
	snap := func(id string) store.Snapshot {
		return store.Snapshot{ID: id, Key: limited.ID, CreatedAt: epoch, Config: source.Config, Checkpoint: lifecycle.Checkpoint{Mode: lifecycle.Memory}}
	}
	take := func(x store.Snapshot, sb store.Sandbox) error {
		return s.CommitSnapshot(t.Context(), x, latest(t, s, sb), nil)
	}
	for w := range writers {
		other := namedSandbox(fmt.Sprint("source", w), "another", "")
		commit(t, s, other)
	}
	if won := race(t, errdef.Exhausted, func(w int) error {
		return take(snap(fmt.Sprint(w)), namedSandbox(fmt.Sprint("source", w), "another", ""))
	}); won != 2 {
		t.Errorf("%d snapshots of 300 MiB fit beside a sandbox of 200 in 1000", won)
	}
	s = h.reopen(t, s)
	has := snapshots(t, s)[0].ID
	wantCode(t, take(snap("more"), source), "key_limit_reached")
	files := snap("files")
	files.Checkpoint.Mode = lifecycle.Filesystem
	if err := take(files, source); err != nil {
		t.Errorf("200 MiB of files: %v", err)
	}
	wantCode(t, s.Commit(t.Context(), namedSandbox("sandbox", limited.ID, ""), nil), "key_limit_reached")
	passing := snap("passing")
	passing.Passing = true
	if err := take(passing, source); err != nil {
		t.Errorf("one that a fork removes: %v", err)
	}
	next := snap("next")
	next.Replaces = has
	if err := take(next, source); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
	unbounded := snap("unbounded")
	unbounded.Config.Limits.DiskMiB = 0
	wantCode(t, take(unbounded, source), "key_limit_reached")

	many := h.open(t)
	of := sandbox("many", 1)
	for n := range store.MostSnapshots {
		of.Rev = int64(n)
		if err := many.CommitSnapshot(t.Context(), store.Snapshot{ID: fmt.Sprint(n), Key: "k", CreatedAt: epoch}, of, nil); err != nil {
			t.Fatal(err)
		}
	}
	of.Rev++
	one := store.Snapshot{ID: "more", Key: "k", CreatedAt: epoch}
	wantCode(t, many.CommitSnapshot(t.Context(), one, of, nil), "too_many_snapshots")
	one.Drops = []string{"0"}
	if err := many.CommitSnapshot(t.Context(), one, of, nil); err != nil {
		t.Errorf("in the place of another: %v", err)
	}
}
