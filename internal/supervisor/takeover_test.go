package supervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/memstore"
	"github.com/drowse-dev/drowse/internal/supervisor/snapshots"
	"github.com/drowse-dev/drowse/internal/sweep"
	"github.com/drowse-dev/drowse/internal/testmode"
)

// pair is two servers with one database and one object storage, on two machines.
type pair struct {
	blobs    *blobstest.Faulty
	one, two *Supervisor
	worlds   map[*Supervisor]*world
	servers  map[*Supervisor]*server
	// after is called when the second has committed something: its error is the answer.
	after atomic.Pointer[func() error]
	full  atomic.Bool // the object storage takes nothing
}

func newPair(t *testing.T, tune func(*Options)) *pair {
	t.Helper()
	p := &pair{blobs: blobstest.NewFake(), worlds: map[*Supervisor]*world{}, servers: map[*Supervisor]*server{}}
	p.blobs.Fail = func(op, _ string) error {
		if p.full.Load() && op == "put" {
			return errors.New("the bucket is gone")
		}
		return nil
	}
	open := func(w *world, id string) *Supervisor {
		w.tune = func(o *Options) {
			if _, err := o.Store.Claim(t.Context(), store.Server{ID: id, Place: id}, time.Hour); err != nil {
				t.Fatal(err)
			}
			o.Blobs, o.BlobPrefix = p.blobs, "copies"
			if tune != nil {
				tune(o)
			}
		}
		srv := w.mustOpen(t)
		t.Cleanup(func() { w.end(t, srv) })
		p.worlds[srv.s], p.servers[srv.s] = w, srv
		return srv.s
	}
	w := newWorldIn(t, t.TempDir())
	p.one = open(w, "one")
	other := newWorldIn(t, t.TempDir())
	other.data = w.data
	other.hooks = func(*server) memstore.Hooks {
		return memstore.Hooks{After: func(memstore.Commit) error {
			if after := p.after.Load(); after != nil {
				return (*after)()
			}
			return nil
		}}
	}
	p.two = open(other, "two")
	return p
}

// wantCount holds what a sandbox has counted to, in which generation.
func (p *pair) wantCount(t *testing.T, s *Supervisor, id string, want, generation int64) {
	t.Helper()
	lease, err := s.Acquire(t.Context(), id, Access{Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	w := p.worlds[s]
	w.mu.Lock()
	program := w.programs[sweep.RuntimeID(id, record(t, s, id).Launch)]
	w.mu.Unlock()
	if got, err := program.ask(lease.Cut); err != nil || got != want || lease.Generation != generation {
		t.Errorf("it has counted to %d in generation %d, %v; want %d in %d", got, lease.Generation, err, want, generation)
	}
}

// asleep returns a sandbox that has counted to one on the first server, and sleeps there with a copy.
func (p *pair) asleep(t *testing.T) (id string) {
	t.Helper()
	id = create(t, p.one, wakes)
	p.wantCount(t, p.one, id, 1, 1)
	if err := p.one.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	copied(t, p.one)
	return id
}

// leave has the lease of the first server be over for so long.
func (p *pair) leave(t *testing.T, ago time.Duration) {
	t.Helper()
	if err := p.one.o.Store.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.one.o.Store.Renew(t.Context(), -ago); err != nil {
		t.Fatal(err)
	}
}

// restart kills a server, and starts it again.
func (p *pair) restart(t *testing.T, s *Supervisor) *Supervisor {
	t.Helper()
	w := p.worlds[s]
	p.servers[s].crash()
	srv := w.mustOpen(t)
	t.Cleanup(func() { w.end(t, srv) })
	p.worlds[srv.s], p.servers[srv.s] = w, srv
	return srv.s
}

// copied waits until all that sleeps on a server is copied.
func copied(t *testing.T, s *Supervisor) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.AwaitCopies(ctx); err != nil {
		t.Fatal(err)
	}
}

// wantGone holds that a server has nothing of a sandbox any more.
func wantGone(t *testing.T, s *Supervisor, id string) {
	t.Helper()
	testmode.Eventually(t, "nothing of it is left", func() bool {
		runtimes, _ := s.o.Driver.List(t.Context())
		layers, _ := s.o.Layers.Layers()
		images, _ := s.o.Layers.Images()
		mine := func(name string) bool { return strings.HasPrefix(name, id) }
		return !s.Knows(id) && !slices.ContainsFunc(runtimes, mine) && !slices.ContainsFunc(layers, mine) && len(images) == 0
	})
}

var wakes = CreateRequest{Settings: lifecycle.Settings{Timeout: time.Hour, OnTimeout: lifecycle.Pause, AutoResume: true}, Config: store.Config{Key: "k", Name: "n"}}

// TestTakeOver: another server goes on with what sleeps on one whose lease is over, and not
// before, and the one that had it gives it up.
func TestTakeOver(t *testing.T) {
	p := newPair(t, nil)
	id := p.asleep(t)
	was := record(t, p.one, id)
	wantElsewhere(t, "while the lease lasts", p.two.TakeOver(t.Context(), id), id, "one")
	p.leave(t, 0)
	if err := p.two.TakeOver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	sb, err := p.two.Get(t.Context(), id)
	if rec := sb.Record; err != nil || rec.State != lifecycle.Paused || rec.Generation != was.Generation || !rec.PausedAt.Equal(was.PausedAt) || rec.Launches <= was.Launches || sb.Owner != "two" || sb.Durability != store.Replicated {
		t.Errorf("taken over it is %+v, %v; it was %+v", sb, err, was)
	}
	if named, ok := p.two.Named("k", "n"); !ok || named != id {
		t.Errorf("its name leads to %q", named)
	}
	if err := p.two.TakeOver(t.Context(), id); !store.IsChanged(err) {
		t.Errorf("once more: %v", err)
	}
	if _, err := p.two.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, id, 2, 2)

	// The first knows nothing of it yet.
	stale, err := p.one.box(id)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.one.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour})
	wantElsewhere(t, "a wake where it was", err, id, "two")
	wantGone(t, p.one, id)
	if use := p.one.KeyUse("k"); use != (store.Use{}) {
		t.Errorf("the key still uses %+v", use)
	}
	stale.mu.Lock()
	stale.sb.Record.Op = &lifecycle.Operation{ID: "op", Phase: lifecycle.Resuming, Attempt: 1} // which will not end here
	stale.mu.Unlock()
	_, _, err = asked{stale}.Request(lifecycle.ConnectRequested{Meta: lifecycle.Meta{Op: "other"}, Timeout: time.Hour})
	wantElsewhere(t, "a call that has found it before", err, id, "two")
	if err := p.one.Renew(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := p.one.TakeOver(t.Context(), id); err == nil {
		t.Error("taken back from a server that lives")
	}

	// And back again: the names of layers are not used twice.
	if err := p.two.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	copied(t, p.two)
	if err := p.two.o.Store.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.one.TakeOver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := p.two.Disown(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGone(t, p.two, id)
	if _, err := p.one.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.one, id, 3, 3)
	kill(t, p.one, id)
	testmode.Eventually(t, "nothing of it is in object storage", func() bool {
		for range p.blobs.List(t.Context(), "copies/"+id) {
			return false
		}
		return true
	})
}

