// Package replication copies the checkpoints of sandboxes that sleep, and snapshots, to object
// storage, so that another server can go on with them.
//
// It is told what becomes of the sandboxes of this server, waits for nothing then, and
// copies in the background. Of each sandbox it makes one copy at a time, and each of what the
// sandbox sleeps with when the copy begins: so none that is older takes the place of a newer
// one. A copy is complete when the database says so. A copy that is under way while the
// sandbox wakes, or sleeps anew, goes on: one that sleeps often would never have a copy
// otherwise. What is left behind by a failure is for Sweep.
//
// A snapshot is to a Replicator a sandbox that sleeps with the same checkpoint until it ends.
package replication

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/moving"
)

const (
	// Grace is for how long Sweep leaves alone what nothing needs. An upload and its commit
	// take half of it at most; the rest is for clocks that differ.
	Grace = 6 * time.Hour

	codePending = "replica_pending"
)

// Options are what a Replicator works with.
type Options struct {
	Blobs blobs.Store // nil for nowhere: nothing is copied
	// Prefix is what all keys begin with: a name that no other database has, whose copies
	// may be in the same place. The id of the sandbox or the snapshot follows.
	Prefix string
	// Server is the id of this server, of which there is a marker in the store; "" for none, and
	// for one that has all there is.
	Server string
	Store  Store
	// Export returns what reads a paused sandbox, or a snapshot. It waits for an operation in
	// flight; a sandbox that runs is an error with code "not_paused".
	Export func(ctx context.Context, id string) (*moving.Export, error)
	// Measured is told of what Prometheus can ask for, if anything is copied; nil for nobody.
	Measured func(prometheus.Collector)
	Log      *slog.Logger
	Now      func() time.Time // nil for time.Now
}

// Store is what the database knows of copies.
type Store interface {
	PutReplica(ctx context.Context, r store.Replica) (before *store.Replica, err error)
	Replicas(ctx context.Context, owner string) ([]store.Replica, error)
	Replica(ctx context.Context, id string) (store.Replica, error)
}

// Replicator copies checkpoints. It is safe for concurrent use.
type Replicator struct {
	o      Options
	sent   prometheus.Counter
	failed prometheus.Counter
	kick   chan struct{} // has one when Run is to look again
	ended  chan struct{} // has one when there is something in remains

	mu        sync.Mutex          // guards what follows, and all sandboxes
	sandboxes map[string]*sandbox // and snapshots, by id
	pending   map[string]*sandbox // those of which a copy is to be made
	busy      map[string]bool     // sandboxes, by id, that something is done for now
	down      int                 // how often the store has failed on end
	again     time.Time           // when it is tried again
	outage    error               // why it has failed last, for clients
	downAt    time.Time           // and when
	answers   bool                // it has answered since
	outages   spell               // in which it is down
	failures  int                 // attempts that have failed, of all sandboxes
	remains   []replica.Copy      // of what has ended
	changed   chan struct{}       // closed and replaced when somebody may have waited for it
}

// sandbox is what is known of one, or of a snapshot.
type sandbox struct {
	id      string
	kind    string // for the log: "sandbox" or "snapshot"
	wanted  string // the checkpoint of which there is to be a copy, as store.CopyOf has it; "" if it has not slept
	told    int    // how often that was said
	since   time.Time
	rests   bool // there is nothing to copy until it sleeps again
	replica *store.Replica
	whole   bool  // the next copy must refer to no other
	lost    bool  // the store has lost its copy, and there is no other yet
	made    *made // a copy that is complete but for its commit

	err      error // the last failure since the last copy, for clients
	failed   int   // what Replicator.failures was with it
	fails    spell // for what is wrong with the sandbox
	attempts int
	next     time.Time // not before
	waiters  int
	cut      context.CancelFunc // ends what is under way; nil for nothing
	gone     error              // why it is not known any more
	ended    bool               // that is because it has ended
}

// State is how far the copy of a checkpoint is.
type State struct {
	Complete bool
	At       time.Time // of the copy, if it is complete
	Bytes    int64     // of it
	Since    time.Time // since when the sandbox sleeps without one; zero if it does not
	Err      error     // the last failure, with a text for clients; nil for none
}

// New returns a Replicator that knows which copies are complete.
func New(ctx context.Context, o Options) (*Replicator, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &Replicator{
		o: o, kick: make(chan struct{}, 1), ended: make(chan struct{}, 1), changed: make(chan struct{}),
		sandboxes: map[string]*sandbox{}, pending: map[string]*sandbox{}, busy: map[string]bool{},
		sent:   prometheus.NewCounter(prometheus.CounterOpts{Name: "drowse_replica_bytes_total", Help: "Bytes sent to object storage for copies of checkpoints."}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "drowse_replica_failures_total", Help: "Attempts to copy a checkpoint to object storage that failed."}),
	}
	if o.Blobs == nil {
		return r, nil
	}
	all, err := o.Store.Replicas(ctx, o.Server)
	if err != nil {
		return nil, fmt.Errorf("read which checkpoints have copies: %w", err)
	}
	for _, x := range all {
		if x.EncryptionKey == "" {
			x.Checkpoint = "" // it is made again, encrypted
		}
		r.sandbox(x.Of(), kindOf(x)).replica = &x
	}
	if o.Measured != nil {
		o.Measured(r.Collector())
	}
	return r, nil
}

