package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drowse-dev/drowse/internal/blobs/blobstest"
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/lifecycle/history"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/store/lease"
	"github.com/drowse-dev/drowse/internal/store/memstore"
)

// TestHistoriesOfServers is TestHistories with three servers of one database and one object
// storage, each on a machine of its own. They crash, with their machines or without, stop
// and start, stand still, and are cut off from the database or the object storage; some
// machine burns down at the instant in which a pause is answered, and clients have sandboxes move
// from one to another. Any server is asked, and
// takes over what one has that is gone. Besides what TestHistories checks, what was counted
// is forgotten only where the log says runtime_lost, and as far as the last checkpoint; what
// a pause has promised to be in object storage is there; and in the end each sandbox is on
// one server, with nothing left of it elsewhere.
func TestHistoriesOfServers(t *testing.T) {
	first, count := seedRange(*historySeed, *historyCount, 200, 3000)
	t.Logf("seeds %d to %d; replay one with -history.seed N", first, first+uint64(count)-1)
	sum := recordHistories(t, recordServers, first, count, func(seed uint64, h history.History, err error) {
		t.Errorf("seed %d: %v; see %s", seed, err, drawn(t, h))
	})
	t.Log(sum.text([]string{
		"create: ok", "access: ok", "access: unknown", "count: ok", "count: unknown", "cut: ok", "move: ok", "move: unknown", "pause: ok", "pause: unknown", "resume: ok", "connect: ok", "kill: ok", "read: ok",
		"moved by recovery", "moved by move", "runtime_lost by recovery", "pause_failed by call", "resume_failed by call", "paused by shutdown", "terminated by call", "terminated by recovery",
	}))
}

func recordServers(t *testing.T, base string, seed uint64) (made []history.History) {
	dir := filepath.Join(base, strconv.FormatUint(seed, 10))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, dir, seed)
		f.run()
		for _, b := range f.boxes {
			for i := range b.Ops {
				if op := &b.Ops[i]; op.Kind == history.Move && op.Outcome == history.Unknown { // what was offered may be taken later
					op.Return = f.clock.Add(1)
				}
			}
			made = append(made, b.History)
		}
	})
	return made
}

// fleet is three servers, their sandboxes, and 16 clients that use them at once.
type fleet struct {
	*scene // of its sandboxes, clock and dice; its world has the records
	hosts  []*host
	fire   int         // in percent: how likely a machine burns down when a pause is answered
	burnt  atomic.Bool // one has
}

// host is a machine, and what becomes of the server on it.
type host struct {
	f     *fleet
	w     *world
	id    string
	rng   *rand.Rand // of what befalls it
	blobs *blobstest.Faulty

	runs    atomic.Pointer[process]       // nil for none
	now     atomic.Pointer[process]       // that which answers; nil for none
	away    atomic.Bool                   // it is cut off from the database
	cut     atomic.Bool                   // it is so from its next commit on, whose answer is lost
	noBlobs atomic.Bool                   // and from the object storage
	slow    atomic.Bool                   // its disk is
	still   atomic.Pointer[chan struct{}] // it stands still until that is closed
	burnt   atomic.Bool                   // it does not come back
	until   atomic.Int64                  // when the lease of its server is over
	lapses  atomic.Int64                  // of its leases
}

// process is one incarnation of a server.
type process struct {
	*server
	h      *host
	keeper *lease.Keeper
	reach  *reach
	keep   context.CancelFunc // ends the keeper
	kept   chan struct{}      // closed when it has ended
	sup    atomic.Pointer[Supervisor]

	mu    sync.Mutex
	takes map[string]*fetching
}

// fetching is a sandbox that is being taken over.
type fetching struct {
	done    chan struct{}
	err     error
	offered bool // by its server, which has it still where that fails
}

// reach is the database as a server reaches it. What it is asked while it is out of reach
// does not happen.
type reach struct {
	*memstore.Store
	h   *host
	srv *server
}

func (r *reach) err() error {
	switch {
	case r.srv.dead.Load():
		return errDead
	case r.h.away.Load() || r.h.still.Load() != nil:
		return errAway
	}
	return nil
}

