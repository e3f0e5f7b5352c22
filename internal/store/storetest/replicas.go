package storetest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica/seal"
	"github.com/drowse-dev/drowse/internal/store"
)

// asleep returns a paused record with a checkpoint of one layer.
func asleep(id string, n int64, checkpoint string) store.Sandbox {
	sb := sandbox(id, n)
	sb.Record.State = lifecycle.Paused
	sb.Record.Checkpoint = &lifecycle.Checkpoint{ID: checkpoint, Mode: lifecycle.Memory, Stack: []string{"layer " + checkpoint}}
	return sb
}

// putReplica stores the replica of a checkpoint.
func putReplica(t *testing.T, s store.Store, sandbox, checkpoint string) store.Replica {
	t.Helper()
	r := store.Replica{Sandbox: sandbox, Checkpoint: checkpoint, Index: "index of " + checkpoint, EncryptionKey: seal.New(), Bytes: 7, At: epoch}
	if _, err := s.PutReplica(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// lose adds a sandbox called lost and a snapshot, each with a replica, and a built template, of a server called gone, whose lease has been over for as long as it takes.
func lose(t *testing.T, h harness, s store.Store) {
	t.Helper()
	gone := h.share(t, s)
	claim(t, gone, server("gone", "away"), -store.LostAfter)
	commit(t, gone, asleep("lost", 1, "cp"))
	putReplica(t, gone, "lost", "cp")
	snapshotOf(t, gone, "lost snapshot", "their source", memoryOf("cp", "layer cp"))
	copySnapshot(t, gone, "lost snapshot", "cp")
	if err := gone.PutTemplate(t.Context(), built("lost template", "key-1", "lost")); err != nil {
		t.Fatal(err)
	}
	leave(t, gone, store.LostAfter)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
}

// snapshotOf commits a snapshot of a sandbox.
func snapshotOf(t *testing.T, s store.Store, id, of string, cp lifecycle.Checkpoint) store.Snapshot {
	t.Helper()
	snap := store.Snapshot{ID: id, Name: "name of " + id, Sandbox: of, CreatedAt: epoch, Checkpoint: cp}
	if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, sandbox(of, 1)), nil); err != nil {
		t.Fatal(err)
	}
	snap.Owner = s.Self()
	return snap
}

// copySnapshot stores the replica of a snapshot.
func copySnapshot(t *testing.T, s store.Store, snapshot, checkpoint string) store.Replica {
	t.Helper()
	r := store.Replica{Snapshot: snapshot, Checkpoint: checkpoint, Index: "index of " + snapshot, EncryptionKey: seal.New(), Bytes: 8, At: epoch}
	if _, err := s.PutReplica(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// leave has a server stop in order, whose lease has been over for so long then.
func leave(t *testing.T, s store.Store, ago time.Duration) {
	t.Helper()
	if err := s.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), -ago); err != nil {
		t.Fatal(err)
	}
}

func wantReplicas(t *testing.T, s store.Store, want ...store.Replica) {
	t.Helper()
	if got, err := s.Replicas(t.Context(), ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("Replicas = %+v, %v; want %+v", got, err, want)
	}
	for _, r := range want {
		if got, err := s.Replica(t.Context(), r.Of()); err != nil || got != r {
			t.Errorf("Replica(%s) = %+v, %v; want %+v", r.Of(), got, err, r)
		}
	}
}

func wantElsewhere(t *testing.T, what string, err error, server string) {
	t.Helper()
	if has, ok := store.Elsewhere(err); !ok || has != server || !store.Refused(err) {
		t.Errorf("%s: %v, want that server %s has it", what, err, server)
	}
}

// testReplicas: a sandbox has one replica at most, which its own server puts.
func testReplicas(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	wantReplicas(t, one)
	_, err := one.Replica(t.Context(), "a")
	wantCode(t, err, "replica_not_found")
	var in, want store.Replica
	fill(t, &in, elsewhere)
	fill(t, &want, utc)
	in.Sandbox, want.Sandbox, in.Snapshot, want.Snapshot = "b", "b", "", ""
	want.Offered = "" // which Offer says alone
	commit(t, one, sandbox("b", 1))
	commit(t, one, sandbox("a", 1))
	if before, err := one.PutReplica(t.Context(), in); err != nil || before != nil {
		t.Errorf("the first replica has come after %+v, %v", before, err)
	}
	wantReplicas(t, two, want)
	first := putReplica(t, one, "a", "cp1")
	wantReplicas(t, one, first, want)

	next := store.Replica{Sandbox: "a", Checkpoint: "cp2", Index: "other", Bytes: 1 << 40, At: utc(9)}
	_, err = two.PutReplica(t.Context(), next)
	wantElsewhere(t, "the replica of another server's sandbox", err, "one")
	wantReplicas(t, one, first, want)
	if before, err := one.PutReplica(t.Context(), next); err != nil || before == nil || *before != first {
		t.Errorf("a replica has come after %+v, %v; want %+v", before, err, first)
	}
	wantReplicas(t, two, next, want)
	next.Sandbox = "unknown"
	_, err = one.PutReplica(t.Context(), next)
	wantCode(t, err, "sandbox_not_found")
	next.Sandbox = "a"
	wantReplicas(t, h.reopen(t, one), next, want)
}

