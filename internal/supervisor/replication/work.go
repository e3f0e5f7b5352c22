package replication

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/replica"
	"github.com/drowse-dev/drowse/internal/store"
)

const (
	atOnce = 2 // sandboxes or snapshots

	firstBackoff = time.Second
	mostBackoff  = time.Minute
	// outageKnown is for how long the store is believed to be down without another try: a
	// try takes two minutes at most.
	outageKnown = mostBackoff + 4*time.Minute
	// mostRest is how long a sandbox waits, at most, after a failure that took long: else
	// it waits as long as that took, so that it does not keep the server busy.
	mostRest = 10 * time.Minute

	removeFor = time.Minute // how long it is tried to remove what is not needed any more
	// mostRemains is how many copies of sandboxes that have ended wait to be removed. More
	// are left to Sweep.
	mostRemains = 10_000

	long = time.Hour // when nothing is known to be due
)

// job is one attempt for a sandbox.
type job struct {
	ctx   context.Context
	s     *sandbox
	told  int            // of s when it began
	base  *store.Replica // of s then
	whole bool
	made  *made // of s then: only the commit is left
	probe bool  // the store was down
	began time.Time
}

// made is a copy that was uploaded.
type made struct {
	replica store.Replica
	index   replica.Index
	base    *replica.Index // of the copy before; nil if that is not known
	baseKey string
	told    int
	began   time.Time
}

// unneeded returns the keys that are needed no more if made is not.
func (m *made) unneeded() []string {
	var base replica.Index
	if m.base != nil {
		base = *m.base
	}
	return replica.Unshared(m.index, base, m.replica.Index)
}

// result is what became of an attempt.
type result struct {
	err    error
	made   *made          // what was uploaded; nil for nothing
	before *store.Replica // what made has replaced, after no error
	store  bool           // it was the object storage or the database that failed
	rests  bool           // there is nothing to copy until the sandbox sleeps again
	// unsure says that another server has the sandbox, and may have it by this copy: it was
	// to be committed before, and nobody knows whether it was.
	unsure bool
}

// Run copies until ctx ends, and returns when nothing goes on any more. It first waits until
// the store says whether it has what it should.
func (r *Replicator) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	if r.o.Blobs == nil {
		return
	}
	if m := (marker{r}); r.o.Server != "" && !m.found(ctx) {
		running.Go(func() { m.put(ctx) })
	}
	running.Go(func() { r.removeRemains(ctx) })
	for ctx.Err() == nil {
		j, wait := r.next(ctx)
		if j != nil {
			running.Go(func() { r.work(ctx, j) })
			continue
		}
		due := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.kick:
		case <-due.C:
		}
		due.Stop()
	}
}

// next begins the next job; nil, and when to look again, if there is none now.
func (r *Replicator) next(ctx context.Context) (*job, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Now()
	switch {
	case len(r.busy) >= atOnce, r.down > 0 && len(r.busy) > 0:
		return nil, long
	case r.down > 0 && now.Before(r.again):
		return nil, r.again.Sub(now)
	}
	var best *sandbox
	wait := long
	for id, s := range r.pending {
		switch {
		case s.rests || r.busy[id]:
		case now.Before(s.next):
			wait = min(wait, s.next.Sub(now))
		case best == nil || s.before(best):
			best = s
		}
	}
	if best == nil {
		return nil, wait
	}
	j := &job{s: best, told: best.told, base: best.replica, whole: best.whole, probe: r.down > 0, began: now}
	limit := Grace / 2
	if m := best.made; m != nil && (m.told == best.told || store.Covers(m.replica.Checkpoint, best.wanted)) && now.Before(m.began.Add(limit)) {
		j.made, limit = m, m.began.Add(limit).Sub(now)
	}
	best.made = nil
	j.ctx, best.cut = context.WithTimeout(ctx, limit)
	r.busy[best.id] = true
	return j, 0
}

// before says of which sandbox the copy is made first. One that fails, which may be for its
// files and take long each time, is tried when no other is due.
func (s *sandbox) before(other *sandbox) bool {
	if (s.waiters > 0) != (other.waiters > 0) {
		return s.waiters > 0
	}
	if (s.attempts > 0) != (other.attempts > 0) {
		return other.attempts > 0
	}
	return cmp.Or(s.since.Compare(other.since), cmp.Compare(s.id, other.id)) < 0
}

// work does a job, and removes what is not needed after it.
func (r *Replicator) work(ctx context.Context, j *job) {
	unneeded := r.finish(ctx, j, r.attempt(j))
	if len(unneeded) > 0 {
		r.remove(ctx, unneeded)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, j.s.id)
	r.look()
}

// remove removes what nothing needs any more. What is left is for Sweep.
func (r *Replicator) remove(ctx context.Context, keys []string) {
	ctx, cancel := context.WithTimeout(ctx, removeFor)
	defer cancel()
	if _, err := replica.Remove(ctx, r.o.Blobs, keys...); err != nil {
		r.o.Log.Debug("what no copy of a checkpoint needs is left to the sweep", "err", err)
	}
}