func reached[T any](r *reach, ask func() (T, error)) (T, error) {
	if err := r.err(); err != nil {
		var none T
		return none, err
	}
	return ask()
}

func (r *reach) told(tell func() error) error {
	if err := r.err(); err != nil {
		return err
	}
	return tell()
}

func (r *reach) Commit(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	return r.told(func() error { return r.answer(sb, r.Store.Commit(ctx, sb, entries)) })
}

// answer returns what a server learns of a commit.
func (r *reach) answer(sb store.Sandbox, err error) error {
	lost := err == nil && r.h.cut.CompareAndSwap(true, false)
	r.h.f.boxOf(sb).learn(r.h.f.clock.Add(1), lost)
	if lost {
		r.h.away.Store(true)
		return store.ErrUnlearned(errAway)
	}
	return err
}

func (r *reach) CommitEnd(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) ([]string, error) {
	return reached(r, func() ([]string, error) {
		forgotten, err := r.Store.CommitEnd(ctx, sb, entries)
		return forgotten, r.answer(sb, err)
	})
}

func (r *reach) CommitSnapshot(ctx context.Context, snap store.Snapshot, sb store.Sandbox, entries []lifecycle.Entry) error {
	return r.told(func() error { return r.answer(sb, r.Store.CommitSnapshot(ctx, snap, sb, entries)) })
}

func (r *reach) Take(ctx context.Context, sb store.Sandbox, entries []lifecycle.Entry) error {
	return r.told(func() error { return r.answer(sb, r.Store.Take(ctx, sb, entries)) })
}

func (r *reach) Offer(ctx context.Context, id, checkpoint, to string) error {
	return r.told(func() error { return r.Store.Offer(ctx, id, checkpoint, to) })
}

func (r *reach) PutReplica(ctx context.Context, x store.Replica) (*store.Replica, error) {
	return reached(r, func() (*store.Replica, error) { return r.Store.PutReplica(ctx, x) })
}

func (r *reach) Replica(ctx context.Context, id string) (store.Replica, error) {
	return reached(r, func() (store.Replica, error) { return r.Store.Replica(ctx, id) })
}

func (r *reach) Replicas(ctx context.Context, owner string) ([]store.Replica, error) {
	return reached(r, func() ([]store.Replica, error) { return r.Store.Replicas(ctx, owner) })
}

func (r *reach) Sandbox(ctx context.Context, id string) (store.Sandbox, error) {
	return reached(r, func() (store.Sandbox, error) { return r.Store.Sandbox(ctx, id) })
}

func (r *reach) Sandboxes(ctx context.Context) ([]store.Sandbox, error) {
	return reached(r, func() ([]store.Sandbox, error) { return r.Store.Sandboxes(ctx) })
}

func (r *reach) Servers(ctx context.Context) ([]store.Server, error) {
	return reached(r, func() ([]store.Server, error) { return r.Store.Servers(ctx) })
}

func (r *reach) Claim(ctx context.Context, srv store.Server, life time.Duration) (store.Server, error) {
	return reached(r, func() (store.Server, error) {
		got, err := r.Store.Claim(ctx, srv, life)
		r.leased(life, err)
		return got, err
	})
}

func (r *reach) Renew(ctx context.Context, life time.Duration) error {
	return r.told(func() error {
		err := r.Store.Renew(ctx, life)
		r.leased(life, err)
		return err
	})
}

// leased notes how long the server has a lease.
func (r *reach) leased(life time.Duration, err error) {
	if err == nil {
		r.h.until.Store(time.Now().Add(life).UnixNano())
	}
}

func (r *reach) Leave(ctx context.Context) error {
	return r.told(func() error { return r.Store.Leave(ctx) })
}

func (r *reach) Release(ctx context.Context) error {
	return r.told(func() error {
		err := r.Store.Release(ctx)
		r.leased(0, err)
		return err
	})
}