// Renew gives the server a lease again.
func (s *Supervisor) Renew(t *testing.T, life time.Duration) error {
	return s.o.Store.Renew(t.Context(), life)
}

// TestTakeOverOfARunner: what runs on a server is taken for lost only when that has been gone
// for a while, and goes on from its last checkpoint that was copied.
func TestTakeOverOfARunner(t *testing.T) {
	p := newPair(t, nil)
	id, fresh := p.asleep(t), create(t, p.one, CreateRequest{Settings: sleepy})
	if _, err := p.one.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.one, id, 2, 2)
	p.leave(t, 0)
	wantElsewhere(t, "at once", p.two.TakeOver(t.Context(), id), id, "one")
	p.leave(t, store.LostAfter)
	if err := p.two.TakeOver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	events, err := p.two.LastEvents(t.Context(), id, 1)
	if err != nil || len(events) != 1 || events[0].Type != lifecycle.EntryRuntimeLost || !strings.Contains(events[0].Detail, "one") {
		t.Errorf("the last event is %+v, %v", events, err)
	}
	if _, err := p.two.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, id, 2, 3)
	if err := p.two.TakeOver(t.Context(), fresh); !store.IsNotReplicated(err) {
		t.Errorf("one that has never slept: %v", err)
	}
	if err := p.one.Disown(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGone(t, p.one, id)
	p.wantCount(t, p.one, fresh, 1, 1) // it is still its own
}

