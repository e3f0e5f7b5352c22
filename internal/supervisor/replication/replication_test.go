package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/replica/seal"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
)

var errDown = errdef.New(errdef.Unavailable, "blobs_unavailable", "the bucket does not answer")

// world is sandboxes, object storage and a database in memory.
type world struct {
	*Replicator
	t    *testing.T
	stop func() // ends Run, and waits for it
	self string // id of the server; "" for one without a marker
	log  bytes.Buffer
	// stood is for how long the machine stood still: clocks show it, and no timer has run.
	stood atomic.Int64

	mu       sync.Mutex
	blobs    map[string]blob
	puts     int
	probes   int
	exports  []string // sandboxes, in the order in which they were exported
	replicas map[string]store.Replica
	commits  []string // checkpoints
	slept    map[string]*sleeper
	owner    string // of everything; "" for this server

	// What these return fails. They are set by fail, and called unlocked.
	blobFails   func(ctx context.Context, op, key string) error
	commitFails func(ctx context.Context, r store.Replica) error
	exportFails func(ctx context.Context, id string) error
}

type blob struct {
	data []byte
	at   time.Time
}

// sleeper is a sandbox.
type sleeper struct {
	checkpoint string
	data       []byte
	runs       bool
	cut        chan struct{}
	readers    int
	during     func(w io.Writer) error // after the data was written
}

// begin makes a world whose Replicator runs, within a bubble of package synctest. That
// fails for goroutines which do not end.
func begin(t *testing.T) *world {
	w := &world{t: t, blobs: map[string]blob{}, replicas: map[string]store.Replica{}, slept: map[string]*sleeper{}}
	w.start()
	t.Cleanup(func() {
		w.stop()
		for id, s := range w.slept {
			if s.readers != 0 {
				t.Errorf("%d exports of %s were not released", s.readers, id)
			}
		}
	})
	return w
}

// start is what a server does when it starts.
func (w *world) start() {
	w.t.Helper()
	var err error
	w.Replicator, err = New(w.t.Context(), Options{Blobs: (*bucket)(w), Prefix: "sandboxes", Server: w.self, Store: (*database)(w), Export: w.export, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Now: func() time.Time { return time.Now().Add(time.Duration(w.stood.Load())) }})
	if err != nil {
		w.t.Fatal(err)
	}
	for id, s := range w.slept {
		if !s.runs {
			w.Slept(id, s.checkpoint)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	w.stop = func() {
		cancel()
		<-done
	}
}

func (w *world) sleep(id, checkpoint, data string) {
	w.mu.Lock()
	s := w.sleeper(id)
	s.checkpoint, s.data, s.runs = checkpoint, []byte(data), false
	w.mu.Unlock()
	w.Slept(id, checkpoint)
}

// sleeper returns a sandbox. The caller holds mu.
func (w *world) sleeper(id string) *sleeper {
	if w.slept[id] == nil {
		w.slept[id] = &sleeper{cut: make(chan struct{})}
	}
	return w.slept[id]
}

func (w *world) wake(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slept[id].runs = true
}

func (w *world) end(id string) {
	w.mu.Lock()
	close(w.slept[id].cut)
	delete(w.slept, id)
	delete(w.replicas, id)
	w.mu.Unlock()
	w.Ended(id)
}

func (w *world) export(ctx context.Context, id string) (*moving.Export, error) {
	w.mu.Lock()
	w.exports = append(w.exports, id)
	w.mu.Unlock()
	if fails := hook(w, &w.exportFails); fails != nil {
		if err := fails(ctx, id); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slept[id]
	switch {
	case s == nil:
		return nil, errdef.New(errdef.NotFound, "sandbox_not_found", "there is no sandbox %s", id)
	case s.runs:
		return nil, errdef.New(errdef.WrongState, "not_paused", "the sandbox is running")
	}
	s.readers++
	data, during := s.data, s.during
	write := func(to io.Writer) error {
		for line := range bytes.Lines(data) {
			if _, err := to.Write(line); err != nil {
				return err
			}
			if err := to.(interface{ Cut() error }).Cut(); err != nil {
				return err
			}
		}
		if during != nil {
			return during(to)
		}
		return nil
	}
	return &moving.Export{Checkpoint: s.checkpoint, Cut: s.cut, Write: write, Release: func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		s.readers--
	}}, nil
}

// hook returns one of what fails.
func hook[F any](w *world, f *F) F {
	w.mu.Lock()
	defer w.mu.Unlock()
	return *f
}

// fail sets one of what fails.
func fail[F any](w *world, f *F, as F) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*f = as
}

// pass lets time pass, and waits for what happens at its end.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// hang has an upload of a sandbox wait for its end, or for what it returns to be called.
func (w *world) hang(id string) (goOn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := make(chan struct{})
	w.sleeper(id).during = func(to io.Writer) error {
		for {
			select {
			case <-c:
				return nil
			case <-time.After(time.Second):
				if err := to.(interface{ Cut() error }).Cut(); err != nil {
					return err
				}
			}
		}
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s := w.slept[id]; s != nil {
			s.during = nil
		}
		close(c)
	}
}

func (w *world) exported() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.exports)
}

func (w *world) keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.blobs))
}

// read returns what the copy of a sandbox has.
func (w *world) read(id string) (checkpoint, data string) {
	w.t.Helper()
	w.mu.Lock()
	r := w.replicas[id]
	w.mu.Unlock()
	x, err := replica.ReadIndex(w.t.Context(), (*bucket)(w), copyOf(r))
	if err != nil {
		w.t.Errorf("sandbox %s: %v", id, err)
		return r.Checkpoint, ""
	}
	from := replica.Open(w.t.Context(), (*bucket)(w), x)
	defer from.Close()
	got, err := io.ReadAll(from)
	if err != nil {
		w.t.Errorf("sandbox %s: %v", id, err)
	}
	return r.Checkpoint, string(got)
}

func (w *world) wantCopy(id, checkpoint, data string) {
	w.t.Helper()
	if cp, got := w.read(id); cp != checkpoint || got != data {
		w.t.Errorf("the copy of %s is of checkpoint %q and has %q, want %q with %q", id, cp, got, checkpoint, data)
	}
	if s := w.State(id, checkpoint); !s.Complete || s.At.IsZero() || s.Bytes != int64(len(data)) || !s.Since.IsZero() || s.Err != nil {
		w.t.Errorf("state of %s: %+v", id, s)
	}
}

