package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime/trial"
)

// A host can lack what every sandbox needs: a controller of cgroups, a module of
// the kernel, room on the disk. No retry of a client cures that. So the server
// starts a sandbox of its own before it says that it is ready (a trial), and
// again after a start that failed for such a reason, until one succeeds.

// trialEvery is how long after a failed trial the next one begins.
const trialEvery = 10 * time.Second

// fitness is what is known of whether this host starts sandboxes.
type fitness struct {
	mu     sync.Mutex
	unfit  error // why the last trial or start failed; nil if it did not
	trying bool  // trials go on until one succeeds
}

// Ready returns why this host starts no sandboxes now; nil if it does.
func (s *Supervisor) Ready() error {
	s.fitness.mu.Lock()
	defer s.fitness.mu.Unlock()
	return s.fitness.unfit
}

// Try starts a sandbox, waits for its agent, and removes it. It keeps the
// outcome for Ready; after a failure it tries again in the background until it
// succeeds.
func (s *Supervisor) Try(ctx context.Context) error {
	err := s.trial(ctx)
	if ctx.Err() == nil {
		s.noteFitness(err)
	}
	return err
}

// noteStart keeps what the start of a sandbox tells of the host, if that is
// anything, for Ready and for whoever waits for the start.
func (b *box) noteStart(err error) {
	e := lasting(err)
	b.mu.Lock()
	b.unfit = e
	b.mu.Unlock()
	switch {
	case e != nil:
		b.s.noteFitness(e)
	case err == nil && b.s.Ready() != nil:
		b.s.noteFitness(nil)
	}
}

// unfitNow returns what the host lacked when the sandbox was last to start.
func (b *box) unfitNow() *errdef.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unfit
}

// noteFitness keeps the outcome of a trial, or of a start that tells as much.
func (s *Supervisor) noteFitness(err error) {
	f := &s.fitness
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil && f.unfit != nil:
		s.log.Info("this host starts sandboxes again")
	case err != nil && (f.unfit == nil || f.unfit.Error() != err.Error()):
		s.log.Error("this host starts no sandboxes", "err", err)
	}
	f.unfit = err
	if err == nil || f.trying {
		return
	}
	f.trying = true
	s.work.Go(func() { s.tryAgain() })
}

// tryAgain makes trials until one succeeds or the supervisor stops.
func (s *Supervisor) tryAgain() {
	for s.Ready() != nil && s.sleep(trialEvery) {
		err := s.trial(s.ctx)
		if s.ctx.Err() == nil {
			s.noteFitness(err)
		}
	}
	s.fitness.mu.Lock()
	defer s.fitness.mu.Unlock()
	s.fitness.trying = false
}

// lasting returns the part of a failed start that is the host's, and goes on
// until someone repairs it; nil if there is none.
func lasting(err error) *errdef.Error {
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok || e.Class != errdef.Unfit {
		return nil
	}
	return e
}

// unfitError is the answer to whoever wanted a sandbox to start.
func unfitError(what string, e *errdef.Error) error {
	return errdef.New(errdef.Unfit, e.Code, "%s, and none does on this host as it is: %s", what, e.Message).
		WithRemedy("on the host: %s", e.Remedy)
}

// trial starts a sandbox of the trial's template, and removes it.
func (s *Supervisor) trial(ctx context.Context) error {
	t, err := s.o.Templates.Resolve(s.o.TrialTemplate)
	if err != nil {
		return err
	}
	spec := RuntimeSpec(s.o.Limits)
	spec.ID = "trial-" + strings.ToLower(rand.Text())
	spec.Rootfs = s.rootfs(spec.ID)
	return trial.Run(ctx, s.o.Driver, s.o.Layers, t.Trees, spec)
}