// testReplicaEnds: a replica goes with the commit in which its sandbox ends, and there is
// none of what has ended.
func testReplicaEnds(t *testing.T, h harness) {
	s := h.open(t)
	stays := sandbox("stays", 1)
	commit(t, s, stays)
	has := putReplica(t, s, "stays", "cp")
	dying := terminated("dying")
	dying.Record.Op = &lifecycle.Operation{ID: "op", Phase: lifecycle.Killing, Attempt: 1}
	for id, end := range map[string]func(store.Sandbox) error{
		"Commit":    func(sb store.Sandbox) error { return s.Commit(t.Context(), sb, nil) },
		"CommitEnd": func(sb store.Sandbox) error { _, err := s.CommitEnd(t.Context(), sb, nil); return err },
		"dying": func(sb store.Sandbox) error {
			dying.Rev = sb.Rev
			return s.Commit(t.Context(), dying, nil)
		},
	} {
		commit(t, s, sandbox(id, 1))
		r := putReplica(t, s, id, "cp")
		sb := terminated(id)
		wantClass(t, errdef.Conflict, func() error { sb.Rev = 9; return end(sb) })
		if got, err := s.Replica(t.Context(), id); err != nil || got != r {
			t.Errorf("after an end that was refused: %+v, %v", got, err)
		}
		if err := end(latest(t, s, sb)); err != nil {
			t.Fatal(err)
		}
		wantReplicas(t, s, has)
		_, err := s.PutReplica(t.Context(), r)
		wantCode(t, err, "sandbox_not_found")
		wantReplicas(t, s, has)
		forget(t, s, id)
		_, err = s.PutReplica(t.Context(), r)
		wantCode(t, err, "sandbox_not_found")
		commit(t, s, sandbox(id, 1)) // one of the same id has none
		wantReplicas(t, s, has)
	}
}