// drained waits until all is copied, whatever fails meanwhile.
func (w *world) drained() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Hour)
	defer cancel()
	err := w.Drain(ctx)
	for err != nil && ctx.Err() == nil {
		time.Sleep(time.Second)
		err = w.Drain(ctx)
	}
	if err != nil {
		w.t.Error(err)
	}
	synctest.Wait()
}

func wantCode(t *testing.T, err error, class errdef.Class, code string) {
	t.Helper()
	if errdef.ClassOf(err) != class || errdef.CodeOf(err) != code {
		t.Errorf("%v, want %s with code %s", err, class, code)
	}
}

// bucket is the object storage of a world.
type bucket world

func (b *bucket) begin(ctx context.Context, op, key string) error {
	if fails := hook((*world)(b), &b.blobFails); fails != nil {
		if err := fails(ctx, op, key); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (b *bucket) Put(ctx context.Context, key string, data []byte) error {
	if err := b.begin(ctx, "put", key); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.puts++
	b.blobs[key] = blob{bytes.Clone(data), time.Now()}
	return nil
}

func (b *bucket) Get(ctx context.Context, key string, most int64) ([]byte, error) {
	if strings.HasSuffix(key, "/probe") {
		b.mu.Lock()
		b.probes++
		b.mu.Unlock()
	}
	if err := b.begin(ctx, "get", key); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if x, ok := b.blobs[key]; ok {
		if int64(len(x.data)) > most {
			return nil, errdef.New(errdef.Invalid, "blob_too_large", "%s is too large", key)
		}
		return bytes.Clone(x.data), nil
	}
	return nil, errdef.New(errdef.NotFound, "blob_not_found", "there is no %s", key)
}

func (b *bucket) Remove(ctx context.Context, keys ...string) error {
	if err := b.begin(ctx, "remove", keys[0]); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range keys {
		delete(b.blobs, key)
	}
	return nil
}

func (b *bucket) List(_ context.Context, prefix string) iter.Seq2[blobs.Blob, error] {
	return func(yield func(blobs.Blob, error) bool) {
		b.mu.Lock()
		all := maps.Clone(b.blobs)
		b.mu.Unlock()
		for key, x := range all {
			if strings.HasPrefix(key, prefix+"/") && !yield(blobs.Blob{Key: key, Size: int64(len(x.data)), At: x.at}, nil) {
				return
			}
		}
	}
}

func (b *bucket) String() string { return "bucket" }

// database is what a world knows of copies.
type database world

func (d *database) PutReplica(ctx context.Context, r store.Replica) (*store.Replica, error) {
	if fails := hook((*world)(d), &d.commitFails); fails != nil {
		if err := fails(ctx, r); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.owner != "":
		return nil, store.ErrElsewhere("sandbox "+r.Of(), d.owner)
	case d.slept[r.Of()] == nil:
		return nil, errdef.New(errdef.NotFound, "sandbox_not_found", "there is no sandbox %s", r.Of())
	}
	d.commits = append(d.commits, r.Checkpoint)
	before, had := d.replicas[r.Of()]
	d.replicas[r.Of()] = r
	if !had {
		return nil, nil
	}
	return &before, nil
}

func (d *database) Replica(_ context.Context, id string) (store.Replica, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, has := d.replicas[id]
	if !has {
		return r, store.ErrReplicaNotFound(id)
	}
	return r, nil
}

func (d *database) Replicas(_ context.Context, owner string) ([]store.Replica, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if owner != "" && owner != d.self {
		return nil, fmt.Errorf("what server %s has is asked for", owner)
	}
	return slices.Collect(maps.Values(d.replicas)), nil
}

// inBubble runs a test in a world.
func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, begin(t)) })
}

func TestWhatSleepsIsCopiedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		w.wantCopy("i0", "c1", "a\nb\n")
		w.Slept("i0", "c1")
		w.drained()
		w.stop()
		w.start() // the next server knows what is there
		w.Slept("i0", "c1")
		w.drained()
		w.wantCopy("i0", "c1", "a\nb\n")
		if w.exported() != 1 {
			t.Errorf("exported %d times", w.exported())
		}
		if s := w.State("i0", "c0"); s.Complete || !s.Since.IsZero() {
			t.Errorf("state of another checkpoint: %+v", s)
		}
		if s := w.State("i1", "c1"); s != (State{}) {
			t.Errorf("state of an unknown sandbox: %+v", s)
		}
	})
}

// TestSnapshotsAreCopied: one that stays is copied once, and that goes with it.
func TestSnapshotsAreCopied(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		keep := func(id string, change func(*store.Snapshot)) store.Snapshot {
			snap := store.Snapshot{ID: id, Checkpoint: lifecycle.Checkpoint{ID: "of " + id}}
			change(&snap)
			w.mu.Lock()
			s := w.sleeper(id)
			s.checkpoint, s.data = snap.Checkpoint.ID, []byte("a\n")
			w.mu.Unlock()
			Snapshots{w.Replicator}.Keep(snap)
			return snap
		}
		snap := keep("s0", func(*store.Snapshot) {})
		if got := (Snapshots{w.Replicator}).Describe(snap).Durability; got != store.Local {
			t.Errorf("before it is copied it is %q", got)
		}
		second := keep("s1", func(snap *store.Snapshot) { snap.Name = "tea" })
		result := keep("s2", func(snap *store.Snapshot) { snap.Config.Build, snap.Name = "b", "cup" })
		keep("passing", func(snap *store.Snapshot) { snap.Passing = true })
		keep("undo", func(snap *store.Snapshot) { snap.Undo = true })
		keep("step", func(snap *store.Snapshot) { snap.Config.Build = "b" })
		w.drained()
		Snapshots{w.Replicator}.Keep(snap)
		w.drained()
		if w.exported() != 3 {
			t.Errorf("copied are %q", w.exports)
		}
		for _, x := range []store.Snapshot{snap, second, result} {
			w.wantCopy(x.ID, "of "+x.ID, "a\n")
			if r := w.replicas[x.ID]; r.Snapshot != x.ID || r.Sandbox != "" || !strings.HasPrefix(r.Index, "sandboxes/"+x.ID+"/") {
				t.Errorf("its copy is %+v", r)
			}
			if got := (Snapshots{w.Replicator}).Describe(x).Durability; got != store.Replicated {
				t.Errorf("snapshot %s is %q", x.ID, got)
			}
		}
		w.stop()
		for _, id := range []string{"passing", "undo", "step"} {
			delete(w.slept, id)
		}
		w.start()
		Snapshots{w.Replicator}.Keep(snap) // the next server knows what is there
		w.drained()
		w.end("s0")
		synctest.Wait()
		if w.exported() != 3 || len(w.keys()) != 4 {
			t.Errorf("copied are %q; left are %q", w.exports, w.keys())
		}
	})
}