// attempt makes a copy and commits it.
func (r *Replicator) attempt(j *job) result {
	if j.probe { // it costs much to read a checkpoint in vain
		if _, err := r.o.Blobs.Get(j.ctx, r.o.Prefix+"/probe", 1); err != nil && !errdef.Is(err, errdef.NotFound) {
			return result{err: err, made: j.made, store: true}
		}
		r.answered()
	}
	m := j.made
	if m == nil {
		res := r.upload(j)
		if m = res.made; m == nil {
			return res
		}
	}
	if r.o.Now().Sub(m.began) > Grace/2 { // the machine stood still, and what was sent may have been swept
		return result{err: fmt.Errorf("copy of %s %s: %w", j.s.kind, j.s.id, context.DeadlineExceeded)}
	}
	before, err := r.o.Store.PutReplica(j.ctx, m.replica)
	if err != nil {
		err = fmt.Errorf("commit copy of %s %s: %w", j.s.kind, j.s.id, err)
	}
	_, elsewhere := store.Elsewhere(err)
	refused := elsewhere || errdef.Is(err, errdef.NotFound)
	return result{err: err, made: m, before: before, rests: refused, unsure: elsewhere && j.made != nil, store: err != nil && !refused}
}

// answered notes that the store, which was down, may be up again: who waits for a copy now
// waits for what becomes of it.
func (r *Replicator) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = true
}

// upload makes a copy of what the sandbox sleeps with. There is none, and no error, if the
// last one is of that.
func (r *Replicator) upload(j *job) result {
	m := &made{told: j.told}
	if err := r.readBase(j, m); err != nil {
		return result{err: err, store: true}
	}
	x, err := r.o.Export(j.ctx, j.s.id)
	if err != nil {
		rests := errdef.CodeOf(err) == "not_paused" || errdef.Is(err, errdef.NotFound)
		return result{err: err, rests: rests}
	}
	defer x.Release()
	if j.base != nil && store.Covers(j.base.Checkpoint, x.Checkpoint) {
		return result{}
	}
	ctx, cancel := context.WithCancel(j.ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-x.Cut:
			cancel()
		case <-ctx.Done():
		}
	})
	m.began = r.o.Now().Round(0) // by the wall clock: the other stands still with the machine
	to := &noting{Store: r.o.Blobs}
	is, index, sent, err := replica.Write(ctx, to, r.o.Prefix+"/"+j.s.id, m.base, x.Write)
	r.sent.Add(float64(sent))
	if err != nil {
		return result{err: err, store: to.failed.Load()}
	}
	m.index = index
	m.replica = store.Replica{Checkpoint: x.Checkpoint, Index: is.Index, EncryptionKey: is.Key, Bytes: index.Size(), At: r.o.Now()}
	if j.s.kind == ofSnapshot {
		m.replica.Snapshot = j.s.id
	} else {
		m.replica.Sandbox = j.s.id
	}
	return result{made: m}
}

// readBase reads the index of the last copy, to whose pieces the next can refer. Without it
// that is whole.
func (r *Replicator) readBase(j *job, m *made) error {
	if j.base == nil || j.whole {
		return nil
	}
	x, err := replica.ReadIndex(j.ctx, r.o.Blobs, copyOf(*j.base))
	switch {
	case errdef.CodeOf(err) == "blobs_unavailable", j.ctx.Err() != nil:
		return err
	case err != nil:
		r.o.Log.Warn("copying a checkpoint as a whole: the index of the last copy cannot be read", j.s.kind, j.s.id, "err", err)
		return nil
	}
	m.base, m.baseKey = &x, j.base.Index
	return nil
}

// noting notes whether it was the store that failed.
type noting struct {
	blobs.Store
	failed atomic.Bool
}

// Put implements blobs.Store.
func (n *noting) Put(ctx context.Context, key string, data []byte) error {
	err := n.Store.Put(ctx, key, data)
	if err != nil && ctx.Err() == nil {
		n.failed.Store(true)
	}
	return err
}

// finish notes what became of a job, and returns the keys that nothing needs after it.
func (r *Replicator) finish(ctx context.Context, j *job, res result) (unneeded []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, m := j.s, res.made
	if s.cut != nil {
		s.cut()
		s.cut = nil
	}
	switch {
	case s.gone != nil:
		return r.late(s, res)
	case res.err == nil:
		r.down = 0
		r.logSuccess(s)
		return r.copied(j, res)
	case res.rests:
		r.rest(j, res)
		if m != nil && !res.unsure { // the commit was refused
			return m.unneeded()
		}
	case ctx.Err() == nil:
		r.fail(j, res)
	}
	return nil
}