// testTake: a server that is over loses a sandbox to another, with all that it is.
func testTake(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	addKey(t, one, key(1, epoch))
	was := asleep("a", 1, "cp")
	was.Config.Key, was.Config.Name = "key-1", "name"
	commit(t, one, was, entry(1))
	commit(t, one, asleep("b", 1, "cp b"))
	r, other := putReplica(t, one, "a", "cp"), putReplica(t, one, "b", "cp b")
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	has, err := two.Sandbox(t.Context(), "a")
	if err != nil || has.Owner != "one" {
		t.Fatalf("%+v, %v", has, err)
	}
	sb := asleep("a", 2, "made")
	sb.Config, sb.Rev, sb.Owner = was.Config, has.Rev, has.Owner
	if err := two.Take(t.Context(), sb, []lifecycle.Entry{entry(2), entry(3)}); err != nil {
		t.Fatal(err)
	}
	taken := sb
	taken.Owner, taken.Rev = "two", has.Rev+1
	r.Checkpoint = "made"
	for _, s := range []store.Store{one, two} {
		if got, err := s.Sandbox(t.Context(), "a"); err != nil || !reflect.DeepEqual(got, taken) {
			t.Errorf("taken is %+v, %v; want %+v", got, err, taken)
		}
		if got := generations(events(t, s, "a", 0, 10)); !slices.Equal(got, []int64{1, 2, 3}) {
			t.Errorf("events are %v, want those of the take at the end", got)
		}
		wantOwners(t, s, map[string]string{"sandbox a": "two", "sandbox b": "one"})
		wantReplicas(t, s, r, other)
		for part, want := range map[string]bool{"layer cp": false, "layer made": s == two} {
			if got, err := s.Needed(t.Context(), part, ""); err != nil || got != want {
				t.Errorf("%s is needed: %v, %v", part, got, err)
			}
		}
	}

	// Who had it finds out with its next commit, also where the key has no room for that.
	if err := one.Renew(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := one.UpdateKey(t.Context(), "key-1", store.KeyChange{Limits: toLimits(store.KeyLimits{Sandboxes: 1, MemoryMiB: 1})}); err != nil {
		t.Fatal(err)
	}
	for _, rev := range []int64{has.Rev, taken.Rev} {
		running := sandbox("a", 9)
		running.Config, running.Rev = was.Config, rev
		wantElsewhere(t, "a commit of the owner before", one.Commit(t.Context(), running, []lifecycle.Entry{entry(9)}), "two")
		running.Config.Limits.MemoryMiB = 2
		wantElsewhere(t, "a commit that is above a limit, of the owner before", one.Commit(t.Context(), running, nil), "two")
	}
	_, err = one.PutReplica(t.Context(), r)
	wantElsewhere(t, "a replica of the owner before", err, "two")
	wantReplicas(t, one, r, other)
	wantCode(t, two.Commit(t.Context(), namedSandbox("c", "key-1", "name"), nil), "key_limit_reached")
	next := taken
	next.Record.Generation = 3
	if err := two.Commit(t.Context(), next, nil); err != nil {
		t.Errorf("a commit of the new owner: %v", err)
	}
	wantReplicas(t, h.reopen(t, two), r, other)
}

// testTakeRefused: nothing happens where a sandbox may not be taken.
func testTakeRefused(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	limited := key(1, epoch)
	limited.Limits = store.KeyLimits{Running: 1}
	addKey(t, one, limited)
	runs := sandbox("runs", 1)
	runs.Config.Key = "key-1"
	commit(t, two, runs)
	was := asleep("a", 1, "cp")
	was.Config.Key = "key-1"
	commit(t, one, was, entry(1))
	commit(t, one, asleep("none", 1, "cp"))
	commit(t, one, asleep("other", 1, "cp2"))
	commit(t, one, asleep("memory", 1, "cp"))
	fresh := asleep("fresh", 1, "")
	fresh.Record.Checkpoint = nil
	commit(t, one, fresh)
	dying := terminated("dying")
	dying.Record.Op = &lifecycle.Operation{ID: "op", Phase: lifecycle.Killing, Attempt: 1}
	commit(t, one, dying)
	commit(t, one, terminated("dead"))
	commit(t, two, asleep("mine", 1, "cp"))
	for _, id := range []string{"a", "other"} {
		putReplica(t, one, id, "cp")
	}
	putReplica(t, one, "memory", store.CopyOf(lifecycle.Checkpoint{ID: "cp"}.Files()))
	putReplica(t, one, "fresh", "")
	putReplica(t, two, "mine", "cp")

	take := func(s store.Store, id, owner string, change func(*store.Sandbox)) error {
		sb := latest(t, s, asleep(id, 2, "made"))
		sb.Owner, sb.Config.Key = owner, was.Config.Key
		change(&sb)
		return s.Take(t.Context(), sb, []lifecycle.Entry{entry(2)})
	}
	asItIs := func(*store.Sandbox) {}
	before := all(t, two)
	wantElsewhere(t, "while its lease lasts", take(two, "a", "one", asItIs), "one")
	for _, id := range []string{"dying", "dead"} { // whoever has what is left
		wantCode(t, take(two, id, "one", asItIs), "sandbox_terminated")
	}
	leave(t, one, time.Hour)
	delete(before, "servers")
	for _, c := range []struct {
		what, id, owner string
		change          func(*store.Sandbox)
		want            string // the code
	}{
		{"of another revision", "a", "one", func(sb *store.Sandbox) { sb.Rev++ }, "record_changed"},
		{"of an earlier revision", "a", "one", func(sb *store.Sandbox) { sb.Rev = 0 }, "record_changed"},
		{"unknown", "unknown", "one", func(sb *store.Sandbox) { sb.Rev = 1 }, "record_changed"},
		{"unknown and new", "unknown", "one", asItIs, "record_changed"},
		{"one's own", "mine", "one", asItIs, "record_changed"},
		{"known as one's own", "mine", "two", asItIs, "record_changed"},
		{"of a third server", "a", "three", asItIs, "on_another_server"},
		{"of no server", "a", "", asItIs, "on_another_server"},
		{"believed to be one's own", "a", "two", asItIs, "on_another_server"},
		{"without a replica", "none", "one", asItIs, "not_replicated"},
		{"with a replica of another checkpoint", "other", "one", asItIs, "not_replicated"},
		{"with a replica of the files alone", "memory", "one", asItIs, "not_replicated"},
		{"without a checkpoint", "fresh", "one", asItIs, "not_replicated"},
		{"to be without a checkpoint", "a", "one", func(sb *store.Sandbox) { sb.Record.Checkpoint = nil }, "not_replicated"},
		{"that is being killed", "dying", "one", asItIs, "sandbox_terminated"},
		{"that has ended", "dead", "one", asItIs, "sandbox_terminated"},
		{"that is to run, for which its key has no room", "a", "one", func(sb *store.Sandbox) { sb.Record.State = lifecycle.Running }, "key_limit_reached"},
	} {
		err := take(two, c.id, c.owner, c.change)
		if code(err) != c.want || !store.Refused(err) || store.IsNotReplicated(err) != (c.want == "not_replicated") {
			t.Errorf("a sandbox %s: %v, want code %q", c.what, err, c.want)
		}
		if c.want == "on_another_server" {
			wantElsewhere(t, c.what, err, "one")
		}
		now := all(t, two)
		for what := range maps.Keys(before) {
			if !reflect.DeepEqual(now[what], before[what]) {
				t.Fatalf("the take of a sandbox %s has changed the %s: %+v, want %+v", c.what, what, now[what], before[what])
			}
		}
	}
	if err := take(two, "a", "one", asItIs); err != nil {
		t.Errorf("once nothing is in the way: %v", err)
	}
}

// testOffer: a server lets another one take what sleeps on it with its copy, while it lives
// itself; nobody else, and only as it sleeps then.
func testOffer(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	three := h.share(t, one)
	claim(t, three, server("three", "elsewhere"), time.Hour)
	commit(t, one, asleep("a", 1, "cp"))
	offer := func(s store.Store, checkpoint, to string) error { return s.Offer(t.Context(), "a", checkpoint, to) }
	take := func(s store.Store) error {
		sb := latest(t, s, asleep("a", 2, "made"))
		sb.Owner = "one"
		return s.Take(t.Context(), sb, nil)
	}
	offered := func(want string) {
		t.Helper()
		if r, err := one.Replica(t.Context(), "a"); err != nil || r.Offered != want {
			t.Errorf("it is offered to %q, %v; want %q", r.Offered, err, want)
		}
	}
	wantCode(t, offer(one, "cp", "two"), "not_replicated")
	if err := offer(one, "cp", ""); err != nil {
		t.Errorf("withdrawn without a copy: %v", err)
	}
	putReplica(t, one, "a", "cp")
	wantElsewhere(t, "an offer of what another has", offer(two, "cp", "two"), "one")
	wantCode(t, one.Offer(t.Context(), "unknown", "cp", "two"), "sandbox_not_found")
	wantCode(t, offer(one, "cp0", "two"), "record_changed")
	wantElsewhere(t, "before it is offered", take(two), "one")
	if err := offer(one, "cp", "two"); err != nil {
		t.Fatal(err)
	}
	offered("two")
	wantElsewhere(t, "what is offered to another", take(three), "one")
	if err := offer(one, "cp", ""); err != nil {
		t.Fatal(err)
	}
	wantElsewhere(t, "once it is withdrawn", take(two), "one")
	if err := offer(one, "cp", "two"); err != nil {
		t.Fatal(err)
	}
	putReplica(t, one, "a", "cp")
	offered("")

	// Who wakes it keeps it, and nothing that does not sleep is offered.
	if err := offer(one, "cp", "two"); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []lifecycle.Phase{lifecycle.Resuming, lifecycle.None} {
		awake := latest(t, one, asleep("a", 1, "cp"))
		if awake.Record.State = lifecycle.Running; phase != lifecycle.None {
			awake.Record.State, awake.Record.Op = lifecycle.Paused, &lifecycle.Operation{ID: "op", Phase: phase, Attempt: 1}
		}
		commit(t, one, awake)
		wantElsewhere(t, "what wakes", take(two), "one")
		wantCode(t, offer(one, "cp", "two"), "record_changed")
	}
	commit(t, one, latest(t, one, asleep("a", 1, "cp")))
	wantCode(t, two.Take(t.Context(), store.Sandbox{ID: "a", Owner: "one", Rev: 1, Record: asleep("a", 2, "made").Record}, nil), "record_changed")
	if err := take(two); err != nil {
		t.Fatal(err)
	}
	offered("")
	wantElsewhere(t, "an offer of who had it", offer(one, "made", "three"), "two")
	if err := two.Offer(t.Context(), "a", "made", "one"); err != nil {
		t.Fatal(err)
	}
	offered("one")

	commit(t, one, asleep("b", 1, "cp"))
	putReplica(t, one, "b", "cp")
	dying := latest(t, one, terminated("b"))
	dying.Record.Op = &lifecycle.Operation{ID: "op", Phase: lifecycle.Killing, Attempt: 1}
	commit(t, one, dying)
	wantCode(t, one.Offer(t.Context(), "b", "cp", "two"), "sandbox_terminated")
}

// testTakeEnded: what a server has that is gone is ended by another one, with a copy or without,
// once that server cannot go on with it any more.
func testTakeEnded(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	killed := func(id string) store.Sandbox {
		sb := latest(t, two, terminated(id))
		sb.Record.Op = &lifecycle.Operation{ID: "op", Phase: lifecycle.Killing, Attempt: 1}
		sb.Owner, sb.Config = "one", namedSandbox(id, "key-1", "name "+id).Config
		return sb
	}
	end := func(id string) error { return two.Take(t.Context(), killed(id), []lifecycle.Entry{entry(2)}) }
	for _, id := range []string{"asleep", "copied", "running"} {
		sb := namedSandbox(id, "key-1", "name "+id)
		if sb.Record = asleep(id, 1, "cp").Record; id == "running" {
			sb.Record.State = lifecycle.Running
		}
		commit(t, one, sb)
	}
	fresh := namedSandbox("fresh", "key-1", "name fresh")
	fresh.Record.State, fresh.Record.Checkpoint = lifecycle.Running, nil
	commit(t, one, fresh)
	putReplica(t, one, "copied", "cp")
	wantElsewhere(t, "an end while the server lives", end("asleep"), "one")
	leave(t, one, store.LostAfter/2)
	wantElsewhere(t, "an end of what ran a moment ago", end("running"), "one")
	wantElsewhere(t, "an end of what was started a moment ago", end("fresh"), "one")
	if err := end("asleep"); err != nil {
		t.Error(err)
	}
	if err := end("copied"); err != nil {
		t.Error(err)
	}
	wantReplicas(t, two)
	leave(t, one, store.LostAfter)
	for _, id := range []string{"running", "fresh"} {
		if err := end(id); err != nil {
			t.Error(err)
		}
		wantCode(t, end(id), "record_changed") // it is its own
	}
	for _, id := range []string{"asleep", "copied", "running", "fresh"} {
		if sb, err := one.Sandbox(t.Context(), id); err != nil || sb.Owner != "two" || sb.Record.State != lifecycle.Terminated {
			t.Errorf("%s is %+v of server %q, %v", id, sb.Record, sb.Owner, err)
		}
		commit(t, two, namedSandbox("new "+id, "key-1", "name "+id)) // its name is free
		wantElsewhere(t, "a commit of the owner before", one.Commit(t.Context(), latest(t, one, asleep(id, 1, "cp")), nil), "two")
	}
}

// testTakeLost: what a server may go on with is its own for longer than its lease.
func testTakeLost(t *testing.T, h harness) {
	for name, c := range map[string]struct {
		state lifecycle.State
		phase lifecycle.Phase
		soon  bool // can be taken as soon as the lease is over
	}{
		"paused":              {lifecycle.Paused, lifecycle.None, true},
		"resuming":            {lifecycle.Paused, lifecycle.Resuming, false},
		"paused and restored": {lifecycle.Paused, lifecycle.Pausing, false},
		"running":             {lifecycle.Running, lifecycle.None, false},
		"pausing":             {lifecycle.Running, lifecycle.Pausing, false},
		"snapshotting":        {lifecycle.Running, lifecycle.Snapshotting, false},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := twoServers(t, h)
			was := asleep("a", 1, "cp")
			was.Record.State = c.state
			if c.phase != lifecycle.None {
				was.Record.Op = &lifecycle.Operation{ID: "op", Phase: c.phase, Attempt: 1}
			}
			commit(t, one, was)
			putReplica(t, one, "a", "cp")
			take := func() error {
				sb := latest(t, two, asleep("a", 2, "made"))
				sb.Owner = "one"
				return two.Take(t.Context(), sb, nil)
			}
			wantElsewhere(t, "while the lease lasts", take(), "one")
			leave(t, one, store.LostAfter/2)
			err := take()
			if c.soon {
				if err != nil {
					t.Errorf("the lease is over: %v", err)
				}
				return
			}
			wantElsewhere(t, "before the server is gone for long", err, "one")
			leave(t, one, store.LostAfter)
			if err := take(); err != nil {
				t.Errorf("the server is gone: %v", err)
			}
		})
	}

	// Nobody waits for a server that is not known.
	s := h.open(t)
	commit(t, s, sandbox("a", 1)) // which adopts none but the first
	one, two := h.share(t, s), h.share(t, s)
	claim(t, one, server("one", "here"), time.Hour)
	claim(t, two, server("two", "there"), time.Hour)
	late := asleep("late", 1, "cp")
	late.Record.State = lifecycle.Running
	commit(t, s, late)
	putReplica(t, s, "late", "cp")
	if err := two.Take(t.Context(), latest(t, two, asleep("late", 2, "made")), nil); err != nil {
		t.Errorf("of a server that is not known: %v", err)
	}
	if sb, err := one.Sandbox(t.Context(), "late"); err != nil || sb.Owner != "two" {
		t.Errorf("it is of %q, %v", sb.Owner, err)
	}
}