// TestNowhere: without object storage nothing is copied, and nobody waits for it.
func TestNowhere(t *testing.T) {
	r, err := New(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	sb := store.Sandbox{ID: "i0", Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &lifecycle.Checkpoint{ID: "c"}}}
	snap := store.Snapshot{ID: "s0", Checkpoint: lifecycle.Checkpoint{ID: "c"}, Durability: store.Replicated}
	r.Follow(lifecycle.Record{}, sb)
	Snapshots{r}.Keep(snap)
	r.Run(t.Context())
	if err := r.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if got := r.Describe(sb).Durability; got != "" {
		t.Errorf("its checkpoint is %q", got)
	}
	if got := (Snapshots{r}).Describe(snap).Durability; got != "" {
		t.Errorf("the snapshot is %q", got)
	}
	r.Lost("i0")
	r.Ended("s0")
}

// TestTheNextCopySendsWhatHasChanged, and what only the last one needed is removed.
func TestTheNextCopySendsWhatHasChanged(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		w.sleep("i0", "c2", "a\nc\n")
		w.drained()
		w.wantCopy("i0", "c2", "a\nc\n")
		if w.puts != 3+2 || len(w.keys()) != 3 {
			t.Errorf("%d blobs were put, want two pieces and an index, then one and one; left are %q", w.puts, w.keys())
		}
		// A server that starts anew refers to them, too.
		w.stop()
		w.start()
		w.sleep("i0", "c3", "a\nc\nd\n")
		w.drained()
		w.wantCopy("i0", "c3", "a\nc\nd\n")
		if w.puts != 3+2+2 || len(w.keys()) != 4 {
			t.Errorf("%d blobs were put; left are %q", w.puts, w.keys())
		}
	})
}

// TestCopiesFromBefore were made before copies were encrypted. They can be read until a server
// that starts has made others of what sleeps, whole and encrypted; then they are gone. What
// runs gets its own when it sleeps.
func TestCopiesFromBefore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.stop()
		const text = "what cannot be in random bytes by chance\n"
		for _, id := range []string{"i0", "i1", "s0", "i2"} {
			digest := seal.Key("").Digest([]byte(text))
			index := fmt.Sprintf(`{"version":1,"uploads":["sandboxes/%s/%s"],"pieces":[{"size":%d,"sha256":%q}]}`, id, strings.Repeat("o", 26), len(text), digest)
			up := "sandboxes/" + id + "/" + strings.Repeat("o", 26)
			r := store.Replica{Sandbox: id, Checkpoint: "c1", Index: up + "/index-" + seal.Key("").Digest([]byte(index)), Bytes: int64(len(text))}
			if id == "s0" {
				r.Sandbox, r.Snapshot = "", id
			}
			w.blobs[up+"/"+digest], w.blobs[r.Index] = blob{data: []byte(text)}, blob{data: []byte(index)}
			w.replicas[id] = r
			w.slept[id] = &sleeper{checkpoint: "c1", data: []byte(text), runs: id == "i1"}
			if cp, got := w.read(id); cp != "c1" || got != text {
				t.Errorf("%s was %q of %q", id, got, cp)
			}
		}
		taken := w.replicas["i2"] // from another server, when this one has started
		delete(w.replicas, "i2")
		delete(w.slept, "i2")
		delete(w.slept, "s0")
		w.start()
		w.replicas["i2"], w.slept["i2"] = taken, &sleeper{checkpoint: "c1", data: []byte(text)}
		w.Taken(taken)
		w.slept["s0"] = &sleeper{checkpoint: "c1", data: []byte(text)}
		Snapshots{w.Replicator}.Keep(store.Snapshot{ID: "s0", Checkpoint: lifecycle.Checkpoint{ID: "c1"}})
		w.drained()
		synctest.Wait()
		w.wantCopy("i0", "c1", text)
		w.wantCopy("s0", "c1", text)
		w.wantCopy("i2", "c1", text)
		if cp, got := w.read("i1"); cp != "c1" || got != text {
			t.Errorf("while it runs, the copy is %q of %q", got, cp)
		}
		w.sleep("i1", "c2", "a\nb\n")
		w.drained()
		synctest.Wait()
		w.wantCopy("i1", "c2", "a\nb\n")
		for id, r := range w.replicas {
			if r.EncryptionKey == "" {
				t.Errorf("the copy of %s has no key", id)
			}
		}
		for key, b := range w.blobs {
			if strings.Contains(key, "oooo") || bytes.Contains(b.data, []byte(text)) {
				t.Errorf("left is %s with %d bytes", key, len(b.data))
			}
		}
	})
}

func TestACopyWhoseBaseCannotBeReadIsWhole(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		delete(w.blobs, w.replicas["i0"].Index)
		w.sleep("i0", "c2", "a\nb\n")
		w.drained()
		w.wantCopy("i0", "c2", "a\nb\n")
		if w.puts != 6 {
			t.Errorf("%d blobs were put", w.puts)
		}
	})
}

func TestOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var goOn []func()
		for i := range 6 {
			id := fmt.Sprintf("i%d", i)
			goOn = append(goOn, w.hang(id))
			w.sleep(id, "c", id)
			pass(time.Second)
		}
		if !slices.Equal(w.exports, []string{"i0", "i1"}) {
			t.Fatalf("%q are copied at once, want the oldest two", w.exports)
		}
		done := make(chan error)
		go func() { done <- w.Wait(t.Context(), "i4") }()
		synctest.Wait()
		for _, i := range []int{1, 0, 4, 2, 3, 5} {
			goOn[i]()
			synctest.Wait()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.drained()
		if want := []string{"i0", "i1", "i4", "i2", "i3", "i5"}; !slices.Equal(w.exports, want) {
			t.Errorf("copied in the order %q, want %q: whom somebody waits for first, then the oldest", w.exports, want)
		}
	})
}

