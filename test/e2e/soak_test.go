package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drowse-dev/drowse/client"
	"github.com/drowse-dev/drowse/internal/testmode"
	"github.com/drowse-dev/drowse/test/e2e/filetree"
)

var (
	soakSeed    = flag.Uint64("soak.seed", 0, "what decides what happens in TestSoak; 0 for what testmode says")
	soakWorkers = flag.Int("soak.workers", 6, "how many sandboxes there are in TestSoak")
	soakCycles  = flag.Int("soak.cycles", 4, "how often each of them sleeps in TestSoak")
)

// TestSoak puts sandboxes to sleep and wakes them in all ways, again and again
// and side by side, with programs inside that write all the time, and kills the
// server at random instants meanwhile. Each time every sandbox must be in one
// of its states, and memory and files must go on where they were; in the end
// nothing may be left. A seed decides what is done and when; "make soak" does
// it for long.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = testmode.Seed()
	}
	t.Logf("replay with -soak.seed %d -soak.workers %d -soak.cycles %d", seed, *soakWorkers, *soakCycles)
	ctx := deadline(t, 2*time.Minute+time.Duration(*soakCycles)*30*time.Second)
	s := startServer(t)
	soak := &soak{s: s}
	var work errgroup.Group
	for i, g := range s.startGuests(ctx, *soakWorkers, sleeper) {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		w := &soaker{soak: soak, g: g, random: random, model: filetree.NewModel()}
		work.Go(func() error {
			if err := w.run(ctx, *soakCycles); err != nil {
				return fmt.Errorf("sandbox %s, cycle %d: %w", g.sb.ID, w.cycle+1, err)
			}
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- work.Wait() }()
	if err := soak.crashUntil(done, rand.New(rand.NewPCG(seed, 1<<32))); err != nil {
		t.Fatal(err)
	}

	list, err := s.client.List(ctx, client.ListOptions{})
	if err != nil || len(list) != *soakWorkers {
		t.Errorf("%d sandboxes, %v; want %d", len(list), err, *soakWorkers)
	}
	for _, info := range list {
		if err := s.client.Kill(ctx, info.ID); err != nil {
			t.Error(err)
		}
		s.waitGone(info.ID)
	}
	for _, f := range named(s.dir(), "", "layers", "images", "run/rootfs", "run/gv/bundles") {
		t.Errorf("left behind: %s", f)
	}
	t.Logf("%d sleeps and wakes, %d changes of trees; the server was killed %d times and was back within %s",
		soak.sleeps.Load(), soak.changes.Load(), soak.crashes, soak.longest)
}

// soak is what all sandboxes of a run have in common.
type soak struct {
	s *server
	// steady is held by those who do what cannot be asked for twice, and by
	// whoever kills the server, alone.
	steady          sync.RWMutex
	sleeps, changes atomic.Int64
	crashes         int
	longest         time.Duration // that a server took to answer after its start
}

// crashUntil kills the server and starts it again until the work is done.
func (k *soak) crashUntil(done <-chan error, random *rand.Rand) error {
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(time.Duration(300+random.IntN(3000)) * time.Millisecond):
		}
		k.steady.Lock()
		k.s.crash()
		begin := time.Now()
		k.s.start()
		k.longest = max(k.longest, since(begin))
		k.crashes++
		k.steady.Unlock()
	}
}

// soaker is one sandbox of a run, and who uses it.
type soaker struct {
	*soak
	g      *guest
	random *rand.Rand
	model  *filetree.Model
	cycle  int
	lines  int64 // of the appended file, so far
}