// TestCutAll: who may have lost its sandboxes ends what is open, and gives leases again when
// it is sure.
func TestCutAll(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	lease, err := p.one.Acquire(t.Context(), id, Access{Port: 8080, Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := p.one.box(id)
	b.mu.Lock() // a commit that hangs
	p.one.CutAll()
	b.mu.Unlock()
	if !isCut(lease) || errdef.CodeOf(lease.Why()) != "lease_lapsed" {
		t.Errorf("the stream: %v", lease.Why())
	}
	lease.Release()
	p.wantCount(t, p.one, id, 1, 1)
}

// TestDurability: a pause that promises a copy is answered when that is there, and one that
// cannot be made is told, with the sandbox asleep; nothing but its own server has it then.
func TestDurability(t *testing.T) {
	p := newPair(t, func(o *Options) { o.Replicated = true })
	id := create(t, p.one, wakes)
	p.full.Store(true)
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := p.one.Pause(short, id, PauseRequest{})
	if code(err) != "replica_pending" || !strings.Contains(err.Error(), "the object storage") {
		t.Errorf("a pause without a copy: %v", err)
	}
	sb, _ := p.one.Get(t.Context(), id)
	if sb.Record.State != lifecycle.Paused || sb.Durability != store.Local || !strings.Contains(sb.Unreplicated, "the object storage") {
		t.Errorf("it is %s, %q, %q", sb.Record.State, sb.Durability, sb.Unreplicated)
	}
	p.leave(t, time.Hour)
	if err := p.two.TakeOver(t.Context(), id); !store.IsNotReplicated(err) {
		t.Errorf("taken over without a copy: %v", err)
	}
	if err := p.one.Renew(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	again, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := p.one.Pause(again, id, PauseRequest{}); code(err) != "replica_pending" {
		t.Errorf("once more: %v", err)
	}
	p.full.Store(false)
	err = p.one.Pause(t.Context(), id, PauseRequest{})
	for end := time.Now().Add(time.Minute); code(err) == "replica_pending" && time.Now().Before(end); err = p.one.Pause(t.Context(), id, PauseRequest{}) {
		time.Sleep(10 * time.Millisecond) // it is not known yet that the store is up again
	}
	if code(err) != "already_paused" {
		t.Errorf("when it can be copied: %v", err)
	}
	if sb, _ := p.one.Get(t.Context(), id); sb.Durability != store.Replicated || sb.Unreplicated != "" {
		t.Errorf("then it is %q, %q", sb.Durability, sb.Unreplicated)
	}
}

// TestTakeOverWithoutAnAnswer: where it is not known whether the commit has happened, nothing
// of it is removed until it is.
func TestTakeOverWithoutAnAnswer(t *testing.T) {
	p := newPair(t, nil)
	id := p.asleep(t)
	p.leave(t, 0)
	lost := 0
	p.after.Store(new(func() error {
		if lost++; lost > 1 {
			return nil
		}
		return errors.New("no answer")
	}))
	if err := p.two.TakeOver(t.Context(), id); err != nil || lost != 1 {
		t.Fatalf("%v, after %d commits", err, lost)
	}
	if _, err := p.two.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, id, 2, 2)
}

// lateStore is a store whose first commits of what is taken over are not answered, and happen
// only when the same is tried again: nobody sees them before.
type lateStore struct {
	store.Store
	late map[string]func() // by id
}

// commit does what a commit of something does, or has it happen late.
func (l *lateStore) commit(of string, do func() error) error {
	if late, tried := l.late[of]; tried {
		late()
		l.late[of] = func() {}
		return do()
	}
	l.late[of] = func() { _ = do() }
	return store.ErrUnlearned(errors.New("no answer"))
}

func (l *lateStore) Take(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	return l.commit(sb.ID, func() error { return l.Store.Take(ctx, sb, entries) })
}

func (l *lateStore) TakeSnapshot(ctx context.Context, was store.Snapshot, made lifecycle.Checkpoint, config store.Config) (snap store.Snapshot, err error) {
	err = l.commit(was.ID, func() error {
		snap, err = l.Store.TakeSnapshot(ctx, was, made, config)
		return err
	})
	return snap, err
}

// TestTakeOverCommittedLate: a commit that is under way for so long that nobody knows what has
// become of it may happen after it was looked for in vain. What it says is here stays, and is known.
func TestTakeOverCommittedLate(t *testing.T) {
	p := newPair(t, func(o *Options) {
		if o.Store.Self() == "two" {
			o.Store = &lateStore{o.Store, map[string]func(){}}
		}
	})
	id, lost := create(t, p.one, wakes), create(t, p.one, CreateRequest{Settings: wakes.Settings})
	p.wantCount(t, p.one, id, 1, 1)
	snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: "point"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{id, lost} {
		if err := p.one.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	copied(t, p.one)
	p.leave(t, 0)
	if err := p.two.TakeOver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, id, 2, 2)
	if err := p.two.TakeOver(t.Context(), snap.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := p.two.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: wakes.Settings, Config: store.Config{Key: "k"}}); err != nil {
		t.Errorf("from the snapshot: %v", err)
	}
	if err := p.two.EndLost(t.Context(), lost, "me"); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "it has ended", func() bool {
		return record(t, p.two, lost).State == lifecycle.Terminated && record(t, p.two, lost).Op == nil
	})
}

// refusing is a store that refuses the first commits of what is taken over.
type refusing struct {
	store.Store
	refused func(store.Sandbox) // told of the first of each sandbox
	before  map[string]bool
}

func (r *refusing) Take(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	if !r.before[sb.ID] {
		r.before[sb.ID] = true
		r.refused(sb)
		return store.ErrElsewhere("sandbox "+sb.ID, sb.Owner)
	}
	return r.Store.Take(ctx, sb, entries)
}

// TestTakeOverAfterRefusal: what was received for a commit that was refused is removed before the
// same is received once more, under the same names; be it that this succeeds only later.
func TestTakeOverAfterRefusal(t *testing.T) {
	var p *pair
	blocked := ""
	refused := func(sb store.Sandbox) {
		blocked = p.two.o.Layers.ImageDir(sb.Record.Checkpoint.ID) + ".deleted" // where it goes before it is removed
		if err := os.MkdirAll(filepath.Join(blocked, "full"), 0o700); err != nil {
			t.Error(err)
		}
	}
	p = newPair(t, func(o *Options) {
		if o.Store.Self() == "two" {
			o.Store = &refusing{o.Store, refused, map[string]bool{}}
		}
	})
	id := p.asleep(t)
	p.leave(t, 0)
	wantElsewhere(t, "refused", p.two.TakeOver(t.Context(), id), id, "one")
	if err := p.two.TakeOver(t.Context(), id); !store.IsChanged(err) {
		t.Errorf("while that is not removed: %v", err)
	}
	if err := os.RemoveAll(blocked); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "it is taken over", func() bool { return p.two.TakeOver(t.Context(), id) == nil })
	wantParts(t, p.two, *record(t, p.two, id).Checkpoint, true)
	p.wantCount(t, p.two, id, 2, 2)
}