func TestANewerCheckpointSupersedes(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		goOn := w.hang("i0")
		w.sleep("i0", "c1", "a\n")
		synctest.Wait()
		pass(time.Minute)
		w.sleep("i0", "c2", "b\n")
		w.sleep("i0", "c3", "c\n")
		done := make(chan error)
		go func() { done <- w.Wait(t.Context(), "i0") }()
		synctest.Wait()
		if s := w.State("i0", "c3"); s.Complete || time.Since(s.Since) != time.Minute {
			t.Errorf("state %+v", s)
		}
		goOn()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.drained()
		w.wantCopy("i0", "c3", "c\n")
		if !slices.Equal(w.commits, []string{"c1", "c3"}) {
			t.Errorf("committed %q", w.commits)
		}
	})
}

// TestSleptIsToldLate: what is exported is a checkpoint of which the Replicator hears only
// afterwards.
func TestSleptIsToldLate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.slept["i0"] = &sleeper{checkpoint: "c2", data: []byte("b\n")}
		w.Slept("i0", "c1")
		w.drained()
		w.Slept("i0", "c2")
		w.drained()
		w.wantCopy("i0", "c2", "b\n")
		if len(w.commits) != 1 {
			t.Errorf("committed %q", w.commits)
		}
	})
}

func TestWhatRunsIsCopiedWhenItSleepsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		fail(w, &w.exportFails, func(context.Context, string) error { // it wakes before it is read
			w.wake("i0")
			return nil
		})
		w.sleep("i0", "c1", "a\n")
		w.drained()
		err := w.Wait(t.Context(), "i0")
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if w.exported() != 1 || !strings.Contains(err.Error(), "woken") {
			t.Errorf("%d exports; %v", w.exported(), err)
		}
		// It sleeps again while the Replicator is told that it runs.
		fail(w, &w.exportFails, func(context.Context, string) error {
			fail(w, &w.exportFails, nil)
			w.sleep("i0", "c3", "c\n")
			return errdef.New(errdef.WrongState, "not_paused", "the sandbox is running")
		})
		w.sleep("i0", "c2", "b\n")
		w.drained()
		w.wantCopy("i0", "c3", "c\n")
	})
}

// TestTheStoreIsDown: one sandbox at a time looks whether it is up again, without reading a
// checkpoint for it.
func TestTheStoreIsDown(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		down, now, most := true, 0, 0
		var mu sync.Mutex
		fail(w, &w.blobFails, func(_ context.Context, op, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if op == "put" || op == "get" {
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				mu.Lock()
				now--
			}
			if down {
				return errDown
			}
			return nil
		})
		for i := range 10 {
			w.sleep(fmt.Sprintf("i%d", i), "c", "a\n")
		}
		pass(time.Second)
		mu.Lock()
		most = 0
		mu.Unlock()
		pass(time.Hour)
		mu.Lock()
		if most != 1 {
			t.Errorf("%d asked at once whether the store is up", most)
		}
		down = false
		mu.Unlock()
		if s := w.State("i0", "c"); !errors.Is(s.Err, errDown) || s.Complete || s.Since.IsZero() {
			t.Errorf("state %+v", s)
		}
		if w.probes < 55 || w.probes > 140 || w.exported() > 3 {
			t.Errorf("%d probes in an hour, %d exports", w.probes, w.exported())
		}
		pass(mostBackoff + 10*time.Second)
		for i := range 10 {
			w.wantCopy(fmt.Sprintf("i%d", i), "c", "a\n")
		}
	})
}

// TestTheDatabaseIsDown: what was uploaded is committed when it is up again.
func TestTheDatabaseIsDown(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		broken := errors.New("broken")
		fail(w, &w.commitFails, func(context.Context, store.Replica) error { return broken })
		w.sleep("i0", "c1", "a\n")
		pass(time.Hour)
		if w.exported() != 1 || len(w.keys()) != 2 {
			t.Errorf("%d exports, %q", w.exported(), w.keys())
		}
		// It was committed for all that, as far as the database is concerned.
		committed := false
		fail(w, &w.commitFails, func(_ context.Context, r store.Replica) error {
			if !committed {
				committed = true
				w.mu.Lock()
				w.replicas["i0"] = r
				w.mu.Unlock()
				return broken
			}
			return nil
		})
		w.drained()
		w.wantCopy("i0", "c1", "a\n")
		if w.exported() != 1 || len(w.keys()) != 2 {
			t.Errorf("%d exports, %q", w.exported(), w.keys())
		}
	})
}

// TestAnUploadIsCommittedInTime: what was uploaded long ago may have been swept.
func TestAnUploadIsCommittedInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var up atomic.Bool
		fail(w, &w.commitFails, func(context.Context, store.Replica) error {
			if !up.Load() {
				return errors.New("broken")
			}
			return nil
		})
		w.sleep("i0", "c1", "a\n")
		pass(Grace + time.Minute)
		if err := w.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		up.Store(true)
		w.drained()
		w.wantCopy("i0", "c1", "a\n")
	})
}

// TestAnUploadWhileTheMachineStandsStill: what was sent before may have been swept meanwhile.
func TestAnUploadWhileTheMachineStandsStill(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleeper("i0").during = func(io.Writer) error {
			if w.stood.Swap(int64(Grace)) == 0 {
				w.mu.Lock()
				defer w.mu.Unlock()
				clear(w.blobs)
			}
			return nil
		}
		w.sleep("i0", "c1", "a\n")
		w.drained()
		if w.exported() != 2 {
			t.Errorf("%d exports", w.exported())
		}
		w.wantCopy("i0", "c1", "a\n")
	})
}

func TestAnUploadThatHangsIsCut(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.hang("i0")
		w.sleep("i0", "c1", "a\n")
		pass(Grace/2 - time.Minute)
		if w.exported() != 1 {
			t.Errorf("%d exports", w.exported())
		}
		pass(2*time.Minute + mostRest)
		if w.exported() != 2 || w.State("i0", "c1").Err == nil {
			t.Errorf("%d exports, %+v", w.exported(), w.State("i0", "c1"))
		}
	})
}