func newFleet(t *testing.T, dir string, seed uint64) *fleet {
	f := &fleet{scene: &scene{world: newWorldIn(t, filepath.Join(dir, "records")), t: t, seed: seed}}
	rng := f.dice("fleet")
	light := percent(rng, 50)
	f.fire = oneOf(rng, 0, 30)
	for range 2 + rng.IntN(2) {
		set := lifecycle.Settings{Timeout: between(rng, time.Second, 2*time.Minute), OnTimeout: oneOf(rng, lifecycle.Pause, lifecycle.Pause, lifecycle.Pause, lifecycle.Kill)}
		set.AutoResume = set.OnTimeout == lifecycle.Pause && percent(rng, 75)
		f.boxes = append(f.boxes, &seenBox{s: f.scene, known: make(chan struct{}), History: history.History{Settings: set, Servers: true}})
	}
	copies := blobstest.NewFake()
	for _, id := range []string{"one", "two", "three"} {
		h := &host{f: f, id: id, rng: f.dice("host " + id), w: newWorldIn(t, filepath.Join(dir, id)), blobs: &blobstest.Faulty{Store: copies.Store}}
		h.blobs.Fail = h.blob
		h.w.data, h.w.light, h.w.meddle = f.data, light, func(ctx context.Context, srv *server, at point, id string) error {
			h.wait()
			if h.slow.Load() && slices.Contains([]point{atStart, atRestore, atRemove, atCheckpoint, atCaptured}, at) {
				time.Sleep(between(f.dice("disk "+id), 500*time.Millisecond, 3*time.Second))
			}
			return f.takeTime(ctx, srv, at, id)
		}
		f.hosts = append(f.hosts, h)
	}
	return f
}

// blob is how the object storage answers.
func (h *host) blob(op, key string) error {
	h.wait()
	time.Sleep(between(h.f.dice("blobs "+h.id), 0, 300*time.Millisecond))
	if h.noBlobs.Load() {
		return blobstest.Unavailable(op, key)
	}
	return nil
}

// wait waits until the machine does not stand still, and reports whether it did.
func (h *host) wait() (stood bool) {
	for c := h.still.Load(); c != nil; c = h.still.Load() {
		<-*c
		stood = true
	}
	return stood
}

// start starts the server.
func (h *host) start() {
	p := &process{h: h, kept: make(chan struct{}), takes: map[string]*fetching{}}
	h.w.hooks = func(srv *server) memstore.Hooks {
		p.server = srv
		return memstore.Hooks{Before: h.f.committing, After: func(c memstore.Commit) error {
			if c.Before.ID != "" && c.Before.Owner != c.After.Owner {
				h.f.taken(c)
			}
			return h.f.committed(c)
		}}
	}
	h.w.tune = func(o *Options) {
		p.reach = &reach{o.Store.(*memstore.Store), h, p.server}
		k, err := lease.Claim(p.ctx, p.reach, store.Server{ID: h.id, Place: h.id}, lease.Options{
			Now: func() time.Duration { return time.Duration(time.Now().UnixNano()) }, Lapsed: p.lapsed, Back: p.back,
		})
		if err != nil {
			h.f.errorf("server %s: %v", h.id, err)
			return
		}
		p.keeper = k
		var ctx context.Context
		ctx, p.keep = context.WithCancel(context.Background())
		go func() {
			defer close(p.kept)
			_ = k.Run(ctx)
		}()
		o.Store, o.Lease, o.Blobs, o.BlobPrefix, o.Replicated = p.reach, k, h.blobs, "sandboxes", true
	}
	srv, err := h.w.open()
	if err != nil {
		h.f.errorf("server %s does not start: %v", h.id, err)
		return
	}
	p.sup.Store(srv.s)
	h.runs.Store(p)
	h.now.Store(p)
	go func() { _ = srv.s.WakeMoved(p.ctx) }()
	if h.burnt.Load() {
		h.crash(true)
	}
}

func (p *process) lapsed() {
	p.h.wait()
	p.h.lapses.Add(1)
	if s := p.sup.Load(); s != nil && !p.dead.Load() {
		s.CutAll()
	}
}

