// Package fitness knows whether this host starts sandboxes. A host can lack what
// every sandbox needs: a controller of cgroups, a module of the kernel, room on
// the disk. No retry of a client cures that. So the server starts a sandbox of its
// own before it says that it is ready (a trial), and again after a start that
// failed for such a reason, until one succeeds.
package fitness

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Every is how long after a failed trial the next one begins.
const Every = 10 * time.Second

// Options are what a watch is made of.
type Options struct {
	// Trial starts a sandbox and removes it.
	Trial func(ctx context.Context) error
	// Go runs something in the background. The ctx that it gets ends with the server.
	Go  func(f func(ctx context.Context))
	Log *slog.Logger
}

// Watch is what is known of whether this host starts sandboxes.
type Watch struct {
	o Options

	mu     sync.Mutex
	unfit  error // why the last trial or start failed; nil if it did not
	trying bool  // trials go on until one succeeds
}

// New returns a watch that knows nothing against the host.
func New(o Options) *Watch { return &Watch{o: o} }

// Ready returns why this host starts no sandboxes now; nil if it does.
func (w *Watch) Ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unfit
}

// Try starts a sandbox, waits for its agent, and removes it. It keeps the
// outcome for Ready; after a failure it tries again in the background until it
// succeeds.
func (w *Watch) Try(ctx context.Context) error {
	err := w.o.Trial(ctx)
	if ctx.Err() == nil {
		w.NoteFitness(err)
	}
	return err
}

// NoteFitness keeps the outcome of a trial, or of a start that tells as much.
func (w *Watch) NoteFitness(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && w.unfit != nil:
		w.o.Log.Info("this host starts sandboxes again")
	case err != nil && (w.unfit == nil || w.unfit.Error() != err.Error()):
		w.o.Log.Error("this host starts no sandboxes", "err", err)
	}
	w.unfit = err
	if err == nil || w.trying {
		return
	}
	w.trying = true
	w.o.Go(w.tryAgain)
}

// tryAgain makes trials until one succeeds or ctx ends.
func (w *Watch) tryAgain(ctx context.Context) {
	for w.Ready() != nil && sleep(ctx, Every) {
		_ = w.Try(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trying = false
}

// sleep returns false at once when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