// TestOneThatFailsDoesNotHoldUpOthers, whose checkpoint is damaged.
func TestOneThatFailsDoesNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		damaged := errdef.New(errdef.Unavailable, "checkpoint_damaged", "layer 3 is damaged")
		fail(w, &w.exportFails, func(_ context.Context, id string) error {
			if id == "i0" {
				return damaged
			}
			return nil
		})
		w.sleep("i0", "c", "a\n")
		for i := range 20 {
			w.sleep(fmt.Sprintf("j%d", i), "c", "a\n")
		}
		synctest.Wait()
		for i := range 20 {
			w.wantCopy(fmt.Sprintf("j%d", i), "c", "a\n")
		}
		pass(time.Hour)
		err := w.Wait(t.Context(), "i0")
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if !errors.Is(err, damaged) || w.exported() < 75 || w.exported() > 160 {
			t.Errorf("%v; %d exports", err, w.exported())
		}
		err = w.Drain(t.Context())
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if !strings.HasPrefix(err.Error(), "1 ") || !errors.Is(err, damaged) {
			t.Error(err)
		}
		// Another checkpoint is tried at once.
		fail(w, &w.exportFails, nil)
		w.sleep("i0", "c2", "b\n")
		synctest.Wait()
		w.wantCopy("i0", "c2", "b\n")
	})
}

// TestFailuresThatTakeLongDoNotHoldUpOthers has more sandboxes than are copied at once
// whose files cannot be copied, which shows after ten minutes each time.
func TestFailuresThatTakeLongDoNotHoldUpOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		const long = 10 * time.Minute
		bad := []string{"a", "b", "c", "d"}
		for _, id := range bad {
			w.mu.Lock()
			w.sleeper(id).during = func(io.Writer) error {
				time.Sleep(long)
				return errdef.New(errdef.Unsupported, "not_portable", "its files cannot be copied")
			}
			w.mu.Unlock()
			w.sleep(id, "cp-"+id, "data\n")
		}
		pass(3 * long) // each has failed
		for i := range 6 {
			id := fmt.Sprintf("good-%d", i)
			w.sleep(id, "cp", "data\n")
		}
		pass(long + time.Second) // what was under way has failed
		for i := range 6 {
			w.wantCopy(fmt.Sprintf("good-%d", i), "cp", "data\n")
		}
		// One alone is tried half of the time.
		for _, id := range bad[1:] {
			w.end(id)
		}
		pass(2 * long)
		before := w.exported()
		pass(20 * long)
		if n := w.exported() - before; n < 9 || n > 11 {
			t.Errorf("%d attempts in %s", n, 20*long)
		}
	})
}

func TestEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.sleep("i1", "c1", "a\nb\n")
		w.drained()
		// One ends while a copy is made, one while it is committed, one while it sleeps.
		w.hang("i0")
		w.sleep("i0", "c2", "a\nc\n")
		fail(w, &w.commitFails, func(context.Context, store.Replica) error {
			w.mu.Lock()
			delete(w.replicas, "i1") // it is committed, and then the end
			w.mu.Unlock()
			w.Ended("i1")
			return nil
		})
		w.sleep("i1", "c2", "a\nc\n")
		w.sleep("i2", "c1", "a\n")
		synctest.Wait()
		fail(w, &w.commitFails, nil)
		waits := make(chan error)
		go func() { waits <- w.Wait(t.Context(), "i0") }()
		pass(time.Minute)
		w.end("i0")
		wantCode(t, <-waits, errdef.NotFound, "sandbox_terminated")
		pass(time.Minute) // for the upload to end
		w.wantCopy("i2", "c1", "a\n")
		w.end("i2")
		w.Ended("i3")
		w.drained()
		if keys := w.keys(); len(keys) > 0 {
			t.Errorf("left are %q", keys)
		}
		if s := w.State("i2", "c1"); s != (State{}) {
			t.Errorf("state %+v", s)
		}
	})
}

func TestLostAndTaken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		left := w.keys()
		w.hang("i0")
		w.sleep("i0", "c2", "a\nc\n")
		synctest.Wait()
		waits := make(chan error)
		go func() { waits <- w.Wait(t.Context(), "i0") }()
		pass(time.Minute)
		w.owner = "srv_2"
		w.Lost("i0")
		wantCode(t, <-waits, errdef.Unavailable, "replica_pending")
		pass(time.Minute) // for the upload to end
		if keys := w.keys(); !slices.Equal(keys, left) {
			t.Errorf("left are %q, want the copy %q", keys, left)
		}
		// The other server has woken it and loses it in turn.
		w.owner = ""
		taken := w.replicas["i0"]
		taken.Checkpoint = "c3"
		w.replicas["i0"] = taken
		w.slept["i0"].during = nil
		w.Taken(taken)
		w.drained()
		w.wantCopy("i0", "c3", "a\nb\n")
		if err := w.Wait(t.Context(), "i0"); err != nil {
			t.Error(err)
		}
		puts := w.puts
		w.sleep("i0", "c4", "a\nd\n")
		w.drained()
		w.wantCopy("i0", "c4", "a\nd\n")
		if w.puts != puts+2 || len(w.keys()) != 3 {
			t.Errorf("%d puts, left are %q", w.puts-puts, w.keys())
		}
	})
}

// TestACommitThatIsRefused: another server has the sandbox, and this one is not told yet.
func TestACommitThatIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		left := w.keys()
		w.owner = "srv_2"
		w.sleep("i0", "c2", "a\nc\n")
		w.drained()
		if keys := w.keys(); !slices.Equal(keys, left) {
			t.Errorf("left are %q, want the copy %q", keys, left)
		}
		if w.exported() != 2 || w.State("i0", "c2").Err == nil {
			t.Errorf("%d exports, %+v", w.exported(), w.State("i0", "c2"))
		}
	})
}

// TestACopyThatAnotherServerHas: a commit happens and its answer is lost, another server takes
// the sandbox over by that copy, and the commit that is tried again is refused.
func TestACopyThatAnotherServerHas(t *testing.T) {
	for _, told := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			fail(w, &w.commitFails, func(_ context.Context, r store.Replica) error {
				fail(w, &w.commitFails, nil)
				w.mu.Lock()
				defer w.mu.Unlock()
				w.replicas["i0"], w.owner = r, "srv_2"
				return errors.New("nobody knows")
			})
			w.sleep("i0", "c1", "a\nb\n")
			synctest.Wait()
			if told {
				w.Lost("i0")
			}
			pass(time.Hour)
			x, err := replica.ReadIndex(t.Context(), (*bucket)(w), copyOf(w.replicas["i0"]))
			if err != nil {
				t.Fatalf("told %t: %v", told, err)
			}
			for _, key := range x.Keys() {
				if !slices.Contains(w.keys(), key) {
					t.Errorf("told %t: %s is gone", told, key)
				}
			}
		})
	}
}