// TestTakeOverOfMemoryAfterFiles: a copy of the files of a checkpoint is none of its memory.
func TestTakeOverOfMemoryAfterFiles(t *testing.T) {
	p := newPair(t, nil)
	id := p.asleep(t)
	snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: "point"})
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []lifecycle.Mode{lifecycle.Filesystem, lifecycle.Memory} {
		if _, _, err := p.one.Restore(t.Context(), id, RestoreRequest{Snapshot: snap.ID, Mode: mode, Discard: true}); err != nil {
			t.Fatal(err)
		}
		if cp := record(t, p.one, id).Checkpoint; cp.ID != snap.Checkpoint.ID || cp.Mode != mode {
			t.Fatalf("it sleeps with %+v", cp)
		}
		copied(t, p.one)
		if sb, err := p.one.Get(t.Context(), id); err != nil || sb.Durability != store.Replicated {
			t.Errorf("with its %s it is %q, %v", mode, sb.Durability, err)
		}
	}
	p.leave(t, 0)
	if err := p.two.TakeOver(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, id, 2, 2)
}

// handOver has the first server hand a sandbox over to the second.
func (p *pair) handOver(t *testing.T, id string) error {
	return p.one.HandOver(t.Context(), id, "two", "me", true, func(ctx context.Context) error { return p.two.Receive(ctx, id, "me") })
}

