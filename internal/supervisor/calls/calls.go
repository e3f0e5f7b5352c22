// Package calls carries out what callers ask of the lifecycle of a sandbox: pause,
// resume, kill, other timeouts and settings, holds.
//
// A call lets an event happen, waits for the operation that is then in flight, and
// asks again if that was another's. It returns only what has been committed. It
// keeps nothing and orders nothing: the owner of each sandbox decides, commits, and
// tells the end of an operation. A caller that goes away only stops waiting: the
// operation goes on.
package calls

import (
	"context"
	"fmt"
	"log/slog"
	goruntime "runtime"
	"sync/atomic"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/ration"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/defaults"
	"github.com/drowse-dev/drowse/internal/supervisor/fields"
	"github.com/drowse-dev/drowse/internal/supervisor/outcome"
)

// Ending is how an operation ended: the entry that says so, and the record as it
// was committed with it.
type Ending struct {
	lifecycle.Entry
	Record lifecycle.Record
	Err    error // nobody will know how it ends; nil otherwise
}

// Sandbox is the owner of one sandbox, as a call sees it. Each channel tells the end
// of the operation that is in flight after the call, which the call has begun,
// joined or met; it is nil if there is none.
type Sandbox interface {
	Standing
	// Request lets an event happen.
	Request(ev lifecycle.Event) (lifecycle.Result, <-chan Ending, error)
	// RequestWith lets an event happen that changes the settings of a patch, and
	// changes the rest of the patch in the same commit.
	RequestWith(p fields.Patch, ev lifecycle.Event, actor string) (lifecycle.Result, <-chan Ending, error)
	// Change applies a patch and returns the sandbox with it, unless an operation in
	// flight comes first.
	Change(p fields.Patch, actor string) (store.Sandbox, <-chan Ending, error)
	// Configure changes what the sandbox is apart from its lifecycle, and logs it with
	// detail.
	Configure(actor, detail string, change func(*store.Config) error) error
	// OpenNetwork tells the runtime what the sandbox may reach now.
	OpenNetwork()
}

// Standing is how one sandbox is now.
type Standing interface {
	// Snapshot returns the sandbox as it was committed last.
	Snapshot() store.Sandbox
	// Serving returns that, and the runtime that serves; nil for none.
	Serving() (store.Sandbox, runtime.Instance)
	// Unfit returns what the host lacked when the sandbox was last to start; nil for
	// nothing.
	Unfit() *errdef.Error
}

// Reception takes the calls for all sandboxes. It is safe for concurrent use.
type Reception struct {
	// Find returns a sandbox by its id.
	Find func(id string) (Sandbox, error)
	// Each calls f for every sandbox of this server.
	Each func(f func(Sandbox))
	// Ceiling is the largest timeout that is granted, and Pauses how many sandboxes
	// PauseAll pauses at once.
	Ceiling defaults.Ceiling
	Pauses  int
	// Answers asks the agent in the runtime of a sandbox whether it is there.
	Answers func(ctx context.Context, inst runtime.Instance, sandbox string) error
	// Kept returns when what a sandbox sleeps as is in object storage too, for pauses that
	// promise it; nil where none does.
	Kept func(ctx context.Context, id string) error
	// Pace is how often the sandboxes of each API key are changed: see NewPace.
	Pace *ration.Pace
	Log  *slog.Logger
	// Waiting is how many requests wait for a sandbox to run, or are about to.
	Waiting atomic.Int64
}

// The pace of changes: those of an API key that come at once, and how many a second for
// each processor follow. A start of a sandbox takes a processor for longer than these
// take it, so that it is only holds, timeouts and the like that wait.
const (
	changesAtOnce    = 500
	changesPerSecond = 50
)

// NewPace returns the pace of the changes that clients ask for. One costs its client a
// request, and the server a commit: who makes them without pause would have the
// processors that others' sandboxes start on.
func NewPace() *ration.Pace {
	return ration.NewPace(changesAtOnce, float64(changesPerSecond*goruntime.NumCPU()))
}

// findToChange returns a sandbox when its API key may change one more.
func (r *Reception) findToChange(ctx context.Context, id string) (Sandbox, error) {
	b, err := r.Find(id)
	if err != nil {
		return nil, err
	}
	if err := r.Pace.Wait(ctx, b.Snapshot().Config.Key); err != nil {
		return nil, fmt.Errorf("change sandbox %s: it is not its turn yet, and nothing has changed: %w", id, err)
	}
	return b, nil
}

// By describes a call of an actor that begins the operation op, or joins one;
// empty for a call that begins none.
func By(op, actor string) lifecycle.Meta {
	return lifecycle.Meta{Op: op, Actor: actor, Cause: lifecycle.CauseCall}
}

// Wait waits for the end of an operation.
func Wait(ctx context.Context, ended <-chan Ending) (Ending, error) {
	select {
	case e := <-ended:
		return e, e.Err
	case <-ctx.Done():
		return Ending{}, outcome.Waited(ctx)
	}
}

// As returns the sandbox with a record that was committed.
func As(b Sandbox, r lifecycle.Record) store.Sandbox {
	sb := b.Snapshot()
	sb.Record = r
	return sb
}

// Waiting is who waits for the ends of the operations of one sandbox. It has no lock
// of its own.
type Waiting map[string][]chan Ending // by the operation's id

// For registers for the end of an operation; nil if there is none.
func (w Waiting) For(op *lifecycle.Operation) <-chan Ending {
	if op == nil {
		return nil
	}
	ch := make(chan Ending, 1)
	w[op.ID] = append(w[op.ID], ch)
	return ch
}

// Tell tells those who wait for an operation how it ended. It does not block.
func (w Waiting) Tell(op string, end Ending) {
	for _, ch := range w[op] {
		ch <- end // has room for one
	}
	delete(w, op)
}

// Abandon tells all who wait why they will not hear how their operations end.
func (w Waiting) Abandon(why error) {
	for op := range w {
		w.Tell(op, Ending{Err: why})
	}
}