// The kinds of what has copies.
const (
	ofSandbox  = "sandbox"
	ofSnapshot = "snapshot"
)

func kindOf(x store.Replica) string {
	if x.Snapshot != "" {
		return ofSnapshot
	}
	return ofSandbox
}

// copyOf returns what a copy is read with.
func copyOf(x store.Replica) replica.Copy {
	return replica.Copy{Index: x.Index, Key: x.EncryptionKey}
}

// Slept says that a sandbox sleeps with a checkpoint now, as store.CopyOf has it: it is copied, unless
// it has its copy.
func (r *Replicator) Slept(id, checkpoint string) { want(r, id, ofSandbox, checkpoint) }

// want says that a checkpoint is to have its copy, if anything is copied.
func want(r *Replicator, id, kind, checkpoint string) {
	if r.o.Blobs == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandbox(id, kind)
	s.told++
	if s.has(checkpoint) {
		s.wanted = checkpoint
		r.settle(s)
		return
	}
	if r.pending[id] == nil || s.rests {
		s.since = r.o.Now() // else it has been without its copy for longer
	}
	if s.wanted != checkpoint {
		s.attempts, s.next = 0, time.Time{}
	}
	s.wanted, s.rests = checkpoint, false
	r.pending[id] = s
	r.look()
}

// Taken says that this server has a sandbox or a snapshot now that another one had, and what
// its copy is.
func (r *Replicator) Taken(x store.Replica) {
	checkpoint := x.Checkpoint
	if x.EncryptionKey == "" {
		x.Checkpoint = "" // it is made again, encrypted
	}
	r.mu.Lock()
	s := r.sandbox(x.Of(), kindOf(x))
	s.replica, s.whole, s.made = &x, false, nil
	r.mu.Unlock()
	want(r, x.Of(), kindOf(x), checkpoint)
}

// Ended says that a sandbox has ended, or that a snapshot was removed. Its copy is removed.
func (r *Replicator) Ended(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return
	}
	s.ended = true
	r.forget(s, errdef.New(errdef.NotFound, "sandbox_terminated", "%s %s has ended, and its checkpoint is not copied any more", s.kind, id))
	if s.replica != nil {
		r.leave(*s.replica)
	}
	if s.made != nil {
		r.leave(s.made.replica)
	}
}

// Lost says that another server has a sandbox or a snapshot now, and its copy.
func (r *Replicator) Lost(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		r.forget(s, errdef.New(errdef.Unavailable, codePending, "another server has %s %s now, and copies its checkpoint", s.kind, id).
			WithRemedy("ask again; that server will answer"))
	}
}

// State says how far the copy of a checkpoint is.
func (r *Replicator) State(id, checkpoint string) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return State{}
	}
	state := State{Err: s.err}
	if s.has(checkpoint) {
		state.Complete, state.At, state.Bytes = true, s.replica.At, s.replica.Bytes
	}
	if r.pending[id] == s && !s.rests {
		state.Since = s.since
		if state.Err == nil { // not even tried
			state.Err = r.outageNow()
		}
	}
	return state
}

// Wait waits until the checkpoint that a sandbox slept with last has its copy. That of a
// sandbox that somebody waits for is made first. It is an errdef.Unavailable with code
// "replica_pending" when ctx ends before, when an attempt fails, and at once while the store
// is down or when the sandbox has woken before it was copied. The copy goes on. Its
// text is for clients.
func (r *Replicator) Wait(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil || s.wanted == "" {
		return errdef.New(errdef.WrongState, "not_paused", "sandbox %s has not slept on this server, and has no checkpoint to copy", id).
			WithRemedy("pause it first")
	}
	s.waiters++
	defer func() { s.waiters-- }()
	r.look()
	began := r.failures
	for s.gone == nil && r.pending[id] == s {
		if outage := r.outageNow(); outage != nil {
			return s.pendingError(outage)
		}
		if s.rests || s.failed > began || !r.await(ctx) {
			return s.pendingError(s.err)
		}
	}
	return s.gone
}

// pendingError says that a sandbox has no copy yet, and why the last attempt to make it has
// failed, if it has.
func (s *sandbox) pendingError(failure error) error {
	why := "it is not complete yet"
	switch {
	case failure != nil:
		why = "the last attempt failed"
	case s.rests:
		why = "the sandbox has woken before it was copied"
	}
	text := fmt.Sprintf("sandbox %s is paused on this server, and there is no copy of its checkpoint yet: %s", s.id, why)
	err := errdef.New(errdef.Unavailable, codePending, "%s", text)
	if failure != nil {
		err = errdef.New(errdef.Unavailable, codePending, "%s: %w", text, failure)
	}
	return err.WithRemedy("wait: it is copied in the background").With("sandbox", s.id)
}

