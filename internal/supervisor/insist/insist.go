// Package insist removes what nobody will ask for again. What cannot be removed is
// tried again in the background, ever less often, until the server stops. What is
// left then the next server sweeps up.
package insist

import (
	"context"
	"log/slog"
	"time"
)

// First and Most are how long to wait before removing again what could not be
// removed: at first, and at most.
const (
	First = time.Second
	Most  = time.Minute
)

// Remover removes things until its context ends.
type Remover struct {
	ctx context.Context
	log *slog.Logger
	wg  Work
}

// New returns what tries until ctx ends.
func New(ctx context.Context, log *slog.Logger) *Remover { return &Remover{ctx: ctx, log: log} }

// Insist removes something, and returns after the first try. It logs each failure
// as failed, with args.
func (r *Remover) Insist(remove func() error, failed string, args ...any) {
	try := func() bool {
		err := remove()
		if err != nil {
			r.log.Error(failed, append(args, "err", err)...)
		}
		return err == nil
	}
	if try() {
		return
	}
	r.wg.Go(func() {
		for wait := First; Sleep(r.ctx, wait) && !try(); wait = min(2*wait, Most) {
		}
	})
}

// Wait returns when nothing is tried any more. The context must have ended.
func (r *Remover) Wait() { r.wg.Wait() }

// Every calls f again and again until ctx ends, each time so long after the time before.
func Every(ctx context.Context, d time.Duration, f func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f()
		}
	}
}

// Sleep returns false, at once, when ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