func (p *process) back(ctx context.Context) error {
	if s := p.sup.Load(); s != nil {
		return s.Disown(ctx)
	}
	return nil
}

// crash ends the server at this instant, and what runs on the machine if that goes too.
func (h *host) crash(machine bool) {
	h.now.Store(nil)
	if p := h.runs.Swap(nil); p != nil {
		p.crash()
		p.s.stop()
		p.keep()
	}
	if machine {
		running, _ := h.w.machine.Driver().List(context.Background())
		for _, id := range running {
			h.w.kill(id)
		}
	}
}

// burn takes the machine away for good.
func (h *host) burn() {
	h.burnt.Store(true)
	h.crash(true)
}

// stop stops the server in order, as package serve does.
func (h *host) stop(pause bool) {
	p := h.now.Load()
	if p == nil {
		return
	}
	_ = p.reach.Leave(p.ctx)
	p.s.StopMoves()
	h.now.CompareAndSwap(p, nil)
	within, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	if pause {
		p.s.PauseAll(within)
	}
	_ = p.s.AwaitCopies(within)
	if err := p.s.Stop(p.ctx); err != nil && !p.dead.Load() {
		h.f.errorf("stop: %v", err)
	}
	p.keep()
	<-p.kept
	running, err := h.w.machine.Driver().List(p.ctx)
	if err == nil && len(running) == 0 {
		_ = p.keeper.Release(p.ctx)
	}
	p.crash() // its files go to the next
}

// taken holds that another server may have a sandbox.
func (f *fleet) taken(c memstore.Commit) {
	sb := c.Before
	over := time.Since(time.Unix(0, f.host(sb.Owner).until.Load()))
	asleep := sb.Record.State == lifecycle.Paused && sb.Record.Op == nil
	moved := slices.ContainsFunc(c.Entries, func(e lifecycle.Entry) bool { return e.Type == lifecycle.EntryMoved && e.Cause == lifecycle.CauseMove })
	if moved && asleep { // it was offered
		return
	}
	if over < 0 || over < store.LostAfter && !asleep {
		f.errorf("sandbox %s, which is %s, was taken over %s after the lease of server %s was over", sb.ID, sb.Record.Situation(), over, sb.Owner)
	}
}

// suffer is what befalls a host.
func (h *host) suffer() {
	for range h.rng.IntN(4) {
		time.Sleep(between(h.rng, 0, 40*time.Second))
		long := between(h.rng, 100*time.Millisecond, oneOf(h.rng, 10*time.Second, 30*time.Second, 2*time.Minute))
		n, other := h.rng.IntN(100), percent(h.rng, 50)
		if h.burnt.Load() {
			return
		}
		switch {
		case n < 30:
			h.crash(other)
			time.Sleep(long)
		case n < 45:
			h.stop(other)
			time.Sleep(long)
		case n < 65:
			if other {
				h.cut.Store(true)
			} else {
				h.away.Store(true)
			}
			time.Sleep(long)
			h.cut.Store(false)
			h.away.Store(false)
		case n < 80:
			c := make(chan struct{})
			h.still.Store(&c)
			time.Sleep(long)
			h.still.Store(nil)
			close(c)
		case n < 92:
			h.noBlobs.Store(true)
			time.Sleep(long)
			h.noBlobs.Store(false)
		default:
			h.slow.Store(true)
			time.Sleep(long)
			h.slow.Store(false)
		}
		if h.now.Load() == nil && !h.burnt.Load() {
			h.start()
		}
	}
}

// errorf tells what is wrong.
func (f *fleet) errorf(format string, args ...any) {
	f.t.Errorf("seed %d: %s", f.seed, fmt.Sprintf(format, args...))
}

// run returns when all clients are done, and it has been looked where everything is.
func (f *fleet) run() {
	for _, h := range f.hosts {
		h.start()
	}
	var all sync.WaitGroup
	for _, h := range f.hosts {
		all.Go(h.suffer)
	}
	for n := range historyClients {
		all.Go(func() {
			(&visitor{f: f, observer: observer{s: f.scene, n: n + 1, rng: f.dice(fmt.Sprint("client ", n))}}).run()
		})
	}
	all.Wait()
	f.settle()
	for _, h := range f.hosts {
		h.stop(false)
		h.crash(true)
	}
	time.Sleep(time.Minute) // what dead servers have in hand ends
}

