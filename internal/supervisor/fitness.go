package supervisor

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"strings"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/runtime/trial"
	"github.com/drowse-dev/drowse/internal/supervisor/launch"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// noteStart keeps what the start of a sandbox tells of the host, if that is
// anything, for Ready and for whoever waits for the start.
func (b *box) noteStart(err error) {
	e := outcome.Lasting(err)
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