// TestTheBaseWasReplaced: another server has made a copy meanwhile, and removed what only
// the one before needed, to which the new one refers.
func TestTheBaseWasReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\nb\n")
		w.drained()
		goOn := w.hang("i0")
		w.sleep("i0", "c2", "a\nc\n")
		synctest.Wait()
		old := w.replicas["i0"]
		x, err := replica.ReadIndex(t.Context(), (*bucket)(w), copyOf(old))
		if err != nil {
			t.Fatal(err)
		}
		is, other, _, err := replica.Write(t.Context(), (*bucket)(w), "sandboxes/i0", nil, func(to io.Writer) error {
			_, err := to.Write([]byte("other\n"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		w.replicas["i0"] = store.Replica{Sandbox: "i0", Checkpoint: "other", Index: is.Index, EncryptionKey: is.Key}
		if _, err := replica.Remove(t.Context(), (*bucket)(w), replica.Unshared(x, other, old.Index)...); err != nil {
			t.Fatal(err)
		}
		goOn()
		w.drained()
		w.wantCopy("i0", "c2", "a\nc\n")
		if w.exported() != 3 {
			t.Errorf("exported %d times, want once more, as a whole", w.exported())
		}
	})
}

// TestAnOldCommitOfASandboxThatWasTakenBack is that of a copy which was under way when the
// sandbox was lost.
func TestAnOldCommitOfASandboxThatWasTakenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i0", "c1", "a\n")
		w.drained()
		fail(w, &w.commitFails, func(context.Context, store.Replica) error {
			fail(w, &w.commitFails, nil)
			w.Lost("i0")
			taken := w.replicas["i0"]
			taken.Checkpoint = "c3"
			w.mu.Lock()
			w.slept["i0"].checkpoint, w.slept["i0"].data = "c3", []byte("c\n")
			w.mu.Unlock()
			w.Taken(taken)
			return errors.New("nobody knows")
		})
		w.sleep("i0", "c2", "b\n")
		w.drained()
		w.wantCopy("i0", "c3", "c\n")
	})
}

func TestWaitForWhatHasNotSlept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		wantCode(t, w.Wait(t.Context(), "i0"), errdef.WrongState, "not_paused")
	})
}

// TestWhoWaitsIsToldWhatFails: of the attempt that ends first, and at once while it is known
// that the store is down.
func TestWhoWaitsIsToldWhatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var down atomic.Bool
		fail(w, &w.blobFails, func(context.Context, string, string) error {
			if time.Sleep(time.Second); down.Load() {
				return errDown
			}
			return nil
		})
		took := func(f func() error) (time.Duration, error) {
			began := time.Now()
			err := f()
			return time.Since(began), err
		}
		wait := func() error { return w.Wait(t.Context(), "i0") }
		drain := func() error { return w.Drain(t.Context()) }
		down.Store(true)
		w.sleep("i0", "c1", "a\n")
		d, err := took(wait)
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if d > 2*time.Second || !errors.Is(err, errDown) { // it has removed what it put
			t.Errorf("the first was told after %v: %v", d, err)
		}
		pass(10 * time.Minute)
		w.sleep("i1", "c1", "a\n")
		for _, f := range []func() error{wait, drain, func() error { return w.Wait(t.Context(), "i1") }} {
			d, err := took(f)
			wantCode(t, err, errdef.Unavailable, "replica_pending")
			if d != 0 || !errors.Is(err, errDown) {
				t.Errorf("another was told after %v: %v", d, err)
			}
		}
		if err := drain(); !strings.HasPrefix(err.Error(), "2 ") {
			t.Error(err)
		}
		// It is up again, and a copy makes progress.
		down.Store(false)
		goOn := w.hang("i0")
		pass(mostBackoff + 2*time.Second)
		go func() {
			time.Sleep(time.Hour)
			goOn()
		}()
		if d, err := took(wait); d < time.Hour || err != nil {
			t.Errorf("it took %v: %v", d, err)
		}
		w.drained()
	})
}

// TestAnOutageLongAgo says nothing of the store now.
func TestAnOutageLongAgo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		fail(w, &w.blobFails, func(context.Context, string, string) error { return errDown })
		w.sleep("i0", "c1", "a\n")
		synctest.Wait()
		w.end("i0")
		fail(w, &w.blobFails, nil)
		pass(time.Hour)
		w.sleep("i1", "c1", "a\n")
		if err := w.Wait(t.Context(), "i1"); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainEndsWhenAllHaveFailed, and not before.
func TestDrainEndsWhenAllHaveFailed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		damaged := errdef.New(errdef.Unavailable, "checkpoint_damaged", "layer 3 is damaged")
		fail(w, &w.exportFails, func(_ context.Context, id string) error {
			if id == "i0" {
				return damaged
			}
			return nil
		})
		goOn := w.hang("i1")
		w.sleep("i0", "c1", "a\n")
		w.sleep("i1", "c1", "a\n")
		go func() {
			time.Sleep(time.Hour)
			goOn()
		}()
		began := time.Now()
		err := w.Drain(t.Context())
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if d := time.Since(began); d < time.Hour || d > time.Hour+time.Minute || !strings.HasPrefix(err.Error(), "1 ") || !errors.Is(err, damaged) {
			t.Errorf("after %v: %v", d, err)
		}
		w.wantCopy("i1", "c1", "a\n")
	})
}