// settle finds every sandbox again, ends it, and holds that nothing is left of any.
func (f *fleet) settle() {
	time.Sleep(lease.Life + store.LostAfter) // servers may know of nothing that was taken over until they are asked
	g := &visitor{f: f, observer: observer{s: f.scene, n: 1, rng: f.dice("end")}}
	for _, b := range f.boxes {
		if f.recovered(g, b) {
			f.eventually("sandbox "+b.id+" is on its server alone", func() error { return f.whole(b) })
			f.eventually("sandbox "+b.id+" is killed", func() error {
				if sb, _ := f.data.Get(b.id); sb.Record.State == lifecycle.Terminated {
					return nil
				}
				g.kill(b)
				return errors.New("it has not ended")
			})
			f.eventually("nothing is left of sandbox "+b.id, func() error { return f.whole(b) })
		}
	}
}

// recovered reports whether a server has a sandbox. Only the machine that has burnt down may
// have taken it along, and only if its last pause has not promised otherwise.
func (f *fleet) recovered(g *visitor, b *seenBox) (is bool) {
	f.eventually("sandbox "+b.id+" is found", func() error {
		_, err := g.find(context.Background(), b)
		is = err == nil
		switch sb, _ := f.data.Get(b.id); {
		case is || !f.host(sb.Owner).burnt.Load():
			return err
		case sb.Record.State == lifecycle.Terminated:
			return nil
		case errdef.CodeOf(err) != codeNotReplicated:
			return err
		case b.promised != 0 && b.promised == b.lastPaused():
			return fmt.Errorf("its pause in generation %d promised that it has a copy: %w", b.promised, err)
		}
		return nil
	})
	return is
}

const codeNotReplicated = "not_replicated"

func (f *fleet) host(id string) *host {
	return f.hosts[slices.IndexFunc(f.hosts, func(h *host) bool { return h.id == id })]
}

func (f *fleet) eventually(what string, check func() error) {
	var err error
	for range 600 {
		if err = check(); err == nil {
			return
		}
		time.Sleep(time.Second)
	}
	f.errorf("it never comes that %s: %v", what, err)
}

// whole returns nil if the sandbox is known to its owner alone, and no other machine has
// anything of it; if it has ended, none has.
func (f *fleet) whole(b *seenBox) error {
	sb, _ := f.data.Get(b.id)
	for _, h := range f.hosts {
		p := h.now.Load()
		if h.burnt.Load() || p == nil {
			continue
		}
		owner, ended := h.id == sb.Owner, sb.Record.State == lifecycle.Terminated
		if knows := p.s.Knows(b.id); knows != owner {
			return fmt.Errorf("server %s has it: %t; that of the record is %s", h.id, knows, sb.Owner)
		}
		mine := func(name string) bool { return !strings.HasPrefix(name, b.id) }
		runtimes, err := h.w.machine.Driver().List(p.ctx)
		layers, err2 := p.s.o.Layers.Layers()
		images, err3 := p.s.o.Layers.Images()
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		runtimes, layers, images = slices.DeleteFunc(runtimes, mine), slices.DeleteFunc(layers, mine), slices.DeleteFunc(images, mine)
		if len(runtimes) > 1 || (!owner || ended) && len(runtimes)+len(layers)+len(images) > 0 {
			return fmt.Errorf("server %s of a sandbox of %s, ended %t, has runtimes %v, layers %v, images %v", h.id, sb.Owner, ended, runtimes, layers, images)
		}
	}
	return nil
}

// lastPaused returns the generation of the last checkpoint; 0 for none.
func (b *seenBox) lastPaused() (generation int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.Ops {
		if o.Client == 0 && o.Kind == history.Kind(lifecycle.EntryPaused) {
			generation = o.Generation
		}
	}
	return generation
}