// late is finish for a sandbox that has ended, or that another server has.
func (r *Replicator) late(s *sandbox, res result) (unneeded []string) {
	m := res.made
	switch {
	case m == nil:
	case s.ended:
		return replica.Unshared(m.index, replica.Index{}, m.replica.Index)
	case res.unsure:
	case res.rests:
		return m.unneeded()
	default:
		// This server may have it again by now, and the copy be of an older checkpoint.
		if again := r.sandboxes[s.id]; again != nil {
			again.doubt(m.replica)
			again.since, again.rests = r.o.Now(), false
			r.pending[s.id] = again
		}
	}
	return nil
}

// doubt notes that the copy of a sandbox may not be what it is said to be: another one has
// to be made that refers to nothing.
func (s *sandbox) doubt(x store.Replica) {
	x.Checkpoint = ""
	s.replica, s.whole = &x, true
}

// copied notes that the sandbox has a copy of what it slept with when the job began, or
// later.
func (r *Replicator) copied(j *job, res result) (unneeded []string) {
	s, m, told := j.s, res.made, j.told
	if m != nil {
		told = m.told
		as := ""
		if res.before != nil {
			as = res.before.Index
		}
		if len(m.index.Uploads) > 1 && as != m.baseKey && as != m.replica.Index {
			// Somebody has replaced the copy to which this one refers, and may have removed it.
			r.o.Log.Warn("copying a checkpoint again: the copy that it refers to was replaced", s.kind, s.id)
			s.doubt(m.replica)
			r.look()
			return nil
		}
		s.replica, s.whole = &m.replica, false
		if m.base != nil && as == m.baseKey {
			unneeded = replica.Unshared(*m.base, m.index, m.baseKey)
		}
	}
	s.err, s.failed, s.attempts = nil, 0, 0
	if s.has(s.wanted) || s.told == told {
		s.wanted = s.replica.Checkpoint
		r.settle(s)
	}
	return unneeded
}

// rest notes that there is nothing to copy, unless the sandbox has slept anew meanwhile.
func (r *Replicator) rest(j *job, res result) {
	if j.s.told != j.told {
		return
	}
	j.s.rests, j.s.err = true, nil
	if errdef.CodeOf(res.err) != "not_paused" {
		j.s.err = failureOf(res)
		r.o.Log.Warn("a checkpoint is not copied: this server has it no more", j.s.kind, j.s.id, "err", res.err)
	}
	r.tell()
}

// fail notes a failure, and when it is tried again. While the store is down, one sandbox at
// a time tries.
func (r *Replicator) fail(j *job, res result) {
	s, now := j.s, r.o.Now()
	r.failed.Inc()
	r.failures++
	s.err, s.failed, s.made = failureOf(res), r.failures, res.made
	r.tell()
	if res.store {
		r.failStore(now, res, s.kind, s.id)
		return
	}
	r.down = 0
	s.attempts++
	s.next = now.Add(max(backoff(s.attempts), min(now.Sub(j.began), mostRest)))
	if s.fails.fails(now) {
		r.o.Log.Warn("a checkpoint was not copied; trying again", s.kind, s.id, "failingFor", now.Sub(s.fails.since), "err", res.err)
	}
}

// failStore notes that the store, or the database, has failed.
func (r *Replicator) failStore(now time.Time, res result, logged ...any) {
	r.down++
	r.again = now.Add(backoff(r.down))
	r.outage, r.downAt, r.answers = failureOf(res), now, false
	if r.outages.fails(now) {
		r.o.Log.Warn("checkpoints cannot be copied now; trying again", append(logged, "failingFor", now.Sub(r.outages.since), "err", res.err)...)
	}
}

// logUp has the log say that the store is up again, if it was down.
func (r *Replicator) logUp() {
	if lasted, failed := r.outages.ends(r.o.Now()); failed {
		r.o.Log.Info("checkpoints are copied again", "failedFor", lasted)
	}
}

// logSuccess has the log say that a copy was made, if the last attempts had failed.
func (r *Replicator) logSuccess(s *sandbox) {
	r.logUp()
	if lasted, failed := s.fails.ends(r.o.Now()); failed {
		r.o.Log.Info("the checkpoint is copied again", s.kind, s.id, "failedFor", lasted)
	}
}

// backoff returns how long to wait after so many failures.
func backoff(failures int) time.Duration {
	d := min(firstBackoff<<min(failures-1, 10), mostBackoff)
	return d/2 + rand.N(d/2+1)
}

// removeRemains removes the copies of sandboxes that have ended, until ctx ends.
func (r *Replicator) removeRemains(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.ended:
		}
		for c := r.remain(); c.Index != "" && ctx.Err() == nil; c = r.remain() {
			x, err := replica.ReadIndex(ctx, r.o.Blobs, c)
			if err != nil {
				r.o.Log.Debug("the copy of a sandbox that has ended is left to the sweep", "index", c.Index, "err", err)
				continue
			}
			r.remove(ctx, replica.Unshared(x, replica.Index{}, c.Index))
		}
	}
}

// remain returns the next copy to remove; zero for none.
func (r *Replicator) remain() (c replica.Copy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.remains) > 0 {
		c, r.remains = r.remains[0], r.remains[1:]
	}
	return c
}