// TestClientsLearnNothingOfTheServer from why there is no copy; the log has all of it.
func TestClientsLearnNothingOfTheServer(t *testing.T) {
	const secret = "s3.internal/bucket/db-1"
	blob := func(code string) func(*world) {
		return func(w *world) {
			fail(w, &w.blobFails, func(context.Context, string, string) error {
				return errdef.New(errdef.Unavailable, code, "no answer of %s", secret).WithRemedy("look at %s", secret)
			})
		}
	}
	commit := func(err error) func(*world) {
		return func(w *world) { fail(w, &w.commitFails, func(context.Context, store.Replica) error { return err }) }
	}
	export := func(err error) func(*world) {
		return func(w *world) { fail(w, &w.exportFails, func(context.Context, string) error { return err }) }
	}
	for _, c := range []struct {
		breaks func(*world)
		want   string
	}{
		{blob("blobs_unavailable"), "the object storage does not answer, or refuses what it is asked; the server's log has more"},
		{blob("blobs_unusable"), "the object storage or the server's database has failed; the server's log has more"},
		{commit(errdef.New(errdef.Unavailable, "store_unavailable", "the database is %s", secret)), "the server cannot read or write its database; the server's log has more"},
		{commit(store.ErrElsewhere("sandbox i0", secret)), "another server has it; the server's log has more"},
		{export(fmt.Errorf("read %s: %w", secret, io.ErrUnexpectedEOF)), "the server cannot read its checkpoint; the server's log has more"},
		{export(errdef.New(errdef.Unavailable, "checkpoint_damaged", "%s is damaged", secret)), "files of its checkpoint are damaged; the server's log has more"},
		{export(errdef.New(errdef.NotFound, "sandbox_not_found", "%s is not there", secret)), "the server does not have it any more; the server's log has more"},
		{func(w *world) {
			w.sleeper("i0").during = func(io.Writer) error {
				return errdef.New(errdef.Unsupported, "not_portable", "%q cannot be copied", "/dev/x").WithRemedy("remove it")
			}
		}, `"/dev/x" cannot be copied: remove it`},
	} {
		inBubble(t, func(t *testing.T, w *world) {
			c.breaks(w)
			w.sleep("i0", "c1", "a\n")
			err := w.Wait(t.Context(), "i0")
			synctest.Wait()
			wantCode(t, err, errdef.Unavailable, "replica_pending")
			sb := store.Sandbox{ID: "i0", Record: lifecycle.Record{State: lifecycle.Paused, Checkpoint: &lifecycle.Checkpoint{ID: "c1"}}}
			if got := w.Describe(sb).Unreplicated; got != c.want || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("clients are told %q and %v, want %q", got, err, c.want)
			}
			if named := strings.Contains(w.log.String(), secret); named != !strings.HasPrefix(c.want, `"`) {
				t.Errorf("the log has %q", w.log.String())
			}
		})
	}
}

// TestWhatIsLogged of failures: that they begin, every ten minutes that they last, and that
// they are over.
func TestWhatIsLogged(t *testing.T) {
	for _, f := range []struct {
		fails     func(w *world, err error)
		began, is string
	}{
		{func(w *world, err error) {
			fail(w, &w.blobFails, func(context.Context, string, string) error { return err })
		}, "checkpoints cannot be copied now", "checkpoints are copied again"},
		{func(w *world, err error) {
			fail(w, &w.exportFails, func(context.Context, string) error { return err })
		}, "a checkpoint was not copied", "the checkpoint is copied again"},
	} {
		inBubble(t, func(t *testing.T, w *world) {
			want := func(began, over int) {
				t.Helper()
				log := w.log.String()
				if strings.Count(log, "level=WARN msg=\""+f.began) != began || strings.Count(log, "level=INFO msg=\""+f.is) != over || strings.Count(log, "\n") != began+over {
					t.Errorf("the log has %s", log)
				}
			}
			f.fails(w, errDown)
			w.sleep("i0", "c1", "a\n")
			pass(9 * time.Minute)
			want(1, 0)
			w.sleep("i0", "c2", "b\n")
			pass(time.Hour - 9*time.Minute)
			want(6, 0)
			f.fails(w, nil)
			w.drained()
			want(6, 1)
			if !strings.Contains(w.log.String(), "failedFor=1h0m") {
				t.Errorf("the log has %s", w.log.String())
			}
			w.sleep("i0", "c3", "c\n")
			w.drained()
			want(6, 1)
			f.fails(w, errDown)
			w.sleep("i0", "c4", "d\n")
			synctest.Wait()
			want(7, 1)
		})
	}
}

const markerKey = "sandboxes/servers/srv_1"

// inMarked runs a test in a world of a server that has a marker, with two sandboxes that
// have their copies.
func inMarked(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	inBubble(t, func(t *testing.T, w *world) {
		w.stop()
		w.self = "srv_1"
		w.start()
		synctest.Wait()
		if w.blobs[markerKey].data == nil {
			t.Error("there is no marker")
		}
		w.sleep("i0", "c1", "a\nb\n")
		w.sleep("i1", "c1", "c\n")
		w.drained()
		f(t, w)
		if got := strings.Count(w.log.String(), "lost the copies"); (got > 0) != strings.Contains(t.Name(), "Lost") {
			t.Errorf("the log has %s", w.log.String())
		}
	})
}

func TestAStoreWithTheMarkerIsBelieved(t *testing.T) {
	inMarked(t, func(t *testing.T, w *world) {
		w.stop()
		pass(2 * Grace)
		if err := w.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		w.start()
		w.drained()
		w.blobs[markerKey] = blob{data: make([]byte, mostMarker+1)}
		w.stop()
		w.start()
		w.drained()
		if w.exported() != 2 {
			t.Errorf("%d exports", w.exported())
		}
		w.wantCopy("i0", "c1", "a\nb\n")
		w.sleep("i0", "c2", "c\n")
		w.drained()
		w.wantCopy("i0", "c2", "c\n")
	})
}

// TestLostCopiesAreMadeAgain as a whole, though the database says that they are complete and
// some blobs are left.
func TestLostCopiesAreMadeAgain(t *testing.T) {
	inMarked(t, func(t *testing.T, w *world) {
		w.wake("i1")
		w.stop()
		index := w.replicas["i0"].Index
		for key := range w.blobs {
			if key != index {
				delete(w.blobs, key)
			}
		}
		fail(w, &w.blobFails, func(context.Context, string, string) error { return errDown })
		w.start()
		pass(time.Hour)
		fail(w, &w.blobFails, nil)
		goOn := w.hang("i0")
		pass(mostBackoff)
		if s := w.State("i0", "c1"); s.Complete || s.Since.IsZero() || s.Since.After(time.Now()) {
			t.Errorf("it is known to be lost, and the state %+v", s)
		}
		if !strings.Contains(w.log.String(), "copied again\" failedFor=1h") {
			t.Errorf("the store is up, and the log has %s", w.log.String())
		}
		if _, marked := w.blobs[markerKey]; marked {
			t.Error("the marker is there before the copies are")
		}
		goOn()
		w.drained()
		w.wantCopy("i0", "c1", "a\nb\n")
		if w.exported() != 3 || w.blobs[markerKey].data == nil {
			t.Errorf("%d exports; %q", w.exported(), w.keys())
		}
		if log := w.log.String(); strings.Count(log, "level=WARN msg=\"the object") != 1 || !strings.Contains(log, "copies=1") || strings.Count(log, "failedFor") != 1 {
			t.Errorf("the log has %s", log)
		}
		w.sleep("i1", "c2", "c\nd\n")
		w.drained()
		w.wantCopy("i1", "c2", "c\nd\n")
	})
}