// promise notes what a pause has promised that was called then and is answered now: a copy
// of the first checkpoint that was committed meanwhile, or else of the last before.
func (b *seenBox) promise(call int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.Ops {
		if o.Client == 0 && o.Kind == history.Kind(lifecycle.EntryPaused) {
			b.promised = max(b.promised, o.Generation)
			if o.Return > call {
				return
			}
		}
	}
}

// visitor is a client of the fleet.
type visitor struct {
	observer
	f *fleet
}

var errRefused = errdef.New(errdef.Unavailable, "server_unreachable", "the connection is refused")

// answers returns the server on a host when that goes on.
func (h *host) answers() (*process, error) {
	p := h.now.Load()
	if p == nil {
		return nil, errRefused
	}
	return p, p.goesOn()
}

// goesOn waits until the server does not stand still; an error if it is dead by then. What it
// has in hand in the instant in which it goes on, it carries out after it has noticed that
// its lease has lapsed: in the same instant a proxy cannot know.
func (p *process) goesOn() error {
	if p.h.wait() {
		time.Sleep(time.Millisecond)
	}
	if p.dead.Load() {
		return errDead
	}
	return nil
}

// find asks any server for a sandbox, and returns that which has it, as package cluster does.
func (g *visitor) find(ctx context.Context, b *seenBox) (*process, error) {
	p, err := oneOf(g.rng, g.f.hosts...).answers()
	if err != nil {
		return nil, err
	}
	for {
		if p.s.Knows(b.id) {
			return p, nil
		}
		sb, err := p.reach.Sandbox(ctx, b.id)
		if err != nil {
			return nil, err
		}
		servers, err := p.reach.Servers(ctx)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(servers, func(srv store.Server) bool { return srv.ID == sb.Owner })
		switch {
		case sb.Owner == p.h.id: // it may have come this instant
			return p, nil
		case servers[i].Left > 0:
			return g.f.host(sb.Owner).answers()
		}
		err = p.takeOver(ctx, b.id)
		if other, is := store.Elsewhere(err); is && other != sb.Owner {
			return g.f.host(other).answers()
		}
		if errdef.Is(err, errdef.NotFound) { // so is one that has ended
			err = errdef.New(errdef.NotFound, "sandbox_terminated", "%w", err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// takeOver has the server take a sandbox over, once for all who ask for it.
func (p *process) takeOver(ctx context.Context, id string) error {
	p.mu.Lock()
	t := p.takes[id]
	if t == nil {
		t = &fetching{done: make(chan struct{})}
		p.takes[id] = t
		go func() {
			t.err = p.s.TakeOver(p.ctx, id)
			p.mu.Lock()
			delete(p.takes, id)
			p.mu.Unlock()
			close(t.done)
		}()
	}
	p.mu.Unlock()
	select {
	case <-t.done:
		if t.offered { // see where it is
			return nil
		}
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// receive has the server take a sandbox that is offered to it. Who asks for it meanwhile waits.
func (p *process) receive(ctx context.Context, id string) error {
	t := &fetching{done: make(chan struct{}), offered: true}
	p.mu.Lock()
	busy := p.takes[id] != nil
	if !busy {
		p.takes[id] = t
	}
	p.mu.Unlock()
	if busy {
		return errdef.New(errdef.Conflict, "move_conflict", "sandbox %s is being taken over already", id)
	}
	defer close(t.done)
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.takes, id)
	}()
	return p.s.Receive(ctx, id, "")
}

func (g *visitor) run() {
	if g.n <= len(g.f.boxes) {
		for b := g.f.boxes[g.n-1]; ; time.Sleep(time.Second) {
			g.create(b)
			if b.id != "" {
				break
			}
		}
	}
	for range 3 + g.rng.IntN(6) {
		b := oneOf(g.rng, g.f.boxes...)
		<-b.known
		if percent(g.rng, 80) { // the others go on at the same instant
			time.Sleep(between(g.rng, 0, oneOf(g.rng, time.Millisecond, time.Second, 20*time.Second, time.Minute)))
		}
		g.once(b)
	}
}

// answer notes how a call ended. What a server that is dead by then answers, nobody hears.
// That a sandbox is not found says nothing here: package cluster asks another server then.
func (g *visitor) answer(p *process, err error, done func(error, func(*history.Op)), what func(*history.Op)) {
	if errdef.CodeOf(err) == "sandbox_not_found" {
		err = errRefused
	}
	if p != nil && p.goesOn() != nil {
		err = errDead
	}
	done(ofServers(err), what)
}

// ofServers returns the error of a call as history has it: of what fails because servers
// come and go nobody knows whether it has happened.
func ofServers(err error) error {
	if outcomeOf(err) != history.Failed {
		return err
	}
	switch code := errdef.CodeOf(err); {
	case errors.Is(err, errDead), errors.Is(err, errGone), errors.Is(err, context.Canceled):
	case errdef.Is(err, errdef.Unavailable), errdef.Is(err, errdef.Fenced):
	case slices.Contains([]string{"on_another_server", "record_changed", codeNotReplicated, "move_conflict", "sandbox_resume_failed", "sandbox_pause_failed"}, code):
	default:
		return err
	}
	return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
}

func (g *visitor) patience(p *process) (context.Context, context.CancelFunc) {
	if percent(g.rng, 85) {
		return context.WithCancel(p.ctx)
	}
	return context.WithTimeout(p.ctx, between(g.rng, time.Microsecond, oneOf(g.rng, time.Millisecond, time.Second, 10*time.Second)))
}

func (g *visitor) create(b *seenBox) {
	p, err := oneOf(g.rng, g.f.hosts...).answers()
	if err != nil {
		return
	}
	ctx, cancel := g.patience(p)
	defer cancel()
	req := CreateRequest{Template: "test", Settings: b.Settings}
	req.Config.Metadata = map[string]string{"number": strconv.Itoa(slices.Index(g.f.boxes, b))}
	done := g.call(b, history.Create, 0)
	sb, err := p.s.Create(ctx, req)
	g.answer(p, err, done, serving(sb.Record))
}

func (g *visitor) once(b *seenBox) {
	n, d := g.rng.IntN(1000), between(g.rng, time.Millisecond, oneOf(g.rng, time.Second, 20*time.Second, 3*time.Minute)).Truncate(time.Microsecond)
	call := map[bool]history.Kind{n < 390: history.Access, n >= 390 && n < 450: history.Move, n >= 450 && n < 530: history.Read, n >= 530 && n < 740: history.Pause, n >= 740 && n < 820: history.Resume, n >= 820 && n < 920: history.Connect, n >= 920 && n < 990: history.SetTimeout}[true]
	switch call {
	case history.Access:
		g.visit(b)
		return
	case history.Move:
		g.move(b)
		return
	case "":
		g.kill(b)
		return
	}
	var of time.Duration
	if call == history.Resume || call == history.Connect || call == history.SetTimeout {
		of = d
	}
	asked := g.f.clock.Load()
	done := g.call(b, call, of)
	p, err := g.find(context.Background(), b)
	if err != nil {
		done(ofServers(err), nil)
		return
	}
	_ = p.s.Disown(p.ctx) // as package follow has it do before each call of the API, where the database answers
	ctx, cancel := g.patience(p)
	defer cancel()
	switch call {
	case history.Read:
		// One that is not certain of its lease tells what it knew last.
		lapses := p.h.lapses.Load()
		sb, err := p.s.Find(ctx, b.id)
		if p.keeper.Check() != nil || p.h.lapses.Load() != lapses {
			err = errRefused
		}
		g.answer(p, err, done, func(op *history.Op) { op.See(sb.Record) })
	case history.Pause:
		err := p.s.Pause(ctx, b.id, PauseRequest{})
		if p.goesOn() == nil && (err == nil || errdef.CodeOf(err) == "already_paused") {
			b.promise(asked)
		}
		g.answer(p, err, done, nil)
		if err == nil && percent(g.rng, g.f.fire) && g.f.burnt.CompareAndSwap(false, true) {
			p.h.burn()
		}
	case history.Resume:
		sb, err := p.s.Resume(ctx, b.id, WakeRequest{Timeout: d})
		g.answer(p, err, done, serving(sb.Record))
	case history.Connect:
		got, err := p.s.Connect(ctx, b.id, WakeRequest{Timeout: d})
		g.answer(p, err, done, serving(got.Sandbox.Record))
	case history.SetTimeout:
		sb, err := p.s.SetTimeout(ctx, b.id, d, "")
		g.answer(p, err, done, serving(sb.Record))
	}
}

func (g *visitor) kill(b *seenBox) {
	done := g.call(b, history.Kill, 0)
	p, err := g.find(context.Background(), b)
	if err == nil {
		err = p.s.Kill(p.ctx, b.id, "")
	}
	g.answer(p, err, done, nil)
}

// move has the server of a sandbox hand it over to another one, as package cluster does.
func (g *visitor) move(b *seenBox) {
	done := g.call(b, history.Move, 0)
	p, err := g.find(context.Background(), b)
	if err != nil {
		done(ofServers(err), nil)
		return
	}
	to := oneOf(g.rng, slices.DeleteFunc(slices.Clone(g.f.hosts), func(h *host) bool { return h == p.h })...)
	err = p.s.HandOver(p.ctx, b.id, to.id, "", true, func(ctx context.Context) error {
		q, err := to.answers()
		if err != nil {
			return err
		}
		within, cancel := context.WithCancel(q.ctx)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		err = q.receive(within, b.id)
		if q.goesOn() != nil { // nobody hears
			err = errDead
		}
		return err
	})
	g.answer(p, err, done, nil)
}

// visit gets a lease, and some time later counts.
func (g *visitor) visit(b *seenBox) {
	done := g.call(b, history.Access, 0)
	p, err := g.find(context.Background(), b)
	if err != nil {
		done(ofServers(err), nil)
		return
	}
	ctx, cancel := g.patience(p)
	defer cancel()
	lapses := p.h.lapses.Load()
	lease, err := p.s.Acquire(ctx, b.id, Access{Port: counterPort, Stream: percent(g.rng, 30)})
	if err != nil {
		g.answer(p, err, done, nil)
		return
	}
	defer lease.Release()
	g.answer(p, nil, done, func(op *history.Op) { op.Generation = lease.Generation })
	cut := g.call(b, history.Cut, 0)
	if percent(g.rng, 50) {
		time.Sleep(between(g.rng, 0, oneOf(g.rng, time.Millisecond, 200*time.Millisecond, time.Minute)))
	}
	done = g.call(b, history.Count, 0)
	if err := p.goesOn(); err != nil {
		g.answer(p, err, done, nil)
		return
	}
	n, err := g.ask(p, lease)
	switch {
	case errors.Is(err, errCut) && p.dead.Load():
		g.answer(p, errDead, done, nil)
	case errors.Is(err, errCut) && errdef.CodeOf(lease.Why()) == "lease_lapsed":
		// The server was not certain of its lease: that is no change of the sandbox.
		if p.h.lapses.Load() == lapses {
			g.f.errorf("a lease is cut because that of server %s has lapsed, and it has not", p.h.id)
		}
	case errors.Is(err, errCut): // it was not served
		g.answer(p, nil, cut, func(op *history.Op) { op.Generation = lease.Generation })
	default:
		g.answer(p, err, done, func(op *history.Op) { op.Generation, op.Count = lease.Generation, n })
	}
}

// ask is askThrough, and ends with the server.
func (g *visitor) ask(p *process, l *Lease) (int64, error) {
	both := *l
	cut, over := make(chan struct{}), make(chan struct{})
	both.Cut = cut
	if isCut(l) {
		close(cut)
	} else {
		go func() {
			defer close(cut)
			select {
			case <-l.Cut:
			case <-p.ctx.Done():
			case <-over:
			}
		}()
	}
	defer close(over)
	return askThrough(p.ctx, &both)
}