// testTakeTogether: of the servers that take a sandbox at once, one has it.
func testTakeTogether(t *testing.T, h harness) {
	const most = 4
	gone := h.open(t)
	claim(t, gone, server("gone", "away"), 0)
	leave(t, gone, 0)
	var stores []store.Store
	for i := range most {
		s := h.share(t, gone)
		claim(t, s, server(fmt.Sprint("srv", i), fmt.Sprint("place", i)), time.Hour)
		stores = append(stores, s)
	}
	for n := range 5 {
		id := fmt.Sprint("box", n)
		commit(t, gone, asleep(id, 1, "cp"+id))
		putReplica(t, gone, id, "cp"+id)
		done := make([]bool, most)
		took := atOnce(t, most, errdef.Conflict, func(i int) error {
			sb := asleep(id, 2, fmt.Sprint("made by ", i))
			sb.Rev, sb.Owner = 1, "gone"
			err := stores[i].Take(t.Context(), sb, []lifecycle.Entry{entry(2)})
			done[i] = err == nil
			return err
		})
		winner := slices.Index(done, true)
		if took != 1 {
			t.Fatalf("%d servers have taken the sandbox", took)
		}
		sb, err := gone.Sandbox(t.Context(), id)
		r, err2 := gone.Replica(t.Context(), id)
		if made := fmt.Sprint("made by ", winner); err != nil || err2 != nil || sb.Owner != fmt.Sprint("srv", winner) || sb.Rev != 2 || sb.Record.Checkpoint.ID != made || r.Checkpoint != made {
			t.Errorf("server %d has taken %+v, %v, with replica %+v, %v", winner, sb, err, r, err2)
		}
		if got := events(t, gone, id, 0, 10); len(got) != 1 {
			t.Errorf("%d events, want that of the one", len(got))
		}
	}
}