// TestLostCopiesAreRemembered by a server that ends before they are made again.
func TestLostCopiesAreRemembered(t *testing.T) {
	inMarked(t, func(t *testing.T, w *world) {
		w.stop()
		clear(w.blobs)
		w.hang("i0")
		w.start()
		pass(time.Minute)
		w.stop()
		w.slept["i0"].during = nil
		w.start()
		w.drained()
		w.wantCopy("i0", "c1", "a\nb\n")
		w.wantCopy("i1", "c1", "c\n")
		if w.blobs[markerKey].data == nil {
			t.Errorf("there are %q", w.keys())
		}
	})
}

// TestTheMarkerIsPutInTheEnd, and no copy waits for it.
func TestTheMarkerIsPutInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.stop()
		fail(w, &w.blobFails, func(_ context.Context, op, key string) error {
			if op == "put" && key == markerKey {
				return errDown
			}
			return nil
		})
		w.self = "srv_1"
		w.start()
		w.sleep("i0", "c1", "a\n")
		pass(10 * time.Minute)
		w.wantCopy("i0", "c1", "a\n")
		fail(w, &w.blobFails, nil)
		pass(mostBackoff)
		if w.blobs[markerKey].data == nil || strings.Count(w.log.String(), "\n") != 1 {
			t.Errorf("there are %q; the log has %s", w.keys(), w.log.String())
		}
	})
}

func TestWhoWaitsIsToldOfAStoreThatIsDownFromTheStart(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.stop()
		fail(w, &w.blobFails, func(context.Context, string, string) error { return errDown })
		w.self = "srv_1"
		w.start()
		w.sleep("i0", "c1", "a\n")
		err := w.Wait(t.Context(), "i0")
		wantCode(t, err, errdef.Unavailable, "replica_pending")
		if !errors.Is(err, errDown) {
			t.Error(err)
		}
		if s := w.State("i0", "c1"); !errors.Is(s.Err, errDown) || s.Complete {
			t.Errorf("its state is %+v", s)
		}
	})
}

func TestRunEndsDuringAnUpload(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.hang("i0")
		w.sleep("i0", "c1", "a\n")
		pass(time.Minute)
		fail(w, &w.blobFails, func(ctx context.Context, _, _ string) error { // the store hangs
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		w.stop()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("it took %v to end", took)
		}
		if s := w.State("i0", "c1"); s.Err != nil {
			t.Errorf("that the server stops is no failure: %v", s.Err)
		}
	})
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.sleep("i1", "c1", "some bytes")
		w.drained()
		fail(w, &w.exportFails, func(context.Context, string) error { return errors.New("broken") })
		w.sleep("i0", "c1", "a\n")
		synctest.Wait()
		pass(500 * time.Millisecond / 2)
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(w.Collector()); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.GetMetric()[0]
			got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
		want := map[string]float64{"drowse_replicas_pending": 1, "drowse_replica_oldest_pending_seconds": 0.25, "drowse_replica_bytes_total": 10, "drowse_replica_failures_total": 1}
		if !maps.Equal(got, want) {
			t.Errorf("metrics %v, want %v", got, want)
		}
	})
}

// TestAtRandom has sandboxes sleep, wake, end and be lost, and everything fail now and then,
// servers start anew and sweep. What the database says is a copy can be read at any time, as
// what the sandbox slept with; in the end all are copied, and nothing else is left.
func TestAtRandom(t *testing.T) {
	for seed := range uint64(12) {
		inBubble(t, func(t *testing.T, w *world) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			failing := 0
			fails := func() error {
				mu.Lock()
				takes, bad := time.Duration(rnd.Int64N(int64(10*time.Second))), rnd.IntN(100) < failing
				mu.Unlock()
				if time.Sleep(takes); bad {
					return errDown
				}
				return nil
			}
			fail(w, &w.blobFails, func(context.Context, string, string) error { return fails() })
			fail(w, &w.commitFails, func(context.Context, store.Replica) error { return fails() })
			fail(w, &w.exportFails, func(context.Context, string) error { return fails() })
			contents := map[string]string{} // of checkpoints
			check := func() {
				w.mu.Lock()
				all := maps.Clone(w.replicas)
				have := maps.Clone(w.blobs)
				w.mu.Unlock()
				for id, r := range all {
					still := &world{t: t, blobs: have, replicas: all}
					if cp, got := still.read(id); got != contents[cp] {
						t.Fatalf("seed %d: the copy %+v has %q, want %q", seed, r, got, contents[cp])
					}
				}
			}
			draw := rand.New(rand.NewPCG(seed, 1))
			for step := range 150 {
				id := fmt.Sprintf("i%d", draw.IntN(4))
				mu.Lock()
				failing = []int{0, 10, 60, 100}[draw.IntN(4)]
				mu.Unlock()
				switch n := draw.IntN(20); {
				case n < 9:
					cp := fmt.Sprintf("c%d", step)
					data := fmt.Sprintf("%s\n%d\n%d\n%d\n", id, draw.IntN(3), draw.IntN(3), draw.IntN(100))
					contents[cp] = data
					w.sleep(id, cp, data)
				case n < 11:
					if w.slept[id] != nil {
						w.wake(id)
					}
				case n < 13:
					if w.slept[id] != nil {
						w.end(id)
					}
				case n < 14:
					w.stop()
					w.start()
				case n < 16:
					_ = w.Sweep(t.Context())
				default:
					pass(time.Duration(draw.Int64N(int64(time.Hour))))
				}
				pass(time.Duration(draw.Int64N(int64(time.Minute))))
				check()
			}
			mu.Lock()
			failing = 0
			mu.Unlock()
			w.drained()
			pass(Grace + time.Second)
			if err := w.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
			check()
			needed := 0
			for id, s := range w.slept {
				if !s.runs {
					w.wantCopy(id, s.checkpoint, string(s.data))
				}
				if r, ok := w.replicas[id]; ok {
					x, err := replica.ReadIndex(t.Context(), (*bucket)(w), copyOf(r))
					if err != nil {
						t.Error(err)
					}
					needed += len(x.Keys()) + 1
				}
			}
			if got := len(w.keys()); got != needed {
				t.Errorf("seed %d: %d blobs are left, and %d needed", seed, got, needed)
			}
		})
		if t.Failed() {
			return
		}
	}
}
