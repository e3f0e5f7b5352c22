package supervisor

import (
	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/lifecycle"
	"github.com/drowse-dev/drowse/internal/runtime"
	"github.com/drowse-dev/drowse/internal/store"
	"github.com/drowse-dev/drowse/internal/supervisor/calls"
)

// asked is a sandbox as calls ask it, and its limit on disk.
type asked struct{ b *box }

// asked implements calls.Reception.Find.
func (s *Supervisor) asked(id string) (calls.Sandbox, error) {
	b, err := s.box(id)
	return asked{b}, err
}

// eachAsked implements calls.Reception.Each.
func (s *Supervisor) eachAsked(f func(calls.Sandbox)) {
	s.each(func(b *box) { f(asked{b}) })
}

// Snapshot implements calls.Sandbox.
func (a asked) Snapshot() store.Sandbox { return a.b.snapshot() }

// Serving implements calls.Sandbox and disklimit.Sandbox.
func (a asked) Serving() (store.Sandbox, runtime.Instance) { return a.b.serving() }

// Request implements calls.Sandbox.
func (a asked) Request(ev lifecycle.Event) (lifecycle.Result, <-chan calls.Ending, error) {
	return a.b.request(ev)
}

// RequestWith implements calls.Sandbox.
func (a asked) RequestWith(p Patch, ev lifecycle.Event, actor string) (lifecycle.Result, <-chan calls.Ending, error) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	res, err := a.b.applyPatchLocked(p, ev, actor)
	return res, a.b.awaitLocked(), err
}

// Change implements calls.Sandbox.
func (a asked) Change(p Patch, actor string) (store.Sandbox, <-chan calls.Ending, error) {
	return a.b.patch(p, actor)
}

// Configure implements calls.Sandbox.
func (a asked) Configure(actor, detail string, change func(*store.Config) error) error {
	return a.b.configure(actor, detail, change)
}

// OpenNetwork implements calls.Sandbox.
func (a asked) OpenNetwork() { a.b.openNetwork() }

// Unfit implements calls.Sandbox.
func (a asked) Unfit() *errdef.Error { return a.b.unfitNow() }