// testTakeAfterAnOutage: a server that could not renew its own lease knows nothing of others
// that could not either, until they had time to.
func testTakeAfterAnOutage(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	commit(t, one, asleep("a", 1, "cp"))
	putReplica(t, one, "a", "cp")
	snap := snapshotOf(t, one, "s", "b", memoryOf("cp"))
	copySnapshot(t, one, "s", "cp")
	held := func() time.Duration {
		t.Helper()
		all, err := leasesOf(two).Servers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all[slices.IndexFunc(all, func(srv store.Server) bool { return srv.ID == "two" })].Held
	}
	before := held()
	time.Sleep(20 * time.Millisecond)
	if got := held(); got < before+15*time.Millisecond || got > time.Hour {
		t.Errorf("its lease is held for %s, and was for %s", got, before)
	}
	began := time.Now()
	for _, s := range []store.Store{one, two} {
		if err := s.Renew(t.Context(), -time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := two.Renew(t.Context(), time.Hour); err != nil { // it is the first
		t.Fatal(err)
	}
	if got := held(); got > time.Since(began)+5*time.Millisecond {
		t.Errorf("after a gap its lease is held for %s", got)
	}
	if err := two.Renew(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	sb := latest(t, two, asleep("a", 2, "made"))
	sb.Owner = "one"
	wantElsewhere(t, "when the database is back", two.Take(t.Context(), sb, nil), "one")
	takeSnapshot := func() error {
		_, err := two.TakeSnapshot(t.Context(), snap, memoryOf("made"), store.Config{})
		return err
	}
	wantElsewhere(t, "a snapshot when the database is back", takeSnapshot(), "one")
	if err := one.Release(t.Context()); err != nil { // which says that it has left
		t.Fatal(err)
	}
	if err := errors.Join(two.Take(t.Context(), sb, nil), takeSnapshot()); err != nil {
		t.Errorf("once it has left: %v", err)
	}
}

// changesOf returns how often each kind of records has changed.
func changesOf(t *testing.T, s store.Store) map[store.Kind]int64 {
	t.Helper()
	all, err := s.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantOwnReplicas holds of what a server has replicas.
func wantOwnReplicas(t *testing.T, s store.Store, owner string, want ...store.Replica) {
	t.Helper()
	if got, err := s.Replicas(t.Context(), owner); err != nil || !slices.Equal(got, want) {
		t.Errorf("the replicas of what %s has are %+v, %v; want %+v", owner, got, err, want)
	}
}

// testSnapshotReplicas: a snapshot has one replica at most, which its own server puts, and
// which goes with the snapshot.
func testSnapshotReplicas(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for _, id := range []string{"s1", "s2", "s3"} {
		snapshotOf(t, one, id, "a", memoryOf("cp of "+id))
	}
	of := putReplica(t, one, "a", "cp")
	changes := changesOf(t, two)[store.KindSnapshots]
	first, second, third := copySnapshot(t, one, "s1", "cp1"), copySnapshot(t, one, "s2", "cp2"), copySnapshot(t, one, "s3", "cp3")
	if now := changesOf(t, two)[store.KindSnapshots]; now <= changes {
		t.Errorf("that snapshots have copies is no change: %d", now)
	}
	snapshotOf(t, two, "theirs", "b", memoryOf("cp"))
	theirs := copySnapshot(t, two, "theirs", "cp")
	wantReplicas(t, two, of, first, second, third, theirs)
	wantOwnReplicas(t, two, "one", of, first, second, third)
	wantOwnReplicas(t, one, "two", theirs)
	wantOwnReplicas(t, one, "three")

	_, err := two.PutReplica(t.Context(), first)
	wantElsewhere(t, "the replica of another server's snapshot", err, "one")
	_, err = one.PutReplica(t.Context(), store.Replica{Snapshot: "a"})
	wantCode(t, err, "snapshot_not_found")
	next := first
	next.Checkpoint, next.Index, next.Bytes, next.At = "cp9", "other", 1<<40, utc(9)
	if before, err := one.PutReplica(t.Context(), next); err != nil || before == nil || *before != first {
		t.Errorf("a replica has come after %+v, %v; want %+v", before, err, first)
	}
	for _, snap := range snapshots(t, two) {
		if snap.Durability != store.Replicated {
			t.Errorf("snapshot %s is %q", snap.ID, snap.Durability)
		}
	}
	snap := store.Snapshot{ID: "s4", CreatedAt: epoch, Replaces: "s2", Drops: []string{"s3"}}
	if err := one.CommitSnapshot(t.Context(), snap, latest(t, one, sandbox("a", 1)), nil); err != nil {
		t.Fatal(err)
	}
	wantReplicas(t, one, of, next, theirs)
	removeSnapshot(t, one, "s1")
	wantReplicas(t, one, of, theirs)
	_, err = one.PutReplica(t.Context(), next)
	wantCode(t, err, "snapshot_not_found")
	wantReplicas(t, h.reopen(t, one), of, theirs)
}

// testTakeSnapshot: a server that is over loses a snapshot to another, with all that it is.
func testTakeSnapshot(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	was := snapshotOf(t, one, "s", "a", memoryOf("cp", "l1", "l2"))
	child := asleepAt("child", memoryOf("cp", "l1"))
	if err := one.Commit(t.Context(), child, []lifecycle.Entry{{Type: lifecycle.EntryCreated}}); err != nil {
		t.Fatal(err)
	}
	other := snapshotOf(t, one, "t", "a", memoryOf("cp of t", "l2"))
	r := copySnapshot(t, one, "s", "cp")
	pinned := was
	pinned.Pinned = true // by its owner, since it was read
	if err := one.ChangeSnapshot(t.Context(), pinned); err != nil {
		t.Fatal(err)
	}
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes := changesOf(t, one)[store.KindSnapshots]
	made := memoryOf("made", "l9")
	got, err := two.TakeSnapshot(t.Context(), was, made, store.Config{Template: "here", Limits: store.Limits{DiskMiB: 7}})
	taken := pinned
	taken.Checkpoint, taken.Owner, taken.Durability, taken.Config.Template, taken.Config.Limits.DiskMiB = made, "two", store.Replicated, "here", 7
	if err != nil || !reflect.DeepEqual(got, taken) {
		t.Errorf("taken is %+v, %v; want %+v", got, err, taken)
	}
	if now := changesOf(t, one)[store.KindSnapshots]; now <= changes {
		t.Errorf("that a snapshot was taken over is no change: %d", now)
	}
	r.Checkpoint = "made"
	for _, s := range []store.Store{one, two} {
		if got := snapshots(t, s); !reflect.DeepEqual(got, []store.Snapshot{taken, other}) {
			t.Errorf("snapshots are %+v; want %+v", got, []store.Snapshot{taken, other})
		}
		wantReplicas(t, s, r)
	}
	wantNeeded(t, one, "", map[string]bool{"cp": true, "l1": true, "l2": true, "made": false, "l9": false}) // by others that it has
	wantNeeded(t, one, "child", map[string]bool{"cp": false, "l1": false, "l2": true})
	wantNeeded(t, two, "", map[string]bool{"cp": false, "l1": false, "l2": false, "made": true, "l9": true})

	// Who had it changes it no more, and nothing of theirs starts from it.
	_, err = one.PutReplica(t.Context(), r)
	wantElsewhere(t, "a replica of the owner before", err, "two")
	wantElsewhere(t, "a change of the owner before", one.ChangeSnapshot(t.Context(), pinned), "two")
	wantElsewhere(t, "a removal of the owner before", one.RemoveSnapshot(t.Context(), "s"), "two")
	late := asleepAt("late", memoryOf("cp", "l1"))
	wantCode(t, one.Commit(t.Context(), late, []lifecycle.Entry{{Type: lifecycle.EntryCreated}}), "snapshot_gone")
	if err := two.Commit(t.Context(), asleepAt("next", made), []lifecycle.Entry{{Type: lifecycle.EntryCreated}}); err != nil {
		t.Errorf("a sandbox that starts from it: %v", err)
	}
	wantReplicas(t, one, r)
	removeSnapshot(t, two, "s")
	wantReplicas(t, one)
}

// testTakeSnapshotRefused: nothing happens where a snapshot may not be taken.
func testTakeSnapshotRefused(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	for _, id := range []string{"a", "none", "other", "given"} {
		snapshotOf(t, one, id, "of "+id, memoryOf("cp"))
	}
	copySnapshot(t, one, "a", "cp")
	copySnapshot(t, one, "given", "cp")
	copySnapshot(t, one, "other", "cp2")
	putReplica(t, one, "of none", "cp")
	snapshotOf(t, two, "mine", "b", memoryOf("cp"))
	copySnapshot(t, two, "mine", "cp")
	take := func(id, owner, checkpoint string) error {
		_, err := two.TakeSnapshot(t.Context(), store.Snapshot{ID: id, Owner: owner, Checkpoint: lifecycle.Checkpoint{ID: checkpoint}}, memoryOf("made", "l9"), store.Config{})
		return err
	}
	if err := leasesOf(two).SetDraining(t.Context(), "one", true); err != nil {
		t.Fatal(err)
	}
	if err := take("given", "one", "cp"); err != nil {
		t.Errorf("while the lease of a server lasts that is drained: %v", err)
	}
	if err := leasesOf(two).SetDraining(t.Context(), "one", false); err != nil {
		t.Fatal(err)
	}
	before := all(t, two)
	wantElsewhere(t, "while the lease lasts", take("a", "one", "cp"), "one")
	leave(t, one, 0)
	delete(before, "servers")
	for what, c := range map[string]struct{ id, owner, checkpoint, want string }{
		"of another checkpoint":                {"a", "one", "cp2", "record_changed"},
		"unknown":                              {"unknown", "one", "cp", "snapshot_not_found"},
		"one's own":                            {"mine", "one", "cp", "record_changed"},
		"known as one's own":                   {"mine", "two", "cp", "record_changed"},
		"of a third server":                    {"a", "three", "cp", "on_another_server"},
		"of no server":                         {"a", "", "cp", "on_another_server"},
		"without a replica":                    {"none", "one", "cp", "not_replicated"},
		"with a replica of another checkpoint": {"other", "one", "cp", "not_replicated"},
	} {
		err := take(c.id, c.owner, c.checkpoint)
		if code(err) != c.want || !store.Refused(err) || store.IsNotReplicated(err) != (c.want == "not_replicated") {
			t.Errorf("a snapshot %s: %v, want code %q", what, err, c.want)
		}
		for kind, has := range all(t, two) {
			if was, known := before[kind]; known && !reflect.DeepEqual(has, was) {
				t.Fatalf("the take of a snapshot %s has changed the %s: %+v, want %+v", what, kind, has, was)
			}
		}
	}
	if err := take("a", "one", "cp"); err != nil { // at once when the lease is over
		t.Errorf("once nothing is in the way: %v", err)
	}
	wantElsewhere(t, "once another has it", func() error {
		_, err := one.TakeSnapshot(t.Context(), store.Snapshot{ID: "a", Owner: "one", Checkpoint: lifecycle.Checkpoint{ID: "made"}}, memoryOf("again"), store.Config{})
		return err
	}(), "two")
}

// builtOn has a server build a template with two results, which are in object storage, and a
// step, and returns what a server that takes it over makes of it.
func builtOn(t *testing.T, s store.Store) (next store.Template, made []store.Remade) {
	t.Helper()
	next = built("t", "k", "app")
	next.Builds = []store.Build{{ID: "b1", Status: store.BuildReady, CreatedAt: epoch}, {ID: "b2", Status: store.BuildRunning, CreatedAt: epoch}}
	next.Cache = []store.StepResult{{Hash: "h", Snapshot: "step"}, {Hash: "g"}}
	if err := s.PutTemplate(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	for i, snap := range []store.Snapshot{{ID: "s1", Name: "app"}, {ID: "s2", Name: "app:v2"}, {ID: "step"}, {ID: "other"}} {
		snap.Key, snap.Sandbox, snap.CreatedAt, snap.Checkpoint, snap.Config.Build = "k", "box", utc(i), memoryOf("cp of "+snap.ID, "l of "+snap.ID), "b1"
		if err := s.CommitSnapshot(t.Context(), snap, latest(t, s, sandbox("box", 1)), nil); err != nil {
			t.Fatal(err)
		}
		if snap.Owner = s.Self(); snap.Name != "" {
			copySnapshot(t, s, snap.ID, snap.Checkpoint.ID)
			made = append(made, store.Remade{Was: snap, Made: memoryOf("made "+snap.ID, "m of "+snap.ID), Config: store.Config{Build: "b1", Template: "here"}})
		}
	}
	next = only(t, templates(t, s))
	next.Cache = nil
	next.FailUnfinished("it is gone", utc(9))
	return next, made
}

// testTakeTemplate: a server that is over loses a template to another, with its results; what its
// steps have led to goes.
func testTakeTemplate(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	next, made := builtOn(t, one)
	if err := one.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes := changesOf(t, one)
	if err := two.TakeTemplate(t.Context(), next, made); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []store.Kind{store.KindSnapshots, store.KindTemplates} {
		if now := changesOf(t, one)[kind]; now <= changes[kind] {
			t.Errorf("that a template was taken over is no change of %s: %d", kind, now)
		}
	}
	want := next
	want.Owner, want.Rev = "two", next.Rev+1
	for _, s := range []store.Store{one, two} {
		diff(t, "taken", only(t, templates(t, s)), want)
		owners := map[string]string{}
		for _, snap := range snapshots(t, s) {
			owners[snap.ID+" "+snap.Checkpoint.ID] = snap.Owner
		}
		if want := map[string]string{"s1 made s1": "two", "s2 made s2": "two", "other cp of other": "one"}; !maps.Equal(owners, want) {
			t.Errorf("the snapshots are %q, want %q", owners, want)
		}
		for id, want := range map[string]string{"s1": "made s1", "s2": "made s2"} {
			if r, err := s.Replica(t.Context(), id); err != nil || r.Checkpoint != want {
				t.Errorf("the replica of %s is %+v, %v", id, r, err)
			}
		}
	}
	wantNeeded(t, one, "", map[string]bool{"l of s1": false, "l of step": false, "l of other": true, "m of s1": false})
	wantNeeded(t, two, "", map[string]bool{"m of s1": true, "m of s2": true, "l of s1": false})

	// Who had it changes it no more, nor gives it a result.
	wantElsewhere(t, "a change of the owner before", one.PutTemplate(t.Context(), want), "two")
	wantElsewhere(t, "a removal by the owner before", one.RemoveTemplate(t.Context(), "t"), "two")
	late := store.Snapshot{ID: "s3", Key: "k", Name: "app:v3", CreatedAt: epoch, Config: store.Config{Build: "b2"}}
	wantElsewhere(t, "a result of the owner before", one.CommitSnapshot(t.Context(), late, latest(t, one, sandbox("box", 1)), nil), "two")
	if err := two.PutTemplate(t.Context(), want); err != nil {
		t.Error(err)
	}
	if err := two.RemoveTemplate(t.Context(), "t"); err != nil {
		t.Error(err)
	}
}

// testTakeTemplateRefused: nothing happens where a template may not be taken, or not all of it.
func testTakeTemplateRefused(t *testing.T, h harness) {
	one, two := twoServers(t, h)
	next, made := builtOn(t, one)
	mine := built("mine", "k", "mine")
	if err := two.PutTemplate(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	mine.Rev = 1
	with := func(change func(x *store.Template)) store.Template {
		x := next.Copy()
		change(&x)
		return x
	}
	wantElsewhere(t, "while the lease lasts", two.TakeTemplate(t.Context(), next, made), "one")
	leave(t, one, 0)
	before := all(t, two)
	delete(before, "servers")
	refused := func(what, want string, x store.Template, made []store.Remade) {
		t.Helper()
		if err := two.TakeTemplate(t.Context(), x, made); code(err) != want || !store.Refused(err) {
			t.Errorf("a template %s: %v, want code %q", what, err, want)
		}
		for kind, has := range all(t, two) {
			if was, known := before[kind]; known && !reflect.DeepEqual(has, was) {
				t.Fatalf("the take of a template %s has changed the %s: %+v, want %+v", what, kind, has, was)
			}
		}
	}
	refused("that is one's own", "record_changed", with(func(x *store.Template) { x.ID = "mine" }), nil)
	refused("that is not there", "template_not_found", with(func(x *store.Template) { x.ID = "none" }), nil)
	refused("of a third server", "on_another_server", with(func(x *store.Template) { x.Owner = "three" }), made)
	refused("that has changed", "record_changed", with(func(x *store.Template) { x.Rev-- }), made)
	refused("without one of its results", "not_replicated", next, made[:1])
	changed := slices.Clone(made)
	changed[1].Was.Checkpoint.ID = "before"
	refused("with a result that has changed", "record_changed", next, changed)
	changed[1].Was.ID = "unknown"
	refused("with a result that is not there", "snapshot_not_found", next, changed)

	if err := one.Renew(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	copySnapshot(t, one, "s2", "cp before")
	leave(t, one, 0)
	before = all(t, two)
	delete(before, "servers")
	refused("with a result whose copy is of another checkpoint", "not_replicated", next, made)

	removeSnapshot(t, one, "s2") // by hand
	if err := two.TakeTemplate(t.Context(), next, made[:1]); err != nil {
		t.Errorf("with what is there: %v", err)
	}
	diff(t, "two's own", templates(t, two)[0], func() store.Template { mine.Owner = "two"; return mine }())
}

// testTakeTemplateDrained: a server that is drained lets others have its templates while it lives,
// but none that it builds, or is about to.
func testTakeTemplateDrained(t *testing.T, h harness) {
	for name, c := range map[string]struct {
		status store.BuildStatus
		asked  time.Duration // since it was
		want   string
	}{
		"it is built":               {store.BuildRunning, 24 * time.Hour, "on_another_server"},
		"it is about to be":         {store.BuildWaiting, 0, "on_another_server"},
		"nobody has begun to build": {store.BuildWaiting, time.Hour, ""},
		"it is built already":       {store.BuildReady, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := twoServers(t, h)
			was := built("t1", "key-1", "tea")
			was.Builds = []store.Build{{ID: "b", Status: c.status, CreatedAt: time.Now().Add(-c.asked)}}
			if err := one.PutTemplate(t.Context(), was); err != nil {
				t.Fatal(err)
			}
			next := only(t, templates(t, two))
			next.FailUnfinished("it is drained", utc(9))
			wantElsewhere(t, "while the server is not drained", two.TakeTemplate(t.Context(), next, nil), "one")
			if err := leasesOf(one).SetDraining(t.Context(), "one", true); err != nil {
				t.Fatal(err)
			}
			if err := two.TakeTemplate(t.Context(), next, nil); code(err) != c.want {
				t.Errorf("of a server that is drained: %v, want code %q", err, c.want)
			}
			if c.want != "" { // its server may be gone all the same
				leave(t, one, 0)
				if err := two.TakeTemplate(t.Context(), next, nil); err != nil {
					t.Errorf("of a server that is gone: %v", err)
				}
			}
		})
	}
}

// testTakeWaitingTemplate: a template of which nothing was made yet goes to whichever server
// begins with it, unless something of it changes there.
func testTakeWaitingTemplate(t *testing.T, h harness) {
	waits := store.Build{ID: "b", Status: store.BuildWaiting, CreatedAt: epoch}
	for name, c := range map[string]struct {
		has  func(x *store.Template) // beside a build that waits
		next func(x *store.Template)
		want string
	}{
		"nothing was made": {},
		"a build has failed": {has: func(x *store.Template) {
			x.Builds = append(x.Builds, store.Build{ID: "a", Status: store.BuildFailed, CreatedAt: epoch})
		}},
		"a build runs": {func(x *store.Template) {
			x.Builds = append(x.Builds, store.Build{ID: "a", Status: store.BuildRunning, CreatedAt: epoch})
		}, nil, "on_another_server"},
		"a tag has a snapshot": {func(x *store.Template) { x.Tags = map[string]store.Tag{"default": {Build: "a", Snapshot: "s"}} }, nil, "on_another_server"},
		"a step has one":       {func(x *store.Template) { x.Cache = []store.StepResult{{Hash: "h", Snapshot: "s"}} }, nil, "on_another_server"},
		"no build waits":       {func(x *store.Template) { x.Builds[0].Status = store.BuildReady }, nil, "on_another_server"},
		"the build is failed":  {nil, func(x *store.Template) { x.FailUnfinished("no", utc(9)) }, "on_another_server"},
		"it has changed":       {nil, func(x *store.Template) { x.Rev++ }, "record_changed"},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := twoServers(t, h)
			was := built("t1", "key-1", "tea")
			was.Builds = []store.Build{waits}
			if c.has != nil {
				c.has(&was)
			}
			if err := one.PutTemplate(t.Context(), was); err != nil {
				t.Fatal(err)
			}
			next := only(t, templates(t, two))
			if c.next != nil {
				c.next(&next)
			}
			err := two.TakeTemplate(t.Context(), next, nil)
			if code(err) != c.want {
				t.Errorf("the template is taken with %v, want code %q", err, c.want)
			}
			want := "one"
			if c.want == "" {
				want = "two"
			}
			if got := only(t, templates(t, one)); got.Owner != want || len(got.Builds) != len(was.Builds) || got.Builds[0].Status != was.Builds[0].Status {
				t.Errorf("then it is %+v", got)
			}
		})
	}
}

// testTakeTemplateTogether: of the servers that take a template at once, one has all of it.
func testTakeTemplateTogether(t *testing.T, h harness) {
	const most = 4
	gone := h.open(t)
	claim(t, gone, server("gone", "away"), time.Hour)
	next, made := builtOn(t, gone)
	leave(t, gone, 0)
	var stores []store.Store
	for i := range most {
		s := h.share(t, gone)
		claim(t, s, server(fmt.Sprint("srv", i), fmt.Sprint("place", i)), time.Hour)
		stores = append(stores, s)
	}
	if took := atOnce(t, most, errdef.Conflict, func(i int) error { return stores[i].TakeTemplate(t.Context(), next, made) }); took != 1 {
		t.Errorf("%d servers have taken the template", took)
	}
	owner := only(t, templates(t, gone)).Owner
	for _, snap := range snapshots(t, gone) {
		if snap.Name != "" && snap.Owner != owner {
			t.Errorf("result %s is of %q, and the template of %q", snap.ID, snap.Owner, owner)
		}
	}
}