func (w *soaker) run(ctx context.Context, cycles int) error {
	if err := w.change(ctx, plantTree(w.random)); err != nil {
		return err
	}
	for ; w.cycle < cycles; w.cycle++ {
		if err := w.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// once is one sleep, with all checks around it.
func (w *soaker) once(ctx context.Context) error {
	if err := w.change(ctx, changeTree(w.random, w.model, w.cycle)); err != nil {
		return err
	}
	before, err := w.report(ctx)
	if err != nil {
		return err
	}
	if err := w.sleep(ctx); err != nil {
		return fmt.Errorf("put to sleep: %w", err)
	}
	if err := w.wake(ctx); err != nil {
		return fmt.Errorf("wake: %w", err)
	}
	now, err := w.report(ctx)
	if err != nil {
		return err
	}
	w.sleeps.Add(1)
	w.g.same(before, now)
	if was, is := before.generation(w.s.t), now.generation(w.s.t); is <= was {
		return fmt.Errorf("generation %d after %d", is, was)
	}
	return errors.Join(w.checkTree(ctx), w.checkLines(ctx))
}

// change changes the tree, which must not be done twice.
func (w *soaker) change(ctx context.Context, steps []filetree.Step) error {
	w.steady.RLock()
	defer w.steady.RUnlock()
	w.changes.Add(1)
	w.model.Apply(steps)
	var l filetree.Listing
	return w.g.call(ctx, "POST", "/tree", steps, &l)
}

func (w *soaker) checkTree(ctx context.Context) error {
	var l filetree.Listing
	if err := insist(ctx, func() error { return w.g.call(ctx, "GET", "/tree", nil, &l) }); err != nil {
		return err
	}
	if diff := filetree.Diff(l, w.model.List()); len(diff) > 0 {
		return fmt.Errorf("the tree differs: %q", diff)
	}
	return nil
}

func (w *soaker) checkLines(ctx context.Context) error {
	var n int64
	err := insist(ctx, func() (err error) {
		n, err = w.g.appended(ctx)
		return err
	})
	if err == nil && n < w.lines {
		err = fmt.Errorf("the appended file has %d lines, and had %d", n, w.lines)
	}
	w.lines = n
	return err
}

func (w *soaker) report(ctx context.Context) (r report, err error) {
	err = insist(ctx, func() (err error) {
		r, err = w.g.report(ctx)
		return err
	})
	return r, err
}

// sleep puts the sandbox to sleep, by a call or by its timeout. A call whose
// answer was lost may have had its effect.
func (w *soaker) sleep(ctx context.Context) error {
	id := w.g.sb.ID
	if w.random.IntN(2) == 0 {
		return insist(ctx, func() error {
			err := w.s.client.Pause(ctx, id)
			if e, ok := errors.AsType[*client.Error](err); ok && e.Code == "already_paused" {
				return nil
			}
			return err
		})
	}
	err := insist(ctx, func() error { return w.s.client.SetTimeout(ctx, id, time.Second) })
	if e, ok := errors.AsType[*client.Error](err); err != nil && (!ok || e.Code != "not_running") {
		return err
	}
	return poll(time.Minute, func() error { return w.s.is(ctx, id, client.Paused) })
}

// wake wakes the sandbox, by a call, by a request for the agent, or by whatever
// comes next.
func (w *soaker) wake(ctx context.Context) error {
	switch w.random.IntN(3) {
	case 0:
		return insist(ctx, func() error {
			_, err := w.s.client.Connect(ctx, w.g.sb.ID, 10*time.Minute)
			return err
		})
	case 1:
		return insist(ctx, func() error {
			r, err := w.g.sb.ReadFile(ctx, "work/appended")
			if err != nil {
				return err
			}
			return r.Close()
		})
	}
	return nil
}

// insist does something until the server was there to answer: what fails
// because that was killed is tried again.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !isBroken(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pollEvery):
		}
	}
}

// isBroken reports whether a request broke off, or did not get through at all.
func isBroken(err error) bool {
	for _, broken := range []error{client.ErrUnreachable, client.ErrInterrupted, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, broken) {
			return true
		}
	}
	_, ok := errors.AsType[*url.Error](err)
	return ok || isReset(err)
}
