package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/supervisor"
)

// A server is ready when a sandbox has started on its host, in its own state
// directory: nothing less tells whether the next create succeeds.

// health is what a server says of itself.
type health interface {
	Ready() error                    // why no sandbox starts on this host; nil if one does
	Check(ctx context.Context) error // why the server serves nobody; nil if it does
	Starting() bool                  // a sandbox is being started, or a request waits for one to run
}

// awayFrom is the health of a server whose database is elsewhere: to start it again mends
// nothing there, and those that run would lose their server.
type awayFrom struct{ health }

func (a awayFrom) Check(ctx context.Context) error {
	if err := a.health.Check(ctx); errdef.CodeOf(err) != "store_unavailable" {
		return err
	}
	return nil
}

// firstTrial ends, by being closed, when it is known whether a trial sandbox has started.
// It is nil where none is made.
type firstTrial chan struct{}

// wait returns true when the trial has ended, and false if ctx ends first.
func (t firstTrial) wait(ctx context.Context) bool {
	if t != nil {
		select {
		case <-t:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// tryHost starts a trial sandbox. If that fails, the error says why, unless
// sandboxes run: these are served, and the server is not ready.
func tryHost(ctx context.Context, o Options, sup *supervisor.Supervisor) error {
	began := time.Now()
	err := sup.Try(ctx)
	if err == nil {
		o.Log.Info("a trial sandbox has started", "dur", time.Since(began).Round(time.Millisecond))
		return nil
	}
	if ctx.Err() != nil {
		return nil // told to stop
	}
	if n := sup.CountRunning(); n > 0 {
		o.Log.Warn("running sandboxes are served, though no other can start", "running", n)
		return nil
	}
	return cannotStart(err)
}

// cannotStart is the error of a server on whose host no sandbox starts.
func cannotStart(err error) error {
	e, ok := errors.AsType[*errdef.Error](err)
	if !ok {
		e = errdef.New(errdef.Internal, "trial_failed", "%w", err).WithRemedy("see drowse doctor, which says what else this host lacks")
	}
	return errdef.New(e.Class, e.Code, "no sandbox starts on this host: %s", e.Message).WithRemedy("%s", e.Remedy)
}

// answerReady answers a probe of readiness once the trial of the start has ended.
func answerReady(w http.ResponseWriter, r *http.Request, first firstTrial, ready func() error) {
	if !first.wait(r.Context()) {
		return // nobody is there any more
	}
	unfit := ready()
	if unfit == nil {
		fmt.Fprintln(w, "ok")
		return
	}
	http.Error(w, "no sandbox starts on this host: "+oneLine(unfit), http.StatusServiceUnavailable)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// While a server is not ready, the service manager is told why, and given time,
// so that it does not end the server, which may serve sandboxes that run.
const (
	readyEvery = 2 * time.Second
	readyGrace = time.Minute
)

// awaitReady returns true when ready returns no error, and false if ctx ends
// first.
func awaitReady(ctx context.Context, log *slog.Logger, ready func() error) bool {
	for {
		err := ready()
		if err == nil {
			return true
		}
		notify(log, fmt.Sprintf("STATUS=not ready: %s\nEXTEND_TIMEOUT_USEC=%d", oneLine(err), readyGrace.Microseconds()))
		select {
		case <-ctx.Done():
			return false
		case <-time.After(readyEvery):
		}
	}
}

// How many file descriptors a server is to have: each connection through it
// takes two or more, and each running sandbox some. With less than the least, it
// would fail in odd places.
const (
	wantedDescriptors = 1 << 20
	leastDescriptors  = 1024
)

// raiseDescriptors raises this process' limit of file descriptors as far as it
// goes. What is started from here inherits it.
func raiseDescriptors() error {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return fmt.Errorf("limit of file descriptors: %w", err)
	}
	for _, try := range []unix.Rlimit{
		{Cur: max(wantedDescriptors, now.Max), Max: max(wantedDescriptors, now.Max)}, // root may
		{Cur: now.Max, Max: now.Max},
	} {
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &try) == nil {
			now = try
			break
		}
	}
	if now.Cur < leastDescriptors {
		return errdef.New(errdef.Unfit, "descriptors_exhausted", "this process may have %d file descriptors, and needs %d at least", now.Cur, leastDescriptors).
			WithRemedy("raise the limit: LimitNOFILE of the service, or ulimit -n")
	}
	return nil
}
