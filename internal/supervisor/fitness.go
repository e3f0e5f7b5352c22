package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime/trial"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
)

// noteStart keeps what the start of a sandbox tells of the host, if that is
// anything, for Ready and for whoever waits for the start.
func (b *box) noteStart(err error) {
	e := lasting(err)
	b.mu.Lock()
	b.unfit = e
	b.mu.Unlock()
	switch {
	case e != nil:
		b.s.NoteFitness(e)
	case err == nil && b.s.Ready() != nil:
		b.s.NoteFitness(nil)
	}
}

// unfitNow returns what the host lacked when the sandbox was last to start.
func (b *box) unfitNow() *errdef.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unfit
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
	spec := launch.Spec(s.o.Limits)
	spec.ID = "trial-" + strings.ToLower(rand.Text())
	spec.Rootfs = filepath.Join(s.o.RunDir, spec.ID)
	return trial.Run(ctx, s.o.Driver, s.o.Layers, t.Trees, spec)
}