// Drain waits until every sandbox that sleeps and every snapshot has its copy. It is an errdef.Unavailable with
// code "replica_pending" when ctx ends before, when an attempt has failed for each that has
// none, and at once while the store is down.
func (r *Replicator) Drain(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := r.failures
	for {
		left, _ := r.waiting()
		if left == 0 {
			return nil
		}
		outage := r.outageNow()
		if failure := allFailed(r.pending, began); outage != nil || failure != nil || !r.await(ctx) {
			return undrained(left, cmp.Or(outage, failure))
		}
	}
}

// allFailed returns why one of those without a copy has none, if for each of them an attempt
// has failed since.
func allFailed(pending map[string]*sandbox, since int) (failure error) {
	for _, s := range pending {
		switch {
		case s.rests:
		case s.failed <= since:
			return nil
		default:
			failure = s.err
		}
	}
	return failure
}

// undrained says that so many have no copy, and why, if that is known.
func undrained(left int, failure error) error {
	err := errdef.New(errdef.Unavailable, codePending, "%d sandboxes that sleep and snapshots have no copy", left)
	if failure != nil {
		err = errdef.New(errdef.Unavailable, codePending, "%s: %w", err.Message, failure)
	}
	return err.WithRemedy("start the server again: it copies them")
}

// Sweep removes from object storage what no copy needs. One server at a time does so.
func (r *Replicator) Sweep(ctx context.Context) error {
	removed, bytes, err := replica.Sweep(ctx, r.o.Blobs, r.o.Prefix, func(ctx context.Context) ([]replica.Copy, error) {
		all, err := r.o.Store.Replicas(ctx, "")
		copies := make([]replica.Copy, len(all))
		for i, x := range all {
			copies[i] = copyOf(x)
		}
		return copies, err
	}, Grace, r.o.Now())
	if removed > 0 {
		r.o.Log.Info("removed what no copy of a checkpoint needs", "blobs", removed, "bytes", bytes)
	}
	return err
}

// The rest of this file is called by who holds mu.

func (r *Replicator) sandbox(id, kind string) *sandbox {
	s := r.sandboxes[id]
	if s == nil {
		s = &sandbox{id: id, kind: kind}
		r.sandboxes[id] = s
	}
	return s
}

// has reports whether a checkpoint has its copy.
func (s *sandbox) has(checkpoint string) bool {
	return s.replica != nil && store.Covers(s.replica.Checkpoint, checkpoint)
}

// settle notes that a sandbox has its copy.
func (r *Replicator) settle(s *sandbox) {
	s.lost = false
	s.err, s.fails, s.attempts, s.next, s.rests = nil, spell{}, 0, time.Time{}, false
	delete(r.pending, s.id)
	r.tell()
}

// forget ends all work for a sandbox.
func (r *Replicator) forget(s *sandbox, why error) {
	s.gone = why
	delete(r.sandboxes, s.id)
	delete(r.pending, s.id)
	if s.cut != nil {
		s.cut()
	}
	r.tell()
}

// leave has the copy of what has ended removed.
func (r *Replicator) leave(x store.Replica) {
	if len(r.remains) < mostRemains {
		r.remains = append(r.remains, copyOf(x))
		signal(r.ended)
	}
}

// waiting returns how many have no copy, and since when the first does not.
func (r *Replicator) waiting() (n int, since time.Time) {
	for _, s := range r.pending {
		if s.rests {
			continue
		}
		if n++; since.IsZero() || s.since.Before(since) {
			since = s.since
		}
	}
	return n, since
}

// Outage returns an errdef.Unavailable with code "replica_pending" where nothing can be copied now,
// because the store is down; nil if that is not known.
func (r *Replicator) Outage() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	outage := r.outageNow()
	if outage == nil {
		return nil
	}
	return errdef.New(errdef.Unavailable, codePending, "the object storage does not answer, and nothing is copied: %w", outage).
		WithRemedy("try again when it does")
}

// outageNow returns why the store is down; nil if that is not known, or was long ago: while
// something is to be copied, it is tried more often.
func (r *Replicator) outageNow() error {
	if r.down == 0 || r.answers || r.o.Now().Sub(r.downAt) > outageKnown {
		return nil
	}
	return r.outage
}

// look has Run look again what is to be done.
func (r *Replicator) look() { signal(r.kick) }

// signal puts one into a channel for one, if it has none.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// tell lets everybody look again who waits.
func (r *Replicator) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits for a change, without mu; false if ctx has ended.
func (r *Replicator) await(ctx context.Context) bool {
	changed := r.changed
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}