// TestHandOver: a sandbox moves between servers that both live, with its memory; it runs there
// if it ran here, and what is asked here meanwhile goes on there.
func TestHandOver(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	p.wantCount(t, p.one, id, 1, 1)
	was := record(t, p.one, id)
	if _, err := p.one.SetTimeout(t.Context(), id, 7*time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.one.Hold(t.Context(), id, lifecycle.Lease{Until: was.CreatedAt.Add(time.Hour), Reason: "work"}, "me"); err != nil {
		t.Fatal(err)
	}
	was = record(t, p.one, id)
	lease, err := p.one.Acquire(t.Context(), id, Access{Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	moved := make(chan error, 1)
	go func() { moved <- p.handOver(t, id) }()
	testmode.Eventually(t, "it is being paused", func() bool { return record(t, p.one, id).Phase() == lifecycle.Pausing })
	waits := make(chan error, 4)
	go func() { waits <- p.one.Pause(t.Context(), id, PauseRequest{}) }()
	go func() { _, err := p.one.Acquire(t.Context(), id, Access{Port: 8080}); waits <- err }()
	go func() { _, err := p.one.Connect(t.Context(), id, WakeRequest{Timeout: time.Hour}); waits <- err }()
	go func() { _, err := p.one.SetTimeout(t.Context(), id, time.Hour, ""); waits <- err }()
	wantCode(t, p.handOver(t, id), "move_conflict")
	lease.Release() // the pause waits for that
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	for range 4 {
		wantElsewhere(t, "what waited", <-waits, id, "two")
	}
	if now := record(t, p.two, id); !now.EndAt.Equal(was.EndAt) || !now.EndIsLive || len(now.Leases) != 1 || now.Leases[0] != was.Leases[0] || !now.StartedAt.Equal(was.StartedAt) || now.Moves != nil {
		t.Errorf("it goes on with %+v; before it was %+v", now, was)
	}
	if sb, err := p.one.Get(t.Context(), id); !errdef.Is(err, errdef.NotFound) && errdef.CodeOf(err) != "on_another_server" { // it is forgotten soon
		t.Errorf("where it was, it is %+v, %v", sb, err)
	}
	if all, err := p.one.All(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("there are %+v, %v", all, err)
	}
	if sb, err := p.two.Get(t.Context(), id); err != nil || sb.Record.State != lifecycle.Running || sb.Owner != "two" {
		t.Errorf("it is %+v, %v", sb, err)
	}
	p.wantCount(t, p.two, id, 2, 2)
	wantGone(t, p.one, id)
	events, err := p.two.LastEvents(t.Context(), id, 10)
	var types []lifecycle.EntryType
	for _, e := range slices.Backward(events) {
		types = append(types, e.Type)
		if e.Type == lifecycle.EntryMoved && (e.Cause != lifecycle.CauseMove || e.Detail != "from server one") {
			t.Errorf("it has moved for %q: %s", e.Cause, e.Detail)
		}
	}
	if want := []lifecycle.EntryType{"paused", "moved", "resuming", "resumed"}; err != nil || !slices.Equal(types[len(types)-4:], want) {
		t.Errorf("the events are %v, %v; want %v at the end", types, err, want)
	}

	// And back at once: what sleeps stays asleep.
	if err := p.two.Pause(t.Context(), id, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := p.two.HandOver(t.Context(), id, "one", "me", true, func(ctx context.Context) error { return p.one.Receive(ctx, id, "me") }); err != nil {
		t.Fatal(err)
	}
	if sb, err := p.one.Get(t.Context(), id); err != nil || sb.Record.State != lifecycle.Paused {
		t.Errorf("it is %+v, %v", sb, err)
	}
	p.wantCount(t, p.one, id, 3, 3)
}

// TestHandOverAnsweredLate: a sandbox that has come back before the answer that it had gone is not
// given up.
func TestHandOverAnsweredLate(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	p.wantCount(t, p.one, id, 1, 1)
	err := p.one.HandOver(t.Context(), id, "two", "me", true, func(ctx context.Context) error {
		return errors.Join(
			p.two.Receive(ctx, id, "me"),
			p.one.Disown(ctx), // which learns of it otherwise
			p.two.HandOver(ctx, id, "one", "me", true, func(ctx context.Context) error { return p.one.Receive(ctx, id, "me") }),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.one, id, 2, 3)
	wantGone(t, p.two, id)
}

// TestHandOverRefused: a sandbox that the other server does not take stays, as it was, and
// serves what waited; the other cannot take it later.
func TestHandOverRefused(t *testing.T) {
	p := newPair(t, nil)
	id, asleep := create(t, p.one, wakes), create(t, p.one, wakesUnnamed)
	p.wantCount(t, p.one, id, 1, 1)
	if err := p.one.Pause(t.Context(), asleep, PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("no room")
	for n, id := range []string{id, asleep} {
		waits := make(chan error, 1)
		err := p.one.HandOver(t.Context(), id, "two", "me", true, func(context.Context) error {
			if n == 0 {
				go func() {
					lease, err := p.one.Acquire(t.Context(), id, Access{Port: 8080})
					if err == nil {
						lease.Release()
					}
					waits <- err
				}()
			}
			return refusal
		})
		if !errors.Is(err, refusal) {
			t.Errorf("%v", err)
		}
		if n == 0 {
			if err := <-waits; err != nil {
				t.Errorf("what waited: %v", err)
			}
		}
		wantElsewhere(t, "once it is withdrawn", p.two.Receive(t.Context(), id, "me"), id, "one")
	}
	if got := record(t, p.one, id); got.State != lifecycle.Running {
		t.Errorf("what ran is %s", got.Situation())
	}
	if got := record(t, p.one, asleep); got.State != lifecycle.Paused {
		t.Errorf("what slept is %s", got.Situation())
	}
	p.wantCount(t, p.one, id, 2, 2)

	// An answer that is lost.
	if err := p.one.HandOver(t.Context(), id, "two", "me", true, func(ctx context.Context) error {
		return errors.Join(errors.New("no answer"), p.two.Receive(ctx, id, "me"))
	}); err != nil {
		t.Error(err)
	}
	p.wantCount(t, p.two, id, 3, 3)

	// What is changed meanwhile is offered again.
	n := 0
	err := p.one.HandOver(t.Context(), asleep, "two", "me", true, func(ctx context.Context) error {
		if n++; n == 1 {
			if err := p.one.Configure(ctx, asleep, "me", "", func(c *store.Config) error { c.User = "other"; return nil }); err != nil {
				t.Error(err)
			}
			return store.ErrChanged(asleep)
		}
		return p.two.Receive(ctx, asleep, "me")
	})
	if err != nil || n != 2 {
		t.Errorf("%v, after %d offers", err, n)
	}

	// One that ends meanwhile takes its copy with it.
	killed := create(t, p.one, wakesUnnamed)
	err = p.one.HandOver(t.Context(), killed, "two", "me", true, func(context.Context) error {
		kill(t, p.one, killed)
		return errdef.New(errdef.Conflict, "checkpoint_damaged", "the copy is damaged")
	})
	wantCode(t, err, "sandbox_terminated")
}

// TestHandOverEnds: what was paused to be moved runs on when its server has started again, or
// where another has taken it over; not on a server that stops.
func TestHandOverEnds(t *testing.T) {
	p := newPair(t, nil)
	for _, taken := range []bool{false, true} {
		id := create(t, p.one, wakesUnnamed)
		was := record(t, p.one, id)
		err := p.one.HandOver(t.Context(), id, "two", "me", true, func(ctx context.Context) error {
			p.one.StopMoves()
			return errors.New("no answer")
		})
		if got := record(t, p.one, id); err == nil || got.State != lifecycle.Paused || got.Moves == nil {
			t.Errorf("while the server stops it is %+v, %v", got, err)
		}
		wantCode(t, p.handOver(t, id), "move_conflict")
		runs := p.one
		p.one.Taker = newTaker(p.one) // as the next process has it
		if taken {
			p.leave(t, 0)
			runs = p.two
			err = p.two.TakeOver(t.Context(), id)
		} else {
			err = p.one.WakeMoved(t.Context())
		}
		if got := record(t, runs, id); err != nil || got.State != lifecycle.Running || !got.EndAt.Equal(was.EndAt) || got.Moves != nil {
			t.Errorf("taken over: %v; it is %+v, %v; before it was %+v", taken, got, err, was)
		}
	}
}

var wakesUnnamed = CreateRequest{Settings: wakes.Settings}

// wantParts holds that a server has the layers and the image of a checkpoint, or none of them.
func wantParts(t *testing.T, s *Supervisor, cp lifecycle.Checkpoint, want bool) {
	t.Helper()
	testmode.Eventually(t, "its files are as they should be", func() bool {
		layers, _ := s.o.Layers.Layers()
		images, _ := s.o.Layers.Images()
		return !slices.ContainsFunc(cp.Parts(), func(part string) bool {
			return (slices.Contains(layers, part) || slices.Contains(images, part)) != want
		})
	})
}

// TestTakeOverOfASnapshot: another server goes on with a snapshot of one whose lease is over, and
// the one that had it gives it up; sandboxes there keep what they share with it.
func TestTakeOverOfASnapshot(t *testing.T) {
	p := newPair(t, nil)
	source := wakes
	source.Config.Limits = store.Limits{MemoryMiB: 128, DiskMiB: 1024}
	id := create(t, p.one, source)
	p.wantCount(t, p.one, id, 1, 1)
	snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: "point"})
	if err != nil {
		t.Fatal(err)
	}
	child, err := p.one.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: wakes.Settings, Config: store.Config{Key: "k"}})
	if err != nil {
		t.Fatal(err)
	}
	copied(t, p.one)
	if got, err := p.one.Snapshot("k", "point"); err != nil || got.Durability != store.Replicated {
		t.Errorf("it is %q, %v", got.Durability, err)
	}
	use := p.one.KeyUse("k")
	if _, err := snapshots.OwnerOf(t.Context(), p.two.Shelf, snap.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := p.two.Snapshot("k", "point"); err != nil || got.Durability != store.Replicated || got.Owner != "one" {
		t.Errorf("for the other server it is %+v, %v", got, err)
	}
	from := CreateRequest{Snapshot: snap.ID, Settings: wakes.Settings, Config: store.Config{Key: "k"}}
	_, err = p.two.Create(t.Context(), from)
	wantElsewhere(t, "a create where it is not", err, snap.ID, "one")
	wantElsewhere(t, "while the lease lasts", p.two.TakeOver(t.Context(), snap.ID), snap.ID, "one")
	p.leave(t, 0)
	if err := p.two.TakeOver(t.Context(), snap.ID); err != nil {
		t.Fatal(err)
	}
	taken, err := p.two.ByID(snap.ID)
	if err != nil || taken.Name != snap.Name || !taken.CreatedAt.Equal(snap.CreatedAt) || taken.Checkpoint.ID == snap.Checkpoint.ID {
		t.Errorf("taken over it is %+v, %v; it was %+v", taken, err, snap)
	}
	wantParts(t, p.two, taken.Checkpoint, true)
	if err := p.two.TakeOver(t.Context(), snap.ID); !store.IsChanged(err) {
		t.Errorf("once more: %v", err)
	}
	sb, err := p.two.Create(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, sb.ID, 2, 1)
	if got := p.two.KeyUse("k"); got.DiskMiB != 1024+snap.DiskMiB() || snap.DiskMiB() == 0 {
		t.Errorf("the key uses %+v there", got)
	}
	if got, err := p.two.Snapshot("k", "point"); err != nil || got.Durability != store.Replicated {
		t.Errorf("it is %q, %v", got.Durability, err)
	}

	// The first comes back.
	if err := p.one.Renew(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := p.one.Disown(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantParts(t, p.one, *record(t, p.one, child.ID).Checkpoint, true)
	if got := p.one.KeyUse("k"); got.DiskMiB != use.DiskMiB-snap.DiskMiB() {
		t.Errorf("the key uses %+v, and did %+v", got, use)
	}
	wantElsewhere(t, "a removal where it was", p.one.RemoveSnapshot(t.Context(), snap.ID, ""), snap.ID, "two")
	if len(p.one.OwnSnapshots()) != 0 {
		t.Errorf("it has %+v", p.one.OwnSnapshots())
	}
	kill(t, p.one, child.ID)
	wantParts(t, p.one, snap.Checkpoint, false)

	// And back again: the names of layers are not used twice.
	copied(t, p.two)
	if err := p.two.o.Store.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.one.TakeOver(t.Context(), snap.ID); err != nil {
		t.Fatal(err)
	}
	if err := p.two.Disown(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.two, sb.ID, 3, 1) // it is still its own
	if sb, err = p.one.Create(t.Context(), from); err != nil {
		t.Fatal(err)
	}
	p.wantCount(t, p.one, sb.ID, 2, 1)
	if err := p.one.RemoveSnapshot(t.Context(), snap.ID, ""); err != nil {
		t.Fatal(err)
	}
	testmode.Eventually(t, "nothing of it is in object storage", func() bool {
		for range p.blobs.List(t.Context(), "copies/"+snap.ID) {
			return false
		}
		return true
	})
}

// TestTakeOverOfASnapshotWithoutACopy: what has no copy stays where it is.
func TestTakeOverOfASnapshotWithoutACopy(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	p.full.Store(true)
	snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k"})
	if err != nil || snap.Durability != store.Local {
		t.Fatalf("%+v, %v", snap, err)
	}
	p.leave(t, time.Hour)
	if err := p.two.TakeOver(t.Context(), snap.ID); !store.IsNotReplicated(err) {
		t.Errorf("taken over without a copy: %v", err)
	}
	if err := p.one.Renew(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := p.one.Disown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.one.ByID(snap.ID); err != nil {
		t.Error(err)
	}
	if err := p.two.TakeOver(t.Context(), "s00000000000000000000"); code(err) != "snapshot_not_found" {
		t.Errorf("one that there is not: %v", err)
	}
}

// TestSnapshotOfATakenName: a snapshot that is to take the place of one that another server has
// taken over fails, and its sandbox is as it was.
func TestSnapshotOfATakenName(t *testing.T) {
	for _, how := range []SnapshotRequest{{Key: "k", Name: "point", Replace: "point"}, {Key: "k", KeepLast: 1}} {
		p := newPair(t, nil)
		id := create(t, p.one, wakes)
		p.wantCount(t, p.one, id, 1, 1)
		first := how
		first.Replace = ""
		snap, err := p.one.TakeSnapshot(t.Context(), id, first)
		if err != nil {
			t.Fatal(err)
		}
		copied(t, p.one)
		p.leave(t, 0)
		if err := p.two.TakeOver(t.Context(), snap.ID); err != nil {
			t.Fatal(err)
		}
		if err := p.one.o.Store.Renew(t.Context(), time.Hour); err != nil { // it knows of nothing yet
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if how.Replace != "" {
			how.Replace = snap.ID
		}
		if made, err := p.one.TakeSnapshot(ctx, id, how); err == nil || ctx.Err() != nil {
			t.Errorf("%+v, %v", made, err)
		}
		p.wantCount(t, p.one, id, 2, 1)
		if sb, err := p.two.o.Store.Sandbox(t.Context(), id); err != nil || sb.Owner != "one" || sb.Record.State != lifecycle.Running {
			t.Errorf("the sandbox is %+v of %q, %v", sb.Record, sb.Owner, err)
		}
	}
}

// TestSnapshotRemovedElsewhere: what another server has taken over and removed since is not
// here any more either.
func TestSnapshotRemovedElsewhere(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	p.wantCount(t, p.one, id, 1, 1)
	snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: "point"})
	if err != nil {
		t.Fatal(err)
	}
	copied(t, p.one)
	use := p.one.KeyUse("k")
	p.leave(t, 0)
	if err := errors.Join(p.two.TakeOver(t.Context(), snap.ID), p.two.RemoveSnapshot(t.Context(), snap.ID, ""), p.one.o.Store.Renew(t.Context(), time.Hour), p.one.Disown(t.Context())); err != nil {
		t.Fatal(err)
	}
	if all, now := p.one.OwnSnapshots(), p.one.KeyUse("k"); len(all) != 0 || now.DiskMiB != use.DiskMiB-snap.DiskMiB() {
		t.Errorf("there are %+v, and the key uses %+v; before it used %+v", all, now, use)
	}
	wantParts(t, p.one, snap.Checkpoint, false)
	if _, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: "point"}); err != nil {
		t.Errorf("its name is not free: %v", err)
	}
}

// TestTakeOverOfATemplate: another server goes on with a built template whose server's lease is
// over, with all results or not at all; the one that had it keeps nothing of it.
func TestTakeOverOfATemplate(t *testing.T) {
	p := newPair(t, nil)
	id := create(t, p.one, wakes)
	p.wantCount(t, p.one, id, 1, 1)
	const template = "t0000000000000000000a"
	tpl := store.Template{ID: template, Name: "app", Key: "k", Tags: map[string]store.Tag{}, Builds: []store.Build{{ID: "b", Status: store.BuildReady}, {ID: "b2", Status: store.BuildWaiting}}}
	if err := p.one.o.Store.PutTemplate(t.Context(), tpl); err != nil {
		t.Fatal(err)
	}
	take := func(name string) store.Snapshot {
		t.Helper()
		snap, err := p.one.TakeSnapshot(t.Context(), id, SnapshotRequest{Key: "k", Name: name, Build: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return snap
	}
	stored := func() store.Template {
		t.Helper()
		all, err := p.two.o.Store.Templates(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	first, second, step := take("app"), take("app:v2"), take("")
	tpl = stored()
	tpl.Cache = []store.StepResult{{Hash: "h", Snapshot: step.ID}}
	if err := p.one.o.Store.PutTemplate(t.Context(), tpl); err != nil {
		t.Fatal(err)
	}
	copied(t, p.one)
	for snap, want := range map[*store.Snapshot]store.Durability{&first: store.Replicated, &second: store.Replicated, &step: store.Local} {
		if got, err := p.one.Snapshot("", snap.ID); err != nil || got.Durability != want {
			t.Errorf("%q is %q, %v; want %q", snap.Name, got.Durability, err, want)
		}
	}
	wantElsewhere(t, "while the lease lasts", p.two.TakeOver(t.Context(), template), template, "one")
	p.leave(t, 0)

	// One of the results cannot be read: nothing changes, and nothing is left of the others.
	p.blobs.Fail = func(op, key string) error {
		if op == "get" && strings.Contains(key, second.ID) {
			return errors.New("the bucket is gone")
		}
		return nil
	}
	if err := p.two.TakeOver(t.Context(), template); err == nil || stored().Owner != "one" {
		t.Errorf("taken over without one of its results: %v; it is of %q", err, stored().Owner)
	}
	testmode.Eventually(t, "nothing is left of what was fetched", func() bool {
		layers, _ := p.two.o.Layers.Layers()
		images, _ := p.two.o.Layers.Images()
		return len(layers)+len(images) == 0
	})
	p.blobs.Fail = nil
	if err := p.two.TakeOver(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	if got := stored(); got.Owner != "two" || len(got.Cache) != 0 || len(got.Tags) != 2 || got.Builds[1].Status != store.BuildFailed || got.Builds[1].Reason == nil {
		t.Errorf("it is %+v", got)
	}
	for _, snap := range []store.Snapshot{first, second} {
		sb, err := p.two.Create(t.Context(), CreateRequest{Snapshot: snap.ID, Settings: wakes.Settings, Config: store.Config{Key: "k"}})
		if err != nil {
			t.Fatal(err)
		}
		p.wantCount(t, p.two, sb.ID, 2, 1)
	}
	if err := p.two.TakeOver(t.Context(), template); !store.IsChanged(err) {
		t.Errorf("once more: %v", err)
	}
	if err := p.two.TakeOver(t.Context(), "t0000000000000000000b"); code(err) != "template_not_found" {
		t.Errorf("one that there is not: %v", err)
	}
	if err := errors.Join(p.one.Renew(t, time.Hour), p.one.Disown(t.Context())); err != nil {
		t.Fatal(err)
	}
	if all := p.one.OwnSnapshots(); len(all) != 0 {
		t.Errorf("who had it has %+v", all)
	}
	kill(t, p.one, id)
	for _, snap := range []store.Snapshot{first, second, step} {
		wantParts(t, p.one, snap.Checkpoint, false)
	}
}

// undone has a sandbox of the first server go back to a snapshot, and returns it with the undo that
// this leaves there.
func (p *pair) undone(t *testing.T, req CreateRequest) (id string, undo store.Snapshot) {
	t.Helper()
	id = create(t, p.one, req)
	p.wantCount(t, p.one, id, 1, 1)
	snap := take(t, p.one, id, SnapshotRequest{Key: "k"})
	p.wantCount(t, p.one, id, 2, 1)
	undo, err := p.one.Snapshot("", restore(t, p.one, id, RestoreRequest{Snapshot: snap.ID}))
	if err != nil || !undo.Undo {
		t.Fatalf("the undo is %+v, %v", undo, err)
	}
	if err := p.one.RemoveSnapshot(t.Context(), snap.ID, "me"); err != nil {
		t.Fatal(err)
	}
	return id, undo
}

// wantNoUndo holds that an undo is neither in the store nor on the first server.
func (p *pair) wantNoUndo(t *testing.T, s *Supervisor, undo store.Snapshot) {
	t.Helper()
	testmode.Eventually(t, "the undo is gone", func() bool {
		all, err := s.o.Store.Snapshots(t.Context())
		return err == nil && len(all) == 0 && len(s.AllSnapshots()) == 0 && s.KeyUse("k") == store.Use{}
	})
	wantParts(t, s, undo.Checkpoint, false)
}

// TestUndoOfWhatHasGone: what a sandbox was before it went back to a snapshot goes with the sandbox
// that moves, or is taken over, also where its server has not seen that happen.
func TestUndoOfWhatHasGone(t *testing.T) {
	t.Run("moved", func(t *testing.T) {
		p := newPair(t, nil)
		id, undo := p.undone(t, wakes)
		if err := p.handOver(t, id); err != nil {
			t.Fatal(err)
		}
		wantGone(t, p.one, id)
		p.wantNoUndo(t, p.one, undo)
		p.wantCount(t, p.two, id, 2, record(t, p.two, id).Generation)
	})
	takeOver := func(t *testing.T) (p *pair, id string, undo store.Snapshot) {
		p = newPair(t, nil)
		id, undo = p.undone(t, wakes)
		if err := p.one.Pause(t.Context(), id, PauseRequest{}); err != nil {
			t.Fatal(err)
		}
		copied(t, p.one)
		p.leave(t, 0)
		if err := p.two.TakeOver(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return p, id, undo
	}
	t.Run("taken over", func(t *testing.T) {
		p, id, undo := takeOver(t)
		if err := errors.Join(p.one.Renew(t, time.Hour), p.one.Disown(t.Context())); err != nil {
			t.Fatal(err)
		}
		wantGone(t, p.one, id)
		p.wantNoUndo(t, p.one, undo)
	})
	t.Run("taken over, and started again", func(t *testing.T) {
		p, id, undo := takeOver(t)
		one := p.restart(t, p.one)
		if one.Knows(id) {
			t.Error("it is still there")
		}
		p.wantNoUndo(t, one, undo)
	})
	t.Run("started again", func(t *testing.T) {
		p := newPair(t, nil)
		id, undo := p.undone(t, wakes)
		one := p.restart(t, p.one)
		if got := one.Undo(id); got != undo.ID {
			t.Errorf("the undo is %q, want %q", got, undo.ID)
		}
		wantParts(t, one, undo.Checkpoint, true)
	})
}
